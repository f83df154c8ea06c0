from __future__ import annotations

import pytest
import torch

from slb_autotune.errors import ConfigError
from slb_autotune.training import device
from slb_autotune.training.device import check_precision, free_memory, isolated, resolve_device
from tests.builders import tiny_config

CPU = torch.device("cpu")


def test_threads_and_random_state_are_restored():
    before, state = torch.get_num_threads(), torch.get_rng_state()
    with isolated(before + 1, CPU):
        assert torch.get_num_threads() == before + 1
        torch.manual_seed(3)
        torch.rand(5)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_they_are_restored_after_an_error_too():
    before, state = torch.get_num_threads(), torch.get_rng_state()

    def fail() -> None:
        torch.rand(5)
        raise KeyError

    with pytest.raises(KeyError), isolated(before + 1, CPU):
        fail()
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch, cuda, mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto").type == expected


def test_the_cpu_is_always_there():
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(("name", "devices"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_cuda_device_that_is_not_there_is_refused(monkeypatch, name, devices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(ConfigError) as caught:
        resolve_device(name)
    assert caught.value.message == f"there is no device {name!r} here"
    assert caught.value.hint == "use device: auto or cpu."


def test_a_cuda_device_that_is_there_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)


def test_mps_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^there is no MPS device here Hint: use device"):
        resolve_device("mps")


@pytest.mark.parametrize("name", ["tpu", "", "cuda:x"])
def test_a_device_that_nobody_has_is_refused(name):
    with pytest.raises(ConfigError, match=f"there is no device {name!r} here Hint: use device"):
        resolve_device(name)


def test_fp16_needs_cuda():
    with pytest.raises(ConfigError) as caught:
        check_precision(tiny_config(amp="fp16"), CPU)
    assert caught.value.message == "amp: fp16 needs CUDA; this is cpu"
    assert caught.value.hint == "use amp: off."


def test_no_other_precision_is_refused():
    refused = []
    for amp in ("off", "bf16", "fp16"):
        for kind in ("cpu", "cuda"):
            try:
                check_precision(tiny_config(amp=amp), torch.device(kind))
            except ConfigError:
                refused.append((amp, kind))
    assert refused == [("fp16", "cpu")]


@pytest.mark.parametrize(
    ("host", "container", "expected"),
    [
        ("MemTotal: 900 kB\nMemAvailable: 100 kB\n", ("50000", "20000"), 35_000),
        ("MemTotal: 900 kB\nMemAvailable: 20 kB\n", ("50000", "20000"), 20 * 1024),
        ("MemAvailable: 100 kB\n", ("max", "20000"), 100 * 1024),
        ("MemAvailable: 100 kB\n", None, 100 * 1024),
        ("MemTotal: 900 kB\n", ("50000", "20000"), 35_000),
        (None, ("50000", "20000"), 35_000),
        (None, None, None),
    ],
)
def test_free_memory_is_the_lesser_of_host_and_container(
    monkeypatch, tmp_path, host, container, expected
):
    monkeypatch.setattr(device, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    if host is not None:
        (tmp_path / "meminfo").write_text(host)
    if container is not None:
        for name, value in zip(("memory.max", "memory.current"), container, strict=True):
            (tmp_path / name).write_text(f"{value}\n")
        # The page cache that can give way is free.
        (tmp_path / "memory.stat").write_text("anon 9000\ninactive_file 5000\nslab 3\n")
    assert free_memory(CPU) == expected
