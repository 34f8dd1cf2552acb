"""A step traced into a graph of operators, which several clients then take as one.

A step is written for one client. Traced it is a function of tensors alone, and `torch.func.vmap` makes of it one for
stacked tensors: products become batched products, convolutions grouped ones, for any method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesfed.core.errors import out_of_memory
from bayesfed.methods.node import Batch, Learner, Phase, State

aten = torch.ops.aten
# Of a stack: states, n, images, labels, weights, places and draws, each behind a dimension of clients. Gives the new values
# of the tensors that the step moves.
Batched = Callable[..., list[Tensor]]


class Drawing(Learner):
    """A learner that draws from its stream, and notes in which shapes."""

    def __init__(self, c: Learner, state: State) -> None:
        super().__init__(state=state, n=c.n, models=c.models, generator=c.generator, scaling=c.scaling)
        self.likes: list[Tensor] = []

    def noise(self, like: Tensor) -> Tensor:
        self.likes.append(like.detach())
        return super().noise(like)


class Given(Learner):
    """A learner whose draws are given, in the order in which its step asks for them."""

    fused = False

    def __init__(self, c: Learner, state: State, n: Tensor, draws: Sequence[Tensor]) -> None:
        super().__init__(state=state, n=n, models=c.models, generator=c.generator, scaling=c.scaling)
        self.draws = iter(draws)

    def noise(self, like: Tensor) -> Tensor:
        return next(self.draws)


@dataclass(frozen=True)
class Traced:
    """A step of stacked clients, the names of the tensors that it moves, and tensors in the shapes of a client's draws."""

    batched: Batched
    moved: list[str]
    likes: list[Tensor]


def traced(phase: Phase, c: Learner, batch: Batch, compiled: bool = False) -> Traced | None:
    """Trace a phase's step, as it is done by a learner on a mini-batch with weights and places. It changes neither.

    None where that fails, or where the graph could not draw for each client by itself. Numbers that the step takes from
    Python are in the graph as they are now. `compiled`: by torch's compiler, which makes few kernels of many operators.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # only here: it takes a second to load

    names, values = sorted(c.state), [c.state[name].clone() for name in sorted(c.state)]
    drawing, before = Drawing(c, dict(zip(names, copies(values), strict=True))), c.generator.get_state()
    phase.train(drawing, replace(batch, index=batch.index if phase.indexed else None))
    c.generator.set_state(before)

    def step(state: list[Tensor], n: Tensor, x: Tensor, y: Tensor, weight: Tensor, index: Tensor,
             draws: list[Tensor]) -> None:  # fmt: skip
        learner = Given(c, dict(zip(names, state, strict=True)), n, draws)
        phase.train(learner, Batch(x, y, weight, index if phase.indexed else None))

    rest: list[Any] = [c.n, batch.x, batch.y, batch.weight, batch.index]
    draws = [torch.zeros_like(one) for one in drawing.likes]
    try:
        # First without autograd, then without changes in place, each of which the other pass cannot see through.
        operators = make_fx(step, PLAIN)(copies(values), *rest, draws)

        def moved(state: list[Tensor], *others: Any) -> list[Tensor]:
            operators(state := copies(state), *others)
            return state

        with torch.no_grad():
            graph = make_fx(torch.func.functionalize(moved, remove="mutations"), PLAIN)(values, *rest, draws)
            kept = only_moved(graph)
            for node in graph.graph.find_nodes(op="call_function", target=aten.view.default):
                node.target = (
                    aten.reshape.default
                )  # stacked, channels last, it may be no view; nothing writes through it
            graph.recompile()
            batched = torch.func.vmap(graph)
            batched(*(torch.stack([one, one]) for one in (*values, *rest, *draws)))
    except Exception as error:  # the step itself has been done: the client by itself will train, or say what is wrong
        if out_of_memory(error):
            raise
        return None
    if compiled:
        batched = compiler(batched)
    return Traced(batched, [names[place] for place in kept], drawing.likes)


def compiler(batched: Batched) -> Batched:
    """Return a function by torch's compiler."""
    import torch._dynamo  # only here: it takes seconds to load

    # All graphs count as one function there, and each number of clients is compiled by itself.
    torch._dynamo.config.recompile_limit = 256
    found: Batched = torch.compile(batched, fullgraph=True, dynamic=False)
    return found


