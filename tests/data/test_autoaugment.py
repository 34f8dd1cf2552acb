"""AutoAugment of whole batches against torchvision's of single images, pixel by pixel."""

import builtins
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.data import autoaugment
from bayesfed.data.autoaugment import POLICIES, AutoAugment


def pictures(count: int, channels: int, side: int) -> Tensor:
    """uint8 (count, C, side, side): a few of one colour, smooth ones of low and high contrast, noise."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=random)
    coarse = torch.rand((count // 2, channels, 4, 4), generator=random)
    coarse *= torch.rand((count // 2, 1, 1, 1), generator=random)  # contrasts of their own
    smooth = F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1) * 255
    images[: count // 2] = smooth.long()
    images[:4] = images[:4, :, :1, :1]
    return images.to(torch.uint8)


def torchvisions() -> Any:
    """torchvision's own, imported where it is used, since that takes a second."""
    from torchvision.transforms import autoaugment as torchvision

    return torchvision.AutoAugment(torchvision.AutoAugmentPolicy.CIFAR10)


def one_by_one(images: Tensor, draws: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """torchvision's AutoAugment of each image, with the given draws in place of its own."""
    original = torchvisions()
    found = []
    for image, (policy, *rest) in zip(images, draws.tolist(), strict=True):
        drawn = (int(policy), torch.tensor(rest[:2]), torch.tensor(rest[2:]).long())
        monkeypatch.setattr(original, "get_params", lambda count, drawn=drawn: drawn)
        found.append(original(image))
    return torch.stack(found)


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 32), (3, 28), (1, 9)])
def test_every_policy_and_sign_equals_torchvisions(channels: int, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every policy with every pair of signs: both operations, either of them, none, and chances on the edge."""
    original = torchvisions()
    rows: list[list[float]] = []
    for policy, ((_, first, _), (_, second, _)) in enumerate(original.policies):
        for signs in ([0, 0], [0, 1], [1, 0], [1, 1]):
            rows += [[policy, *chances, *signs] for chances in ((0, 0), (0, 1), (1, 0), (1, 1), (first, second))]
    draws = np.array(rows)
    draws[:, 1:3] = draws[:, 1:3].astype(np.float32)
    draws = draws[np.random.default_rng(0).permutation(len(draws))]
    images = pictures(len(draws), channels, side)
    wanted = one_by_one(images, draws, monkeypatch)
    found = AutoAugment(side)(images.clone(), draws)
    assert found.dtype == torch.uint8
    assert torch.equal(found, wanted)
    changed = (found != images).flatten(1).any(1)
    assert changed[(draws[:, 1:3] == 0).all(1)].float().mean() > 0.7
    assert not changed[(draws[:, 1:3] == 1).all(1)].any()


def test_drawn_as_the_engine_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, images = autoaugment.draws(np.random.default_rng(1), 300), pictures(300, 3, 32)
    assert torch.equal(AutoAugment(32)(images.clone(), draws), one_by_one(images, draws, monkeypatch))


def test_draws_cover_their_range() -> None:
    draws = autoaugment.draws(np.random.default_rng(0), 5000)
    assert draws.shape == (5000, autoaugment.COLUMNS)
    counts = np.bincount(draws[:, 0].astype(int), minlength=POLICIES)
    assert len(counts) == POLICIES
    assert counts.min() > 140  # 200 expected, standard deviation 14
    assert draws[:, 1:3].min() >= 0
    assert draws[:, 1:3].max() < 1
    np.testing.assert_allclose(draws[:, 1:].mean(0), 0.5, atol=0.03)
    assert set(draws[:, 3:].ravel()) == {0, 1}
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 0.06


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 9), (1, 64)])
def test_equalize(channels: int, side: int) -> None:
    """Few levels, all levels, one level: also where torchvision leaves a channel as it is."""
    images = pictures(60, channels, side)
    images[4:8] = images[4:8] // 128 * 255  # two levels
    images[8:12, :, 1:] = 255
    from torchvision.transforms import functional

    assert torch.equal(autoaugment.equalize(images), functional.equalize(images))


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("torchvision"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"'fola' needs torchvision .* not installed: install it, or take 'crop_flip'"):
        AutoAugment(32)
