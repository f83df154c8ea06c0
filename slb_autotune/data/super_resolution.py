"""Super-resolution examples: an image blurred by bicubic resizing, and the image itself.

As in SRCNN and VDSR, only the luminance counts: MATLAB's `rgb2ycbcr`, Y rounded to 8 bits and
then scaled to [0, 1]. The input is Y downscaled and upscaled again by `imresize`, unrounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import (
    CPU,
    DataInfo,
    Resident,
    Split,
    full_batches,
    permutation,
    split_indices,
)
from slb_autotune.data.resize import imresize
from slb_autotune.errors import DataError

# An input and its target, both (H, W).
Pair = tuple[Tensor, Tensor]


def describe(config: DataConfig) -> DataInfo:
    """The description of super-resolution data: one channel, patches to train on."""
    return DataInfo("super_resolution", in_channels=1, num_classes=None, image_size=config.patch)


def luminance(image: Image.Image) -> Tensor:
    """Y of an image as float64 in [0, 1]; a grey image is its own Y."""
    pixels = torch.from_numpy(np.array(image)).to(torch.float64)
    if image.mode == "RGB":
        weights = torch.tensor([65.481, 128.553, 24.966], dtype=torch.float64)
        pixels = (16 + pixels @ weights / 255).round()
    return pixels / 255


def make_pair(target: Tensor, scale: int) -> Pair:
    """Crop an image to a multiple of `scale`, and compute the network's input from it."""
    height, width = (side - side % scale for side in target.shape)
    target = target[:height, :width]
    blurred = imresize(imresize(target, 1 / scale), float(scale))
    return blurred.to(torch.float32), target.to(torch.float32)


def psnr(prediction: Tensor, target: Tensor, border: int) -> float:
    """10 log10(1 / mean squared error) in dB, without `border` pixels on every side.

    Both are clipped to [0, 1] and rounded to 8 bits first, as for the published numbers.
    """
    size = prediction.shape[-2:]
    inner = (..., slice(border, size[0] - border), slice(border, size[1] - border))
    difference = _to_bytes(prediction[inner]) - _to_bytes(target[inner])
    return float(-10 * torch.log10((difference / 255).square().mean()))


def _to_bytes(image: Tensor) -> Tensor:
    return (image.detach().to(torch.float64).clamp(0, 1) * 255).round()


class ImageSplit:
    """Whole images, one per batch whatever the batch size, since their sizes differ."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def steps(self, batch_size: int) -> int:
        """The number of images."""
        return len(self._pairs)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets (1, 1, H, W); a seed shuffles them."""
        count = len(self._pairs)
        order = range(count) if seed is None else permutation(count, seed).tolist()
        for index in order:
            source, target = self._pairs[index]
            yield source[None, None].to(device), target[None, None].to(device)


class PatchSplit:
    """Patches (1, patch, patch) drawn again in every epoch; every position is equally likely.

    Augmentation turns a patch into one of its eight mirrored and rotated versions.
    """

    def __init__(self, pairs: Sequence[Pair], patch: int, patches: int, augment: bool) -> None:
        targets = [target for _, target in pairs]
        sizes = torch.tensor([target.shape for target in targets])
        # Patches of images of all sizes are gathered at once from one flat tensor of pixels.
        self._pixels = Resident(
            torch.cat([source.flatten() for source, _ in pairs]),
            torch.cat([target.flatten() for target in targets]),
        )
        self._widths = sizes[:, 1]
        self._starts = sizes.prod(dim=1).cumsum(0) - sizes.prod(dim=1)
        # The positions where a patch fits: per row, and cumulatively up to each image.
        self._across = sizes[:, 1] - patch + 1
        self._positions = ((sizes[:, 0] - patch + 1) * self._across).cumsum(0)
        self._patch = patch
        self._patches = patches
        self._augment = augment

    def __len__(self) -> int:
        return self._patches

    def steps(self, batch_size: int) -> int:
        """The number of batches per training epoch."""
        return full_batches(self._patches, batch_size)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets (B, 1, patch, patch).

        Without a seed the patches are spread evenly over all positions, in order.
        """
        total = int(self._positions[-1])
        if seed is None:
            positions = torch.arange(self._patches) * total // self._patches
            turns = None
            steps = -(-self._patches // batch_size)
        else:
            generator = torch.Generator().manual_seed(seed)
            positions = torch.randint(total, (self._patches,), generator=generator)
            turns = torch.randint(2, (3, self._patches), generator=generator).bool()
            steps = self.steps(batch_size)
        sources, targets = self._pixels.on(device)
        for step in range(steps):
            part = slice(step * batch_size, (step + 1) * batch_size)
            index = self._pixel_indices(positions[part])
            if turns is not None and self._augment:
                index = turn(index, turns[:, part])
            # The gathered tensor has the memory layout of the index.
            index = index[:, None].contiguous().to(device)
            yield sources[index], targets[index]

    def _pixel_indices(self, positions: Tensor) -> Tensor:
        """The indices (B, patch, patch) of the pixels of the patches at `positions`."""
        image = torch.searchsorted(self._positions, positions, right=True)
        before = torch.cat([self._positions.new_zeros(1), self._positions])[image]
        row = (positions - before) // self._across[image]
        column = (positions - before) % self._across[image]
        width = self._widths[image]
        corner = self._starts[image] + row * width + column
        steps = torch.arange(self._patch)
        return corner[:, None, None] + steps[:, None] * width[:, None, None] + steps


def turn(patches: Tensor, turns: Tensor) -> Tensor:
    """Flip the patches (B, P, P) left-right, up-down, and transpose them, where `turns` (3, B)."""
    across, down, diagonal = turns[:, :, None, None]
    patches = torch.where(across, patches.flip(2), patches)
    patches = torch.where(down, patches.flip(1), patches)
    return torch.where(diagonal, patches.transpose(1, 2), patches)


def train_and_val(
    sizes: Sequence[tuple[int, int]], read: Callable[[int], Tensor], config: DataConfig
) -> tuple[Split, Split | None]:
    """Split the images of a training set, and read those that are used with `read(index)`.

    Images in which no patch fits are left out.
    """
    smallest = max(config.patch, _smallest(config.scale))
    fit = [
        index
        for index, size in enumerate(sizes)
        if min(side - side % config.scale for side in size) >= smallest
    ]
    if not fit:
        raise DataError(
            f"None of the {len(sizes)} training images holds a patch of {config.patch} pixels "
            f"at scale {config.scale}; {smallest} are needed on each side.",
            "lower data.patch, or give larger images.",
        )
    train, val = split_indices(len(fit), config, "images")

    def pairs(part: Tensor) -> list[Pair]:
        return [make_pair(read(fit[index]), config.scale) for index in part.tolist()]

    training = PatchSplit(pairs(train), config.patch, config.patches, config.augment)
    return training, None if val is None else ImageSplit(pairs(val))


def whole_images(names: Sequence[str], read: Callable[[int], Tensor], config: DataConfig) -> Split:
    """Read whole images for testing; `names` are for the error message."""
    pairs = []
    for index, name in enumerate(names):
        target = read(index)
        if min(target.shape) < _smallest(config.scale):
            raise DataError(
                f"The image {name} is too small for scale {config.scale}: "
                f"{_smallest(config.scale)} pixels are needed on each side.",
                "remove it, or lower data.scale.",
            )
        pairs.append(make_pair(target, config.scale))
    return ImageSplit(pairs)


def _smallest(scale: int) -> int:
    """The least side of which PSNR, without `scale` pixels on both ends, leaves something."""
    return 3 * scale
