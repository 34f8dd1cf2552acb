"""Multiply-adds of whatever operators run, by torch's formulas."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountedProducts(TorchDispatchMode):
    """Counts the multiply-adds of the products and convolutions that run inside, forward and backward.

    As torch's FlopCounterMode does, which loads torch's compiler first: that takes as long as loading torch.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # loads Triton

        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas, self.multiply_adds = flop_registry, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would load its compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := self.formulas.get(func.overloadpacket):
            self.multiply_adds += formula(*args, **(kwargs or {}), out_val=result) // 2
        return result
