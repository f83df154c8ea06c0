from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from slb_autotune import data
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.cifar10 import PREPROCESSING, RECORD_BYTES, TRAIN_FILES, read_binary
from slb_autotune.errors import DataError
from slb_autotune.nets.torchvision_import import import_torchvision
from tests.data.samples import cifar10_root


def write_records(path: Path, labels: list[int]) -> np.ndarray:
    pixels = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), 3, 32, 32))
    with path.open("wb") as file:
        for label, image in zip(labels, pixels, strict=True):
            file.write(bytes([label]) + image.astype(np.uint8).tobytes())
    return pixels


def test_records_are_label_then_planes(tmp_path: Path):
    expected = write_records(tmp_path / "a.bin", [7, 0, 9])
    write_records(tmp_path / "b.bin", [1, 2, 3])
    images, labels = read_binary(tmp_path, ("a.bin", "b.bin"), records=3)
    assert images.dtype == torch.uint8
    assert images.shape == (6, 3, 32, 32)
    assert np.array_equal(images[:3].numpy(), expected)
    assert labels.tolist() == [7, 0, 9, 1, 2, 3]


def test_a_truncated_file_is_named(tmp_path: Path):
    path = tmp_path / "a.bin"
    write_records(path, [7, 0, 9])
    path.write_bytes(path.read_bytes()[:-1])
    size = 3 * RECORD_BYTES
    with pytest.raises(DataError, match=rf"a\.bin must have {size} bytes.*it has {size - 1}"):
        read_binary(tmp_path, ("a.bin",), records=3)


def test_an_impossible_label_is_named(tmp_path: Path):
    write_records(tmp_path / "a.bin", [7, 10])
    with pytest.raises(DataError, match=r"a\.bin has the label 10"):
        read_binary(tmp_path, ("a.bin",), records=2)


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_a_missing_file_is_named(folder: str, tmp_path: Path):
    (tmp_path / folder).mkdir(exist_ok=True)
    write_records(tmp_path / folder / "test_batch.bin", [1])
    with pytest.raises(DataError, match=r"Cannot read .*data_batch_1\.bin: No such file"):
        data.load_train(DataConfig(name="cifar10", root=str(tmp_path)))


@pytest.mark.parametrize("inside", [True, False])
def test_damaged_pickles_are_never_opened(inside: bool, tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(name.removesuffix(".bin") for name in TRAIN_FILES), "test_batch"):
        (folder / name).write_bytes(b"cos\nabort\n(tR.")
    root = folder if inside else tmp_path
    with pytest.raises(
        DataError, match=r"Cannot read CIFAR10 in .*corrupted.*Hint: .*data\.root="
    ):
        data.load_train(DataConfig(name="cifar10", root=str(root)))


def test_checked_pickles_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    contents = {
        "data_batch_1": {"data": pixels, "labels": [3, 1, 4, 1]},
        "test_batch": {"data": pixels[:2], "labels": [5, 9]},
        "batches.meta": {"label_names": ["a"] * 10},
    }
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    reader = import_torchvision().datasets.CIFAR10
    monkeypatch.setattr(reader, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(reader, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setitem(reader.meta, "md5", sums["batches.meta"])
    config = DataConfig(name="cifar10", root=str(tmp_path), val_fraction=0.0)
    ((images, labels),) = data.load_train(config)[0].batches(9)
    mean, std = (
        torch.tensor(values)[:, None, None] for values in (PREPROCESSING.mean, PREPROCESSING.std)
    )
    raw = ((images * std + mean) * 255).round().to(torch.uint8)
    assert labels.tolist() == [3, 1, 4, 1]
    assert np.array_equal(raw.numpy(), pixels.reshape(4, 3, 32, 32))
    assert len(data.load_test(config)) == 2


def test_a_failed_download_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = (tmp_path / "absent.tar.gz").as_uri()
    monkeypatch.setattr(import_torchvision().datasets.CIFAR10, "url", url)
    config = DataConfig(name="cifar10", root=str(tmp_path / "new"), download=True)
    with pytest.raises(DataError, match=r"Cannot download CIFAR10 in .*new"):
        data.load_train(config)


def test_the_folder_itself_may_be_the_root_and_training_needs_no_test_file(tmp_path: Path):
    folder = cifar10_root() / "cifar-10-batches-bin"
    for name in TRAIN_FILES:
        (tmp_path / name).symlink_to(folder / name)
    train, val = data.load_train(DataConfig(name="cifar10", root=str(tmp_path)))
    assert (len(train), len(val)) == (45_000, 5_000)
    with pytest.raises(DataError, match=r"test_batch\.bin"):
        data.load_test(DataConfig(name="cifar10", root=str(tmp_path)))


def test_sets_that_do_not_need_torchvision_or_scikit_learn_do_not_import_them():
    code = (
        "import sys; from slb_autotune import data\n"
        "from slb_autotune.config.trial import DataConfig\n"
        "data.load_train(DataConfig(name='digits')); data.info(DataConfig(name='cifar10'))\n"
        "assert not {'torchvision', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
