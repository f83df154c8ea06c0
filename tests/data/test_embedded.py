"""The embedded sets hold what scikit-learn itself reads, without importing it."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from slb_autotune.data.digits import read_digits
from slb_autotune.data.embedded import embedded_file
from slb_autotune.data.photos import PHOTOS
from slb_autotune.errors import DataError


def test_digits_are_those_of_scikit_learn() -> None:
    images, labels = read_digits()
    expected = load_digits()
    assert torch.equal(images[:, 0], torch.from_numpy(expected.images).to(torch.uint8))
    assert torch.equal(labels, torch.from_numpy(expected.target))


def test_photos_are_those_of_scikit_learn() -> None:
    for name, expected in zip(PHOTOS, load_sample_images().images, strict=True):
        with Image.open(embedded_file("images", name)) as photo:
            assert photo.tobytes() == expected.tobytes()


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_file_is_named(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        (tmp_path / "sklearn").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sklearn")
    with pytest.raises(DataError, match="scikit-learn has no file"):
        embedded_file("data", "digits.csv.gz")
