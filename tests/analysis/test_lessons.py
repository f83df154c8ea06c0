"""What a study taught, and which member of its front to take."""

from pathlib import Path
from typing import Any

import optuna
import pytest

from slb_autotune.analysis.lessons import importances, lessons, recommend
from slb_autotune.errors import InputError
from slb_autotune.search.ledger import Ledger
from tests.builders import TINY, fake_row, shared_costs, tiny_study


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("slb_autotune.search.ledger.CostModel", shared_costs)


def finished(
    points: list[dict[str, Any]], metrics: list[dict[str, float]], **changes: Any
) -> Ledger:
    """A ledger of these trials with these results."""
    config = tiny_study(space={}, points=points, **changes)
    study = optuna.create_study(directions=list(config.goals().values()))
    ledger = Ledger(config, study, Path("nowhere"))
    for row in metrics:
        found = ledger.next_order()
        assert found is not None
        ledger.finish(found[0], fake_row(found[1], 1, **row))
    return ledger


MIXED = {"layer1.*": 4, "layer2.*": 2, "layer3.*": 1}
POINTS = [
    {"weight_bits": 1, "T_e": 10.0},
    {"weight_bits": 2, "T_e": 500.0},
    {"weight_bits": 4, "T_e": 1000.0, "schedule": "sin"},
    {"weight_bits": MIXED, "T_e": 100.0},
]


def four(**changes: Any) -> Ledger:
    scores = [{"val_accuracy": v} for v in (80.0, 85.0, 95.0, 90.5)]
    return finished(POINTS, scores, **changes)


def test_the_lessons_of_a_study_in_lines() -> None:
    ledger = four()
    lines = lessons(ledger)
    assert lines[0] == (
        "best schedule: sin, T 0.01 -> 1000 (val_accuracy 95.00, trial 2); "
        "the paper's exp, 0.01 -> 10 gave 80.00"
    )
    uniform = ledger.hypervolume([ledger.records[i] for i in (0, 1, 2)])
    assert lines[1] == (
        f"hypervolume {ledger.hypervolume():.4f}, of the 3 uniform allocations alone {uniform:.4f}"
    )
    assert uniform < ledger.hypervolume()
    assert len(lines) == 2


def test_a_study_without_results_has_no_lessons() -> None:
    assert lessons(finished(POINTS, [])) == []


def test_the_paper_is_named_only_where_it_was_tried() -> None:
    ledger = finished(POINTS[1:2], [{"val_accuracy": 85.0}])
    assert lessons(ledger) == ["best schedule: exp, T 0.01 -> 500 (val_accuracy 85.00, trial 0)"]


def test_where_less_is_better_the_best_has_the_least() -> None:
    losses = [{"val_loss": v} for v in (0.5, 0.1, 0.3)]
    ledger = finished(POINTS[:3], losses, objectives={"val_loss": "minimize"})
    assert "T 0.01 -> 500 (val_loss 0.10, trial 1)" in lessons(ledger)[0]


