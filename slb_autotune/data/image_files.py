"""Reading image files."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from slb_autotune.errors import DataError

# What Pillow raises for files that are missing, truncated, not images, or absurdly large.
_BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def read_image(path: Path) -> Image.Image:
    """Read an image of 8 bits per channel as grey ("L") or colour ("RGB")."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    f"{path} has more than 8 bits per channel; 8-bit images are expected.",
                    "save it as an 8-bit image.",
                )
            return image.convert("L" if image.mode == "L" else "RGB")
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def image_size_of(path: Path) -> tuple[int, int]:
    """Read the height and width of an image from its header."""
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else f"{error}"
    return DataError(f"Cannot read the image {path}: {reason}.", "replace the file, or remove it.")
