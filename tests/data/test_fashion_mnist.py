from __future__ import annotations

import gzip
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from slb_autotune import data
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.fashion_mnist import read_idx
from slb_autotune.errors import DataError
from slb_autotune.nets.torchvision_import import import_torchvision


def idx(values: np.ndarray) -> bytes:
    head = [0x0800 + values.ndim, *values.shape]
    return b"".join(number.to_bytes(4, "big") for number in head) + values.tobytes()


def write_set(folder: Path, labels: list[int], side: int = 28, zipped: bool = True) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (len(labels), side, side), dtype=np.uint8)
    for part in ("train", "t10k"):
        for name, values in (
            ("images-idx3", pixels),
            ("labels-idx1", np.array(labels, dtype=np.uint8)),
        ):
            content = idx(values)
            path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return pixels


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("layout", ["", "FashionMNIST/raw"])
def test_both_layouts_gzipped_or_not(zipped: bool, layout: str, tmp_path: Path):
    pixels = write_set(tmp_path / layout, [3, 1, 4, 1, 5], zipped=zipped)
    config = DataConfig(name="fashion_mnist", root=str(tmp_path), val_fraction=0.0)
    for split in (data.load_train(config)[0], data.load_test(config)):
        images, labels = next(iter(split.batches(9)))
        assert labels.tolist() == [3, 1, 4, 1, 5]
        raw = ((images * 0.3530 + 0.2860) * 255).round().to(torch.uint8)
        assert np.array_equal(raw[:, 0].numpy(), pixels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((2, 3), np.uint8)), "not an idx file of bytes in 3 dimensions"),
        (b"\x00\x00\x08", "not an idx file of bytes in 3 dimensions"),
        (idx(np.zeros((2, 3, 3), np.uint8))[:-1], r"hold 34 bytes, .*\(2, 3, 3\); it holds 33"),
        (idx(np.zeros((2, 3, 3), np.uint8)) + b"0", "hold 34 bytes, .* it holds 35"),
    ],
)
def test_a_broken_idx_file_is_named(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(DataError, match=f"broken.*{message}"):
        read_idx(tmp_path / "broken", dimensions=3)


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"no" + b, lambda b: b""])
def test_a_broken_gzip_file_is_named(damage, tmp_path: Path):
    content = damage(gzip.compress(idx(np.ones((9, 9), np.uint8))))
    (tmp_path / "broken.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.gz"):
        read_idx(tmp_path / "broken", dimensions=2)


@pytest.mark.parametrize(
    ("labels", "side", "message"),
    [
        ([1, 2], 27, r"images of 28x28 pixels; they have \(27, 27\)"),
        ([1, 10], 28, "labels from 0 to 9; one is 10"),
        ([], 28, "at least one image"),
    ],
)
def test_contents_that_are_not_fashion_mnist(labels, side, message, tmp_path: Path):
    write_set(tmp_path, labels, side)
    with pytest.raises(DataError, match=f"part 'train' in .* must have {message}"):
        data.load_train(DataConfig(name="fashion_mnist", root=str(tmp_path)))


def test_images_and_labels_must_be_as_many(tmp_path: Path):
    write_set(tmp_path, [1, 2])
    labels = gzip.compress(idx(np.zeros(3, np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(labels)
    with pytest.raises(DataError, match="as many labels as images; it has 3 and 2"):
        data.load_test(DataConfig(name="fashion_mnist", root=str(tmp_path)))


def test_missing_labels_are_named(tmp_path: Path):
    write_set(tmp_path, [1, 2])
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"Cannot read .*train-labels-idx1-ubyte\.gz"):
        data.load_train(DataConfig(name="fashion_mnist", root=str(tmp_path)))


def test_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_set(tmp_path / "mirror", [3, 1, 4])
    files = sorted((tmp_path / "mirror").iterdir())
    sums = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in files]
    datasets = import_torchvision().datasets
    source = datasets.FashionMNIST
    monkeypatch.setattr(source, "resources", sums)
    monkeypatch.setattr(source, "mirrors", [(tmp_path / "mirror").as_uri() + "/"])

    def copy(url: str, filename: str) -> None:
        shutil.copy(tmp_path / "mirror" / Path(url).name, filename)

    # Torchvision's own function reads no file: URLs.
    monkeypatch.setattr(datasets.utils, "_urlretrieve", copy)
    config = DataConfig(name="fashion_mnist", root=str(tmp_path / "new"), download=True)
    assert len(data.load_test(config)) == 3
    monkeypatch.undo()
    monkeypatch.setattr(source, "mirrors", [(tmp_path / "absent").as_uri() + "/"])
    nowhere = config.model_copy(update={"root": str(tmp_path / "other")})
    with pytest.raises(DataError, match=r"Cannot download FashionMNIST in .*other"):
        data.load_test(nowhere)
