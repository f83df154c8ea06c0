from __future__ import annotations

import subprocess
import sys

import pytest

import slb_autotune

HEAVY = ("torch", "torchvision", "ray", "mlflow", "optuna", "pandas", "sklearn", "numpy")


def loaded(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter holds after `code`."""
    show = f"import sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        *("errors", "config", "config.registry", "config.metrics", "config.recipes"),
        *("config.study", "cli", "cli.main", "cli.listing"),
    ],
)
def test_a_module_that_reads_names_only_loads_nothing_heavy(module):
    assert loaded(f"import slb_autotune.{module}") == set()


def test_the_package_loads_nothing_heavy_and_nothing_of_its_own():
    assert loaded("import slb_autotune") == set()
    own = "import slb_autotune, sys; assert 'slb_autotune.config.trial' not in sys.modules"
    assert loaded(own) == set()


def test_checking_a_configuration_and_listing_load_nothing_heavy():
    code = """
from slb_autotune import TrialConfig
from slb_autotune.cli.listing import catalogue
from slb_autotune.config.recipes import RECIPES, recipe

TrialConfig.from_yaml("weight_bits: 2")
[recipe(name) for name in RECIPES]
catalogue()
"""
    assert loaded(code) == set()


def test_a_study_is_loaded_without_what_runs_it():
    code = """
from slb_autotune import Study

Study.load({"name": "s", "space": {"lr": [0.1, 0.2]}})
"""
    assert loaded(code) <= {"numpy"}


def test_the_probe_sees_what_is_loaded():
    assert "numpy" in loaded("import numpy")


def test_there_are_fewer_than_ten_public_names_and_each_resolves():
    names = [name for name in slb_autotune.__all__ if name != "__version__"]
    assert len(names) == len(set(names)) < 10
    for name in names:
        assert getattr(slb_autotune, name).__name__ == name
    assert set(dir(slb_autotune)) >= {"Study", "TrialConfig", "SlbError", "train", "evaluate"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'slb_autotune' has no attribute 'trian'"):
        _ = slb_autotune.trian
