"""Whole-batch crops, flips and normalisation against one image at a time."""

import dataclasses

import numpy as np
import pytest
import torch

from bayesfed.data.augment import PADDING, Images, augmentation_draws
from bayesfed.data.sources import source

MEAN, STD = (0.5, 0.4, 0.3, 0.6), (0.2, 0.25, 0.3, 0.5)


@pytest.fixture(params=[(1, 32), (3, 32), (2, 9), (4, 28)], ids=str)
def images(request: pytest.FixtureRequest) -> tuple[np.ndarray, Images]:
    channels, size = request.param
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (20, channels, size, size), np.uint8)
    like = dataclasses.replace(source("cifar10"), mean=MEAN[:channels], std=STD[:channels])
    return pixels, Images(
        like, pixels, np.arange(20), augment="crop_flip", device=torch.device("cpu"), dtype=torch.float64
    )


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


def test_draws_cover_their_range() -> None:
    draws = augmentation_draws(np.random.default_rng(0), 2000)
    assert draws.shape == (2000, 3)
    assert [set(column) for column in draws.T.tolist()] == [set(range(9)), set(range(9)), {0, 1}]
