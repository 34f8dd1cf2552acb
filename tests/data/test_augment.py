"""Whole-batch crops, flips and normalisation against one image at a time."""

import dataclasses

import numpy as np
import pytest
import torch

from bayesfed.data import augment
from bayesfed.data.augment import PADDING, Images, augmentation_draws
from bayesfed.data.sources import source

MEAN, STD = (0.5, 0.4, 0.3, 0.6), (0.2, 0.25, 0.3, 0.5)


def images_of(pixels: np.ndarray, augment: str, dtype: torch.dtype = torch.float64) -> Images:
    channels = pixels.shape[1]
    like = dataclasses.replace(source("cifar10"), mean=MEAN[:channels], std=STD[:channels])
    return Images(like, pixels, np.arange(len(pixels)), augment=augment, device=torch.device("cpu"), dtype=dtype)


@pytest.fixture(params=[(1, 32), (3, 32), (2, 9), (4, 28)], ids=str)
def images(request: pytest.FixtureRequest) -> tuple[np.ndarray, Images]:
    channels, size = request.param
    pixels = np.random.default_rng(0).integers(0, 256, (20, channels, size, size), np.uint8)
    return pixels, images_of(pixels, augment="crop_flip")


def normalised(pixels: np.ndarray) -> torch.Tensor:
    mean, std = (np.array(v)[: len(pixels), None, None] for v in (MEAN, STD))
    return torch.from_numpy((pixels / 255 - mean) / std)


def test_crops_and_flips(images: tuple[np.ndarray, Images]) -> None:
    pixels, bank = images
    indices = torch.tensor([3, 0, 19, 3])
    draws = torch.tensor([[0, 8, 0], [4, 4, 0], [4, 4, 1], [7, 2, 1]])
    found = bank.augmented(indices, draws)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for i, (top, left, flip) in enumerate(draws.tolist()):
        padded = np.pad(pixels[indices[i]], ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        crop = padded[:, top : top + bank.size, left : left + bank.size]
        torch.testing.assert_close(found[i], normalised(crop[:, :, ::-1] if flip else crop))


def test_plain_images(images: tuple[np.ndarray, Images]) -> None:
    pixels, bank = images
    found = bank.plain(torch.tensor([5, 7]))
    torch.testing.assert_close(found, torch.stack([normalised(pixels[5]), normalised(pixels[7])]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_kept_normalised_are_the_same(
    channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, channels, 32, 32), np.uint8)
    indices = torch.tensor([299, 0, 5, 5])
    kept = images_of(pixels, "none", dtype)
    monkeypatch.setattr(augment, "NORMALISED", pixels.size * dtype.itemsize - 1)
    raw = images_of(pixels, "none", dtype)
    assert (kept.pixels.dtype, raw.pixels.dtype) == (dtype, torch.uint8)
    found = kept.plain(indices)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, raw.plain(indices))
    assert torch.equal(found, kept.augmented(indices, torch.zeros(4, 3, dtype=torch.int64)))
    if dtype == torch.float64:
        torch.testing.assert_close(found, torch.stack([normalised(pixels[i]) for i in indices]))


def test_draws_cover_their_range() -> None:
    draws = augmentation_draws(np.random.default_rng(0), 2000)
    assert draws.shape == (2000, 3)
    assert [set(column) for column in draws.T.tolist()] == [set(range(9)), set(range(9)), {0, 1}]
