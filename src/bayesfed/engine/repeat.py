"""Comparison of what is done twice from the same state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

# Of how far a tensor has come, on a GPU, where a sum may be in another order each time; on a CPU none.
ROUNDING = 0.01


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor], since: Mapping[str, Tensor],
              rounding: float | None = None) -> str | None:  # fmt: skip
    """Return the first tensor that is not the same in two states that came from `since`; None where all are.

    NaN equals NaN. `rounding`: of how far a tensor has come they may differ in; ROUNDING on a GPU and none on a CPU, unless
    given.
    """
    for name in [*one, *(other.keys() - one.keys())]:
        if name not in one or name not in other or not alike(one[name], other[name], since.get(name), rounding):
            return name
    return None


def alike(one: Tensor, other: Tensor, since: Tensor | None, rounding: float | None = None) -> bool:
    """Return whether two tensors that were `since`, or nothing, are the same."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    same = (one == other) | ((one != one) & (other != other))
    if bool(same.all()):
        return True
    rounding = rounding or (0.0 if one.device.type == "cpu" else ROUNDING)
    if not rounding or not one.is_floating_point():
        return False
    come = one if since is None or since.shape != one.shape else one - since
    apart = (one - other).double().masked_fill(same, 0)
    return bool(apart.norm() <= rounding * come.double().nan_to_num(0, 0, 0).norm())


def chosen(count: int, last: bool) -> bool:
    """Return whether to look again at what may have begun since: the first time, the second, the fourth and so on, and
    the last.
    """
    return last or not count & (count - 1)
