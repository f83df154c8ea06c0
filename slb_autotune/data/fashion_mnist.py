"""Fashion-MNIST: 60,000 training and 10,000 test images, 28x28 in grey, from idx files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slb_autotune.data.base import DOWNLOADS, DataInfo, root_folder
from slb_autotune.data.download import through_torchvision
from slb_autotune.data.memory import LabelledImages, Preprocessing
from slb_autotune.errors import DataError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
TORCHVISION = Path("FashionMNIST", "raw")
CLASSES = 10
SIDE = 28

# Of the 60,000 training images: mean 0.28604, deviation 0.35302.
PREPROCESSING = Preprocessing(mean=(0.2860,), std=(0.3530,), padding=2, flip=True)

HINT = (
    "install Debian's package dataset-fashion-mnist, give --set data.root=FOLDER with "
    "train-images-idx3-ubyte.gz and the other three files in it, or --set data.download=true."
)


class FashionMnist(LabelledImages):
    """The `fashion_mnist` data set."""

    description = DataInfo("classification", in_channels=1, num_classes=CLASSES, image_size=SIDE)
    preprocessing = PREPROCESSING

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read the files in `data.root`, from Debian's package, or from a download."""
        part = "train" if train else "t10k"
        packaged = _find(DEBIAN, part) is not None
        root = root_folder(self._config, DEBIAN if packaged else DOWNLOADS)
        folder = _find(root, part)
        if folder is None and self._config.download:
            through_torchvision("FashionMNIST", root, train, True, HINT)
            folder = _find(root, part)
        if folder is None:
            raise DataError(
                f"Expected Fashion-MNIST's {part}-images-idx3-ubyte.gz in {root}; "
                "it is not there.",
                HINT,
            )
        return read_part(folder, part)


def _find(root: Path, part: str) -> Path | None:
    for folder in (root, root / TORCHVISION):
        if any((folder / f"{part}-images-idx3-ubyte{end}").exists() for end in ("", ".gz")):
            return folder
    return None


def read_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Read the images (N, 1, 28, 28) and labels of "train" or "t10k"."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte", dimensions=3)
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte", dimensions=1)
    problem = ""
    if images.shape[1:] != (SIDE, SIDE):
        problem = f"images of {SIDE}x{SIDE} pixels; they have {tuple(images.shape[1:])}"
    elif len(images) != len(labels):
        problem = f"as many labels as images; it has {len(labels)} and {len(images)}"
    elif len(labels) == 0:
        problem = "at least one image; it has none"
    elif int(labels.max()) >= CLASSES:
        problem = f"labels from 0 to {CLASSES - 1}; one is {int(labels.max())}"
    if problem:
        raise DataError(f"Fashion-MNIST's part {part!r} in {folder} must have {problem}.", HINT)
    return images[:, None], labels.to(torch.int64)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read an idx file of bytes, gzipped (`path` with .gz) or not.

    Its header is the magic number 0x08DD, where DD is the number of dimensions, then the size of
    each dimension, all as big-endian 32-bit integers.
    """
    path, content = _read_bytes(path)
    header = 4 * (1 + dimensions)
    magic = int.from_bytes(content[:4], "big")
    if len(content) < header or magic != 0x0800 + dimensions:
        raise DataError(f"{path} is not an idx file of bytes in {dimensions} dimensions.", HINT)
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).astype(int).tolist()
    expected = header + int(np.prod(shape))
    if len(content) != expected:
        raise DataError(
            f"{path} must hold {expected} bytes, for a shape of {tuple(shape)}; "
            f"it holds {len(content)}.",
            HINT,
        )
    pixels = np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
    return torch.from_numpy(pixels.copy())


def _read_bytes(path: Path) -> tuple[Path, bytes]:
    zipped = path.with_name(path.name + ".gz")
    try:
        if path.exists():
            return path, path.read_bytes()
        return zipped, gzip.decompress(zipped.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        found = path if path.exists() else zipped
        raise DataError(f"Cannot read {found}: {error}.", HINT) from error
