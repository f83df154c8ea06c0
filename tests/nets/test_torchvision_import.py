"""Torchvision imports, with and without its native operators."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from slb_autotune.nets import torchvision_import

USE = """
import warnings
warnings.simplefilter("error", UserWarning)
from slb_autotune.nets.torchvision_import import import_torchvision

torchvision = import_torchvision()
assert import_torchvision() is torchvision

import torch
from PIL import Image

model = torchvision.models.resnet18().eval()
assert sum(p.numel() for p in model.parameters()) == 11_689_512
transforms = torchvision.transforms
pipeline = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
image = pipeline(Image.new("RGB", (50, 40)))
assert model(image[None]).shape == (1, 1000)
assert torchvision.datasets.ImageFolder.__name__ == "ImageFolder"
"""

# As with a CUDA build beside a CPU-only torch, whatever is installed here.
WITHOUT_LIBRARY = """
import torch

def fail(path):
    raise OSError(f"{path} cannot be loaded")

torch.ops.load_library = fail
"""

PLAIN_IMPORT = """
try:
    import torchvision
except RuntimeError as error:
    assert "operator torchvision::" in str(error), error
else:
    raise AssertionError("torchvision needs no declared operators any more")
"""

NOTHING_DECLARED = """
import sys
from types import ModuleType
import torch
from slb_autotune.nets.torchvision_import import import_torchvision

working = sys.modules["torchvision"] = ModuleType("torchvision")
assert import_torchvision() is working
assert not hasattr(torch.ops.torchvision, "nms")
"""


def run(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_torchvision_works_here():
    run(USE)


def test_torchvision_works_without_its_native_library():
    """Fails when a new torchvision needs other operators or schemas than those declared."""
    run(WITHOUT_LIBRARY + USE)


def test_the_declarations_are_still_needed_without_the_native_library():
    """Fails when a new torchvision imports by itself: then the declarations can be removed."""
    run(WITHOUT_LIBRARY + PLAIN_IMPORT)


def test_nothing_is_declared_when_torchvision_works_by_itself():
    run(NOTHING_DECLARED)


def test_other_errors_are_not_hidden(monkeypatch):
    attempts = []

    def fail(name: str) -> ModuleType:
        attempts.append(name)
        raise RuntimeError("something else")

    monkeypatch.setattr(torchvision_import, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_import.import_torchvision()
    assert attempts == ["torchvision"]