def searched(direction: str, decisive: str, trials: int = 40) -> Ledger:
    """A study in which one parameter alone decides, best near the top of its range."""
    space = {"T_e": {"log": [1, 10000]}, "lr": {"log": [0.01, 1]}, "label_smoothing": [0.0, 0.1]}
    config = tiny_study(
        space=space,
        objectives={"val_accuracy" if direction == "maximize" else "val_loss": direction},
        sampler="random",
        budget={"trials": trials},
    )
    study = optuna.create_study(directions=[direction])
    ledger = Ledger(config, study, Path("nowhere"))
    while (found := ledger.next_order()) is not None:
        number, order = found
        value = ledger.records[number].params[decisive]
        # Flat below, and steep where it is good: only its good end tells.
        good = 100.0 * value / {"temperature.T_e": 10000, "optimizer.lr": 1}[decisive]
        ledger.finish(number, fake_row(order, 1, val_accuracy=good, val_loss=100 - good))
    return ledger


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("decisive", ["temperature.T_e", "optimizer.lr"])
def test_importance_points_at_the_parameter_that_matters(direction: str, decisive: str) -> None:
    ledger = searched(direction, decisive)
    found = importances(ledger, 0)
    assert found.keys() == {"temperature.T_e", "optimizer.lr", "label_smoothing"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert max(found, key=found.__getitem__) == decisive
    assert found[decisive] > 0.6
    line = next(line for line in lessons(ledger) if line.startswith("what mattered: "))
    assert line.startswith(f"what mattered: {decisive} {found[decisive]:.0%}, ")


def test_importance_needs_some_trials() -> None:
    assert importances(searched("maximize", "optimizer.lr", trials=7), 0) == {}
    assert importances(searched("maximize", "optimizer.lr", trials=8), 0) != {}


@pytest.mark.parametrize(
    ("finals", "warning"),
    [
        ((1, 2, 3, 4, 5, 6), ""),
        ((6, 5, 4, 3, 2, 1), "; warning: early stopping was not to be trusted"),
        ((1, 2, 3), "; warning: too few to tell"),
    ],
)
def test_how_well_a_rung_foretold_the_end(finals: tuple[int, ...], warning: str) -> None:
    points = [{"T_e": 100.0 + i} for i in range(6)]
    ledger = finished(
        points,
        [],
        trial={**TINY, "epochs": 4},
        early_stopping={"rungs": [0.5], "spared": 1.0},
    )
    for early, final in enumerate(finals):
        found = ledger.next_order()
        assert found is not None
        ledger.record_rung(found[0], 0, fake_row(found[1], 2, val_accuracy=early))
        ledger.finish(found[0], fake_row(found[1], 4, val_accuracy=float(final)))
    sign = "-1.00" if finals[0] == 6 else "1.00"
    assert lessons(ledger)[-1] == (
        f"rung 0 (2 epochs): rank correlation with the end {sign} over {len(finals)} "
        f"spared trials{warning}"
    )


def sizes(ledger: Ledger) -> list[float]:
    return [ledger.records[i].metrics["size_bytes"] for i in range(len(ledger.records))]


def test_the_most_accurate_of_all_or_within_a_size() -> None:
    ledger = four()
    one, two, four_bits, mixed = sizes(ledger)
    assert one < mixed < two < four_bits
    assert recommend(ledger, None, None).number == 2
    assert recommend(ledger, four_bits, None).number == 2
    assert recommend(ledger, four_bits - 1, None).number == 3
    assert recommend(ledger, mixed, None).number == 3
    assert recommend(ledger, mixed - 1, None).number == 0


def test_the_smallest_that_reaches_a_score() -> None:
    ledger = four()
    assert [recommend(ledger, None, s).number for s in (50, 80, 80.1, 90.5, 91)] == [0, 0, 3, 3, 2]
    assert recommend(ledger, sizes(ledger)[3], 90).number == 3


def test_where_less_is_better_a_score_is_reached_from_above() -> None:
    losses = [{"val_loss": v} for v in (0.5, 0.3, 0.1)]
    goals = {"val_loss": "minimize", "size_bytes": "minimize"}
    ledger = finished(POINTS[:3], losses, objectives=goals)
    assert recommend(ledger, None, None).number == 2
    assert recommend(ledger, None, 0.3).number == 1
    with pytest.raises(InputError, match=r"reaches val_loss 0.05; the best has 0.10"):
        recommend(ledger, None, 0.05)


def test_what_cannot_be_recommended() -> None:
    ledger = four()
    least, mixed = sizes(ledger)[0], sizes(ledger)[3]
    with pytest.raises(InputError, match=f"fits 100 bytes; the smallest has {least:,.0f}"):
        recommend(ledger, 100, None)
    with pytest.raises(InputError, match=r"reaches val_accuracy 99; the best has 95\.00"):
        recommend(ledger, None, 99)
    with pytest.raises(InputError, match=r"reaches val_accuracy 92; the best has 90\.50"):
        recommend(ledger, mixed, 92)
    with pytest.raises(InputError, match=r"the study has no front yet.*let it finish some trials"):
        recommend(finished(POINTS, []), None, None)
