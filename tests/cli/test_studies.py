"""search, resume, confirm and recommend: what they ask for, and what they print."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import yaml

from slb_autotune.analysis.result import study_result
from slb_autotune.config.trial import TrialConfig
from tests.builders import TINY
from tests.cli.helpers import complaint, played_study, playing_driver

SPACE = {
    "T_e": {"log": [1, 10000]},
    "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
}


def write_study(folder: Path, **changes: object) -> str:
    """A study file in a folder, without MLflow; its name."""
    values = {
        "trial": TINY,
        "space": SPACE,
        "budget": {"trials": 4},
        "resources": {"concurrent": 2},
        "warm_start": {"uniform": False, "paper": False},
        "storage": {"mlflow": "off"},
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**values, **changes}))
    return path.name


@pytest.fixture
def driver(monkeypatch):
    """Studies end at once; how they end can be chosen."""

    def install(status="done"):
        monkeypatch.setattr("slb_autotune.search.driver.run_study", playing_driver(status))

    install()
    return install


def test_the_command_plans_the_chosen_points(slb, tmp_path):
    points = [{"method": "float"}, {"weight_bits": 1}, {"weight_bits": 2}]
    (tmp_path / "list.yaml").write_text(yaml.safe_dump({"trial": TINY, "points": points}))
    ended = slb("search", "list.yaml", "--only", "method=slb", "--dry-run", "--json")
    assert ended.err == "measuring a few steps of training ...\n"
    assert ended.json()["trials"] == 2
    assert not (tmp_path / "slb-runs").exists()


def test_a_search_ends_with_what_it_found(slb, tmp_path, driver):
    ended = slb("search", write_study(tmp_path))
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert re.fullmatch(r"mine: 4 done, 0 infeasible draws, 4 epochs in 2 s", lines[0])
    assert "the front:" in lines
    heading = lines[lines.index("the front:") + 1]
    assert re.split(r" {2,}", heading.strip())[:3] == [
        *("trial", "validation accuracy (%)", "size (kB)")
    ]
    assert any(line.startswith("best schedule: ") for line in lines)
    assert lines[-3:] == [
        "report     slb-runs/studies/mine/report/index.html",
        "study      slb-runs/studies/mine",
        "confirm    slb-autotune confirm mine",
    ]
    assert Path("slb-runs/studies/mine/report/index.html").exists()
    assert Path("slb-runs/studies/mine/result/study.json").exists()
    # Without a terminal, one line per trial that ended.
    progress = ended.err.splitlines()
    assert [line.split()[:3] for line in progress] == [["trial", str(n), "done"] for n in range(4)]
    assert re.search(
        r"validation accuracy [\d.]+ %  size [\d.]+ kB  \[4 done, 0 running", progress[0]
    )


def test_a_search_ends_as_json(slb, tmp_path, driver):
    summary = slb("search", write_study(tmp_path), "--json").json()
    assert (summary["study"], summary["folder"]) == ("mine", "slb-runs/studies/mine")
    assert summary["interrupted"] is False
    assert summary["trials"] == {str(number): "done" for number in range(4)}
    assert summary["epochs"] == 4
    assert 0 < summary["hypervolume"] < 1
    member = summary["front"][0]
    assert isinstance(member["metrics"]["size_bytes"], int)
    assert TrialConfig.from_mapping(member["config"]).network.width == 4


def test_a_stopped_search_says_how_to_resume_it(slb, tmp_path, driver):
    driver("interrupted")
    ended = slb("search", write_study(tmp_path), "--name", "other")
    assert ended.code == 130
    assert ended.err.endswith("stopped; resume with: slb-autotune resume other\n")
    assert "report     slb-autotune report other" in ended.out  # none was written
    driver()
    more = slb("resume", "other", "--trials", "6", "--json")
    assert more.code == 0
    assert len(more.json()["trials"]) == 6


def test_the_run_folder_is_the_files_own_or_the_options(slb, tmp_path, driver):
    storage = {"folder": "shared", "mlflow": "off"}
    file = write_study(tmp_path, storage=storage)
    assert slb("search", file, "--json").json()["folder"] == "shared/studies/mine"
    again = slb("search", file, "--runs", "here", "--json").json()
    assert again["folder"] == "here/studies/mine"


def test_recommend_prints_a_configuration_for_train(slb, tmp_path):
    study = played_study(tmp_path / "slb-runs", trials=6)
    result = study_result(study)
    best = result.best(result.front)
    ended = slb("recommend", "tiny")
    assert (ended.code, ended.err) == (0, "")
    first, _, rest = ended.out.partition("\n")
    assert re.fullmatch(
        rf"# trial {best['trial']} of tiny: validation accuracy [\d.]+ %  size [\d.]+ kB", first
    )
    assert TrialConfig.from_yaml(rest) == result.config_of(best["trial"])
    chosen = slb("recommend", "tiny", "--json").json()
    assert chosen["trial"] == best["trial"]
    assert chosen["metrics"]["val_accuracy"] == best["val_accuracy"]
    message, _ = complaint(slb("recommend", "tiny", "--size", "1kB"))
    assert message.startswith("no member of the front fits 1,000 bytes; the smallest has ")


@pytest.mark.parametrize("command", ["resume", "confirm", "recommend", "report"])
def test_a_study_that_does_not_exist_is_bad_input(slb, tmp_path, command):
    played_study(tmp_path / "slb-runs")
    assert complaint(slb(command, "tini")) == (
        "there is no study 'tini'",
        "did you mean 'tiny'?",
    )


def test_a_setting_that_would_be_ignored_is_refused(slb):
    message, _ = complaint(slb("confirm", "tiny", "--set", "epochs=1"))
    assert message.startswith("--set and --only are for a study file")


def test_sensitivity_takes_numbers_of_bits(slb):
    message, hint = complaint(slb("sensitivity", "digits", "--bits", "1,two"))
    assert message == "--bits takes numbers; got '1,two'"
    assert hint == "write --bits 1,2,4"


def test_a_cluster_that_is_not_there_is_an_error_at_once_and_nothing_is_left(slb, tmp_path):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        message, _ = complaint(slb("search", write_study(tmp_path), "--set", storage_ray(address)))
    assert message.startswith(f"there is no Ray cluster at '{address}'")
    assert not (tmp_path / "slb-runs").exists()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:port", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_one_is_an_error(slb, tmp_path, address):
    message, _ = complaint(slb("search", write_study(tmp_path), "--set", storage_ray(address)))
    assert message.startswith("there is no Ray cluster at")


def storage_ray(address: str) -> str:
    return f"storage.ray='{address}'"
