"""The ledger of a study: asking, telling, and what survives a kill."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

# Private, since nothing public shows which trials TPE takes for good ones; should it move, this
# file fails to import.
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import FrozenTrial, TrialState

from slb_autotune import data
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import Cost, estimate
from slb_autotune.errors import InputError
from slb_autotune.search.attributes import numbers_of
from slb_autotune.search.budget import common_failure, exhausted
from slb_autotune.search.ledger import Ledger, StudyStopped
from slb_autotune.search.records import Record
from slb_autotune.search.storage import StudyFolder, blank_ledger, open_ledger
from tests.builders import TINY, fake_row, play, shared_costs, tiny_study

# ResNet20 of width 4: 3,892 bytes at 1 bit, 8,756 at 4.
TIGHT = "size_bytes <= 4500 B"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("slb_autotune.search.feasibility.CostModel", shared_costs)
    monkeypatch.setattr("os.fsync", lambda file: None)  # a kill is no power cut


def in_memory(config: StudyConfig | None = None, **changes: Any) -> Ledger:
    return blank_ledger(tiny_study(**changes) if config is None else config)


def on_disk(folder: Path, **changes: Any) -> Ledger:
    config = tiny_study(**changes)
    files = StudyFolder(folder, config.name)
    files.path.mkdir(parents=True, exist_ok=True)
    return open_ledger(config, files)


def cost_of(ledger: Ledger, config: TrialConfig) -> Cost:
    return ledger.feasibility.costs_of(config).cost(config)


def trials_of(ledger: Ledger) -> list[FrozenTrial]:
    return ledger.study.get_trials(deepcopy=False)


def run_points(accuracies_and_bits: list[tuple[float, int]], **changes: Any) -> Ledger:
    """A ledger of finished trials with these accuracies and bits, each T_e another."""
    points = [
        {"weight_bits": bits, "T_e": 100.0 + i} for i, (_, bits) in enumerate(accuracies_and_bits)
    ]
    ledger = in_memory(space={}, points=points, **changes)
    for accuracy, _ in accuracies_and_bits:
        found = ledger.ask()
        assert found is not None
        ledger.tell(found[0], fake_row(found[1], 1, val_accuracy=accuracy))
    return ledger


# -- asking ----------------------------------------------------------------------------------


def test_an_assignment_has_all_that_a_worker_needs(tmp_path: Path) -> None:
    ledger = on_disk(tmp_path, early_stopping={"rungs": [0.5]}, trial={**TINY, "epochs": 4})
    found = ledger.ask()
    assert found is not None
    number, assignment = found
    assert Path(assignment.folder) == ledger.folder.absolute() / "trials" / f"{number:05d}"
    assert [phase.until for phase in assignment.phases] == [2, 4]
    assert assignment.attempt == 1
    assert not assignment.test
    config = TrialConfig.from_mapping(assignment.config)
    assert assignment.costs == estimate(config, data.info(config.data)).metrics()
    assert ledger.space.config(ledger.records[number].params) == config
    assert ledger.records[number].status == "running"


def test_infeasible_draws_are_pruned_with_what_they_break_and_do_not_count() -> None:
    ledger = in_memory(constraints=[TIGHT], budget={"trials": 12}, sampler="random")
    play(ledger)
    refused = [t for t in trials_of(ledger) if t.user_attrs["status"] == "infeasible"]
    assert len(refused) == ledger.infeasible > 0
    assert len(ledger.records) == 12
    assert not {t.number for t in refused} & ledger.records.keys()
    for trial in refused:
        assert trial.state == TrialState.PRUNED
        size = cost_of(ledger, ledger.space.config(trial.params)).size_bytes
        assert trial.constraints == {"size_bytes <= 4500": pytest.approx(size / 4500 - 1)}
        assert trial.user_attrs["reason"] == f"size_bytes is {size}, above 4500"


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_no_infeasible_configuration_is_ever_issued(sampler: str) -> None:
    ledger = in_memory(
        constraints=[TIGHT, "bitops <= 40 M", "average_weight_bits >= 1.05"],
        budget={"trials": 5},
        sampler=sampler,
    )
    play(ledger)
    assert ledger.infeasible > 0
    for record in ledger.records.values():
        cost = cost_of(ledger, record.config)  # equal to the estimate: see test_space
        assert cost.size_bytes <= 4500
        assert cost.bitops <= 40e6
        assert cost.average_weight_bits >= 1.05


def test_tpe_learns_where_the_feasible_configurations_are() -> None:
    """At this limit 3 % of random draws are feasible."""
    space = {
        "T_e": {"log": [1, 10000]},
        "weight_bits": {"choices": [1, 2, 4, 8], "per": "layer"},
    }
    ledger = in_memory(space=space, constraints=["size_bytes <= 7000"], budget={"trials": 30})
    random = np.random.default_rng(0)
    draws = [ledger.space.config(ledger.space.draw(random)) for _ in range(400)]
    blind = np.mean([cost_of(ledger, config).size_bytes <= 7000 for config in draws])
    play(ledger)
    last = [t.user_attrs["status"] for t in trials_of(ledger)[-40:]]
    assert blind < 0.1
    assert last.count("infeasible") < 20


def test_draws_that_are_no_valid_trial_are_infeasible_too() -> None:
    space = {"T_s": {"log": [0.01, 100]}, "T_e": {"log": [0.1, 1000]}}
    ledger = in_memory(space=space, budget={"trials": 10}, sampler="random")
    play(ledger)
    refused = [t for t in trials_of(ledger) if t.user_attrs["status"] == "infeasible"]
    assert refused
    for trial in refused:
        assert trial.params["temperature.T_s"] > trial.params["temperature.T_e"]
        assert trial.constraints == {"valid": 1.0}
        assert "T_e must be at least T_s" in trial.user_attrs["reason"]


def test_a_study_whose_draws_are_all_infeasible_stops_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slb_autotune.search.ledger.MAX_INFEASIBLE_DRAWS", 60)
    ledger = in_memory(constraints=["size_bytes <= 3 kB"], sampler="random")
    with pytest.raises(StudyStopped, match="the last 60 draws are all infeasible; the last: "):
        ledger.ask()


@pytest.mark.parametrize("before", [0, 1])
def test_drawing_is_bounded_before_and_after_the_first_trial(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slb_autotune.search.ledger.MAX_INFEASIBLE_DRAWS", 30)
    ledger = in_memory(sampler="random", warm_start={})
    play(ledger, most=before)
    monkeypatch.setattr(ledger.feasibility, "memory", 1)  # nothing fits any more
    if before:
        assert ledger.ask() is None
    else:
        with pytest.raises(StudyStopped):
            ledger.ask()
    assert ledger.note.startswith("the last 30 draws are all infeasible; the last: training needs")
    assert ledger.infeasible == 30


def test_a_queue_is_gone_through_however_many_of_it_are_infeasible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slb_autotune.search.ledger.MAX_INFEASIBLE_DRAWS", 5)
    ledger = in_memory(constraints=["average_weight_bits >= 3.9"], sampler="grid")
    ledger.enqueue(ledger.space.grid(), "grid")
    play(ledger)
    assert ledger.infeasible > 50
    assert len(ledger.records) == 3  # 4 bits everywhere, at each T_e of the grid
    assert ledger.note == ""


def test_drawing_ends_when_the_study_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = in_memory(sampler="random")
    monkeypatch.setattr(ledger.feasibility, "memory", 1)
    calls = iter([False] * 5 + [True])
    assert ledger.ask(lambda: next(calls)) is None
    assert ledger.infeasible == 5


def test_an_exhausted_space_says_so() -> None:
    ledger = in_memory(
        space={"weight_bits": [1, 2]}, budget={"trials": None, "epochs": 1000}, sampler="random"
    )
    play(ledger)
    assert ledger.note == "the last 200 draws repeat trials: the space is exhausted"


@pytest.mark.parametrize("listed", [False, True])
def test_failed_trials_are_trained_again_when_asked(tmp_path: Path, listed: bool) -> None:
    points = {"space": {}, "points": [{"T_e": 5.0}, {"T_e": 6.0}]} if listed else {}
    ledger = on_disk(tmp_path, budget={"trials": 2}, **points)
    number, _ = ledger.ask() or pytest.fail("no trial")
    failed = ledger.records[number].config
    ledger.tell_failed(number, "no such file")
    play(ledger)
    again = on_disk(tmp_path, budget={"trials": 2}, **points)
    assert again.ask() is None
    assert again.retry_failed() == [number]
    (new,) = play(again)
    assert again.records[new].config == failed
    assert {record.status for record in again.records.values()} == {"done"}
    opened = on_disk(tmp_path, budget={"trials": 2}, **points)
    assert opened.records == again.records
    assert opened.retry_failed() == []


def test_a_rung_compares_equal_budgets() -> None:
    ledger = in_memory(
        early_stopping=STOPPING,
        space={},
        points=[{"epochs": 8, "T_e": float(i + 1)} for i in range(4)] + [{"epochs": 4}],
    )
    for accuracy in (90.0, 91.0, 92.0, 93.0):
        number, assignment = ledger.ask() or pytest.fail("no trial")
        row = fake_row(assignment, 4, status="rung", val_accuracy=accuracy)
        ledger.tell_rung(number, 0, row)
    number, assignment = ledger.ask() or pytest.fail("no trial")
    # Behind all of them, but with half of their epochs.
    row = fake_row(assignment, 2, status="rung", val_accuracy=10.0)
    assert ledger.tell_rung(number, 0, row)


def test_the_same_configuration_is_trained_once_and_its_result_reused() -> None:
    space = {"weight_bits": [1, 2, 4]}
    ledger = in_memory(space=space, budget={"trials": 12}, sampler="random")
    taken = play(ledger)
    assert len(taken) == 3
    reused = ledger.snapshot().with_status("reused")
    assert len(ledger.records) == 12 == len(taken) + len(reused)
    for record in reused:
        earlier = ledger.records[record.reused_from or 0]
        assert earlier.status == "done"
        assert (record.config, record.metrics) == (earlier.config, earlier.metrics)
        assert record.epochs == 0
        trial = trials_of(ledger)[record.number]
        assert trial.state == TrialState.COMPLETE
        assert trial.values == trials_of(ledger)[earlier.number].values
    assert {record.status for record in ledger.snapshot().front()} == {"done"}


def test_points_are_taken_in_order_each_once_and_then_there_is_nothing_left() -> None:
    points = [{"weight_bits": 4, "T_e": 5.0}, {"weight_bits": 1}, {"lr": 0.2}, {"weight_bits": 1}]
    ledger = in_memory(space={}, points=points)
    base = TrialConfig.from_mapping(TINY)
    assert play(ledger) == [0, 1, 2]
    assert [r.config for r in ledger.records.values()] == [base.updated(p) for p in points[:3]]
    assert {r.status for r in ledger.records.values()} == {"done"}
    assert ledger.ask() is None


def test_a_listed_point_is_known_by_its_configuration_not_by_its_position(tmp_path: Path) -> None:
    """Asked for other points, a study trains what is missing of them."""
    first = on_disk(tmp_path, space={}, points=[{"weight_bits": 1}, {"weight_bits": 2}])
    assert play(first) == [0, 1]
    other = on_disk(tmp_path, space={}, points=[{"weight_bits": 4}, {"weight_bits": 2}])
    assert play(other) == [2]
    assert [r.config.weight_bits for r in other.records.values()] == [1, 2, 4]


def test_a_list_of_points_is_not_cut_by_the_default_number_of_trials() -> None:
    ledger = in_memory(space={}, points=[{"T_e": 100.0 + i} for i in range(45)])
    assert len(play(ledger)) == 45


def test_what_was_enqueued_comes_first_each_once_with_its_source() -> None:
    ledger = in_memory(budget={"trials": 4})
    bits = {f"weight_bits/layer{i}.*": 2 for i in (1, 2, 3)}
    first = {"temperature.T_e": 50.0, **bits}
    ledger.enqueue([first, first], "mine")
    ledger.enqueue([{"temperature.T_e": 60.0}], "other")
    play(ledger)
    records = list(ledger.records.values())
    assert [r.source for r in records] == ["mine", "other", "sampler", "sampler"]
    assert records[0].params == first
    assert records[1].params["temperature.T_e"] == 60.0


def test_a_long_grid_is_enqueued_without_looking_through_the_study_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = in_memory(space={"weight_bits": {"choices": [1, 2, 4], "per": "layer"}})
    random = np.random.default_rng(0)
    draws = [ledger.space.draw(random) for _ in range(200)]
    reads = 0
    get_trials = ledger.study.get_trials

    def counted(*args: Any, **kwargs: Any) -> list[FrozenTrial]:
        nonlocal reads
        reads += 1
        return get_trials(*args, **kwargs)

    monkeypatch.setattr(ledger.study, "get_trials", counted)
    ledger.enqueue(draws, "grid")
    ledger.enqueue(draws, "grid")
    assert reads == 2
    assert len(get_trials(deepcopy=False)) == 200


# -- telling ---------------------------------------------------------------------------------


def test_a_finished_trial_is_complete_and_feasible() -> None:
    ledger = in_memory(constraints=[TIGHT], budget={"trials": 5})
    play(ledger)
    for record in ledger.snapshot().with_status("done"):
        trial = trials_of(ledger)[record.number]
        assert trial.state == TrialState.COMPLETE
        assert trial.values == [record.metrics["val_accuracy"], record.metrics["size_bytes"]]
        assert trial.constraints.keys() == {"size_bytes <= 4500", "stopped early"}
        assert max(trial.constraints.values()) <= 0


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_an_objective_that_is_not_a_number_fails_the_trial(value: float | None) -> None:
    ledger = in_memory()
    found = ledger.ask()
    assert found is not None
    ledger.tell(found[0], fake_row(found[1], 1, val_accuracy=value))
    record = ledger.records[found[0]]
    assert record.status == "failed"
    assert record.reason.startswith("an objective is not a number: {'val_accuracy': ")
    assert trials_of(ledger)[found[0]].state == TrialState.FAIL
    assert ledger.snapshot().front() == []


def test_a_failed_trial_keeps_its_reason() -> None:
    ledger = in_memory()
    found = ledger.ask()
    assert found is not None
    ledger.tell(found[0], {"status": "failed", "reason": "the loss became nan", "rung": 0})
    assert ledger.records[found[0]].reason == "the loss became nan"
    assert ledger.records[found[0]].status == "failed"
    assert trials_of(ledger)[found[0]].state == TrialState.FAIL


def test_words_and_what_ray_adds_are_no_metrics() -> None:
    ledger = in_memory()
    found = ledger.ask()
    assert found is not None
    extra = {"training_iteration": 3, "pid": 7, "hostname": "x", "done": True, "rung": 0}
    ledger.tell(found[0], fake_row(found[1], 1, **extra))
    metrics = ledger.records[found[0]].metrics
    assert not metrics.keys() & {*extra, "status", "trial_epochs"}
    assert {"val_accuracy", "size_bytes", "seconds"} <= metrics.keys()


STOPPING = {"rungs": [0.5], "spared": 0.0, "minimum": 4, "keep": 0.5}


def stopping_ledger(**changes: Any) -> Ledger:
    return in_memory(
        early_stopping=STOPPING,
        trial={**TINY, "epochs": 4},
        space={"T_e": {"log": [1, 1e4]}},
        **changes,
    )


def test_a_trial_behind_at_a_rung_is_stopped_as_pruned_and_violated() -> None:
    ledger = stopping_ledger()
    decisions = []
    for accuracy in (50.0, 60.0, 70.0, 10.0, 80.0):
        found = ledger.ask()
        assert found is not None
        number, assignment = found
        row = fake_row(assignment, 2, status="rung", val_accuracy=accuracy)
        decisions.append(ledger.tell_rung(number, 0, row))
    assert decisions == [True, True, True, False, True]
    record = ledger.records[3]
    assert (record.status, record.epochs) == ("stopped", 2)
    # Rank 4 of 4, two are kept: two ranks too far back.
    assert record.reason == "rung 0: behind by 50% of the trials"
    assert trials_of(ledger)[3].state == TrialState.PRUNED
    assert trials_of(ledger)[3].constraints == {"stopped early": 0.5}
    assert record.rungs[0]["val_accuracy"] == 10.0
    ledger.tell(3, fake_row(ledger.assignment(3), 4))
    assert ledger.records[3].status == "stopped"


def test_a_spared_trial_continues_however_bad() -> None:
    ledger = in_memory(
        early_stopping={**STOPPING, "spared": 1.0},
        trial={**TINY, "epochs": 4},
        space={"T_e": {"log": [1, 1e4]}},
    )
    for accuracy in (50.0, 60.0, 70.0, 80.0, 0.0):
        found = ledger.ask()
        assert found is not None
        row = fake_row(found[1], 2, status="rung", val_accuracy=accuracy)
        assert ledger.tell_rung(found[0], 0, row)


@pytest.mark.parametrize("objectives", [{}, {"val_accuracy": "maximize"}], ids=["two", "one"])
def test_what_was_stopped_or_infeasible_is_never_among_tpe_s_good(objectives: dict) -> None:
    ledger = in_memory(
        early_stopping=STOPPING,
        trial={**TINY, "epochs": 4},
        objectives=objectives,
        constraints=["size_bytes <= 6000"],
        budget={"trials": 40},
    )
    play(ledger)
    trials = trials_of(ledger)
    assert len(ledger.snapshot().with_status("stopped")) > 5
    assert ledger.infeasible > 5
    complete = len(ledger.snapshot().with_status("done", "reused"))
    for good_count in range(1, complete + 1):
        good, _ = _split_trials(ledger.study, trials, good_count)
        assert {t.user_attrs["status"] for t in good} <= {"done", "reused"}


# -- the end of a study ------------------------------------------------------------------------


def test_the_budget_of_trials() -> None:
    ledger = in_memory(budget={"trials": 3})
    assert play(ledger) == [0, 1, 2]
    assert exhausted(ledger.snapshot())


def test_running_trials_count_towards_the_budget() -> None:
    ledger = in_memory(budget={"trials": 2})
    assert ledger.ask() is not None
    assert ledger.ask() is not None
    assert ledger.ask() is None


def test_the_budget_of_epochs_counts_what_was_stopped_too() -> None:
    ledger = stopping_ledger(budget={"trials": None, "epochs": 30})
    play(ledger)
    stopped, done = ledger.snapshot().with_status("stopped"), ledger.snapshot().with_status("done")
    assert stopped
    assert ledger.snapshot().epochs_spent() == 2 * len(stopped) + 4 * len(done)
    assert 30 <= ledger.snapshot().epochs_spent() < 34


def test_a_failed_trial_spends_its_epochs() -> None:
    ledger = in_memory(budget={"trials": None, "epochs": 5})
    found = ledger.ask()
    assert found is not None
    failed = {"status": "failed", "reason": "nan", "rung": 0, "trial_epochs": 5}
    ledger.tell(found[0], failed)
    assert ledger.snapshot().epochs_spent() == 5
    assert exhausted(ledger.snapshot())


def test_patience_ends_a_study_whose_hypervolume_does_not_grow() -> None:
    grow = [(10.0, 1), (20.0, 1), (30.0, 1), (40.0, 1)]
    assert not exhausted(run_points(grow, budget={"patience": 2}).snapshot())
    ledger = run_points([*grow, (39.0, 1)], budget={"patience": 2})
    assert not exhausted(ledger.snapshot())
    ledger = run_points([*grow, (39.0, 1), (38.0, 1)], budget={"patience": 2})
    assert exhausted(ledger.snapshot())
    # 40.02 is a twentieth of a percent more than 40.
    tail = [(39.0, 1), (40.02, 1)]
    assert exhausted(run_points([*grow, *tail], budget={"patience": 2}).snapshot())
    patient = run_points([*grow, *tail], budget={"patience": 2, "growth": 0.0001})
    assert not exhausted(patient.snapshot())


def test_a_space_that_was_tried_whole_ends_a_study_without_a_number_of_trials() -> None:
    ledger = in_memory(
        space={"weight_bits": [1, 2]}, budget={"trials": None, "epochs": 1000}, sampler="random"
    )
    calls = 0
    ask = ledger.study.ask

    def counted(*args: Any, **kwargs: Any) -> optuna.Trial:
        nonlocal calls
        calls += 1
        assert calls < 1000, "ask never ends"
        return ask(*args, **kwargs)

    ledger.study.ask = counted  # type: ignore[method-assign]
    assert len(play(ledger)) == 2


def fail_with(ledger: Ledger, *reasons: str) -> None:
    for reason in reasons:
        found = ledger.ask()
        assert found is not None
        ledger.tell_failed(found[0], reason)


def test_three_equal_failures_are_a_common_one() -> None:
    ledger = in_memory()
    fail_with(ledger, "no such file", "no such file")
    assert common_failure(ledger.snapshot()) == ""
    fail_with(ledger, "no such file")
    assert common_failure(ledger.snapshot()) == "no such file"


def test_different_failures_or_a_result_are_no_common_failure() -> None:
    ledger = in_memory()
    fail_with(ledger, "a", "a", "b")
    assert common_failure(ledger.snapshot()) == ""
    ledger = in_memory()
    play(ledger, most=1)
    fail_with(ledger, "a", "a", "a")
    assert common_failure(ledger.snapshot()) == ""


# -- what is known -----------------------------------------------------------------------------


def test_the_front_and_its_hypervolume_by_hand() -> None:
    ledger = run_points([(50.0, 1), (70.0, 2), (60.0, 4), (90.0, 4), (40.0, 1)])
    assert [r.number for r in ledger.snapshot().front()] == [0, 1, 3]
    sizes = [r.metrics["size_bytes"] for r in ledger.snapshot().front()]
    assert sizes == sorted(sizes)
    float_size = ledger.feasibility.float_costs["size_bytes"]
    assert ledger.reference == (0.0, float_size)
    one, two, four = sizes
    area = 50 * (float_size - one) + 20 * (float_size - two) + 20 * (float_size - four)
    assert ledger.snapshot().hypervolume() == pytest.approx(area / (100 * float_size))
    first = [r for r in ledger.snapshot().results() if r.number == 0]
    assert ledger.snapshot().hypervolume(first) == pytest.approx(
        50 * (float_size - one) / (100 * float_size)
    )


def test_no_results_no_front_no_volume() -> None:
    ledger = in_memory()
    assert ledger.snapshot().front() == []
    assert ledger.snapshot().hypervolume() == 0.0
    assert ledger.snapshot().hypervolume([]) == 0.0


def test_the_reference_of_a_minimised_metric_is_frozen_at_the_first_results() -> None:
    ledger = in_memory(objectives={"train_loss": "minimize"}, budget={"trials": 3})
    assert ledger.reference == ()
    for loss, volume in ((2.0, 0.5), (1.0, 0.75), (50.0, 0.75)):
        found = ledger.ask()
        assert found is not None
        ledger.tell(found[0], fake_row(found[1], 1, train_loss=loss))
        assert ledger.reference == (4.0,)
        assert ledger.snapshot().hypervolume() == pytest.approx(volume)


def test_a_constraint_on_what_was_learned_filters_the_front() -> None:
    values = [(85.0, 1), (92.0, 2), (95.0, 4)]
    assert [r.number for r in run_points(values).snapshot().front()] == [0, 1, 2]
    ledger = run_points(values, constraints=["val_accuracy >= 90"])
    assert [r.number for r in ledger.snapshot().front()] == [1, 2]
    assert [r.number for r in ledger.snapshot().results()] == [1, 2]
    worst = trials_of(ledger)[0]
    assert worst.state == TrialState.COMPLETE
    assert worst.constraints["val_accuracy >= 90"] == pytest.approx(5 / 90)


def test_a_constraint_on_a_metric_that_a_trial_lacks_is_violated() -> None:
    ledger = run_points([(95.0, 1)], constraints=["val_accuracy_top5 >= 30"])
    assert ledger.snapshot().results() == []
    assert trials_of(ledger)[0].constraints["val_accuracy_top5 >= 30"] == 1.0


# -- killed and opened again -------------------------------------------------------------------


def summary(record: Record) -> tuple[Any, ...]:
    """All of a record but its attempt."""
    return (
        *(record.number, record.status, record.config, record.params, record.metrics),
        *(record.rungs, record.reason, record.epochs, record.source, record.reused_from),
    )


KILLED = {
    "trial": {**TINY, "epochs": 4},
    "space": {
        "T_e": {"log": [1, 10000]},
        "lr": {"log": [0.01, 1]},
        "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
    },
    "constraints": ["size_bytes <= 5600"],
    "objectives": {"val_accuracy": "maximize"},
    "early_stopping": {"rungs": [0.5], "minimum": 2, "spared": 0.0, "keep": 0.3},
    "budget": {"trials": 6},
}


def killed_study(sampler: str) -> dict[str, Any]:
    return {**KILLED, "sampler": {"name": sampler, "startup_trials": 2, "population": 3}}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_opened_again_it_has_the_same_records(tmp_path: Path, sampler: str) -> None:
    ledger = on_disk(tmp_path, **killed_study(sampler))
    play(ledger)
    again = on_disk(tmp_path, **killed_study(sampler))
    assert again.records == ledger.records
    assert again.infeasible == ledger.infeasible
    assert again.ask() is None
    assert (again.snapshot().hypervolume(), again.reference) == (
        ledger.snapshot().hypervolume(),
        ledger.reference,
    )
    assert len(again.snapshot().front()) == len(ledger.snapshot().front()) > 0


def test_an_unfinished_trial_is_resumed_as_the_next_attempt(tmp_path: Path) -> None:
    ledger = on_disk(tmp_path)
    found = ledger.ask()
    assert found is not None
    for attempt in (2, 3):
        again = on_disk(tmp_path)
        assert [r.number for r in again.snapshot().with_status("running")] == [found[0]]
        assignment = again.resume(found[0])
        assert assignment.attempt == attempt
        assert (assignment.config, assignment.folder) == (found[1].config, found[1].folder)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_killed_after_any_write_it_ends_as_if_never_killed(tmp_path: Path, sampler: str) -> None:
    """The journal of a whole study is cut after its lines and the study goes on from there."""
    whole = on_disk(tmp_path / "whole", **killed_study(sampler))
    play(whole)
    assert {r.status for r in whole.records.values()} == {"done", "stopped"}
    assert whole.infeasible > 0
    expected = [summary(record) for record in whole.records.values()]
    states = [(t.state, t.constraints) for t in trials_of(whole)]
    lines = StudyFolder(tmp_path / "whole", "tiny").journal_path.read_bytes().splitlines(True)
    assert len(lines) > 60
    for cut in range(2, len(lines), 3 if sampler == "random" else 7):
        folder = tmp_path / str(cut)
        files = StudyFolder(folder, "tiny")
        files.path.mkdir(parents=True)
        files.journal_path.write_bytes(b"".join(lines[:cut]) + b'{"torn')
        again = on_disk(folder, **killed_study(sampler))
        play(again)
        assert [summary(record) for record in again.records.values()] == expected, lines[cut - 1]
        assert [(t.state, t.constraints) for t in trials_of(again)] == states, lines[cut - 1]
        assert again.infeasible == whole.infeasible


def test_a_second_driver_is_refused_while_the_first_holds_the_study(tmp_path: Path) -> None:
    files = StudyFolder(tmp_path, "tiny")
    with files.lock():
        with pytest.raises(InputError) as caught, files.lock():
            pytest.fail("two hold the study")
        assert f"study 'tiny' is being run by process {os.getpid()} on " in str(caught.value)
    with files.lock():
        pass  # let go of


@pytest.mark.parametrize("again", ["tell_rung", "tell", "tell_failed"])
@pytest.mark.parametrize("end", ["tell_rung", "tell", "tell_failed"])
def test_telling_an_ended_trial_changes_nothing(end: str, again: str) -> None:
    """A worker that dies just after its trial ended is reported too."""
    ledger = stopping_ledger()
    for accuracy in (50.0, 60.0, 70.0):
        number, assignment = ledger.ask() or pytest.fail("no trial")
        row = fake_row(assignment, 2, status="rung", val_accuracy=accuracy)
        ledger.tell_rung(number, 0, row)
    number, assignment = ledger.ask() or pytest.fail("no trial")
    calls = {
        "tell_rung": lambda: ledger.tell_rung(
            number, 0, fake_row(assignment, 2, status="rung", val_accuracy=1.0)
        ),
        "tell": lambda: ledger.tell(number, fake_row(assignment, 4)),
        "tell_failed": lambda: ledger.tell_failed(number, "the worker process died"),
    }
    calls[end]()
    before = ledger.records[number]
    assert before.status == {"tell_rung": "stopped", "tell": "done", "tell_failed": "failed"}[end]
    assert not calls[again]()
    assert ledger.records[number] == before


@pytest.mark.parametrize("end", ["running", "failed"])
def test_what_runs_or_failed_is_not_issued_again(end):
    study = tiny_study(space={"T_e": {"choices": [10.0, 100.0]}}, warm_start={"uniform": False})
    ledger = blank_ledger(study)
    first, _ = ledger.ask()
    second, _ = ledger.ask()
    assert ledger.records[first].config != ledger.records[second].config
    if end == "failed":
        ledger.tell_failed(first, "a reason")
    assert ledger.ask() is None
    assert len(ledger.records) == 2
    assert ledger.infeasible > 0


def test_what_ray_adds_to_a_row_is_no_metric() -> None:
    row = {"val_accuracy": 90.0, "epoch": 3, "status": "done", "pid": 7, "done": True}
    ray = {"config/assignment/config/weight_bits/layer1.*": 2, "time_total_s": 1.0, "rung": 0}
    assert numbers_of({**row, **ray}) == {"val_accuracy": 90.0, "epoch": 3}
