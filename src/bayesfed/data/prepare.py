"""Preparations: how native images of a dataset are brought to the size that networks see, and features to their scale.

A preparation takes images uint8 [N, C, H, W] and a side in pixels, and gives uint8 [N, C, side, side]. `standardise` is that
of features: it takes them and those of the training split, float32 [N, ...].
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import options, plugins
from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.data.source import Source

Images = NDArray[np.uint8]
Features = NDArray[np.float32]
AT_ONCE = 4096  # images resized at once, as floats
MOST = 1024  # pixels, of a side
GREY, COLOUR = 1, 3  # channels
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)


def none(images: Images, side: int) -> Images:
    """Return the images as they are."""
    return images


def pad(images: Images, side: int) -> Images:
    """Put the image in the middle, its edges repeated outwards. As in FML's code."""
    if (missing := side - images.shape[2]) < 0:
        raise InputError(f"pad: {side}: the images are {images.shape[2]}x{images.shape[2]} already; resize them")
    widths = (missing // 2, missing - missing // 2)
    return np.pad(images, ((0, 0), (0, 0), widths, widths), mode="edge")


def enlarge(images: Images, side: int) -> Images:
    """Every pixel as a square, and the grey levels 0..16 of scikit-learn's digits as 0..255."""
    times, rest = divmod(side, images.shape[2])
    if rest or images.max() > 16:
        raise InputError("enlarge: this is for grey levels 0 to 16 and a multiple of the images' side; resize them")
    return ((images.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8).repeat(times, axis=2).repeat(times, axis=3)


def resize(images: Images, side: int) -> Images:
    """Bilinear, with antialiasing where images get smaller."""
    import torch
    import torch.nn.functional as F

    def part(start: int) -> Images:
        pixels = torch.from_numpy(np.ascontiguousarray(images[start : start + AT_ONCE])).float()
        resized = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True, align_corners=False)
        return resized.round().clamp(0, 255).byte().numpy()

    return np.concatenate([part(start) for start in range(0, len(images), AT_ONCE)])


def standardise(features: Features, training: Features) -> Features:
    """Bring each feature to mean 0 and standard deviation 1 over the training split; one that is constant there to 0."""
    mean, std = training.mean(0, dtype=np.float64), training.std(0, dtype=np.float64)
    scaled = (features - mean) * (std > 0) / np.where(std > 0, std, 1)
    return scaled.astype(np.float32)  # type: ignore[no-any-return]


PREPARATIONS: dict[str, Callable[..., NDArray[Any]]] = {
    "none": none,
    "pad": pad,
    "enlarge": enlarge,
    "resize": resize,
    "standardise": standardise,
}
OF_FEATURES = ("none", "standardise")
OF_SOME_IMAGES = ("pad", "enlarge")  # which others are too large for, or have other levels

registry = plugins.Modules(
    "preparations",
    "preparation",
    lambda: PREPARATIONS,
    "PREPARATIONS",
    lambda name, function: "" if callable(function) else "expected a function of images and side",
)


def read(value: object, where: str) -> tuple[str, int]:
    """Read a preparation, a name or {name: side}; return its name and the side that it gives."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((value, side),) = value.items()
    else:
        side = 32
    registry.plugin(value, where)
    return str(value), options.check(side, int, options.Bounds(low=1, high=MOST), f"{where}.{value}")


def prepared(images: Images, source: Source) -> Images:
    """Return the dataset's native images [N, C, H, W] as networks see them, [N, seen channels, side, side].

    Raises InputError for what a user's preparation raises, and for one that does not give such images.
    """
    part = registry.plugin(source.prepare, f"dataset '{source.name}', prepare")
    if source.prepare == "standardise":
        raise InputError(
            f"dataset '{source.name}', prepare: 'standardise' is for features; images are normalised by channel anyway"
        )
    with contextlib.nullcontext() if source.prepare in PREPARATIONS else plugins.one_line(part.origin):
        found = part.value()(images, source.side)
    shape = (len(images), source.channels, source.side, source.side)
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.shape != shape:
        was = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise InputError(f"{part.origin}: preparation '{source.prepare}': expected uint8 {shape}, found {was}")
    return in_channels(found, source.seen_channels)


def check_features(source: Source) -> None:
    """Raise InputError for a preparation that is not for features."""
    if source.prepare not in OF_FEATURES:
        raise InputError(
            f"dataset '{source.name}', prepare: '{source.prepare}' is for images; features take {' or '.join(OF_FEATURES)}"
        )


def seen(values: NDArray[Any], source: Source, training: NDArray[Any]) -> NDArray[Any]:
    """Return native images or features of a dataset as networks see them, [N, *source.seen_shape].

    training: those of the training split. Raises InputError as `prepared` and `check_features`.
    """
    if not source.shape:
        return prepared(values, source)
    check_features(source)
    return standardise(values, training) if source.prepare == "standardise" else values


def in_channels(images: Images, channels: int) -> Images:
    """Images [N, C, H, W] with so many channels: a grey image is repeated in three, of a coloured one the luma is taken."""
    if images.shape[1] == channels:
        return images
    if channels == COLOUR:
        return images.repeat(COLOUR, axis=1)
    luma: Images = np.einsum("nchw,c->nhw", images, LUMA).round().astype(np.uint8)
    return luma[:, None]


def identity(source: Source) -> str:
    """Return, as text, what decides how the dataset's native images are prepared."""
    how = registry.plugin(source.prepare, f"dataset '{source.name}', prepare")
    channels = f" {source.channels_to}" if source.channels_to else ""
    return f"{source.prepare} {source.side} {how.digest()}".strip() + channels


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of prepared images [N, C, H, W], pixels in [0, 1], to six decimals."""
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        shares = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        means.append(float(shares @ levels))
        deviations.append(float(np.sqrt(shares @ (levels - means[-1]) ** 2)))
    return tuple(round(value, 6) for value in means), tuple(round(value, 6) for value in deviations)


FIXED = {
    "half": (0.5, 0.5),
    "none": (0.0, 1.0),
    "levels": (0.0, 1 / 255),
}  # mean and standard deviation, whatever the dataset


@dataclass(frozen=True)
class Seen:
    """The images of a run's datasets as the run sees them: the block `images` of a run file.

    `dataset` is what the dataset says.

    prepare: a preparation, by name or as {name: side}; `none` keeps the native size. channels: 3 repeats a grey image, 1 is
    the luma of a coloured one. normalise: by mean and standard deviation of the prepared training images, by 0.5 and 0.5
    for every channel, none, from 0 to 1, or as levels, from 0 to 255. augment: what is done in training (data/augment.py).
    """

    prepare: Any = "dataset"
    normalise: Literal["dataset", "half", "none", "levels"] = "dataset"
    augment: Literal["dataset", "none", "crop_flip", "fola"] = "dataset"
    channels: int | None = option(None, low=GREY, high=COLOUR)

    def of(self, source: Source) -> Source:
        """Return the dataset with images as the run sees them.

        Raises InputError for a preparation that there is not, for channels that its images cannot have, and for an
        augmentation that is not for such images.
        """
        if source.shape:
            return self.of_features(source)
        if self.channels not in (None, source.channels):
            if {self.channels, source.channels} != {GREY, COLOUR}:
                raise InputError(
                    f"images.channels: {self.channels}, and images of dataset '{source.name}' have {source.channels}; only "
                    f"{GREY} and {COLOUR} are brought together"
                )
            source = replace(source, channels_to=self.channels, mean=(), std=())
        if self.augment == "fola" and source.seen_channels not in (1, 3):  # those of its operations
            raise InputError(
                f"images.augment: 'fola' is for images of 1 or 3 channels, and those of dataset '{source.name}' "
                f"have {source.seen_channels}; take 'crop_flip' or 'none'"
            )
        if self.prepare != "dataset":
            how, side = read(self.prepare, "images.prepare")
            source = replace(source, prepare=how, target=side, mean=(), std=())
        if self.normalise in FIXED:
            mean, std = FIXED[self.normalise]
            source = replace(source, mean=(mean,) * source.seen_channels, std=(std,) * source.seen_channels)
        return source if self.augment == "dataset" else replace(source, augment=self.augment)

    def of_features(self, source: Source) -> Source:
        """Return a dataset of features as the run sees them; InputError for what is only for images."""
        asked = {"normalise": self.normalise, "augment": self.augment, "channels": self.channels}
        for key, value in asked.items():
            if value not in (None, "dataset", "none"):
                raise InputError(
                    f"images.{key}: '{value}' is for images, and dataset '{source.name}' has features; leave it out"
                )
        if self.prepare != "dataset":
            source = replace(source, prepare=read(self.prepare, "images.prepare")[0])
        check_features(source)
        return source


AS_IT_IS = Seen()
