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


def test_torchvision_works_here():
    result = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_nothing_is_declared_when_torchvision_works_by_itself(monkeypatch):
    working = ModuleType("torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", working)
    monkeypatch.setattr(torchvision_import, "_declare", lambda: pytest.fail("declared"))
    assert torchvision_import.import_torchvision() is working


def test_other_errors_are_not_hidden(monkeypatch):
    def fail(name: str) -> ModuleType:
        raise RuntimeError("something else")

    monkeypatch.setattr(torchvision_import, "import_module", fail)
    monkeypatch.setattr(torchvision_import, "_declare", lambda: pytest.fail("declared"))
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_import.import_torchvision()


def test_a_half_imported_torchvision_is_forgotten_before_the_second_attempt(monkeypatch):
    half = ("torchvision", "torchvision.half")
    monkeypatch.setattr(sys, "modules", {**sys.modules, **{n: ModuleType(n) for n in half}})
    monkeypatch.setattr(torchvision_import, "_declared", [])
    declared = []
    monkeypatch.setattr(torchvision_import, "_declare", lambda: declared.append(True))
    complete = ModuleType("torchvision")

    def attempt(name: str) -> ModuleType:
        if not declared:
            raise RuntimeError("operator torchvision::nms does not exist")
        assert not {"torchvision", "torchvision.half"} & set(sys.modules)
        return complete

    monkeypatch.setattr(torchvision_import, "import_module", attempt)
    assert torchvision_import.import_torchvision() is complete
