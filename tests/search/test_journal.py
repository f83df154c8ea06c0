"""The driver's journal holds what Optuna's own backend would, and reads it as that does."""

import os
import resource
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from slb_autotune.search.journal import DriverJournal


def open_study(backend: BaseJournalBackend) -> optuna.Study:
    return optuna.create_study(
        storage=JournalStorage(backend), study_name="s", load_if_exists=True
    )


def run_trials(study: optuna.Study, count: int) -> None:
    for _ in range(count):
        trial = study.ask()
        x = trial.suggest_float("x", 0, 1)
        trial.suggest_categorical("bits", [1, 2, 4])
        trial.set_user_attr("status", "running")
        trial.set_user_attr("words", 'a "quoted"\nline, \u00fc')
        study.tell(trial, x)


def contents(study: optuna.Study) -> list[tuple[object, ...]]:
    return [(t.number, t.state, t.params, t.values, t.user_attrs) for t in study.trials]


def test_optuna_reads_what_the_driver_wrote(tmp_path: Path) -> None:
    ours = open_study(DriverJournal(tmp_path / "j"))
    run_trials(ours, 5)
    ours.enqueue_trial({"x": 0.5})
    theirs = open_study(JournalFileBackend(str(tmp_path / "j")))
    assert contents(theirs) == contents(ours)
    assert len(theirs.trials) == 6


def test_the_driver_goes_on_where_optuna_stopped(tmp_path: Path) -> None:
    run_trials(open_study(JournalFileBackend(str(tmp_path / "j"))), 3)
    study = open_study(DriverJournal(tmp_path / "j"))
    run_trials(study, 2)
    again = open_study(DriverJournal(tmp_path / "j"))
    assert contents(again) == contents(study)
    assert [trial.number for trial in again.trials] == [0, 1, 2, 3, 4]


def test_a_refused_write_does_not_hide_what_follows(tmp_path: Path) -> None:
    study = open_study(DriverJournal(tmp_path / "j"))
    run_trials(study, 1)
    with pytest.raises(RuntimeError):  # a trial that ended cannot be changed
        study._storage.set_trial_user_attr(study.trials[0]._trial_id, "late", 1)
    run_trials(study, 2)
    assert contents(open_study(JournalFileBackend(str(tmp_path / "j")))) == contents(study)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_line_never_happened(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    run_trials(open_study(DriverJournal(path)), 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    lines = whole.splitlines(keepends=True)
    journal = DriverJournal(path)
    assert path.read_bytes() == b"".join(lines[:-1])
    study = open_study(journal)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING"]


@pytest.mark.parametrize("room", [0, 30])
def test_a_write_that_does_not_fit_leaves_the_journal_whole(tmp_path: Path, room: int) -> None:
    path = tmp_path / "j"
    study = open_study(DriverJournal(path))
    run_trials(study, 1)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            study.ask()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    run_trials(study, 1)
    assert contents(open_study(JournalFileBackend(str(path)))) == contents(study)


def test_the_disk_is_waited_for_at_a_status_and_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = open_study(DriverJournal(tmp_path / "j"))
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    trial = study.ask()
    for name in "abcdef":
        trial.suggest_float(name, 0, 1)
    assert waits == []
    trial.set_user_attr("status", "running")
    assert len(waits) == 1
    study.tell(trial, 1.0)
    assert len(waits) == 2
