"""A dataset as it is described: where it comes from, how its files look, and how they are verified."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["cifar", "idx", "mat", "leaf", "scikit-learn", "arrays", "csv", "bunch", "reader"]


@dataclass(frozen=True)
class File:
    """A file as its publisher offers it: its path in a mirror, where to download it, and its checksum."""

    name: str
    urls: tuple[str, ...]  # the publisher's first, then mirrors
    md5: str


@dataclass(frozen=True)
class Source:
    """One dataset. Identity is `fingerprints`, not the files: an honest mirror may order records differently.

    The fingerprint of a split is the sha256 over the sorted sha256 digests of its records; a record is the
    label byte (CIFAR-100: coarse, then fine), in data with clients the client's number, then the pixels, channel by
    channel, in native size, or the features as little-endian float32.

    Where we have never had the data, there are no fingerprints: identity is then the checksums of the publisher's files,
    which every file must have; without such files either (format leaf), what was fetched first.
    """

    name: str
    title: str
    licence: str
    homepage: str
    classes: int
    channels: int
    size: int  # side of a native image in pixels
    train: int  # images in the training split
    test: int  # images in the test split
    format: Format
    label_bytes: int  # the last of them is the label we use
    files: tuple[File, ...]  # what to download; empty for data that comes with scikit-learn
    parts: Mapping[str, tuple[str, ...]]  # split -> the files to read, in `files` or within the archive there
    fingerprints: Mapping[str, str]  # split -> sha256
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]; () for those of the prepared training images
    std: tuple[float, ...]
    prepare: str  # the preparation that brings native images to `target`; `none` leaves them as they are
    target: int = 32
    channels_to: int = 0  # that native images are brought to; 0 leaves them as they are
    augment: str = "none"  # in training: `none`, `crop_flip` or `fola`
    folder: Path | None = None  # of a user's own dataset (data/own.py); its format is arrays, csv, bunch or reader
    torchvision: str = ""  # the folder of its files in a mirror that torchvision has made; "" if it has none
    test_share: float = 0.0  # of format bunch
    reader: str = ""  # a digest of all that a reader has read; "" without one
    clients: int = 0  # that the data name; 0 if they name none
    shape: tuple[int, ...] = ()  # of an example's float32 features; () for images, in bytes

    @property
    def fingerprint(self) -> str:
        """One sha256 for the whole dataset, both splits."""
        found = [self.fingerprints[s] for s in ("train", "test")] if self.fingerprints else [f.md5 for f in self.files]
        return hashlib.sha256("".join(found).encode()).hexdigest()

    @property
    def bundled(self) -> bool:
        """True if an installed library has the images, which are then fetched without a network."""
        return self.format == "scikit-learn"

    @property
    def side(self) -> int:
        """Side in pixels of the images as networks see them."""
        return self.size if self.prepare == "none" else self.target

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape of an example as networks see it: (C, side, side) of an image."""
        return self.shape or (self.seen_channels, self.side, self.side)

    @property
    def array(self) -> str:
        """The name of the array that holds the examples."""
        return "features" if self.shape else "images"

    @property
    def known(self) -> bool:
        """True once it is known what its arrays hold."""
        return bool(self.size or self.shape)

    @property
    def seen_channels(self) -> int:
        """Channels of the images as networks see them."""
        return self.channels_to or self.channels

    def count(self, split: str) -> int:
        """Images in `split`, "train" or "test"."""
        return self.train if split == "train" else self.test