def copies(state: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors."""
    return [tensor.clone() for tensor in state]


def only_moved(graph: torch.fx.GraphModule) -> list[int]:
    """Leave out of a graph's results those that are copies of what it is given; return which are left."""
    (end,) = graph.graph.find_nodes(op="output")
    (results,) = end.args
    moved = [place for place, one in enumerate(results) if not is_input(one)]
    end.args = ([results[place] for place in moved],)
    graph.graph.eliminate_dead_code()
    graph.graph.set_codegen(torch.fx.graph.CodeGen())  # inputs side by side: its own one knows the lists as they were
    return moved


def is_input(node: torch.fx.Node) -> bool:
    """Return whether a node is an input, or a copy of one."""
    return node.op == "placeholder" or (node.target == aten.clone.default and is_input(node.args[0]))  # type: ignore[arg-type]


def sgd(theta: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], *, lr: Any, momentum: float,
        weight_decay: float, **_: Any) -> None:  # fmt: skip
    """`torch._fused_sgd_`, as `steps.SGD` asks for it, in operators that vmap knows."""
    for place, (p, g) in enumerate(zip(theta, gradients, strict=True)):
        step = g + weight_decay * p
        if buffers:
            step = buffers[place].mul_(momentum).add_(step)
        p.sub_(lr * step)


def adam(theta: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor], _: list[Tensor],
         steps: list[Tensor], *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
         decoupled: bool = False, **__: Any) -> None:  # fmt: skip
    """`torch._fused_adam_`, as `steps.Adam` asks for it, in operators that vmap knows; `decoupled`: `_fused_adamw_`."""
    for p, gradient, m, v, t in zip(theta, gradients, first, second, steps, strict=True):
        if decoupled:
            p.mul_(1 - lr * weight_decay)
        g = gradient if decoupled else gradient + weight_decay * p
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        bias1, bias2 = ((1 - beta ** t.double()).to(p.dtype) for beta in (beta1, beta2))
        p.sub_(lr / bias1 * m / ((v / bias2).sqrt() + eps))


def add_to_each(tensors: list[Tensor], value: float) -> None:
    """`torch._foreach_add_`."""
    for tensor in tensors:
        tensor.add_(value)


def convolution_relu(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
    """`torch.cudnn_convolution_relu`."""
    return torch.conv2d(x, weight, bias, *geometry).relu()


def addmm_relu(bias: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`torch._addmm_activation`, as networks ask for it."""
    return torch.addmm(bias, one, other).relu()


def addmm_relu_out(bias: Tensor, one: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
    """`torch._addmm_activation` into given memory."""
    return out.copy_(addmm_relu(bias, one, other))


def copied(old: Tensor, new: Tensor, _: bool = False) -> Tensor:
    """`torch.copy`: what is in a tensor after another was copied there."""
    return new.to(old.dtype).expand_as(old).clone()


adamw = functools.partial(adam, decoupled=True)
# What vmap has no rule for.
PLAIN: dict[Any, Callable[..., Any]] = {
    aten._addmm_activation.default: addmm_relu,
    aten._addmm_activation.out: addmm_relu_out,
    aten._foreach_add_.Scalar: add_to_each,
    aten.copy.default: copied,
    aten._fused_sgd_.default: sgd,
    aten._fused_sgd_.tensor_lr: sgd,
    aten._fused_adam_.default: adam,
    aten._fused_adam_.tensor_lr: adam,
    aten._fused_adamw_.default: adamw,
    aten._fused_adamw_.tensor_lr: adamw,
    aten.cudnn_convolution_relu.default: convolution_relu,
}
