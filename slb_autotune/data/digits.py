"""Scikit-learn's handwritten digits: 1,797 grey 8x8 images that ship inside its wheel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slb_autotune.data.base import DataInfo, permutation
from slb_autotune.data.embedded import embedded_file
from slb_autotune.data.memory import LabelledImages, Preprocessing

# There is no official test set: ours is a fifth of the images, the same for every configuration.
TEST_SEED = 1797
TEST_IMAGES = 359

# Pixels range from 0 to 16. The mean and deviation are those of the 1,438 training images.
PREPROCESSING = Preprocessing(mean=(0.3049,), std=(0.3757,), padding=1, flip=False, white=16)


class Digits(LabelledImages):
    """The `digits` data set."""

    description = DataInfo("classification", in_channels=1, num_classes=10, image_size=8)
    preprocessing = PREPROCESSING

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """Read our training set or our test set."""
        images, labels = read_digits()
        order = permutation(len(labels), TEST_SEED)
        part = order[TEST_IMAGES:] if train else order[:TEST_IMAGES]
        return images[part], labels[part]


def read_digits() -> tuple[Tensor, Tensor]:
    """Every image, pixels from 0 to 16, and its digit."""
    path = embedded_file("data", "digits.csv.gz")
    # One row per image: its 64 pixels, then its digit.
    rows = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    return rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].to(torch.int64)
