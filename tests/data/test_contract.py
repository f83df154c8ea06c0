"""What holds for every data set of the registry."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slb_autotune import data
from slb_autotune.config.registry import DATASETS
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import Split
from slb_autotune.data.fashion_mnist import DEBIAN
from slb_autotune.errors import DataError
from tests.data.samples import cifar10_root, class_folders, image_folders

ALL = sorted(DATASETS)
SUPER_RESOLUTION = [n for n in ALL if DATASETS[n].details["task"] == "super_resolution"]
CLASSIFICATION = [name for name in ALL if name not in SUPER_RESOLUTION]
FILES_NEEDED = ["cifar10", "fashion_mnist", "imagenet", "sr_folder"]


@pytest.fixture(scope="session")
def configuration(tmp_path_factory: pytest.TempPathFactory):
    """A function from a data set's name to a configuration for which its data is at hand."""

    @cache
    def make(name: str) -> DataConfig:
        folder = tmp_path_factory.mktemp(name)
        if name == "cifar10":
            return DataConfig(name=name, root=str(cifar10_root()), train_images=500)
        if name == "fashion_mnist" and not DEBIAN.is_dir():
            pytest.skip("needs Debian's package dataset-fashion-mnist")
        if name == "fashion_mnist":
            return DataConfig(name=name, train_images=500)
        if name == "imagenet":
            root = str(class_folders(folder))
            return DataConfig(name=name, root=root, image_size=16, val_fraction=0.2)
        if name == "sr_folder":
            root = str(image_folders(folder))
            return DataConfig(name=name, root=root, patch=16, patches=50, val_fraction=0.3)
        return DataConfig(name=name, patches=50)

    return make


@pytest.fixture(scope="session")
def load_train(configuration):
    """Load each training set once for all tests."""

    @cache
    def load(name: str, **changes) -> tuple[Split, Split | None]:
        return data.load_train(configuration(name).model_copy(update=changes))

    return load


def fingerprints(split: Split) -> Tensor:
    """One number per image that identifies it: exact, computed from all its bits."""
    return torch.cat([fingerprint(images) for images, _ in split.batches(500)])


def fingerprint(images: Tensor) -> Tensor:
    bits = images.flatten(1).view(torch.int32)
    generator = torch.Generator().manual_seed(0)
    return (bits * torch.randint(2**62, bits.shape[1:], generator=generator)).sum(dim=1)


def first(split: Split, batch_size: int, seed: int | None) -> tuple[Tensor, Tensor]:
    return next(iter(split.batches(batch_size, seed=seed)))


@pytest.mark.parametrize("name", ALL)
def test_batches_have_the_described_shape(name, configuration, load_train):
    config = configuration(name)
    about = data.info(config)
    train, val = load_train(name)
    assert about.task == DATASETS[name].details["task"]
    inputs, targets = first(train, 4, seed=0)
    side = about.image_size
    assert inputs.shape == (4, about.in_channels, side, side)
    assert inputs.dtype == torch.float32
    assert inputs.is_contiguous()
    if about.num_classes is None:
        assert targets.shape == inputs.shape
        assert targets.dtype == torch.float32
    else:
        assert targets.shape == (4,)
        assert targets.dtype == torch.int64
        assert 0 <= int(targets.min()) <= int(targets.max()) < about.num_classes
    for split in (val, data.load_test(config)):
        inputs, targets = first(split, 4, seed=None)
        if about.num_classes is None:
            assert len(inputs) == 1
            assert inputs.shape == targets.shape
        else:
            assert inputs.shape[1:] == (about.in_channels, side, side)


@pytest.mark.parametrize("name", ALL)
def test_the_seed_alone_decides(name, load_train):
    train, _ = load_train(name)
    torch.manual_seed(1)
    inputs, targets = first(train, 5, seed=3)
    torch.manual_seed(2)
    again, same_targets = first(train, 5, seed=3)
    other, _ = first(train, 5, seed=4)
    assert torch.equal(inputs, again)
    assert torch.equal(targets, same_targets)
    assert not torch.equal(inputs, other)


@pytest.mark.parametrize("name", ALL)
def test_the_global_generator_is_untouched(name, configuration):
    before = torch.get_rng_state()
    config = configuration(name)
    train, val = data.load_train(config)
    first(train, 2, seed=1)
    first(train, 2, seed=None)
    first(val, 2, seed=None)
    first(data.load_test(config), 2, seed=None)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ALL)
