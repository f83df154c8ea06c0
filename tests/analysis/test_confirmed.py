"""Tables of confirmed values: means and spreads over seeds, beside what the search saw."""

from dataclasses import replace
from pathlib import Path

import pytest

from slb_autotune.analysis.confirmed import confirmed_table, score_table
from slb_autotune.analysis.result import StudyResult, study_result
from slb_autotune.config.study import StudyConfig
from slb_autotune.search.confirm import confirm_front, confirm_points
from slb_autotune.search.storage import blank_ledger
from tests.builders import TINY, fake_row, play, tiny_study

POINTS = [{"method": "float"}, {"weight_bits": 1}, {"weight_bits": 1, "T_e": 10.0}]


def trained(config: StudyConfig, values: list[float]) -> StudyResult:
    """The result of a confirmation whose trials reached these test accuracies."""
    ledger = blank_ledger(config)
    for value in values:
        number, assignment = ledger.ask() or pytest.fail("a trial is missing")
        ledger.tell(number, fake_row(assignment, 1, test_accuracy=value))
    return study_result(ledger.snapshot())


def test_scores_have_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    study = StudyConfig.from_mapping({"name": "table", "trial": TINY, "points": POINTS})
    config = confirm_points(study, seeds=2, epochs=None)
    table = score_table(trained(config, [90.0, 80.0, 70.0, 92.0, 81.0, 70.0]))
    assert table["W/A"].tolist() == ["32/32", "1/32", "1/32"]
    assert table["test_accuracy"].tolist() == pytest.approx([91.0, 80.5, 70.0])
    assert table["spread"].tolist() == pytest.approx([2**0.5, 0.5**0.5, 0.0])
    assert table["seeds"].tolist() == [2, 2, 2]


def test_only_what_was_last_asked_for_is_shown() -> None:
    study = StudyConfig.from_mapping({"name": "table", "trial": TINY, "points": POINTS})
    every = trained(confirm_points(study, seeds=1, epochs=None), [90.0, 80.0, 70.0])
    one = StudyConfig.from_mapping({**study.to_mapping(), "points": (POINTS[2],)})
    asked = replace(every, config=confirm_points(one, seeds=1, epochs=None))
    assert score_table(asked)["test_accuracy"].tolist() == [70.0]
    longer = replace(every, config=confirm_points(one, seeds=1, epochs=9))
    assert score_table(longer).empty


def test_like_is_compared_with_like_whatever_was_searched_for() -> None:
    ledger = blank_ledger(tiny_study(objectives={"val_loss": "minimize"}, budget={"trials": 1}))
    number, assignment = ledger.ask() or pytest.fail("no trial")
    ledger.tell(number, fake_row(assignment, 1, val_loss=0.3, val_accuracy=88.0))
    search = study_result(ledger.snapshot())
    config = confirm_front(search.config, [search.config_of(number)], seeds=1, epochs=None)
    (row,) = confirmed_table(search, trained(config, [85.0])).to_dict("records")
    assert (row["val_accuracy"], row["test_accuracy"], row["drop"]) == (88.0, 85.0, 3.0)


def test_members_of_a_front_stand_beside_what_was_confirmed() -> None:
    ledger = blank_ledger(tiny_study(budget={"trials": 6}))
    play(ledger)
    search = study_result(ledger.snapshot())
    front = [search.config_of(trial) for trial in search.front["trial"]]
    values = [70.0 + i for i in range(2 * len(front))]
    config = confirm_front(search.config, front, seeds=2, epochs=None)
    table = confirmed_table(search, trained(config, values))
    assert table["trial"].tolist() == search.front["trial"].tolist()
    expected = [70.0 + i + len(front) / 2 for i in range(len(front))]
    assert table["test_accuracy"].tolist() == pytest.approx(expected)
    assert table["seeds"].tolist() == [2] * len(front)
    drop = (table["val_accuracy"] - table["test_accuracy"]).tolist()
    assert table["drop"].tolist() == pytest.approx(drop)
