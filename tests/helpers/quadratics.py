"""A federation whose clients have quadratic losses: for methods against what they give in closed form, in float64."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesfed import methods
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, State

# Two scalar clients, whose posterior has the precision 5 and the mean 1/5, with a prior of precision 1.
SCALARS = [[3.0], [1.0]], [[2.0], [-1.0]]


def make(name: str, **options: Any) -> Method:
    """A method with these options."""
    method = methods.get(name)
    return method(method.Options(**options))


def hold_fixed_point(made: "Callable[[Tensor, Tensor], Quadratics]", half: bool) -> "Quadratics":
    """Play clients whose quadratics are not diagonal, or half of them by turns: the end is the mean-field optimum, the exact
    mean and the diagonal of the exact precision.
    """
    generator = torch.Generator().manual_seed(0)
    roots = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64) / 2
    A, b = roots @ roots.mT + 0.5 * torch.eye(6), torch.randn(4, 6, generator=generator, dtype=torch.float64)
    found = made(A, b)
    for round in range(400 * (1 + half)):
        found.play([[0, 1], [2, 3], [0, 3], [1, 2]][round % 4] if half else None)
    exact = A.sum(0) + torch.eye(6)
    torch.testing.assert_close(found.server["m"], torch.linalg.solve(exact, b.sum(0)), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.server["S"], exact.diagonal(), rtol=1e-6, atol=0)
    return found


def hold_one_client(made: "Callable[[Tensor, Tensor], Quadratics]") -> None:
    """Play one client whose quadratic is not diagonal, with a prior of precision 0.5: each round ends at the exact mean and
    the diagonal of the exact precision.
    """
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    A, b = root @ root.T, torch.randn(6, generator=generator, dtype=torch.float64)
    found, exact = made(A[None], b[None]), A + 0.5 * torch.eye(6)
    for _ in range(2):
        found.play()
        torch.testing.assert_close(found.server["m"], torch.linalg.solve(exact, b), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.server["S"], exact.diagonal(), rtol=1e-12, atol=0)


class Quadratics:
    """n_k l_k(theta) = 1/2 theta^T A_k theta - b_k^T theta; A_k (P, P) or its diagonal (P,).

    A client's round is `steps` steps of the method, or what `solve` makes of the node; `measure` is a pass of a method's
    second phase.
    """

    def __init__(self, method: Method, A: Any, b: Any, n: Sequence[float] = (4, 2), steps: int = 1) -> None:
        self.method, self.steps, self.round = method, steps, 0
        self.A, self.b = torch.as_tensor(A, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
        self.n, self.start = torch.tensor([*n, 0.0], dtype=torch.float64), torch.zeros_like(self.b[0])
        self.kept: dict[int, State] = {}
        self.solve: Callable[[Node], None] = self.train
        self.measure: Callable[[Node], None] = lambda c: None
        self.server = method.init_server(self.node(-1))

    def node(self, k: int) -> Node:
        """Client k, or the server, -1, with an empty state."""
        generator = torch.Generator().manual_seed(1000 * self.round + k + 1)
        return Node(
            client=k, clients=len(self.b), round_number=self.round, rounds=lambda: 100, epochs=1, batches=0, n=self.n[k], total=self.n[:-1].sum(),
            models={}, generator=generator, initial=lambda *args: self.start.clone(),
            shared=len(self.start), shapes={"global": [(len(self.start),)]}, classes=2, seed=lambda *args: None,
            accuracy=lambda *args: torch.zeros(()), images=lambda: (torch.zeros(0), torch.zeros(0)), scaling=None,
            statistics={},
        )  # fmt: skip

    def gradient(self, k: int, theta: Tensor) -> Tensor:
        """Of l_k (P,)."""
        A = self.A[k]
        return ((A @ theta if A.dim() == 2 else A * theta) - self.b[k]) / self.n[k]

    def train(self, c: Node) -> None:
        """The method's own steps."""
        batch = Batch(torch.zeros(1), torch.tensor([c.client]))
        with pytest.MonkeyPatch.context() as patch:
            for module in {
                cls.__module__ for cls in type(self.method).__mro__ if cls.__module__.startswith("bayesfed")
            }:
                for name, function in self.gradients().items():
                    patch.setattr(sys.modules[module], name, function, raising=False)
            for _ in range(self.steps):
                self.method.step(c, batch)

    def gradients(self) -> dict[str, Callable[..., Tensor]]:
        """In the place of those of the cross-entropy, by name."""

        def at(c: Learner, theta: Tensor, batch: Batch) -> Tensor:
            return self.gradient(int(batch.y), theta)

        return {"ce_gradient_at": at, "ce_gradient": lambda c, name, batch: at(c, c[name], batch)}

    def client(self, k: int) -> Node:
        """Client k after its round, before `finish`."""
        c = self.node(k)
        if k not in self.kept:
            self.kept[k] = self.method.init_client(self.node(k))
        server = self.node(-1)
        server.state = self.server
        c.state = {name: tensor.clone() for name, tensor in self.kept[k].items()}
        c.state |= self.method.start(c, self.method.message(server, k))
        self.solve(c)
        self.measure(c)
        return c

    def play(self, who: Sequence[int] | None = None) -> dict[int, Node]:
        """One round of these clients, or all; gives them as they end."""
        self.round += 1
        who = range(len(self.b)) if who is None else who
        ended = {k: self.client(k) for k in who}
        total = sum(self.n[k] for k in who)
        updates = []
        for k, c in ended.items():
            sent = {name: tensor.clone() for name, tensor in self.method.finish(c).items()}
            updates.append(Update(k, int(self.n[k]), self.n[k] / total, sent))
            self.kept[k] = {name: c[name] for name in self.kept[k]}
        server = self.node(-1)
        server.state = dict(self.server)
        self.logged = self.method.aggregate(server, updates)
        self.server = server.state
        return ended
