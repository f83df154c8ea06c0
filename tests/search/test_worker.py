"""A trial in its worker: its rungs, what a kill costs, and how it fails."""

import csv
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slb_autotune import data
from slb_autotune.config.study import StoppingConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import estimate
from slb_autotune.search.early_stopping import phases
from slb_autotune.search.worker import (
    Assignment,
    Superseded,
    TrialRun,
    begin_attempt,
    check_attempt,
)
from slb_autotune.training.loop import train
from tests.builders import tiny_config

Row = dict[str, Any]
COMPRESSED = StoppingConfig(rungs=(0.25, 0.5))
PREFIX = StoppingConfig(rungs=(0.25, 0.5), budget="prefix")
NONE = StoppingConfig()


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)  # a kill is no power cut


@cache
def costs_of(network: str) -> dict[str, float]:
    if ":" in network:
        return {}
    return estimate(tiny_config(), data.info(tiny_config().data)).metrics()


def assignment_for(
    folder: Path, stopping: StoppingConfig = NONE, attempt: int = 1, **changes: Any
) -> Assignment:
    config = tiny_config(**{"data.train_images": 100, "batch_size": 50, "epochs": 4, **changes})
    return Assignment(
        config=config.to_mapping(),
        folder=str(folder),
        phases=tuple(phases(stopping, config.epochs)),
        attempt=attempt,
        costs=costs_of(config.network.name),
    )


def run_through(assignment: Assignment, most: int = 100) -> list[Row]:
    """Rows until the trial ends, or until so many."""
    run = TrialRun(assignment)
    rows: list[Row] = []
    while len(rows) < most:
        rows.append(run.next_epoch())
        if rows[-1]["status"] in ("done", "failed"):
            break
    return rows


