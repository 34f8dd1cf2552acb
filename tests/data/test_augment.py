"""Whole-batch crops, flips and normalisation against one image at a time."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play, tensors

from bayesfed.core.errors import InputError
from bayesfed.data import augment, autoaugment
from bayesfed.data.augment import CUTOUT, PADDING, Images, augmentation_draws
from bayesfed.data.catalogue import source
from bayesfed.data.prepare import Seen
from bayesfed.engine.batches import FOLA_CHUNK, chunk_size

MEAN, STD = (0.5, 0.4, 0.3, 0.6), (0.2, 0.25, 0.3, 0.5)


def placed(pixels: np.ndarray, augment: str, dtype: torch.dtype = torch.float64) -> Images:
    channels = pixels.shape[1]
    like = dataclasses.replace(source("cifar10"), mean=MEAN[:channels], std=STD[:channels])
    device = torch.device("cpu")
    return Images(like, pixels, np.arange(len(pixels)), augment=augment, device=device, dtype=dtype)


@pytest.fixture(params=[(1, 32), (3, 32), (2, 9), (4, 28)], ids=str)
def images(request: pytest.FixtureRequest) -> tuple[np.ndarray, Images]:
    channels, size = request.param
    pixels = np.random.default_rng(0).integers(0, 256, (20, channels, size, size), np.uint8)
    return pixels, placed(pixels, "crop_flip")


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


@pytest.mark.parametrize(("normalise", "low", "high"), [("half", -1.0, 1.0), ("none", 0.0, 1.0)])
def test_fixed_normalisation(normalise: Any, low: float, high: float) -> None:
    seen = Seen(normalise=normalise).of(source("cifar10"))
    pixels = np.array([0, 255], np.uint8)[:, None, None, None] * np.ones((1, 3, 32, 32), np.uint8)
    bank = Images(seen, pixels, np.arange(2), augment="none", device=torch.device("cpu"), dtype=torch.float64)
    found = bank.plain(torch.tensor([0, 1]))
    assert (found[0] == low).all()
    assert (found[1] == high).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_kept_normalised_are_the_same(
    channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, channels, 32, 32), np.uint8)
    indices = torch.tensor([299, 0, 5, 5])
    kept = placed(pixels, "none", dtype)
    monkeypatch.setattr(augment, "NORMALISED", pixels.size * dtype.itemsize - 1)
    raw = placed(pixels, "none", dtype)
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


def test_draws_of_crops_and_flips_are_those_of_the_first_version() -> None:
    bank = placed(np.zeros((1, 3, 32, 32), np.uint8), "crop_flip")
    draws = bank.draws(np.random.default_rng(7), 4)
    assert draws.dtype == np.int64
    assert draws.tolist() == [[8, 5, 0], [6, 8, 0], [5, 6, 0], [7, 2, 1]]


@pytest.mark.parametrize("shape", [(3, 32), (1, 28)], ids=str)
def test_fola_crops_flips_applies_the_policy_and_cuts_out(shape: tuple[int, int]) -> None:
    """By hand, image by image; AutoAugment itself is the batch's, which test_autoaugment.py holds to torchvision's."""
    channels, size = shape
    pixels = np.random.default_rng(0).integers(1, 255, (40, channels, size, size), np.uint8)
    bank, random = placed(pixels, "fola"), np.random.default_rng(1)
    draws = bank.draws(random, 40)
    draws[0], draws[1] = [0, 8, 0, 0, 1, 1, 0, 0, 0, 0], [8, 0, 1, 0, 1, 1, 0, 0, size - 1, 15]
    indices = random.permutation(40)
    found = bank.augmented(torch.from_numpy(indices), torch.from_numpy(draws))
    assert found.is_contiguous(memory_format=torch.channels_last)
    crops = []
    for index, (top, left, flip) in zip(indices, draws[:, :3].astype(int), strict=True):
        padded = np.pad(pixels[index], ((0, 0), (PADDING, PADDING), (PADDING, PADDING)), constant_values=128)
        crop = padded[:, top : top + size, left : left + size]
        crops.append(crop[:, :, ::-1] if flip else crop)
    policy = autoaugment.AutoAugment(size)
    wanted = policy(torch.from_numpy(np.stack(crops)), draws[:, 3:8]).numpy()
    for image, (row, column) in zip(wanted, draws[:, 8:].astype(int), strict=True):
        image[:, max(row - 8, 0) : row + 8, max(column - 8, 0) : column + 8] = 0
    for i in range(40):
        torch.testing.assert_close(found[i], normalised(wanted[i]))
    # The first two drew no operation: padding is 128, the square at the corner is a quarter, at the edge a half.
    black = normalised(np.zeros_like(pixels[0]))
    assert [int((found[i] == black).all(0).sum()) for i in (0, 1)] == [8 * 8, 9 * 16]
    assert (found[0, :, -20:, -4:] == normalised(np.full_like(pixels[0], 128))[:, -20:, -4:]).all()


def test_cutouts_centre_is_any_pixel() -> None:
    bank = placed(np.zeros((1, 3, 9, 9), np.uint8), "fola")
    draws = bank.draws(np.random.default_rng(0), 8100)
    counts = np.zeros((9, 9), int)
    np.add.at(counts, tuple(draws[:, -2:].astype(int).T), 1)
    assert counts.min() > 60  # 100 expected, standard deviation 10
    assert counts.max() < 140
    assert CUTOUT == 16
    assert np.array_equal(draws[:, :3], augmentation_draws(np.random.default_rng(0), 8100))


def test_fola_leaves_images_of_evaluation_as_they_are() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    found = placed(pixels, "fola").plain(torch.arange(5))
    torch.testing.assert_close(found, torch.stack([normalised(image) for image in pixels]))


@pytest.mark.parametrize("channels", [2, 4])
def test_fola_is_for_grey_and_coloured_images(channels: int) -> None:
    other = dataclasses.replace(source("cifar10"), name="maps", channels=channels)
    with pytest.raises(InputError, match=f"'fola' is for images of 1 or 3 channels, .* 'maps' have {channels}; take"):
        Seen(augment="fola").of(other)
    assert Seen(augment="fola").of(dataclasses.replace(other, channels=1)).augment == "fola"


def test_a_run_with_fola_trains(mapping: Callable[..., dict[str, Any]], data_dir: Path) -> None:
    """Two rounds; every executor as the eager one; another augmentation, other parameters."""

    def theta(augment: str, executor: str) -> torch.Tensor:
        images = {"augment": augment, "prepare": {"resize": 16}}
        of = federation(mapping(models={"global": "lenet5"}, images=images), data_dir)
        assert chunk_size(of) == (FOLA_CHUNK if augment == "fola" else 256)
        return tensors(play(of, 2, executor=executor))["server/theta"]

    found = theta("fola", "eager")
    assert found.isfinite().all()
    for executor in ("threads", "graphs"):
        torch.testing.assert_close(theta("fola", executor), found, rtol=1e-9, atol=1e-12)
    assert (found - theta("crop_flip", "eager")).norm() > 1e-4 * found.norm()
