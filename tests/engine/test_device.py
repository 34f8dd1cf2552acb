"""Choice of device and precision, as far as a CPU can tell."""

import pytest

from bayesfed.engine import device
from bayesfed.errors import InputError


def test_bf16_is_chosen_by_capability_alone() -> None:
    assert device.has_bf16("fpu avx512f avx512_bf16")
    assert device.has_bf16("fpu amx_bf16 amx_tile")
    assert not device.has_bf16("fpu avx2 avx512f")
    assert device.choose_precision("fp32", "cpu") == "fp32"
    assert device.choose_precision("bf16", "cuda") == "bf16"
    assert device.choose_precision("auto", "cuda") == "fp32"
    assert device.choose_precision("tf32", "cuda") == "tf32"
    with pytest.raises(InputError, match="--precision tf32: only GPUs compute in TF32"):
        device.choose_precision("tf32", "cpu")
