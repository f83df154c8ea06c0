"""Small labelled images: kept in memory as bytes, augmented one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import CPU, DataInfo, Resident, Split, full_batches, split_indices


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared.

    `mean` and `std` are per channel, of pixels scaled to [0, 1], where the byte `white` is 1.
    Augmentation takes a random crop of the image padded by `padding` black pixels (torchvision's
    convention: raw zeros, added before normalisation), and mirrors every second one on average
    if `flip`.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int
    flip: bool
    white: int = 255


class LabelledImages:
    """A data set that fits in memory; a subclass says how it is described and read."""

    description: DataInfo
    preprocessing: Preprocessing

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images (N, C, H, W) of bytes and labels (N,): the training set, or the test set."""
        raise NotImplementedError

    def info(self) -> DataInfo:
        """The description of the data."""
        return self.description

    def train(self) -> tuple[Split, Split | None]:
        """Read the training and validation splits."""
        images, labels = self.read(train=True)
        return train_and_val(images, labels, self.preprocessing, self._config)

    def test(self) -> Split:
        """Read the test set."""
        images, labels = self.read(train=False)
        return TensorSplit(images, labels, self.preprocessing)


class TensorSplit:
    """Images (N, C, H, W) of bytes and their labels (N,)."""

    def __init__(
        self, images: Tensor, labels: Tensor, preprocessing: Preprocessing, augment: bool = False
    ) -> None:
        self._data = Resident(images, labels)
        self._count = len(labels)
        self._preprocessing = preprocessing
        self._augment = augment

    def __len__(self) -> int:
        return self._count

    def steps(self, batch_size: int) -> int:
        """The number of batches per training epoch."""
        return full_batches(self._count, batch_size)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised float32 images and int64 labels; see `Split.batches`."""
        images, labels = self._data.on(device)
        mean, scale = self._normaliser(device)
        if seed is None:
            for start in range(0, self._count, batch_size):
                part = slice(start, start + batch_size)
                yield (images[part] - mean) * scale, labels[part]
            return
        # All random numbers come from the CPU, so that they are the same for every device.
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(self._count, generator=generator).to(device)
        shifts = torch.randint(
            2 * self._preprocessing.padding + 1, (self._count, 2), generator=generator
        ).to(device)
        mirrored = torch.randint(2, (self._count,), generator=generator).bool().to(device)
        for step in range(self.steps(batch_size)):
            part = slice(step * batch_size, (step + 1) * batch_size)
            chosen = order[part]
            batch = images[chosen]
            if self._augment and self._preprocessing.padding:
                batch = crop(batch, self._preprocessing.padding, shifts[part])
            if self._augment and self._preprocessing.flip:
                batch = mirror(batch, mirrored[part])
            yield (batch - mean) * scale, labels[chosen]

    def _normaliser(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean, and 1/std, in units of raw bytes: (C, 1, 1) each."""
        white = self._preprocessing.white
        mean = torch.tensor(self._preprocessing.mean, device=device) * white
        scale = 1 / (torch.tensor(self._preprocessing.std, device=device) * white)
        return mean[:, None, None], scale[:, None, None]


def crop(images: Tensor, padding: int, shifts: Tensor) -> Tensor:
    """Crop from each zero-padded image the window that starts at its (row, column) shift."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (padding, padding, padding, padding))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    every = torch.arange(len(images), device=images.device)
    return windows[every, :, shifts[:, 0], shifts[:, 1]]


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Flip those images left to right for which `mirrored` is true."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def train_and_val(
    images: Tensor, labels: Tensor, preprocessing: Preprocessing, config: DataConfig
) -> tuple[Split, Split | None]:
    """Split a training set as the configuration asks."""
    train, val = split_indices(len(labels), config, "images")
    training = TensorSplit(images[train], labels[train], preprocessing, config.augment)
    return training, None if val is None else TensorSplit(images[val], labels[val], preprocessing)
