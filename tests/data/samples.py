"""Real data for the tests, where it is present, and small data that they write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]


def shared_data(*parts: str) -> Path:
    """A folder of the shared data; the test is skipped where it is absent."""
    root = os.environ.get("SLB_TEST_DATA")
    base = REPOSITORY.parent / "shared" / "data" if root is None else Path(root)
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} in the folder that SLB_TEST_DATA names")
    return path


def cifar10_root() -> Path:
    """The folder of CIFAR-10's binary version; the test is skipped where it is absent."""
    root = os.environ.get("SLB_TEST_CIFAR10")
    if root is None or not Path(root, "cifar-10-batches-bin").exists():
        pytest.skip("needs SLB_TEST_CIFAR10, the folder that holds cifar-10-batches-bin")
    return Path(root)


def random_image(path: Path, height: int, width: int, seed: int, mode: str = "RGB") -> None:
    """Write a smooth random image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (4, 4, 3) if mode == "RGB" else (4, 4)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(path)


def class_folders(root: Path) -> Path:
    """Write an ImageNet-like folder: 3 classes, 5 training and 2 test images each."""
    for part, count in (("train", 5), ("val", 2)):
        for label in range(3):
            for number in range(count):
                path = root / part / f"n{label}" / f"{part}_{number}.JPEG"
                random_image(path, 40 + number, 50, seed=100 * label + 10 * count + number)
    return root


def image_folders(root: Path) -> Path:
    """Write a super-resolution folder: 6 training images in subfolders, 2 for testing."""
    for number in range(6):
        path = root / "train" / f"set{number % 2}" / f"{number}.png"
        random_image(path, 50 + 3 * number, 61 + number, seed=number)
    random_image(root / "test" / "a.bmp", 37, 45, seed=20)
    random_image(root / "test" / "b.jpg", 40, 33, seed=21, mode="L")
    return root
