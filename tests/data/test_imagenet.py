from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slb_autotune import data
from slb_autotune.config.trial import DataConfig
from slb_autotune.errors import DataError
from tests.data.samples import class_folders, random_image


def config_of(root: Path, **changes) -> DataConfig:
    return DataConfig(name="imagenet", root=str(root), image_size=16, **changes)


def test_workers_do_not_change_the_images(tmp_path: Path):
    root = class_folders(tmp_path)
    alone, _ = data.load_train(config_of(root, workers=0))
    helped, _ = data.load_train(config_of(root, workers=2))
    for seed in (7, None):
        pairs = list(zip(alone.batches(4, seed), helped.batches(4, seed), strict=True))
        assert len(pairs) == (3 if seed == 7 else 4)
        for (images, labels), (other_images, other_labels) in pairs:
            assert torch.equal(images, other_images)
            assert torch.equal(labels, other_labels)


def test_description_and_test_labels(tmp_path: Path):
    root = class_folders(tmp_path)
    assert data.info(DataConfig(name="imagenet", root=str(root))).image_size == 224
    assert data.info(config_of(root)).num_classes == 3
    ((_, labels),) = data.load_test(config_of(root)).batches(10)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_training_needs_no_test_folder(tmp_path: Path):
    root = class_folders(tmp_path)
    (root / "val").rename(root / "elsewhere")
    train, val = data.load_train(config_of(root))
    assert len(train) + len(val) == 15


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named(workers: int, tmp_path: Path):
    root = class_folders(tmp_path)
    broken = root / "val" / "n1" / "val_0.JPEG"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError, match=r"^Cannot read the image .*n1/val_0\.JPEG: "):
        list(data.load_test(config_of(root, workers=workers)).batches(4))


def test_other_test_classes_are_refused(tmp_path: Path):
    root = class_folders(tmp_path)
    random_image(root / "val" / "cat" / "a.JPEG", 20, 20, seed=0)
    with pytest.raises(DataError, match=r"must have the classes of .*1 differ, .*'cat'"):
        data.load_test(config_of(root))


def test_an_empty_class_folder_is_named(tmp_path: Path):
    root = class_folders(tmp_path)
    (root / "train" / "n3").mkdir()
    with pytest.raises(DataError, match=r"has no image: .*n3"):
        data.load_train(config_of(root))


def test_a_folder_without_classes_is_named(tmp_path: Path):
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train has no class folders"):
        data.info(config_of(tmp_path))
