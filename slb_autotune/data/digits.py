"""Scikit-learn's handwritten digits: 1,797 grey 8x8 images that ship inside its wheel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import DataInfo, Split, permutation
from slb_autotune.data.embedded import embedded_file
from slb_autotune.data.memory import Recipe, TensorSplit, train_and_val

# The set has no official test part: ours is a fifth, the same for every configuration.
TEST_SEED = 1797
TEST_IMAGES = 359

# Pixels count from 0 to 16. The mean and deviation are those of the 1,438 training images.
RECIPE = Recipe(mean=(0.3049,), std=(0.3757,), padding=1, flip=False, white=16)


class Digits:
    """The `digits` data set."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def info(self) -> DataInfo:
        """Describe the data."""
        return DataInfo("classification", in_channels=1, num_classes=10, image_size=8)

    def train(self) -> tuple[Split, Split | None]:
        """Give the training and validation parts."""
        images, labels = _read(test=False)
        return train_and_val(images, labels, RECIPE, self._config)

    def test(self) -> Split:
        """Give the test set."""
        images, labels = _read(test=True)
        return TensorSplit(images, labels, RECIPE)


def read_digits() -> tuple[Tensor, Tensor]:
    """Every image, pixels from 0 to 16, and its digit."""
    path = embedded_file("data", "digits.csv.gz")
    # A row is an image: its 64 pixels, then its digit.
    rows = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    return rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].to(torch.int64)


def _read(test: bool) -> tuple[Tensor, Tensor]:
    images, labels = read_digits()
    order = permutation(len(labels), TEST_SEED)
    part = order[:TEST_IMAGES] if test else order[TEST_IMAGES:]
    return images[part], labels[part]
