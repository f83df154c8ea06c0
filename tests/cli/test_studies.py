"""Choosing among the points of a study file, and changing parts of a study, by options."""

import json
import socket
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slb_autotune.cli.main import app
from slb_autotune.cli.studies import _changed, _chosen, _write_report
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.driver import run_study
from slb_autotune.search.storage import StudyFolder, blank_ledger
from tests.builders import TINY, tiny_study

POINTS = [
    {"method": "float"},
    {"method": "slb", "weight_bits": 1, "activation_bits": 1},
    {"method": "slb", "weight_bits": 2, "T_e": 10},
    {"method": "lsq", "weight_bits": 1, "activation_bits": 1},
]
STUDY = StudyConfig.from_mapping({"name": "list", "trial": TINY, "points": POINTS})


@pytest.mark.parametrize(
    ("only", "left"),
    [
        (["method=slb"], [1, 2]),
        (["method=float,lsq"], [0, 3]),
        (["weight_bits=1", "method=lsq,slb"], [1, 3]),
        (["T_e=10.0"], [2]),
    ],
)
def test_only_keeps_the_points_with_these_values(only: list[str], left: list[int]) -> None:
    assert _chosen(STUDY, only) == [POINTS[i] for i in left]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ("method=dsq", "no point is left Hint: method can be float, slb, lsq."),
        ("methd=slb", "got 'methd=slb' Hint: did you mean 'method'?"),
        ("method", "takes FIELD=VALUES"),
    ],
)
def test_a_choice_that_leaves_nothing_is_explained(only: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        _chosen(STUDY, [only])
    assert words in str(error.value)
    with pytest.raises(InputError, match="this study has none"):
        _chosen(tiny_study(), ["method=slb"])


def test_set_reaches_the_trial_and_the_parts_of_the_study() -> None:
    changes = _changed(STUDY, ["epochs=7", "resources.cpus=2", "resources.concurrent=1"])
    study = StudyConfig.from_mapping({**STUDY.to_mapping(), **changes})
    assert study.base().epochs == 7
    assert (study.resources.cpus, study.resources.concurrent) == (2, 1)
    assert study.storage == STUDY.storage


def test_the_command_plans_the_chosen_points(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"trial": TINY, "points": POINTS}))
    command = ["search", str(path), "--only", "method=slb", "--dry-run", "--json"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["trials"] == 2


def test_a_report_that_fails_does_not_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr("slb_autotune.report.study_report.write_study_report", broken)
    study = tiny_study(storage={"folder": str(tmp_path)})
    assert _write_report(blank_ledger(study)) == []
    told = capsys.readouterr().err
    assert told == (
        "the report could not be written: no ink; `slb-autotune report tiny` tries again.\n"
    )


def test_a_cluster_that_is_not_there_is_told_at_once_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        storage = {"ray": address, "folder": str(tmp_path)}
        with pytest.raises(ConfigError, match=f"there is no Ray cluster at '{address}'"):
            run_study(tiny_study(storage=storage))
    assert not StudyFolder(tmp_path, "tiny").config_path.exists()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:port", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_told(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Ray cluster at"):
        run_study(tiny_study(storage={"ray": address, "folder": str(tmp_path)}))
