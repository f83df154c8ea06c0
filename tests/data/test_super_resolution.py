from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from slb_autotune import data
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.resize import imresize
from slb_autotune.data.super_resolution import (
    PatchSplit,
    luminance,
    make_pair,
    psnr,
    train_and_val,
    turn,
)
from slb_autotune.errors import DataError
from tests.data.samples import image_folders, random_image, shared_data


def slow_imresize(image: list[list[float]], scale: float) -> list[list[float]]:
    """MATLAB's definition, a pixel at a time: rows first, then columns."""

    def kernel(x: float) -> float:
        x = abs(x)
        if x <= 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x <= 2 else 0.0

    def resize(row: list[float]) -> list[float]:
        shrink = min(scale, 1.0)
        result = []
        for x in range(round(len(row) * scale)):
            centre = (x + 0.5) / scale - 0.5
            total = weight = 0.0
            for position in range(-5 * len(row), 6 * len(row)):
                share = kernel((centre - position) * shrink)
                mirrored = position % (2 * len(row))
                if mirrored >= len(row):
                    mirrored = 2 * len(row) - 1 - mirrored
                total += share * row[mirrored]
                weight += share
            result.append(total / weight)
        return result

    rows = [resize(row) for row in image]
    columns = [resize(list(column)) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("scale", [1 / 4, 1 / 3, 1 / 2, 2.0, 3.0, 4.0])
def test_imresize_equals_the_definition(scale: float):
    image = torch.rand(12, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.tensor(slow_imresize(image.tolist(), scale), dtype=torch.float64)
    torch.testing.assert_close(imresize(image, scale), expected)


@pytest.mark.parametrize("scale", range(2, 9))
def test_imresize_has_no_pixel_too_many(scale: int):
    for size in range(scale, 50 * scale, scale):
        small = imresize(torch.ones(size, scale), 1 / scale)
        assert small.shape == (size // scale, 1)
    torch.testing.assert_close(small, torch.ones_like(small))


def test_imresize_keeps_leading_dimensions_and_type():
    resized = imresize(torch.rand(2, 3, 8, 10), 0.5)
    assert resized.shape == (2, 3, 4, 5)
    assert resized.dtype == torch.float32


def test_luminance_is_matlabs():
    colours = [(0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255)]
    image = Image.fromarray(np.array([colours], dtype=np.uint8))
    # What rgb2ycbcr gives for uint8: 16, 235, 81, 145, 41.
    assert (luminance(image) * 255).round().tolist() == [[16, 235, 81, 145, 41]]
    grey = Image.fromarray(np.array([[0, 100, 255]], dtype=np.uint8))
    assert (luminance(grey) * 255).tolist() == [[0, 100, 255]]


@pytest.mark.parametrize(("scale", "published"), [(2, 33.65), (3, 30.39), (4, 28.42)])
def test_bicubic_on_set5_has_the_published_psnr(scale: int, published: float, tmp_path: Path):
    (tmp_path / "test").symlink_to(shared_data("sr", "Set5"))
    config = DataConfig(name="sr_folder", root=str(tmp_path), scale=scale)
    figures = [psnr(*pair, border=scale) for pair in data.load_test(config).batches(1)]
    assert len(figures) == 5
    assert sum(figures) / 5 == pytest.approx(published, abs=0.02)


def test_psnr_by_hand():
    target = torch.full((1, 1, 6, 6), 100 / 255)
    prediction = target.clone()
    prediction[..., 2, 3] = 110 / 255
    # One of 4 x 4 pixels is off by 10 of 255.
    expected = 10 * math.log10(255**2 / (100 / 16))
    assert psnr(prediction, target, border=1) == pytest.approx(expected)
    prediction[..., 0, :] = 0.0
    assert psnr(prediction, target, border=1) == pytest.approx(expected)
    assert psnr(target + 0.4 / 255, target, border=0) == math.inf
    assert psnr(torch.full((4, 4), 1.5), torch.ones(4, 4), border=0) == math.inf


def numbered(height: int, width: int, start: int) -> tuple[Tensor, Tensor]:
    """A image in which every pixel has its own number, and an input that is its negative."""
    target = torch.arange(start, start + height * width).reshape(height, width).float()
    return -target, target


def test_patches_are_pieces_of_the_images():
    pairs = [numbered(9, 11, 0), numbered(8, 8, 1000), numbered(10, 9, 2000)]
    pieces = {
        tuple(target[y : y + 8, x : x + 8].flatten().tolist())
        for _, target in pairs
        for y in range(target.shape[0] - 7)
        for x in range(target.shape[1] - 7)
    }
    split = PatchSplit(pairs, patch=8, patches=400, augment=False)
    for seed in (0, None):
        found = set()
        for source, target in split.batches(64, seed):
            assert torch.equal(source, -target)
            found |= {tuple(piece.flatten().tolist()) for piece in target}
        # 8 + 1 + 6 positions, all of them drawn in 400 draws.
        assert found == pieces
        assert len(found) == 15


def test_augmentation_gives_all_eight_versions_and_turns_both_alike():
    split = PatchSplit([numbered(8, 8, 0)], patch=8, patches=200, augment=True)
    versions = set()
    for source, target in split.batches(50, seed=0):
        assert torch.equal(source, -target)
        versions |= {tuple(piece.flatten().tolist()) for piece in target}
    square = torch.arange(64.0).reshape(8, 8)
    turned = [torch.rot90(side, k) for side in (square, square.flip(1)) for k in range(4)]
    assert versions == {tuple(piece.flatten().tolist()) for piece in turned}


def test_turn_equals_one_patch_at_a_time():
    patches = torch.arange(8 * 9).reshape(8, 3, 3)
    turns = torch.cartesian_prod(*[torch.tensor([False, True])] * 3).T
    for patch, (across, down, diagonal), result in zip(
        patches, turns.T.tolist(), turn(patches, turns), strict=True
    ):
        expected = patch.flip(1) if across else patch
        expected = expected.flip(0) if down else expected
        assert torch.equal(result, expected.T if diagonal else expected)


def test_images_are_either_for_training_or_for_validation():
    images = [torch.full((30, 30), number / 10, dtype=torch.float64) for number in range(10)]
    sizes = [(30, 30)] * 9 + [(30, 15)]
    config = DataConfig(name="sr_folder", patch=16, patches=500, val_fraction=0.2)
    train, val = train_and_val(sizes, images.__getitem__, config)
    in_training = {round(x.item(), 3) for _, y in train.batches(500, seed=0) for x in y.unique()}
    in_val = {round(y.mean().item(), 3) for _, y in val.batches(1)}
    assert len(train) == 500
    assert len(val) == 2
    assert not in_training & in_val
    # The tenth image holds no patch of 16.
    assert in_training | in_val == {number / 10 for number in range(9)}
    few, same_val = train_and_val(
        sizes, images.__getitem__, config.model_copy(update={"train_images": 3})
    )
    assert {round(y.mean().item(), 3) for _, y in same_val.batches(1)} == in_val
    assert len({round(y.mean().item(), 3) for _, y in few.batches(1)}) == 3
    with pytest.raises(DataError, match="asks for 8 images, but the training split has 7"):
        train_and_val(sizes, images.__getitem__, config.model_copy(update={"train_images": 8}))


def test_one_image_is_held_out_even_by_a_small_fraction(tmp_path: Path):
    root = str(image_folders(tmp_path))
    _, val = data.load_train(DataConfig(name="sr_folder", root=root, patch=16, val_fraction=0.01))
    assert len(val) == 1


def test_whole_images_are_cut_to_a_multiple_of_the_scale(tmp_path: Path):
    root = str(image_folders(tmp_path))
    test = data.load_test(DataConfig(name="sr_folder", root=root, scale=4))
    assert test.steps(16) == len(test) == 2
    shapes = [tuple(target.shape) for _, target in test.batches(16)]
    assert shapes == [(1, 1, 36, 44), (1, 1, 40, 32)]


def test_input_is_the_blurred_target():
    target = torch.rand(13, 12, dtype=torch.float64)
    source, cut = make_pair(target, 3)
    assert torch.equal(cut, target[:12].float())
    expected = imresize(imresize(target[:12], 1 / 3), 3.0).float()
    assert torch.equal(source, expected)


def test_linked_folders_are_searched(tmp_path: Path):
    images = image_folders(tmp_path / "elsewhere")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "linked").symlink_to(images / "train")
    (tmp_path / "train" / "._hidden.png").write_bytes(b"")
    config = DataConfig(name="sr_folder", root=str(tmp_path), patch=16, val_fraction=0.5)
    assert len(data.load_train(config)[1]) == 3


def test_an_unreadable_image_is_named(tmp_path: Path):
    root = image_folders(tmp_path)
    config = DataConfig(name="sr_folder", root=str(root), patch=16)
    broken = root / "train" / "set0" / "2.png"
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"Cannot read the image .*set0/2\.png: "):
        data.load_train(config)
    broken.write_text("not an image")
    with pytest.raises(DataError, match=r"Cannot read the image .*set0/2\.png: "):
        data.load_train(config)


def test_images_of_sixteen_bits_are_refused(tmp_path: Path):
    root = image_folders(tmp_path)
    deep = Image.fromarray(np.zeros((40, 40), dtype=np.uint16))
    deep.save(root / "test" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits per channel"):
        data.load_test(DataConfig(name="sr_folder", root=str(root)))


def test_images_that_are_too_small(tmp_path: Path):
    root = image_folders(tmp_path)
    config = DataConfig(name="sr_folder", root=str(root), patch=80, scale=4)
    with pytest.raises(DataError, match="None of the 6 training images holds a patch of 80"):
        data.load_train(config)
    random_image(root / "test" / "tiny.png", 11, 40, seed=0)
    with pytest.raises(DataError, match=r"tiny\.png is too small for scale 4: 12 pixels"):
        data.load_test(config)


def test_a_folder_without_images_is_named(tmp_path: Path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "readme.txt").write_text("")
    with pytest.raises(DataError, match=r"train has no image \(\.png"):
        data.load_train(DataConfig(name="sr_folder", root=str(tmp_path)))


def test_photos_have_fixed_test_tiles():
    config = DataConfig(name="photos", patches=10)
    one = [target for _, target in data.load_test(config).batches(1)]
    changed = config.model_copy(update={"split_seed": 5, "val_fraction": 0.5})
    other = [target for _, target in data.load_test(changed).batches(1)]
    assert len(one) == 6
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(data.load_train(changed)[1]) == 9
