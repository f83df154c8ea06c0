"""What a study taught, and which member of its front to take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from slb_autotune.analysis.importance import importance_table, importances
from slb_autotune.analysis.lessons import (
    is_uniform,
    lessons,
    occupancy,
    recommend,
    rung_correlations,
)
from slb_autotune.analysis.result import StudyResult, study_result
from slb_autotune.errors import InputError
from slb_autotune.search.storage import blank_ledger
from tests.builders import TINY, fake_row, shared_costs, tiny_study


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("slb_autotune.search.feasibility.CostModel", shared_costs)


def finished(
    points: list[dict[str, Any]], metrics: list[dict[str, float]], **changes: Any
) -> StudyResult:
    """The result of these trials with these metrics."""
    ledger = blank_ledger(tiny_study(space={}, points=points, **changes))
    for row in metrics:
        found = ledger.ask()
        assert found is not None
        ledger.tell(found[0], fake_row(found[1], 1, **row))
    return study_result(ledger.snapshot())


MIXED = {"layer1.*": 4, "layer2.*": 2, "layer3.*": 1}
POINTS = [
    {"weight_bits": 1, "T_e": 10.0},
    {"weight_bits": 2, "T_e": 500.0},
    {"weight_bits": 4, "T_e": 1000.0, "schedule": "sin"},
    {"weight_bits": MIXED, "T_e": 100.0},
]


def four(**changes: Any) -> StudyResult:
    scores = [{"val_accuracy": v} for v in (80.0, 85.0, 95.0, 90.5)]
    return finished(POINTS, scores, **changes)


def test_the_lessons_of_a_study_in_lines() -> None:
    result = four()
    lines = lessons(result)
    assert lines[0] == (
        "best schedule: sin, T 0.01 -> 1000 (val_accuracy 95.00, trial 2); "
        "the paper's exp, 0.01 -> 10 gave 80.00"
    )
    assert is_uniform(result.trials).tolist() == [True, True, True, False]
    uniform = result.hypervolume_of(result.trials.iloc[:3])
    assert lines[1] == (
        f"hypervolume {result.hypervolume:.4f}, of the 3 uniform allocations alone {uniform:.4f}"
    )
    assert uniform < result.hypervolume
    assert len(lines) == 2


def test_a_study_without_results_has_no_lessons() -> None:
    assert lessons(finished(POINTS, [])) == []


def test_the_paper_is_named_only_where_it_was_tried() -> None:
    result = finished(POINTS[1:2], [{"val_accuracy": 85.0}])
    assert lessons(result) == ["best schedule: exp, T 0.01 -> 500 (val_accuracy 85.00, trial 0)"]


def test_where_less_is_better_the_best_has_the_least() -> None:
    losses = [{"val_loss": v} for v in (0.5, 0.1, 0.3)]
    result = finished(POINTS[:3], losses, objectives={"val_loss": "minimize"})
    assert "T 0.01 -> 500 (val_loss 0.1, trial 1)" in lessons(result)[0]


def searched(direction: str, decisive: str, trials: int = 40) -> StudyResult:
    """A study in which one parameter alone decides, best near the top of its range."""
    space = {"T_e": {"log": [1, 10000]}, "lr": {"log": [0.01, 1]}, "label_smoothing": [0.0, 0.1]}
    config = tiny_study(
        space=space,
        objectives={"val_accuracy" if direction == "maximize" else "val_loss": direction},
        sampler="random",
        budget={"trials": trials},
    )
    ledger = blank_ledger(config)
    while (found := ledger.ask()) is not None:
        number, assignment = found
        value = ledger.records[number].params[decisive]
        # Flat below, and steep where it is good: only its good end tells.
        good = 100.0 * value / {"temperature.T_e": 10000, "optimizer.lr": 1}[decisive]
        ledger.tell(number, fake_row(assignment, 1, val_accuracy=good, val_loss=100 - good))
    return study_result(ledger.snapshot())


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("decisive", ["temperature.T_e", "optimizer.lr"])
def test_importance_points_at_the_parameter_that_matters(direction: str, decisive: str) -> None:
    result = searched(direction, decisive)
    metric = result.objectives.metrics[0]
    found = importances(result, metric)
    assert importance_table(result).loc[metric].to_dict() == found
    assert found.keys() == {"temperature.T_e", "optimizer.lr", "label_smoothing"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert max(found, key=found.__getitem__) == decisive
    assert found[decisive] > 0.6
    line = next(line for line in lessons(result) if line.startswith("what mattered: "))
    assert line.startswith(f"what mattered: {decisive} {found[decisive]:.0%}, ")


def test_importance_needs_some_trials() -> None:
    few, enough = (searched("maximize", "optimizer.lr", trials=n) for n in (7, 8))
    assert importances(few, "val_accuracy") == {}
    assert importances(enough, "val_accuracy") != {}


@pytest.mark.parametrize(
    ("finals", "warning"),
    [
        ((1, 2, 3, 4, 5, 6), ""),
        ((6, 5, 4, 3, 2, 1), "; warning: early stopping was not to be trusted"),
        ((1, 2, 3), "; warning: too few to tell"),
    ],
)
def test_how_well_a_rung_predicted_the_end(
    finals: tuple[int, ...], warning: str, tmp_path: Path
) -> None:
    config = tiny_study(
        space={},
        points=[{"T_e": 100.0 + i} for i in range(6)],
        trial={**TINY, "epochs": 4},
        early_stopping={"rungs": [0.5], "spared": 1.0},
        storage={"folder": str(tmp_path)},
    )
    ledger = blank_ledger(config)
    for early, final in enumerate(finals):
        number, assignment = ledger.ask() or pytest.fail("a trial is missing")
        ledger.tell_rung(number, 0, fake_row(assignment, 2, val_accuracy=early))
        ledger.tell(number, fake_row(assignment, 4, val_accuracy=float(final)))
        folder = Path(assignment.folder) / "rung0"
        folder.mkdir(parents=True)
        (folder / "history.csv").write_text(f"epoch,val_accuracy\n1,50\n2,{early}\n")
    result = study_result(ledger.snapshot())
    sign = "-1.00" if finals[0] == 6 else "1.00"
    assert lessons(result)[-1] == (
        f"rung 0 (2 epochs): rank correlation with the end {sign} over {len(finals)} "
        f"spared trials{warning}"
    )
    (rung,) = rung_correlations(result)
    assert (rung.rung, rung.epochs, rung.trials) == (0, 2, len(finals))
    assert rung.trusted == (not warning)


def test_occupancy_is_the_share_of_the_slots_that_training_took() -> None:
    result = four()
    trials = result.trials.assign(started=[0.0, 0.0, 5.0, 5.0], ended=[5.0, 5.0, 10.0, 10.0])
    epochs = pd.DataFrame({"seconds": [4.0, 4.0, 4.0, 3.0]})
    whole = replace(result, trials=trials, epochs=epochs)
    assert occupancy(whole, slots=2) == pytest.approx(15 / 20)
    assert occupancy(replace(whole, trials=trials.assign(attempt=2)), slots=2) is None
    assert occupancy(finished(POINTS, []), slots=2) is None


def sizes(result: StudyResult) -> list[float]:
    return [float(size) for size in result.trials["size_bytes"]]


def test_the_most_accurate_of_all_or_within_a_size() -> None:
    result = four()
    one, two, four_bits, mixed = sizes(result)
    assert one < mixed < two < four_bits
    assert recommend(result, None, None)["trial"] == 2
    assert recommend(result, four_bits, None)["trial"] == 2
    assert recommend(result, four_bits - 1, None)["trial"] == 3
    assert recommend(result, mixed, None)["trial"] == 3
    assert recommend(result, mixed - 1, None)["trial"] == 0


def test_the_smallest_that_reaches_a_score() -> None:
    result = four()
    assert [recommend(result, None, s)["trial"] for s in (50, 80, 80.1, 90.5, 91)] == [
        0,
        0,
        3,
        3,
        2,
    ]
    assert recommend(result, sizes(result)[3], 90)["trial"] == 3


def test_where_less_is_better_a_score_is_reached_from_above() -> None:
    losses = [{"val_loss": v} for v in (0.5, 0.3, 0.1)]
    goals = {"val_loss": "minimize", "size_bytes": "minimize"}
    result = finished(POINTS[:3], losses, objectives=goals)
    assert recommend(result, None, None)["trial"] == 2
    assert recommend(result, None, 0.3)["trial"] == 1
    with pytest.raises(InputError, match=r"reaches val_loss 0.05; the best has 0.1"):
        recommend(result, None, 0.05)


def test_what_cannot_be_recommended() -> None:
    result = four()
    least, mixed = sizes(result)[0], sizes(result)[3]
    with pytest.raises(InputError, match=f"fits 100 bytes; the smallest has {least:,.0f}"):
        recommend(result, 100, None)
    with pytest.raises(InputError, match=r"reaches val_accuracy 99; the best has 95\.00"):
        recommend(result, None, 99)
    with pytest.raises(InputError, match=r"reaches val_accuracy 92; the best has 90\.50"):
        recommend(result, mixed, 92)
    with pytest.raises(InputError, match=r"the study has no front yet.*let it finish some trials"):
        recommend(finished(POINTS, []), None, None)
