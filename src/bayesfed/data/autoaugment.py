"""AutoAugment's policy for CIFAR-10 (Cubuk et al., 2019), for a whole batch at once.

An image draws one of 25 policies, each of two operations in turn; an operation has a probability and a strength, and
some have a sign. Policies, strengths and operations are torchvision's; images that have drawn the same operation go
through it together. For the same draws every pixel is that of torchvision's `AutoAugment` on a single image.

Nothing else of the training path needs torchvision: only runs with this augmentation do.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.core.errors import InputError

POLICIES = 25
COLUMNS = 5  # of `draws`


def draws(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw AutoAugment's choices for so many images, (count, 5): the policy 0 to 24, for each of its two operations a
    number from 0 to 1 (applied where it is at most the operation's probability), and for each its sign (0: minus, 1:
    plus).
    """
    policies = generator.integers(0, POLICIES, (count, 1))
    # float32, as torchvision draws and compares them
    chances = generator.random((count, 2), np.float32)
    return np.concatenate([policies, chances, generator.integers(0, 2, (count, 2))], axis=1, dtype=np.float64)


class AutoAugment:
    """The policies for images of one size, as a table of the distinct operations."""

    def __init__(self, side: int) -> None:
        """`side` of the images in pixels, which strengths of translations are fractions of.

        Raises InputError where torchvision is missing.
        """
        try:
            from torchvision.transforms import autoaugment
        except ImportError as error:
            raise InputError(
                "images.augment: 'fola' needs torchvision (AutoAugment), which is not installed: "
                "install it, or take 'crop_flip' or 'none'"
            ) from error
        self.torchvision = autoaugment
        original = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
        strengths = original._augmentation_space(10, (side, side))
        self.operations: list[tuple[str, float]] = []  # name and signed strength
        self.probability = np.zeros((POLICIES, 2), np.float32)
        self.number = np.zeros((POLICIES, 2, 2), np.int64)  # of the operation, by policy, turn and sign
        for policy, pair in enumerate(original.policies):
            for turn, (name, probability, level) in enumerate(pair):
                values, signed = strengths[name]
                strength = 0.0 if level is None else float(values[level])
                self.probability[policy, turn] = probability
                for sign in range(2):
                    operation = (name, -strength if signed and sign == 0 else strength)
                    if operation not in self.operations:
                        self.operations.append(operation)
                    self.number[policy, turn, sign] = self.operations.index(operation)

    def __call__(self, images: Tensor, draws: NDArray[np.float64]) -> Tensor:
        """Images uint8 (B, C, H, W), changed in place and given back; draws (B, 5) as `draws` gives them."""
        policy, signs = draws[:, 0].astype(np.int64), draws[:, 3:5].astype(np.int64)
        chances = draws[:, 1:3].astype(np.float32)
        for turn in range(2):
            drawn = np.flatnonzero(chances[:, turn] <= self.probability[policy, turn])
            numbers = self.number[policy[drawn], turn, signs[drawn, turn]]
            for number in np.unique(numbers):
                members = torch.from_numpy(drawn[numbers == number]).to(images.device)
                images.index_copy_(0, members, self.apply(images.index_select(0, members), *self.operations[number]))
        return images

    def apply(self, images: Tensor, name: str, strength: float) -> Tensor:
        """Apply one operation to images uint8 (B, C, H, W)."""
        if name == "Equalize":
            return equalize(images)
        nearest = self.torchvision.InterpolationMode.NEAREST
        found: Tensor = self.torchvision._apply_op(images, name, strength, interpolation=nearest, fill=None)
        return found


def equalize(images: Tensor) -> Tensor:
    """torchvision's `equalize` of images uint8 (B, C, H, W) without its loop over images and channels.

    In each channel, level v becomes (sum_{u < v} h_u + floor(s/2)) / s rounded down, at most 255; h_u counts the pixels of
    level u, and s is the count of all pixels but those of the highest level, over 255, rounded down. Where s is 0 the
    channel stays as it is.
    """
    levels = images.reshape(-1, images.shape[2] * images.shape[3]).long()
    rows = len(levels)
    offsets = torch.arange(0, rows * 256, 256, device=images.device)[:, None]
    counts = torch.bincount((levels + offsets).flatten(), minlength=rows * 256).view(rows, 256)
    highest = counts.gather(1, levels.amax(1, keepdim=True))
    step = (levels.shape[1] - highest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table).to(torch.uint8)
    return table.gather(1, levels).view(images.shape)
