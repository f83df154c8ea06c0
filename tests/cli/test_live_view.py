"""The view of a running study, from snapshots alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from slb_autotune.analysis.result import study_result
from slb_autotune.cli.live_view import (
    LiveView,
    front_table,
    layer_digits,
    result_members,
    seconds_left,
    status_line,
)
from slb_autotune.search.records import Outcome, StudySnapshot
from tests.builders import tiny_study
from tests.cli.helpers import played_study


@pytest.fixture
def study(tmp_path: Path) -> StudySnapshot:
    return played_study(tmp_path, trials=4)


def with_failure(study: StudySnapshot) -> StudySnapshot:
    failed = replace(study.records[3], status="failed", reason="the loss became nan", metrics={})
    return replace(study, records={**study.records, 3: failed})


def test_the_status_counts_trials_and_says_how_long_it_takes(study: StudySnapshot) -> None:
    volume = f"hypervolume {study.hypervolume():.4f}"
    assert (
        status_line(study, 250.0) == f"4 done, 0 running, 0 stopped, 0 failed, {volume}, 4:10 left"
    )
    line = status_line(with_failure(study), None)
    assert line.startswith("3 done, 0 running, 0 stopped, 1 failed, hypervolume ")
    assert not line.endswith("left")


def test_the_time_left_follows_the_pace_of_this_session_and_the_budget(
    study: StudySnapshot,
) -> None:
    def limited(**budget: float) -> StudySnapshot:
        config = tiny_study(budget=budget)
        sessions = ({"seconds": 40.0}, {"seconds": 5.0})
        return replace(study, config=config, sessions=sessions)

    assert seconds_left(limited(trials=10), elapsed=20.0, ended_before=2) == 60.0
    assert seconds_left(limited(trials=10), elapsed=20.0, ended_before=4) is None
    assert seconds_left(limited(trials=10, seconds=100.0), 20.0, 2) == 40.0  # 40 s were spent
    assert seconds_left(limited(trials=10, seconds=50.0), 20.0, 2) == 0.0


def test_each_trial_is_printed_once_where_there_is_no_terminal(
    study: StudySnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    first = replace(study, records={0: study.records[0]})
    view = LiveView()
    view.on_start(first)
    view.on_change(with_failure(study))
    view.on_change(with_failure(study))
    view.on_end(Outcome(study, "done", 1.0))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["trial", "1", "done"],
        ["trial", "2", "done"],
        ["trial", "3", "failed"],
    ]
    assert "the loss became nan" in lines[2]


def test_a_terminal_shows_the_study_and_is_cleared_at_the_end(study: StudySnapshot) -> None:
    view = LiveView()
    view.console = Console(force_terminal=True, width=120, record=True, file=open_null())
    view.on_start(study)
    assert view.live is not None
    assert view.live.is_started
    view.drawn -= 10
    view.on_change(study)
    view.on_end(Outcome(study, "done", 1.0))
    assert not view.live.is_started
    text = view.console.export_text()
    assert "study tiny" in text
    assert "validation accuracy (%)" in text


def open_null():
    return Path("/dev/null").open("w")


def test_the_front_is_the_same_from_a_snapshot_and_from_a_result(study: StudySnapshot) -> None:
    members = [(r.number, r.metrics, r.config) for r in study.front()]
    result = study_result(study)
    assert shown(front_table(study.objectives, members)) == shown(
        front_table(result.objectives, result_members(result))
    )
    heading, *rows = shown(front_table(study.objectives, members)).splitlines()
    assert heading.split("  ")[0] == "trial"
    assert "size (kB)" in heading
    assert len(rows) == len(members)
    record = study.front()[0]
    assert f"{record.metrics['size_bytes'] / 1000:.1f}" in rows[0]


def shown(table) -> str:
    console = Console(width=150, file=open_null(), record=True)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


@pytest.mark.parametrize(
    ("bits", "text"),
    [(2, "2"), ({"layer1.*": 4, "*": 1}, "4 1"), ({"a": 2, "b": 2}, "2")],
)
def test_the_bits_of_the_layers_are_digits_in_their_order(bits, text: str) -> None:
    assert layer_digits(bits) == text
