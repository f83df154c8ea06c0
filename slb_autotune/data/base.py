"""What every data set provides: a description, and splits that are read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from slb_autotune.config.trial import DataConfig
from slb_autotune.errors import DataError

CPU = torch.device("cpu")

# The folder of downloads when data.root is not given.
DOWNLOADS = Path("~/.cache/slb_autotune")


@dataclass(frozen=True)
class DataInfo:
    """What a network must know of the data: channels, classes and the side of an image."""

    task: str
    in_channels: int
    num_classes: int | None
    image_size: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The shape of one input: channels, height, width."""
        return self.in_channels, self.image_size, self.image_size


class Split(Protocol):
    """Examples that can be read in batches, again and again."""

    def __len__(self) -> int: ...

    def steps(self, batch_size: int) -> int:
        """How many batches `batches(batch_size, seed)` yields when a seed is given."""
        ...

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets.

        Without a seed: in order, nothing augmented, the last partial batch included. With one:
        shuffled, and augmented if the split is, as a function of the seed alone; a last partial
        batch is dropped unless it is the only one.
        """
        ...


class DataSet(Protocol):
    """What a registry entry's target returns for a configuration."""

    def info(self) -> DataInfo:
        """Describe the data without reading it."""
        ...

    def train(self) -> tuple[Split, Split | None]:
        """Read the training and validation splits; no test file is read."""
        ...

    def test(self) -> Split:
        """Read the test set."""
        ...


class Resident:
    """Tensors on the CPU, and cached copies on the other devices that use them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = {CPU: tensors}

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on `device`."""
        if device not in self._copies:
            self._copies[device] = tuple(tensor.to(device) for tensor in self._copies[CPU])
        return self._copies[device]


def full_batches(examples: int, batch_size: int) -> int:
    """The number of batches per training epoch: the full ones, or one partial batch."""
    return max(1, examples // batch_size)


def permutation(count: int, seed: int) -> Tensor:
    """A random order of `count` items that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def split_indices(count: int, config: DataConfig, items: str) -> tuple[Tensor, Tensor | None]:
    """The indices, of `count` training examples, for training and for validation.

    A smaller `train_images` selects a subset of what a larger one selects, and does not change
    the validation split.
    """
    order = permutation(count, config.split_seed)
    held_out = max(1, round(count * config.val_fraction)) if config.val_fraction > 0 else 0
    left = count - held_out
    wanted = left if config.train_images is None else config.train_images
    if left < 1:
        raise DataError(
            f"A training set of {count} {items} with data.val_fraction={config.val_fraction:g} "
            "leaves nothing to train on.",
            "lower data.val_fraction, or give a larger training set.",
        )
    if wanted > left:
        raise DataError(
            f"data.train_images asks for {wanted} {items}, but the training split has {left}.",
            f"set data.train_images to {left} or less.",
        )
    train = order[held_out : held_out + wanted].sort().values
    return train, order[:held_out].sort().values if held_out else None


def root_folder(config: DataConfig, default: Path) -> Path:
    """The folder that `data.root` names, or the default one."""
    return (default if config.root is None else Path(config.root)).expanduser()
