"""BNFed's `form: code` against loops over single neurons and their entries, in float64, and what it leaves alone."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play, tensors
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from bayesfed.engine.executors import EXECUTORS
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.methods.bnfed import Layers
from bayesfed.methods.method import Update
from bayesfed.methods.node import Node

Make = Callable[..., dict[str, Any]]
SIGMA, SIGMA_0, GAMMA = 0.4, 1.7, 2.5
CODE = {"name": "bnfed", "form": "code", "sigma": SIGMA, "sigma_0": SIGMA_0, "gamma": GAMMA, "iterations": 2}


class Oracle:
    """The matching written out: an atom is the set of its members (client, neuron), and has its sums anew each time."""

    def __init__(self, v: list[list[list[float]]], images: list[list[float]], inputs: int) -> None:
        """`v`: by client, neuron and entry: weights in, the bias, weights out. `images`: by client and class."""
        self.v, self.clients, self.inputs = v, len(v), inputs
        totals = [sum(of) for of in zip(*images, strict=True)]
        out = [[n / max(total, 1) for n, total in zip(of, totals, strict=True)] for of in images]
        self.s = [[1 / SIGMA] * (inputs + 1) + [share / SIGMA for share in of] for of in out]
        self.mu = [0.1 if entry == inputs else 0.0 for entry in range(len(v[0][0]))]
        self.members: list[list[tuple[int, int]]] = []

    def fit(self, members: list[tuple[int, int]]) -> float:
        """The sum over entries of (p mu + S)^2 / (p + T)."""
        found = 0.0
        for entry, mu in enumerate(self.mu):
            total = mu / SIGMA_0 + sum(self.s[j][entry] * self.v[j][h][entry] for j, h in members)
            found += total**2 / (1 / SIGMA_0 + sum(self.s[j][entry] for j, _ in members))
        return found

    def visit(self, j: int) -> None:
        self.members = [kept for atom in self.members if (kept := [one for one in atom if one[0] != j])]
        table = []
        for h in range(len(self.v[j])):
            row = []
            for atom in self.members:
                m = min(len(atom), 10)
                row.append(self.fit([*atom, (j, h)]) - self.fit(atom) + math.log(m / (self.clients - m)))
            for k in range(len(self.v[j])):
                row.append(self.fit([(j, h)]) - self.fit([]) - 2 * math.log((k + 1) * self.clients / GAMMA))
            table.append(row)
        old = len(self.members)
        for h, column in zip(*linear_sum_assignment(table, maximize=True), strict=True):
            if column < old:
                self.members[column].append((j, int(h)))
            else:
                self.members.append([(j, int(h))])

    def places(self) -> list[list[int]]:
        at = {one: i for i, atom in enumerate(self.members) for one in atom}
        return [[at[j, h] for h in range(len(self.v[j]))] for j in range(self.clients)]

    def atoms(self) -> list[list[float]]:
        return [
            [
                (mu / SIGMA_0 + sum(self.s[j][entry] * self.v[j][h][entry] for j, h in atom))
                / (1 / SIGMA_0 + sum(self.s[j][entry] for j, _ in atom))
                for entry, mu in enumerate(self.mu)
            ]
            for atom in self.members
        ]

    def last(self, biases: list[list[float]]) -> list[float]:
        out = [s[self.inputs + 1 :] for s in self.s]
        return [
            (0.1 / SIGMA_0 + sum(s[c] * b[c] for s, b in zip(out, biases, strict=True)))
            / (1 / SIGMA_0 + sum(s[c] for s in out))
            for c in range(len(out[0]))
        ]


def small(of: Federation, hidden: int, inputs: int) -> Callable[[int], Node]:
    """Makes the server of a round, with so small a network that loops over its entries end."""

    def server(round: int) -> Node:
        node = of.node(SERVER, round)
        sizes = [hidden * inputs, hidden, hidden * 10, 10]
        node.split = lambda theta, network="global": theta.split(sizes)  # type: ignore[method-assign]
        node.initial = lambda network="global": torch.zeros(sum(sizes), dtype=torch.float64)  # type: ignore[method-assign]
        return node

    return server


@pytest.mark.parametrize("clients", [4, 12])
def test_rounds_are_the_loops_written_out(clients: int, mapping: Make, data_dir: Path) -> None:
    """Three rounds: the first in order, the others from the places before; with 12 clients counts above 10 are capped."""
    of = federation(mapping(CODE, partition={"alpha": 100.0, "clients": clients}), data_dir)
    server_of, hidden, inputs = small(of, 3, 2), 3, 2
    server = server_of(0)
    state = server.state = of.method.init_server(server)
    layers = Layers.of(server)
    generator = torch.Generator().manual_seed(clients)
    common = torch.randn(hidden, inputs + 11, generator=generator, dtype=torch.float64)
    images = torch.randint(0, 9, (clients, 10), generator=generator)
    images[:, 9] = 0  # a class that nobody has
    matched, oracle = [], None
    for round in (1, 2, 3):
        # Clients whose neurons are alike, but for client 0's, and in another order each.
        noise = torch.randn(clients, hidden, inputs + 11, generator=generator, dtype=torch.float64)
        v = torch.stack([common[torch.randperm(hidden, generator=generator)] for _ in range(clients)]) + 0.5 * noise
        v[0] += 3
        biases = torch.randn(clients, 10, generator=generator, dtype=torch.float64)
        server = server_of(round)
        server.state = state
        share = torch.tensor(1 / clients, dtype=torch.float64)
        updates = [
            Update(k, 10, share, {"theta": layers.theta(v[k], biases[k]), "images": images[k]}) for k in range(clients)
        ]
        before = oracle.members if oracle else []
        oracle = Oracle(v.tolist(), images.tolist(), inputs)
        oracle.members = before
        again = server_of(round)
        visits = [] if round > 1 else [*range(clients)]
        for _ in range(2):
            visits += again.noise(torch.zeros(clients, dtype=torch.float64)).argsort().tolist()
        for j in visits:
            oracle.visit(j)
        logged = of.method.aggregate(server, updates)
        assert server["places"].tolist() == oracle.places()
        exact = [torch.tensor(one, dtype=torch.float64) for one in (oracle.atoms(), oracle.last(biases.tolist()))]
        torch.testing.assert_close(server["atoms"], exact[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(server["last"], exact[1], rtol=1e-10, atol=1e-12)
        assert logged["atoms"] == len(oracle.members)
        matched.append(max(map(len, oracle.members)))
    assert hidden < len(oracle.members) < hidden * clients
    assert max(matched) > 10 or clients == 4


def test_every_client_begins_with_a_network_of_its_own(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "bnfed", "form": "code"}), data_dir)
    server = of.node(SERVER, 0)
    server.state = of.method.init_server(server)
    layers, thetas = Layers.of(server), [of.method.message(server, k)["theta"] for k in range(4)]
    weights = torch.cat([layers.neurons(theta)[0] for theta in thetas])
    biases = [weights[:, layers.inputs], *(layers.neurons(theta)[1] for theta in thetas)]
    assert all(bool((one == 0.1).all()) for one in biases)
    drawn = torch.cat([weights[:, : layers.inputs], weights[:, layers.inputs + 1 :]], 1)
    assert len(drawn.unique(dim=0)) == 400
    assert float(drawn.std()) == pytest.approx(0.1, rel=0.02)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.002)
    again = of.node(SERVER, 0)
    again.state = of.method.init_server(again)
    assert torch.equal(again["atoms"], server["atoms"])


@pytest.mark.usefixtures("unwatched")
def test_clients_say_how_many_images_of_each_class_they_have(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "bnfed", "form": "code"}), data_dir)
    sent, finish = {}, of.method.finish

    def noting(c: Node) -> dict[str, Tensor]:
        sent[c.client] = finish(c)["images"].tolist()
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    play(of, 1)
    for k in range(4):
        labels = of.shards[k].train_images.labels[of.shards[k].train].tolist()
        assert sent[k] == [labels.count(label) for label in range(10)]


@pytest.mark.parametrize(
    "changes", [{}, {"participation": 0.5}, {"method": {"select": "test", "iterations": 0}}], ids=str
)
def test_every_executor_is_eager_to_rounding(changes: dict[str, Any], mapping: Make, data_dir: Path) -> None:
    """Three rounds: also where other clients than before take part, and where hyperparameters are chosen."""
    method = {"name": "bnfed", "form": "code", "iterations": 1} | changes.get("method", {})
    of = federation(mapping(**{"partition": {"alpha": 0.3, "clients": 4}} | changes | {"method": method}), data_dir)
    eager = tensors(play(of, 3))
    for executor in EXECUTORS.keys() - {"eager"}:
        found = tensors(play(of, 3, executor=executor))
        assert found.keys() == eager.keys()
        for name, tensor in eager.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12)


def test_a_resumed_run_goes_on_from_the_places(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "bnfed", "form": "code", "lr": 0.1}, rounds=3), data_dir)
    whole, first = tensors(play(of, 3)), play(of, 1)
    again = tensors(
        play(federation(mapping({"name": "bnfed", "form": "code", "lr": 0.1}, rounds=3), data_dir), 2, first)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
