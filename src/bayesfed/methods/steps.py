"""The pieces that steps are made of: gradients, losses per image, and optimisers on flat parameter vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.methods.base import Learner, State

PIECE = 8192  # entries of a vector for one block of a GPU


def leaves(*tensors: Tensor) -> list[Tensor]:
    """The tensors as starting points of a gradient, sharing their memory."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def grad(loss: Tensor, *wrt: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a loss with respect to `leaves`."""
    return torch.autograd.grad(loss.sum(), wrt)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y] per image: logits (B, classes), y (B,), gives (B,)."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(teacher/T) || softmax(student/T)) per image from logits (B, classes); no gradient to the teacher.

    Summed over classes, so `batch.mean` of it is the batch mean of FML and HBFL eq. 4.2.
    """
    log_p = F.log_softmax(teacher.detach() / temperature, -1)
    log_q = F.log_softmax(student / temperature, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def pieces(vector: Tensor) -> list[Tensor]:
    """The vector as views that PyTorch's fused optimisers share out among a GPU's blocks; whole on a CPU.

    One block works on up to 65536 entries of a tensor: a network of the papers' size would keep two blocks busy.
    """
    return list(vector.split(PIECE)) if vector.is_cuda else [vector]


@dataclass(frozen=True)
class SGD:
    """SGD as in PyTorch: v <- momentum v + (g + decay theta), theta <- theta - lr v."""

    lr: float
    momentum: float
    weight_decay: float

    def start(self, name: str, theta: Tensor) -> State:
        """A fresh state for the vector `name`."""
        return {f"{name}.momentum": torch.zeros_like(theta)}

    @torch.no_grad()
    def step(self, c: Learner, name: str, gradient: Tensor) -> None:
        """Move the node's vector `name` and its momentum, in place, in one pass over memory."""
        momentum = pieces(c[f"{name}.momentum"]) if self.momentum else []
        torch._fused_sgd_(
            pieces(c[name]), pieces(gradient), momentum, lr=self.lr, momentum=self.momentum,
            weight_decay=self.weight_decay, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Adam:
    """Adam as in PyTorch, with the decay added to the gradient (coupled L2), beta 0.9 and 0.999, epsilon 1e-8."""

    lr: float
    weight_decay: float

    def start(self, name: str, theta: Tensor) -> State:
        """A fresh state for the vector `name`: both moments, and the count of steps."""
        zeros = torch.zeros_like(theta)
        return {f"{name}.m": zeros, f"{name}.v": zeros.clone(), f"{name}.t": torch.zeros((), device=theta.device)}

    @torch.no_grad()
    def step(self, c: Learner, name: str, gradient: Tensor) -> None:
        """Move the node's vector `name` and its moments, in place, in one pass over memory."""
        theta, t = pieces(c[name]), c[f"{name}.t"].add_(1)
        torch._fused_adam_(
            theta, pieces(gradient), pieces(c[f"{name}.m"]), pieces(c[f"{name}.v"]), [], [t] * len(theta), lr=self.lr,
            beta1=0.9, beta2=0.999, weight_decay=self.weight_decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