def without_time(rows: list[Row]) -> list[Row]:
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of trials that were never stopped."""
    kinds = {"compressed": COMPRESSED, "prefix": PREFIX}
    return {
        name: run_through(assignment_for(tmp_path_factory.mktemp(name), stopping))
        for name, stopping in kinds.items()
    }


def test_an_assignment_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    assignment = assignment_for(tmp_path, COMPRESSED)
    values = assignment.to_mapping()
    assert Assignment.from_mapping({**values, "phases": list(values["phases"])}) == assignment


def test_compressed_rungs_are_runs_of_their_own(whole: dict[str, list[Row]]) -> None:
    rows = whole["compressed"]
    assert [row["status"] for row in rows] == [
        *("rung", "running", "rung"),
        *("running", "running", "running", "done"),
    ]
    assert [row["rung"] for row in rows] == [0, 1, 1, 2, 2, 2, 2]
    assert [row["epoch"] for row in rows] == [1, 1, 2, 1, 2, 3, 4]
    assert [row["trial_epochs"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    # The whole schedule at every rung: T ends at T_e.
    ends = [row["temperature"] for row in rows if row["status"] != "running"]
    assert ends == pytest.approx([1000.0] * 3)


def test_prefix_rungs_are_the_first_epochs_of_one_run(whole: dict[str, list[Row]]) -> None:
    rows = whole["prefix"]
    assert [row["status"] for row in rows] == ["rung", "rung", "running", "done"]
    assert [row["rung"] for row in rows] == [0, 1, 2, 2]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4] == [row["trial_epochs"] for row in rows]
    temperatures = [row["temperature"] for row in rows]
    assert temperatures == sorted(temperatures)
    assert temperatures[1] < 10


def test_rungs_do_not_change_the_full_run(whole: dict[str, list[Row]]) -> None:
    drop = ("rung", "status", "trial_epochs", "seconds")

    def numbers(rows: list[Row]) -> list[Row]:
        return [{k: v for k, v in row.items() if k not in drop} for row in rows]

    assert numbers(whole["prefix"]) == numbers(whole["compressed"][3:])


@pytest.mark.parametrize(("at", "epochs"), [(0, 1), (2, 2), (6, 4)])
def test_the_numbers_are_those_of_train(whole: dict[str, list[Row]], at: int, epochs: int) -> None:
    """The first rung, the second, and the full run."""
    assignment = assignment_for(Path("unused"))
    config = TrialConfig.from_mapping(assignment.config).updated({"epochs": epochs})
    result = train(config)
    expected = {k: v for k, v in result.metrics.items() if k not in ("seconds", "eps_share_start")}
    assert len(expected) > 10
    row = whole["compressed"][at]
    assert {name: row[name] for name in expected} == expected


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    run_through(assignment_for(tmp_path, COMPRESSED), most=5)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "rung0",
        "rung1",
        "full",
    }
    lengths = {name: len(history(tmp_path / name)) for name in ("rung0", "rung1", "full")}
    assert lengths == {"rung0": 1, "rung1": 2, "full": 2}


@pytest.mark.parametrize(
    ("name", "stopping", "epochs"), [("compressed", COMPRESSED, 7), ("prefix", PREFIX, 4)]
)
def test_stopped_abruptly_after_any_epoch_it_gives_the_same_rows(
    whole: dict[str, list[Row]], name: str, stopping: StoppingConfig, epochs: int, tmp_path: Path
) -> None:
    expected = without_time(whole[name])
    run = TrialRun(assignment_for(tmp_path / "running", stopping))
    for stop in range(1, epochs):
        last = run.next_epoch()
        # What a worker that is killed here leaves behind.
        folder = shutil.copytree(tmp_path / "running", tmp_path / str(stop))
        after = run_through(assignment_for(folder, stopping, attempt=2))
        # A rung that was reached but not passed is reported once more: its decision may be lost.
        again = 1 if last["status"] == "rung" else 0
        assert without_time(after) == expected[stop - again :]


def test_stopped_abruptly_every_single_epoch(whole: dict[str, list[Row]], tmp_path: Path) -> None:
    rows: list[Row] = []
    for attempt in range(1, 20):
        run = TrialRun(assignment_for(tmp_path, COMPRESSED, attempt))
        rows.append(run.next_epoch())
        if rows[-1]["status"] == "rung":
            rows.append(run.next_epoch())  # else it would report the rung for ever
        if rows[-1]["status"] == "done":
            break
    reported = without_time(rows)
    once = [row for i, row in enumerate(reported) if row not in reported[:i]]
    assert once == without_time(whole["compressed"])


def test_killed_between_opening_a_run_and_its_first_checkpoint(
    whole: dict[str, list[Row]], tmp_path: Path
) -> None:
    run_through(assignment_for(tmp_path, COMPRESSED), most=1)
    run = TrialRun(assignment_for(tmp_path, COMPRESSED, attempt=2))
    assert run.next_epoch()["status"] == "rung"
    run.next_epoch()
    (tmp_path / "rung1" / "checkpoint.pt").unlink()
    rows = run_through(assignment_for(tmp_path, COMPRESSED, attempt=3))
    assert without_time(rows) == without_time(whole["compressed"][1:])


def test_a_finished_trial_is_reported_again(whole: dict[str, list[Row]], tmp_path: Path) -> None:
    run_through(assignment_for(tmp_path, PREFIX))
    again = run_through(assignment_for(tmp_path, PREFIX, attempt=2))
    assert without_time(again) == without_time(whole["prefix"][-1:])


def test_a_later_attempt_fences_off_an_earlier_one(tmp_path: Path) -> None:
    late = TrialRun(assignment_for(tmp_path, attempt=1))
    late.next_epoch()
    run = TrialRun(assignment_for(tmp_path, attempt=2))
    with pytest.raises(
        Superseded, match=f"attempt 1 of {tmp_path.name} is superseded by attempt 2"
    ):
        late.next_epoch()
    assert len(history(tmp_path / "full")) == 1
    assert run.next_epoch()["epoch"] == 2


def test_the_same_attempt_may_begin_again(tmp_path: Path) -> None:
    """Ray starts a trial whose worker died once more with the same assignment."""
    run_through(assignment_for(tmp_path), most=2)
    assert run_through(assignment_for(tmp_path), most=1)[0]["epoch"] == 3


def test_an_earlier_attempt_that_begins_late_is_fenced_off(tmp_path: Path) -> None:
    begin_attempt(tmp_path, 2)
    with pytest.raises(Superseded, match="is superseded by attempt 2"):
        begin_attempt(tmp_path, 1)
    check_attempt(tmp_path, 2)


def test_a_loss_that_is_not_a_number_fails_the_trial(tmp_path: Path) -> None:
    rows = run_through(assignment_for(tmp_path, COMPRESSED, lr=1e30))
    assert [row["status"] for row in rows] == ["failed"]
    assert "the loss became nan in epoch 1, step 2 of 2" in rows[0]["reason"]
    assert rows[0]["rung"] == 0


def test_a_failed_row_says_how_many_epochs_it_took(tmp_path: Path) -> None:
    rows = run_through(assignment_for(tmp_path, COMPRESSED, lr=1e30))
    assert rows[0]["trial_epochs"] == 1


NETWORK = """
from torch import nn
from slb_autotune.nets import build_network
from slb_autotune.config.trial import NetworkConfig

class Broken(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        if self.training and x.device.type != "meta" and x.shape[0] == 50:
            self.calls += 1
            if self.calls > 3:
                raise {error}
        return self.inner(x)

def make(in_channels, num_classes, image_size, **options):
    return Broken(build_network(NetworkConfig(width=4), in_channels, num_classes, image_size))
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("KeyError('no such layer\\nand more')", "KeyError: "),
        ("RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
        ("RuntimeError('CUDA out of memory. Tried to allocate')", "out of memory"),
        ("MemoryError()", "out of memory"),
    ],
)
def test_an_exception_in_a_user_s_network_fails_the_trial(
    error: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"broken_{abs(hash(error))}"
    (tmp_path / f"{module}.py").write_text(NETWORK.replace("{error}", error))
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "trial"
    name = {"network.name": f"{module}:make", "network.width": None, "network.options": {}}
    rows = run_through(assignment_for(folder, **name))
    sys.modules.pop(module, None)
    assert rows[-1]["status"] == "failed"
    assert rows[-1]["reason"].startswith(reason)
    assert "\n" not in rows[-1]["reason"]
    if "MemoryError" not in error:
        text = (folder / "error.txt").read_text()
        assert text.startswith("Traceback")
        assert f"{module}.py" in text


def test_an_assignment_that_asks_for_the_test_set_gets_it_at_the_end_alone(tmp_path: Path) -> None:
    assignment = replace(assignment_for(tmp_path, PREFIX, epochs=2), test=True)
    rows = run_through(assignment)
    assert ["test_accuracy" in row for row in rows] == [False] * (len(rows) - 1) + [True]
    assert 0 <= rows[-1]["test_accuracy"] <= 100
