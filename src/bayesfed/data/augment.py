"""Images on the device: whole batches gathered, cropped, flipped and normalised from one tensor.

Augmentations by name: `none`; `crop_flip`; and `fola`, that of FOLA's Table I: random crop, flip, AutoAugment, Cutout.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.data import autoaugment
from bayesfed.data.source import Source

PADDING = 4  # of the random crop, in pixels
FILL = {"none": 0, "crop_flip": 0, "fola": 128}  # the grey level of the padding
CUTOUT = 16  # side of the square that `fola` cuts out, in pixels
# Bytes of images that a CPU keeps normalised, if they need no crops: all of MNIST in fp32, in four times the memory.
NORMALISED = 256 * 2**20


def on_device(source: Source, values: np.ndarray, labels: np.ndarray, *, augment: str, device: torch.device,
              dtype: torch.dtype) -> Images | Features:  # fmt: skip
    """Put a split on a device: images uint8 (N, C, H, W), or features float32 (N, ...), and labels (N,)."""
    if values.dtype == np.uint8:
        return Images(source, values, labels, augment=augment, device=device, dtype=dtype)
    return Features(values, labels, device, dtype)


class Features:
    """The features of one split on `device`, in `dtype`. They are never augmented."""

    augment = "none"

    def __init__(self, values: np.ndarray, labels: np.ndarray, device: torch.device, dtype: torch.dtype) -> None:
        """values (N, ...) float32, labels (N,)."""
        self.values = torch.from_numpy(values).to(device, dtype)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)
        self.shape = tuple(values.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def plain(self, indices: Tensor) -> Tensor:
        """Return features (B, ...)."""
        return self.values.index_select(0, indices)

    def draws(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw nothing for `count` examples, (count, 0)."""
        return np.zeros((count, 0))

    def augmented(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Return features (B, ...) as they are."""
        return self.plain(indices)


class Images:
    """The images of one split on `device`, given out normalised in `dtype` and channels-last memory.

    Kept as uint8, or normalised where that is affordable.
    """

    def __init__(self, source: Source, images: np.ndarray, labels: np.ndarray, *, augment: str,
                 device: torch.device, dtype: torch.dtype) -> None:  # fmt: skip
        """images (N, C, H, W) uint8, labels (N,). `augment` prepares for that augmentation.

        Raises InputError where `fola` lacks torchvision.
        """
        self.augment = augment
        pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))
        self.channels = pixels.shape[3]
        if augment != "none":
            # Four bytes a pixel, so that a crop gathers whole pixels as int32: several times faster than bytes.
            pixels = F.pad(pixels, (0, 4 - self.channels, PADDING, PADDING, PADDING, PADDING), value=FILL[augment])
            self.packed = pixels.view(torch.int32).flatten().to(device)
            pixels = self.packed.view(torch.uint8).view(pixels.shape)
        self.pixels = pixels.to(device)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)
        self.size = images.shape[2]
        self.shape = tuple(images.shape[1:])
        self.policy = autoaugment.AutoAugment(self.size) if augment == "fola" else None
        self.dtype = dtype
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (source.mean, source.std))
        # (pixel/255 - mean) / std as one multiplication and one addition,
        working = torch.float64 if dtype == torch.float64 else torch.float32
        # and written out for every pixel, since a loop over a whole image is vectorised, and one over its channels is not.
        self.scale = (1 / (255 * std)).to(device, working).repeat(self.size**2)
        self.shift = (-mean / std).to(device, working).repeat(self.size**2)
        self.steps = torch.arange(self.size, device=device)
        if augment == "none" and device.type == "cpu" and pixels.numel() * dtype.itemsize <= NORMALISED:
            values = torch.empty(pixels.shape, dtype=dtype)
            for raw, part in zip(pixels.split(256), values.split(256), strict=True):
                part.copy_(self.normalise(raw).permute(0, 2, 3, 1))
            self.pixels = values

    def __len__(self) -> int:
        return len(self.labels)

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 (B, H, W, C) to normalised (B, C, H, W) in channels-last memory."""
        values = torch.addcmul(self.shift, pixels.flatten(1).to(self.scale.dtype), self.scale)
        return values.to(self.dtype).view(pixels.shape).permute(0, 3, 1, 2)

    def plain(self, indices: Tensor) -> Tensor:
        """Return normalised images (B, C, H, W) as they are."""
        pixels = self.pixels.index_select(0, indices)
        if self.augment != "none":
            pixels = pixels[:, PADDING:-PADDING, PADDING:-PADDING, : self.channels]
        return self.normalise(pixels) if pixels.dtype == torch.uint8 else pixels.permute(0, 3, 1, 2)

    def draws(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw the augmentation of `count` images: as `none` nothing, (count, 0); as `crop_flip` crop and flip (count, 3)
        int64; as `fola` (count, 10) float64 with AutoAugment's draws and the row and column of Cutout's centre behind.
        """
        if self.augment == "none":
            return np.zeros((count, 0))
        found = augmentation_draws(generator, count)
        if self.augment != "fola":
            return found
        policy = autoaugment.draws(generator, count)
        return np.concatenate([found, policy, generator.integers(0, self.size, (count, 2))], axis=1)

    def augmented(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Return images (B, C, H, W) as `draws` (B, 3 or 10) says: cropped at (row, column) 0 to 8 and flipped where
        1, then AutoAugment and Cutout.
        """
        if self.augment == "none":
            return self.plain(indices)
        pixels = self.cropped(indices, draws[:, :3].long())
        if self.policy is not None:
            # AutoAugment sorts images by what they have drawn on the host: on a GPU, this waits for the draws.
            host = draws[:, 3 : 3 + autoaugment.COLUMNS].cpu().numpy()
            pixels = self.policy(pixels.permute(0, 3, 1, 2).contiguous(), host)
            pixels = cut_out(pixels, draws[:, -2:].long()).permute(0, 2, 3, 1)
        return self.normalise(pixels)

    def cropped(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Cropped and flipped uint8 (B, H, W, C): draws (B, 3) int64."""
        top, left, flip = draws.unbind(1)
        side = self.size + 2 * PADDING
        rows = ((indices * side + top)[:, None] + self.steps) * side
        columns = left[:, None] + torch.where(flip[:, None] == 1, self.size - 1 - self.steps, self.steps)
        pixels = self.packed.index_select(0, (rows[:, :, None] + columns[:, None, :]).flatten())
        return pixels.view(torch.uint8).view(len(indices), self.size, self.size, 4)[..., : self.channels]


def cut_out(images: Tensor, centres: Tensor) -> Tensor:
    """Cut black squares of side CUTOUT, clipped at the edges, into images (B, C, H, W), in place: rows and columns
    from centre - 8 to centre + 7 (DeVries and Taylor, 2017); centres (B, 2) int64.
    """
    steps = torch.arange(images.shape[2], device=images.device)
    away = steps - centres[:, :, None]
    rows, columns = ((away >= -(CUTOUT // 2)) & (away < CUTOUT // 2)).unbind(1)
    return images.masked_fill_(rows[:, None, :, None] & columns[:, None, None, :], 0)


def augmentation_draws(generator: np.random.Generator, count: int) -> np.ndarray:
    """Draw crop offsets and flips of `count` images, int64 (count, 3)."""
    offsets = generator.integers(0, 2 * PADDING + 1, (count, 2))
    return np.concatenate([offsets, generator.integers(0, 2, (count, 1))], axis=1)
