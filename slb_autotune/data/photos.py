"""Two photographs that ship inside scikit-learn's wheel, cut into tiles for super-resolution."""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from slb_autotune.config.trial import DataConfig
from slb_autotune.data import super_resolution
from slb_autotune.data.base import DataInfo, Split
from slb_autotune.data.embedded import embedded_file

PHOTOS = ("china.jpg", "flower.jpg")

# 427x640 pixels give 3 rows of 4 tiles of 142x160. Each tile is blurred separately, so that no
# pixel of one leaks into another.
ROWS, COLUMNS = 3, 4

# Three tiles of each photograph, one in every row.
TEST_TILES = (1, 7, 8)


class Photos:
    """The `photos` data set."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def info(self) -> DataInfo:
        """The description of the data."""
        return super_resolution.describe(self._config)

    def train(self) -> tuple[Split, Split | None]:
        """Patches of the training tiles, and whole validation tiles."""
        tiles = [tile for number, tile in _tiles() if number not in TEST_TILES]
        sizes = [(tile.shape[0], tile.shape[1]) for tile in tiles]
        return super_resolution.train_and_val(sizes, tiles.__getitem__, self._config)

    def test(self) -> Split:
        """The test tiles, whole."""
        tiles = [tile for number, tile in _tiles() if number in TEST_TILES]
        names = [f"tile {index}" for index in range(len(tiles))]
        return super_resolution.whole_images(names, tiles.__getitem__, self._config)


def _tiles() -> list[tuple[int, Tensor]]:
    """Every tile, with its number in its photograph."""
    tiles = []
    for name in PHOTOS:
        with Image.open(embedded_file("images", name)) as photo:
            whole = super_resolution.luminance(photo)
        height, width = whole.shape[0] // ROWS, whole.shape[1] // COLUMNS
        for number in range(ROWS * COLUMNS):
            top, left = number // COLUMNS * height, number % COLUMNS * width
            tiles.append((number, whole[top : top + height, left : left + width]))
    return tiles
