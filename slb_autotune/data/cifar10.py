"""CIFAR-10: 50,000 training and 10,000 test images, 32x32 in colour.

The binary version is read here; the python version, which consists of pickles, by torchvision
after it has compared their checksums.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slb_autotune.data.base import DOWNLOADS, DataInfo, root_folder
from slb_autotune.data.download import through_torchvision
from slb_autotune.data.memory import LabelledImages, Preprocessing
from slb_autotune.errors import DataError

BINARY = "cifar-10-batches-bin"
PYTHON = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORDS = 10_000
IMAGE_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + IMAGE_BYTES

# Of the 50,000 training images: mean 0.49140, 0.48216, 0.44653; deviation 0.24703, 0.24349,
# 0.26159.
PREPROCESSING = Preprocessing(
    mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), padding=4, flip=True
)

HINT = (
    f"say where {BINARY} or {PYTHON} is with --set data.root=FOLDER "
    "(https://www.cs.toronto.edu/~kriz/cifar.html), or give --set data.download=true."
)


class Cifar10(LabelledImages):
    """The `cifar10` data set."""

    description = DataInfo("classification", in_channels=3, num_classes=10, image_size=32)
    preprocessing = PREPROCESSING

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the binary version where it is present, else the python version."""
        root = root_folder(self._config, DOWNLOADS)
        for folder in (root, root / BINARY):
            if (folder / TRAIN_FILES[0]).exists() or (folder / TEST_FILES[0]).exists():
                return read_binary(folder, TRAIN_FILES if train else TEST_FILES)
        parent = root.parent if root.name == PYTHON else root
        if (parent / PYTHON).exists() or self._config.download:
            return _read_python(parent, train, self._config.download)
        if self._config.root is None:
            raise DataError("CIFAR-10 needs data.root, the folder of its files.", HINT)
        raise DataError(f"Expected {BINARY} or {PYTHON} in {root}; it is not there.", HINT)


def read_binary(
    folder: Path, names: tuple[str, ...], records: int = RECORDS
) -> tuple[Tensor, Tensor]:
    """Read files of `records` records each: one label byte, then red, green and blue planes."""
    parts = [_read_records(folder / name, records) for name in names]
    data = torch.from_numpy(np.concatenate(parts))
    images = data[:, 1:].reshape(-1, 3, 32, 32)
    return images, data[:, 0].to(torch.int64)


def _read_records(path: Path, records: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.", HINT) from error
    if data.size != records * RECORD_BYTES:
        raise DataError(
            f"{path} must have {records * RECORD_BYTES} bytes, {records} records of "
            f"{RECORD_BYTES}; it has {data.size}.",
            "unpack or download the file again.",
        )
    table = data.reshape(records, RECORD_BYTES)
    if table[:, 0].max() > 9:
        raise DataError(
            f"{path} has the label {table[:, 0].max()}; CIFAR-10's labels are 0 to 9.",
            "unpack or download the file again.",
        )
    return table


def _read_python(parent: Path, train: bool, download: bool) -> tuple[Tensor, Tensor]:
    dataset = through_torchvision("CIFAR10", parent, train, download, HINT)
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(dataset.targets, dtype=torch.int64)
