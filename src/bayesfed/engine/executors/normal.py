"""Normal numbers to the bits of `torch.randn` on a CPU, in a third of its time, where there is a C compiler.

torch draws uniform numbers one by one. Here a loop draws many at once (`normal.c`). It is used only where it gives torch's
own numbers and leaves a generator in torch's own state, which is tried when it is made.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bayesfed.engine.executors import native

FEWEST = 16  # torch draws fewer in another way
TRIED = (FEWEST, 17, 5003)  # numbers at a time: the last ones are drawn twice, and the generator's words used up
Draw = Callable[[Tensor, torch.Generator], None]


@functools.cache
def drawing() -> Draw | None:
    """Return a function that fills a vector of fp32, FEWEST entries or more, from a generator; None where there is none."""
    library = native.compiled(Path(__file__).with_name("normal.c").read_text(encoding="utf-8"), contracted=True)
    if library is None:
        return None

    def draw(to: Tensor, generator: torch.Generator) -> None:
        state = generator.get_state()
        library.draw(*(ctypes.c_void_p(each.data_ptr()) for each in (state, to)), ctypes.c_long(to.numel()))
        generator.set_state(state)

    return draw if all(map(functools.partial(gives_torchs_bits, draw), TRIED)) else None


def gives_torchs_bits(draw: Draw, count: int) -> bool:
    """Return whether so many numbers are those of torch, and the generator behind them."""
    found, expected = (torch.Generator().manual_seed(count) for _ in range(2))
    for _ in range(2):
        numbers = torch.empty(count)
        draw(numbers, found)
        if not torch.equal(numbers, torch.randn(count, generator=expected)):
            return False
    return torch.equal(found.get_state(), expected.get_state())
