from __future__ import annotations

import platform

import pytest
import torch

from slb_autotune.training.provenance import device_name, machine, provenance
from slb_autotune.version import VERSION
from tests.builders import tiny_config


@pytest.mark.parametrize(("amp", "precision"), [("off", "fp32"), ("bf16", "bf16")])
def test_a_run_records_what_its_numbers_depend_on(amp, precision):
    assert provenance(tiny_config(amp=amp, threads=3)) == {
        "version": VERSION,
        "torch": torch.__version__,
        "machine": machine(),
        "device": "cpu",
        "threads": 3,
        "precision": precision,
    }


def test_the_machine_is_named_by_system_and_architecture():
    assert machine().startswith(f"{platform.system()} {platform.machine()}")


def test_a_cuda_device_is_named_with_its_model(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert device_name("cuda:1") == "cuda:1 (GPU 1)"


def test_a_device_that_is_not_here_keeps_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_name("cuda:7") == "cuda:7"
