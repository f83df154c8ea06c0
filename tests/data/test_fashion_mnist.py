from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


def raw_pixels(images: torch.Tensor) -> np.ndarray:
    return ((images[:, 0] * 0.3530 + 0.2860) * 255).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("layout", ["", "FashionMNIST/raw"])
def test_both_layouts_gzipped_or_not(zipped: bool, layout: str, tmp_path: Path):
    pixels = write_set(tmp_path / layout, [3, 1, 4, 1, 5], zipped=zipped)
    config = DataConfig(name="fashion_mnist", root=str(tmp_path), val_fraction=0.0)
    for split in (data.load_train(config)[0], data.load_test(config)):
        images, labels = next(iter(split.batches(9)))
        assert labels.tolist() == [3, 1, 4, 1, 5]
        assert np.array_equal(raw_pixels(images), pixels)


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a web server for the files in `mirror`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(tmp_path / "mirror"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()
        thread.join()


def test_download(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pixels = write_set(tmp_path / "mirror", [3, 1, 4])
    files = sorted((tmp_path / "mirror").iterdir())
    sums = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in files]
    source = import_torchvision().datasets.FashionMNIST
    monkeypatch.setattr(source, "resources", sums)
    monkeypatch.setattr(source, "mirrors", [server])
    config = DataConfig(name="fashion_mnist", root=str(tmp_path / "new"), download=True)
    ((images, labels),) = data.load_test(config).batches(9)
    assert labels.tolist() == [3, 1, 4]
    assert np.array_equal(raw_pixels(images), pixels)
    monkeypatch.setattr(source, "mirrors", [f"{server}absent/"])
    nowhere = config.model_copy(update={"root": str(tmp_path / "other")})
    with pytest.raises(DataError, match=r"Cannot download FashionMNIST in .*other"):
        data.load_test(nowhere)
