"""Super-resolution from your own images: `root/train` and `root/test`, searched recursively."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from slb_autotune.config.trial import DataConfig
from slb_autotune.data import super_resolution
from slb_autotune.data.base import DataInfo, Split
from slb_autotune.data.image_files import image_size_of, read_image
from slb_autotune.errors import DataError

ENDINGS = (".png", ".bmp", ".jpg", ".jpeg")

HINT = (
    "give --set data.root=FOLDER with images in its train/ and test/; the paper trains on T91 "
    "and BSD200 and tests on Set5."
)


class SrFolder:
    """The `sr_folder` data set."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config

    def info(self) -> DataInfo:
        """The description of the data."""
        return super_resolution.describe(self._config)

    def train(self) -> tuple[Split, Split | None]:
        """Patches of the training images, and whole validation images."""
        paths = self._images("train")
        sizes = [image_size_of(path) for path in paths]
        return super_resolution.train_and_val(
            sizes, lambda index: _read(paths[index]), self._config
        )

    def test(self) -> Split:
        """The test images, whole."""
        paths = self._images("test")
        return super_resolution.whole_images(
            [str(path) for path in paths], lambda index: _read(paths[index]), self._config
        )

    def _images(self, part: str) -> list[Path]:
        if self._config.root is None:
            raise DataError("sr_folder needs data.root, the folder of its images.", HINT)
        folder = Path(self._config.root).expanduser() / part
        if not folder.is_dir():
            raise DataError(f"Expected a folder of images, {folder}; it is not there.", HINT)
        # Links are followed, since data sets are often symbolic links. Hidden files are skipped:
        # macOS puts "._name.png" beside images.
        paths = sorted(
            Path(parent, name)
            for parent, _, names in os.walk(folder, followlinks=True)
            for name in names
            if name.lower().endswith(ENDINGS) and not name.startswith(".")
        )
        if not paths:
            raise DataError(f"{folder} has no image ({', '.join(ENDINGS)}).", HINT)
        return paths


def _read(path: Path) -> Tensor:
    return super_resolution.luminance(read_image(path))
