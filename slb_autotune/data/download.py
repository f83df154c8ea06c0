"""Data sets that torchvision downloads and checks."""

from __future__ import annotations

import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any

from slb_autotune.errors import DataError
from slb_autotune.nets.torchvision_import import import_torchvision


def through_torchvision(name: str, root: Path, train: bool, download: bool, hint: str) -> Any:
    """Open `torchvision.datasets.NAME`, which verifies its files before it reads them."""
    datasets = import_torchvision().datasets
    try:
        return getattr(datasets, name)(str(root), train=train, download=download)
    except (OSError, RuntimeError, HTTPException, EOFError, tarfile.TarError, zlib.error) as error:
        action = "download" if download else "read"
        reason = str(error).rstrip(".")
        raise DataError(f"Cannot {action} {name} in {root}: {reason}.", hint) from error
