"""The pieces that steps are made of: gradients, losses per image, and optimisers on flat parameter vectors.

A step is a mini-batch of a small network, so what it costs on a GPU is many short kernels, and on a CPU passes over memory.
A loss of the usual kind has its gradient at the logits in closed form, `loss_gradient`, and no value; any other is written
with `cross_entropy`, `kl` and `batch.mean` and left to autograd. `grad` takes either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.core.errors import InputError, out_of_memory, words
from bayesfed.methods.method import Ground
from bayesfed.methods.node import Batch, Learner, State
from bayesfed.models.network import gradient, gradient_below, last_inputs, with_squares

Squares = Literal["batch", "images"]  # of the gradient of a mini-batch, or of those of its images, one by one
PIECE = 8192  # entries of a vector for one block of a GPU


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors as starting points of a gradient, sharing their memory."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def grad(output: Tensor, *wrt: Tensor, at: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the gradients of a loss with respect to `leaves`: of the loss `output`, or of the one whose gradient at
    `output`, the logits, is `at`. Straight by the network where there is nothing else between theta and its logits.
    """
    if at is not None and len(wrt) == 1 and (g := gradient(output, wrt[0], at)) is not None:
        return (g,)
    return torch.autograd.grad(output.sum() if at is None and output.dim() else output, wrt, at)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return -log softmax(logits)[y] per image: logits (B, classes), y (B,), gives (B,)."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(softmax(teacher/T) || softmax(student/T)) per image from logits (B, classes); no gradient to the
    teacher.

    Summed over classes, so `batch.mean` of it is the batch mean of FML and HBFL eq. 4.2.
    """
    log_p = F.log_softmax(teacher.detach() / temperature, -1)
    log_q = F.log_softmax(student / temperature, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def ce_gradient(c: Learner, name: str, batch: Batch) -> Tensor:
    """Return the gradient (P,) of batch.mean(CE(f(x; theta), y)) at theta, the vector of that name in the learner's
    state.
    """
    return ce_gradient_at(c, c[name], batch)


def ce_gradient_at(c: Learner, theta: Tensor, batch: Batch) -> Tensor:
    """Return the gradient (P,) of batch.mean(CE(f(x; theta), y)) at any theta (P,)."""
    (theta,) = leaves(theta)
    logits = c.model(theta, batch.x)
    (g,) = grad(logits, theta, at=loss_gradient(batch, logits))
    return g


def head_gradients(c: Learner, base: Tensor, heads: Tensor, batch: Batch) -> Tensor:
    """Return the gradients (D, d) of batch.mean(CE(f(x; theta), y)) in D heads (D, d), each at theta = (base, head): a head
    is the last layer's weight and bias, base (P - d,) all before it.

    Images go through the base once, where the network tells what its last layer is given.
    """
    x = c.last_inputs(torch.cat([base, heads[0]]), batch.x)
    if x is None:
        return torch.stack([ce_gradient_at(c, torch.cat([base, head]), batch)[len(base) :] for head in heads])
    g, _ = under_heads(x, heads, batch)
    in_weights = g.movedim(0, 1).flatten(1).mT @ x  # one product is faster than one for each head
    return torch.cat([in_weights.view(len(heads), -1), g.sum(1)], 1)


def base_gradient(c: Learner, base: Tensor, heads: Tensor, batch: Batch) -> Tensor:
    """Return the gradient (P - d,) in the base of the mean over D heads (D, d) of batch.mean(CE(f(x; theta), y)), as in
    `head_gradients`; images go through the base once there and back.
    """
    (theta,) = leaves(torch.cat([base, heads[0]]))
    logits = c.model(theta, batch.x)
    x = last_inputs(logits, theta)
    if x is None:
        (first,) = grad(logits, theta, at=loss_gradient(batch, logits))
        others = (ce_gradient_at(c, torch.cat([base, head]), batch) for head in heads[1:])
        return torch.stack([first, *others]).mean(0)[: len(base)]
    g, weights = under_heads(x.to(heads.dtype), heads, batch)
    return gradient_below(logits, theta, (g @ weights).mean(0))


def under_heads(x: Tensor, heads: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return `loss_gradient` at the logits (D, B, classes) that heads (D, d) make of x (B, width), and their weights
    (D, classes, width).
    """
    classes = heads.shape[-1] // (x.shape[-1] + 1)
    weights, biases = heads.split([heads.shape[-1] - classes, classes], -1)
    weights = weights.unflatten(-1, (classes, -1))
    logits = torch.addmm(biases.flatten(), x, weights.flatten(0, 1).mT)
    return loss_gradient(batch, logits.unflatten(-1, biases.shape).movedim(1, 0)), weights


