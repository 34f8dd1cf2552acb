"""Random numbers of any module, from a generator that it knows nothing of."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions that draw, and take a generator; the second kind, in the shape of a tensor, does not take one everywhere.
DRAW = {
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
    torch.poisson, Tensor.bernoulli, Tensor.multinomial, Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_,
    Tensor.geometric_, Tensor.log_normal_, Tensor.normal_, Tensor.random_, Tensor.uniform_,
}  # fmt: skip
LIKE: dict[Any, Callable[[Tensor, torch.Generator], Tensor]] = {
    torch.rand_like: lambda like, generator: torch.empty_like(like).uniform_(generator=generator),
    torch.randn_like: lambda like, generator: torch.empty_like(like).normal_(generator=generator),
}
# Functions written in Python, which call some of the above.
COMPOSED = {F.multi_head_attention_forward}
# Dropout of entries, or of whole channels where so many dimensions are dropped together.
DROPOUTS = {F.dropout: 0, torch.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class Drawing(TorchFunctionMode):
    """Inside, random functions draw from a generator instead of torch's global one, which all threads would share."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in COMPOSED:
            with self:
                return body(func)(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if func in DROPOUTS:
            return self.dropout(DROPOUTS[func], *args, **kwargs)
        if func in LIKE and len(args) == 1 and not kwargs:
            return LIKE[func](args[0], self.generator)
        if func in DRAW and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)

    def dropout(self, whole: int, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Set entries, or channels of `whole` dimensions, to 0 with probability p; all else grows by 1/(1 - p)."""
        if not training or p == 0:
            return x
        shape = x.shape[: x.dim() - whole] + (1,) * whole
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=self.generator)
        keep = keep.div_(1 - p) if p < 1 else keep
        return x.mul_(keep) if inplace else x * keep

    def attention(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        """Compute softmax(Q K' / sqrt(d) + mask) V (..., queries, d) with dropout of the softmax, for which the fused
        function takes no generator. Without dropout that function itself.
        """
        if dropout_p == 0:
            fused: Tensor = F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return fused
        if enable_gqa:  # several heads of the query share one of key and value
            heads = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(heads, -3), value.repeat_interleave(heads, -3)
        weights = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = weights.new_ones(weights.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            barred = attn_mask.dtype == torch.bool
            weights = weights.masked_fill(~attn_mask, -torch.inf) if barred else weights + attn_mask
        return self.dropout(0, weights.softmax(-1), dropout_p) @ value


@functools.cache
def body(composed: Any) -> Callable[..., Any]:
    """Return a function of torch.nn.functional that does not ask whether a mode does its work, but runs: so what it
    calls asks.
    """
    module = {**composed.__globals__, "has_torch_function": lambda tensors: False}
    return types.FunctionType(composed.__code__, module, composed.__name__, composed.__defaults__)


class Culprit(TorchFunctionMode):
    """Finds the first function inside that draws from torch's global generator: its `name`."""

    name = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not self.name and not torch.equal(torch.get_rng_state(), before):
            self.name = str(func.__name__)
        return result
