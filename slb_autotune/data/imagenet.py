"""ILSVRC2012, or any images in `root/train/<class>` and `root/val/<class>`.

The images are read from their files in every epoch, by DataLoader's worker processes. The `val`
folder is the test set; the validation split is taken from `train`, as for all data sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import CPU, DataInfo, Split, full_batches, split_indices
from slb_autotune.data.image_files import read_image
from slb_autotune.errors import DataError
from slb_autotune.nets.torchvision_import import import_torchvision

SIZE = 224

# The values in general use for ImageNet.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

HINT = (
    "give --set data.root=FOLDER with train/<class>/*.JPEG and val/<class>/*.JPEG in it; "
    "ILSVRC2012 is at https://image-net.org."
)

# The path of an image, and its class.
Sample = tuple[str, int]


class ImageNet:
    """The `imagenet` data set."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def info(self) -> DataInfo:
        """The description of the data; the class folders are counted."""
        return DataInfo(
            "classification",
            in_channels=3,
            num_classes=len(_classes(self._folder("train"))),
            image_size=self._size,
        )

    def train(self) -> tuple[Split, Split | None]:
        """List the images of the training and validation splits."""
        samples = _samples(self._folder("train"))
        train, val = split_indices(len(samples), self._config, "images")
        training = self._split([samples[index] for index in train.tolist()], self._config.augment)
        if val is None:
            return training, None
        return training, self._split([samples[index] for index in val.tolist()], augment=False)

    def test(self) -> Split:
        """List the images of the `val` folder."""
        known, found = (_classes(self._folder(part)) for part in ("train", "val"))
        if known != found:
            different = sorted(set(known) ^ set(found))
            raise DataError(
                f"{self._folder('val')} must have the classes of {self._folder('train')}; "
                f"{len(different)} differ, the first is {different[0]!r}.",
                HINT,
            )
        return self._split(_samples(self._folder("val")), augment=False)

    @property
    def _size(self) -> int:
        return SIZE if self._config.image_size is None else self._config.image_size

    def _folder(self, part: str) -> Path:
        if self._config.root is None:
            raise DataError("imagenet needs data.root, the folder of train/ and val/.", HINT)
        folder = Path(self._config.root).expanduser() / part
        if not folder.is_dir():
            raise DataError(f"Expected a folder of classes, {folder}; it is not there.", HINT)
        return folder

    def _split(self, samples: list[Sample], augment: bool) -> Split:
        return FolderSplit(samples, self._size, augment, self._config.workers)


def _classes(folder: Path) -> list[str]:
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not classes:
        raise DataError(f"{folder} has no class folders.", HINT)
    return classes


def _samples(folder: Path) -> list[Sample]:
    _classes(folder)
    try:
        samples: list[Sample] = import_torchvision().datasets.ImageFolder(str(folder)).samples
    except FileNotFoundError as error:
        raise DataError(f"A class folder of {folder} has no image: {error}", HINT) from error
    return samples


class FolderSplit:
    """Labelled image files."""

    def __init__(self, samples: Sequence[Sample], size: int, augment: bool, workers: int) -> None:
        self._samples = samples
        self._size = size
        self._augment = augment
        self._workers = workers

    def __len__(self) -> int:
        return len(self._samples)

    def steps(self, batch_size: int) -> int:
        """The number of batches per training epoch."""
        return full_batches(len(self._samples), batch_size)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised float32 images and int64 labels; see `Split.batches`."""
        # DataLoader draws from the global generator if it is not given one of its own.
        generator = torch.Generator().manual_seed(0 if seed is None else seed)
        order: Sequence[int] = range(len(self._samples))
        if seed is not None:
            shuffled = torch.randperm(len(self._samples), generator=generator)
            order = shuffled[: self.steps(batch_size) * batch_size].tolist()
        loader = DataLoader(
            _Images(self._samples, self._size, seed if self._augment else None),
            batch_size=batch_size,
            sampler=order,
            num_workers=self._workers,
            collate_fn=_collate,
            pin_memory=device.type == "cuda",
            generator=generator,
        )
        for batch in loader:
            if isinstance(batch, DataError):
                raise batch
            images, labels = batch
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class _Images(Dataset[tuple[Tensor, int] | DataError]):
    """Prepared images, augmented as a function of (seed, index) in whichever process reads them.

    The error of an image that cannot be read is returned: raised in a worker, its message would
    arrive as the worker's traceback.
    """

    def __init__(self, samples: Sequence[Sample], size: int, seed: int | None) -> None:
        self._samples = samples
        self._size = size
        self._seed = seed

    def __getitem__(self, index: int) -> tuple[Tensor, int] | DataError:
        path, label = self._samples[index]
        try:
            image = read_image(Path(path)).convert("RGB")
        except DataError as error:
            return error
        transform = _transform(self._size, self._seed is not None)
        if self._seed is None:
            return transform(image), label
        # Torchvision draws from the global generator, which is restored afterwards.
        mixed = np.random.SeedSequence((self._seed, index)).generate_state(1, np.uint64)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(mixed[0]))
            return transform(image), label


@cache
def _transform(size: int, augment: bool) -> Any:
    transforms = import_torchvision().transforms
    if augment:
        first = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    else:
        first = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    return transforms.Compose([*first, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def _collate(
    examples: list[tuple[Tensor, int] | DataError],
) -> tuple[Tensor, Tensor] | DataError:
    images, labels = [], []
    for example in examples:
        if isinstance(example, DataError):
            return example
        images.append(example[0])
        labels.append(example[1])
    return torch.stack(images), torch.tensor(labels)
