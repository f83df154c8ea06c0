from __future__ import annotations

import torch

from slb_autotune.data.memory import Preprocessing, TensorSplit, crop, mirror


def random_images(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, 3, 6, 5), dtype=torch.uint8, generator=generator)


def test_crop_equals_one_image_at_a_time():
    images = random_images(25)
    shifts = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    cropped = crop(images, 2, shifts)
    for image, (down, right), result in zip(images, shifts.tolist(), cropped, strict=True):
        padded = torch.zeros(3, 10, 9, dtype=torch.uint8)
        padded[:, 2:8, 2:7] = image
        assert torch.equal(result, padded[:, down : down + 6, right : right + 5])


def test_mirror_equals_one_image_at_a_time():
    images = random_images(6)
    mirrored = torch.tensor([True, False, False, True, True, False])
    for image, flip, result in zip(images, mirrored, mirror(images, mirrored), strict=True):
        assert torch.equal(result, torch.flip(image, [2]) if flip else image)


def test_every_shift_and_both_sides_are_drawn():
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    preprocessing = Preprocessing(mean=(0.0,), std=(1.0,), padding=1, flip=True)
    split = TensorSplit(image.repeat(1000, 1, 1, 1), torch.zeros(1000).long(), preprocessing, True)
    ((images, _),) = split.batches(1000, seed=0)
    kinds, counts = images.unique(dim=0, return_counts=True)
    assert len(kinds) == 18
    assert counts.min() > 25


def test_normalisation_is_by_channel_and_padding_is_black():
    preprocessing = Preprocessing(
        mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0), padding=2, flip=False
    )
    images = torch.full((200, 3, 4, 4), 255, dtype=torch.uint8)
    split = TensorSplit(images, torch.arange(200), preprocessing, augment=True)
    plain, labels = next(split.batches(200))
    for channel, value in enumerate((1.0, 3.0, 0.5)):
        torch.testing.assert_close(plain[:, channel], torch.full((200, 4, 4), value))
    assert torch.equal(labels, torch.arange(200))
    padded, labels = next(split.batches(200, seed=1))
    for channel, black in enumerate((-1.0, -1.0, 0.0)):
        torch.testing.assert_close(padded[:, channel].min(), torch.tensor(black))
    assert torch.equal(labels.sort().values, torch.arange(200))


def test_images_keep_their_labels_when_shuffled():
    values = torch.arange(50, dtype=torch.uint8)
    preprocessing = Preprocessing(mean=(0.0,), std=(1.0,), padding=0, flip=True)
    split = TensorSplit(
        values[:, None, None, None].repeat(1, 1, 2, 2), values.long(), preprocessing, True
    )
    for images, labels in split.batches(8, seed=2):
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)