def test_number_of_batches(name, load_train):
    train, _ = load_train(name, augment=False, train_images=3)
    size = len(train) - 1
    assert train.steps(size) == len(list(train.batches(size, seed=0))) == 1
    assert [len(images) for images, _ in train.batches(size)] == [size, 1]
    assert train.steps(len(train) + 1) == 1
    ((images, _),) = train.batches(len(train) + 1, seed=0)
    assert len(images) == len(train)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_parts_are_disjoint_and_complete(name, configuration):
    config = configuration(name).model_copy(update={"train_images": None})
    train, val = data.load_train(config)
    whole, nothing = data.load_train(config.model_copy(update={"val_fraction": 0.0}))
    assert nothing is None
    assert len(train) + len(val) == len(whole)
    parts = torch.cat([fingerprints(train), fingerprints(val)])
    assert torch.equal(parts.sort().values, fingerprints(whole).sort().values)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_without_augmentation_training_gives_the_plain_images(name, load_train):
    plain, _ = load_train(name, augment=False)
    augmented, _ = load_train(name)
    shuffled, _ = first(plain, len(plain), seed=5)
    changed, _ = first(augmented, len(plain), seed=5)
    assert torch.equal(fingerprint(shuffled).sort().values, fingerprints(plain).sort().values)
    assert not torch.equal(shuffled, changed)


@pytest.mark.parametrize("name", ALL)
def test_evaluation_of_an_augmented_split_is_plain(name, load_train):
    augmented, _ = load_train(name)
    plain, _ = load_train(name, augment=False)
    for one, other in zip(first(augmented, 6, None), first(plain, 6, None), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["digits", "imagenet"])
def test_train_images_cuts_the_training_part_only(name, load_train):
    train, val = load_train(name)
    few, same_val = load_train(name, train_images=4)
    assert len(few) == 4
    assert torch.equal(fingerprints(val), fingerprints(same_val))
    assert set(fingerprints(few).tolist()) <= set(fingerprints(train).tolist())
    with pytest.raises(DataError, match=f"images, but the training split has {len(train)}"):
        load_train(name, train_images=len(train) + 1)


@pytest.mark.parametrize("name", ["digits", "imagenet"])
def test_split_seed_draws_another_validation_part(name, load_train):
    _, val = load_train(name)
    _, other = load_train(name, split_seed=1)
    assert not torch.equal(fingerprints(val), fingerprints(other))


def test_test_images_are_not_training_images(load_train, configuration):
    whole, _ = load_train("digits", val_fraction=0.0)
    test = data.load_test(configuration("digits"))
    assert len(whole) + len(test) == 1797
    assert not set(fingerprints(whole).tolist()) & set(fingerprints(test).tolist())


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "sr_folder"])
def test_a_missing_root_is_explained(name):
    with pytest.raises(DataError, match=r"needs data\.root.*Hint: .*--set data\.root=FOLDER"):
        data.load_train(DataConfig(name=name))


@pytest.mark.parametrize("name", FILES_NEEDED)
@pytest.mark.parametrize("load", [data.load_train, data.load_test])
def test_an_empty_root_is_explained(name, load, tmp_path: Path):
    with pytest.raises(DataError, match=r"Expected .*it is not there\. Hint: .*data\.root"):
        load(DataConfig(name=name, root=str(tmp_path)))


@pytest.mark.parametrize("name", FILES_NEEDED)
def test_what_the_file_system_refuses_is_explained(name):
    with pytest.raises(DataError, match=rf"Cannot read the data set {name} .*: File name too"):
        data.load_train(DataConfig(name=name, root="x" * 300))


def test_a_split_that_leaves_nothing_is_explained(tmp_path: Path):
    config = DataConfig(name="sr_folder", root=str(tmp_path), patch=16, val_fraction=0.9)
    image_folders(tmp_path)
    for path in sorted((tmp_path / "train").rglob("*.png"))[1:]:
        path.unlink()
    with pytest.raises(DataError, match="leaves nothing to train on"):
        data.load_train(config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ALL)
def test_a_cuda_device_gives_the_same_batches(name, load_train):
    train, _ = load_train(name)
    inputs, targets = next(iter(train.batches(5, seed=3, device=torch.device("cuda"))))
    expected, expected_targets = first(train, 5, seed=3)
    torch.testing.assert_close(inputs.cpu(), expected)
    assert torch.equal(targets.cpu(), expected_targets)
