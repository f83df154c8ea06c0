"""Import torchvision, also where its native operators do not load.

A CUDA build of torchvision beside a CPU-only torch fails at import, because it describes
operators (`torchvision::nms`) that its library would have declared. Data sets, transforms and
models need none of them, so declaring their schemas is enough.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType

from torch.library import Library

# The operators that torchvision describes at import.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# A declaration lives as long as its Library object.
_declared: list[Library] = []


def import_torchvision() -> ModuleType:
    """Give the torchvision module; declare its missing operators first if the import needs it."""
    with warnings.catch_warnings():
        # Pictures are read with Pillow, never with torchvision's image extension.
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            if _declared or "operator torchvision::" not in str(error):
                raise
        _forget_half_imported()
        _declare()
        return import_module("torchvision")


def _forget_half_imported() -> None:
    for name in list(sys.modules):
        if name == "torchvision" or name.startswith("torchvision."):
            del sys.modules[name]


def _declare() -> None:
    library = Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
