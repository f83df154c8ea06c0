"""Picture files."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from slb_autotune.errors import DataError

# What Pillow raises for files that are missing, cut short, not pictures, or absurdly large.
_BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def read_picture(path: Path) -> Image.Image:
    """Read a picture of 8 bits a channel as grey ("L") or colour ("RGB")."""
    try:
        with Image.open(path) as picture:
            if picture.mode.startswith(("I", "F")):
                raise DataError(
                    f"{path} has more than 8 bits a channel; 8-bit pictures are expected.",
                    "save it as an 8-bit picture.",
                )
            return picture.convert("L" if picture.mode == "L" else "RGB")
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def picture_size(path: Path) -> tuple[int, int]:
    """Read the height and width of a picture from its header."""
    try:
        with Image.open(path) as picture:
            return picture.height, picture.width
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else f"{error}"
    return DataError(
        f"Cannot read the picture {path}: {reason}.", "replace the file, or remove it."
    )