def gradient_and_squares(c: Learner, name: str, batch: Batch, squares: Squares) -> tuple[Tensor, Tensor]:
    """Return `ce_gradient`, and the squares that a diagonal Fisher information gathers of it, (P,) both: those of its
    entries, or the mean over the batch's images of the squares of each image's own gradient.
    """
    if squares == "batch":
        g = ce_gradient(c, name, batch)
        return g, g.square()
    (theta,) = leaves(c[name])
    logits = c.model(theta, batch.x)
    # The gradient is a sum of 1/B of each image's, so the sum of their squares is 1/B of the mean.
    g, total = with_squares(logits, theta, loss_gradient(batch, logits)) or by_image(c, theta, batch)
    return g, batch.size * total


def by_image(c: Learner, theta: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the gradient and the sum over the images of the squares of what each has in it, of any network without
    statistics and draws: each image gets a vector of its own. In theta's dtype, since vmap and autocast do not go
    together.
    """
    (thetas,), images = leaves(theta.expand(len(batch.x), -1)), batch.x.to(theta.dtype)
    try:
        logits = torch.func.vmap(lambda theta, image: c.model(theta, image[None])[0])(thetas, images)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise InputError(
            f"method.squares: images, but the network takes no images one by one ({words(error)}); take batch"
        ) from None
    (each,) = grad(logits, thetas, at=loss_gradient(batch, logits))
    return each.sum(0), each.square().sum(0)


def gauss_newton(c: Learner, theta: Tensor, batch: Batch) -> Tensor:
    """Draw (P,) with the mean diag sum_i J_i^T (diag(p_i) - p_i p_i^T) J_i, the diagonal of the Gauss-Newton matrix.

    It is the square of a gradient that has at image i the logit gradient sqrt(p) s - p (sqrt(p)^T s), s a random sign for
    each class. No batch may be filled up: `Method.draws_by_image`.
    """
    (theta,) = leaves(theta)
    logits = c.model(theta, batch.x)
    p = F.softmax(logits.detach(), -1)
    rooted = p.sqrt() * c.noise(p).sign()
    (g,) = grad(logits, theta, at=rooted - p * rooted.sum(-1, keepdim=True))
    return g.square()


def no_squares(squares: Squares, ground: Ground) -> str:
    """Return why there are no such squares, for `Method.unfit`; "" if there are."""
    if squares == "batch" or ground.by_image:
        return ""
    return (
        "method.squares: images, but the network normalises over its mini-batch or draws in training, so that no image has a "
        "gradient of its own; take batch"
    )


def loss_gradient(
    batch: Batch, logits: Tensor, *, ce: float = 1.0, kl: float = 0.0, teacher: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Return the gradient at the logits z of batch.mean(ce CE(z, y) + kl KL(softmax(t/T) || softmax(z/T))), t the
    teacher's:

        (ce (softmax(z) - onehot(y)) + kl/T (softmax(z/T) - softmax(t/T))) / B

    in a few passes over (B, classes), or over the logits (D, B, classes) of several models, without the value of the loss.
    """
    z, T = logits.detach(), temperature
    share = 1.0 if batch.weight is not None else 1 / len(batch.y)
    ce, kl = ce * share, kl / T * share
    if teacher is None:
        g = F.softmax(z, -1).mul_(ce)
    elif T == 1:
        g = F.softmax(z, -1).mul_(ce + kl).sub_(F.softmax(teacher.detach(), -1), alpha=kl)
    else:
        g = F.softmax(z / T, -1).sub_(F.softmax(teacher.detach() / T, -1)).mul_(kl).add_(F.softmax(z, -1), alpha=ce)
    y = batch.y.unsqueeze(1)
    g.scatter_(-1, y if g.dim() == 2 else y.expand(len(g), -1, -1), -ce, reduce="add")
    return g if batch.weight is None else g.mul_(batch.weight[:, None])


def clip(g: Tensor, norm: float | None) -> Tensor:
    """Scale the gradient down to that length where it is longer, as torch's clip_grad_norm_ does; None leaves it."""
    return g if norm is None else g * (norm / (g.norm() + 1e-6)).clamp(max=1)


def pieces(c: Learner, vectors: Iterable[Tensor]) -> list[Tensor]:
    """Return the vectors as views that PyTorch's fused optimisers share out among a GPU's blocks; whole on a CPU, and of a
    step that is traced.

    One block works on up to 65536 entries of a tensor: a network of the papers' size would keep two blocks busy.
    """
    return [piece for vector in vectors for piece in (vector.split(PIECE) if vector.is_cuda and c.fused else [vector])]


@dataclass(frozen=True)
class SGD:
    """SGD as in PyTorch: v <- momentum v + (g + decay theta), theta <- theta - lr v."""

    lr: float
    momentum: float
    weight_decay: float
    undecayed: tuple[str, ...] = ()  # vectors without weight decay

    def start(self, name: str, theta: Tensor) -> State:
        """Return a fresh state for the vector `name`."""
        return {f"{name}.momentum": torch.zeros_like(theta)}

    @torch.no_grad()
    def step(self, c: Learner, **gradients: Tensor) -> None:
        """Move the node's vectors, each by the gradient under its name, and their momenta, in place, in one pass over
        those with weight decay and one over those without."""
        for decay, vectors in by_decay(gradients, self.weight_decay, self.undecayed):
            theta = pieces(c, (c[name] for name in vectors))
            momentum = pieces(c, (c[f"{name}.momentum"] for name in vectors)) if self.momentum else []
            torch._fused_sgd_(
                theta, pieces(c, vectors.values()), momentum, lr=c.rate(self.lr), momentum=self.momentum,
                weight_decay=decay, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )  # fmt: skip


@dataclass(frozen=True)
class Adam:
    """Adam as in PyTorch, beta 0.9 and 0.999, epsilon 1e-8: the decay added to the gradient (coupled L2), or, decoupled,
    taken off theta as AdamW does."""

    lr: float
    weight_decay: float
    undecayed: tuple[str, ...] = ()  # vectors without weight decay
    decoupled: bool = False

    def start(self, name: str, theta: Tensor) -> State:
        """Return a fresh state for the vector `name`: both moments, and the count of steps."""
        zeros = torch.zeros_like(theta)
        return {f"{name}.m": zeros, f"{name}.v": zeros.clone(), f"{name}.t": torch.zeros((), device=theta.device)}

    @torch.no_grad()
    def step(self, c: Learner, **gradients: Tensor) -> None:
        """Move the node's vectors, each by the gradient under its name, and their moments, in place, in one pass over
        those with weight decay and one over those without."""
        torch._foreach_add_([c[f"{name}.t"] for name in gradients], 1)
        move = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        for decay, vectors in by_decay(gradients, self.weight_decay, self.undecayed):
            theta = pieces(c, (c[name] for name in vectors))
            m, v = (pieces(c, (c[f"{name}.{moment}"] for name in vectors)) for moment in "mv")
            t = [c[f"{name}.t"] for name, g in vectors.items() for _ in pieces(c, [g])]
            move(
                theta, pieces(c, vectors.values()), m, v, [], t, lr=c.rate(self.lr), beta1=0.9, beta2=0.999,
                weight_decay=decay, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip


@dataclass(frozen=True)
class IVON:
    """IVON (Shen et al. 2024, Algorithm 1): a Newton-like step of variational inference, q = N(m, 1/(lambda (h + w))).

    The loss is l(theta) + <v, theta> - 1/2 theta^T V theta, l the mean over a batch; v and the diagonal V are BayesADMM's
    duals. The prior is N(m_0, 1/(lambda w)). With eps ~ N(0, I), d = eps/sqrt(lambda (h + w)), and g the gradient of l at
    m + d:

        H <- lambda (h + w) d g - V
        b <- beta1 b + (1 - beta1) g
        h <- beta2 h + (1 - beta2) H + (1 - beta2)^2/2 (h - H)^2/(h + w)
        m <- m - lr (b/(1 - beta1^t) + v - V m + w (m - m_0))/(h + w)

    h + w stays positive. Scales and shifts of normalisation have no distribution: they are not drawn, and keep their h.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99999

    def start(self, name: str, m: Tensor, h: float) -> State:
        """Return a fresh state for the mean `name`: curvature, momentum, and the count of steps."""
        count = torch.zeros((), dtype=m.dtype, device=m.device)
        return {f"{name}.h": torch.full_like(m, h), f"{name}.b": torch.zeros_like(m), f"{name}.t": count}

    def noise(self, c: Learner, name: str, size: Tensor, w: Tensor) -> Tensor:
        """Draw d (P,); `size` is lambda (), `w` a vector or a number."""
        return c.weights(c.noise(c[name]), 0) * (size * (c[f"{name}.h"] + w)).rsqrt()

    @torch.no_grad()
    def step(self, c: Learner, name: str, g: Tensor, d: Tensor, size: Tensor, w: Tensor, *, m_0: Tensor | None = None,
             duals: tuple[Tensor, Tensor] | None = None) -> None:  # fmt: skip
        """Move the mean, its curvature and its momentum in place, by the gradient g at m + d; m_0 and the duals (v, V) are 0
        unless given.
        """
        m, h, b, t = c[name], c[f"{name}.h"], c[f"{name}.b"], c[f"{name}.t"]
        curved = size * (h + w) * d * g
        found = c.weights(curved - duals[1] if duals else curved, h)
        away = (1 - self.beta2) * (h - found)
        h.sub_(away).add_(away.square() / (2 * (h + away + w)))
        b.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        t.add_(1)
        slope = b / (1 - self.beta1**t)
        if duals:
            slope = slope + duals[0] - duals[1] * m
        slope = slope + w * (m if m_0 is None else m - m_0)
        m.sub_(c.rate(self.lr) * slope / (h + w))


def by_decay(
    gradients: dict[str, Tensor], decay: float, undecayed: tuple[str, ...]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """Yield the gradients of vectors with that weight decay, then of those without, where there are such."""
    for factor, wanted in ((decay, False), (0.0, True)):
        if vectors := {name: g for name, g in gradients.items() if (name in undecayed) is wanted}:
            yield factor, vectors
