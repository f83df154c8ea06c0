"""Import torchvision, also where its native operators do not load.

A CUDA build of torchvision beside a CPU-only torch fails at import, because it registers fake
kernels for operators (`torchvision::nms`) that its library would have declared. Data sets,
transforms and models call none of them, so declaring their schemas is enough.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType

from torch.library import Library

# The operators for which torchvision registers fake kernels at import. The names and the schemas
# are torchvision's own; a version that needs others fails in tests/nets/test_torchvision_import.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# A declaration lives as long as its Library object.
_declared: list[Library] = []


def import_torchvision() -> ModuleType:
    """The torchvision module; its missing operators are declared first if the import needs it."""
    with warnings.catch_warnings():
        # Images are read with Pillow, never with torchvision's image extension.
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            if _declared or "operator torchvision::" not in str(error):
                raise
        _remove_partial_import()
        _declare()
        return import_module("torchvision")


def _remove_partial_import() -> None:
    for name in list(sys.modules):
        if name == "torchvision" or name.startswith("torchvision."):
            del sys.modules[name]


def _declare() -> None:
    library = Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
