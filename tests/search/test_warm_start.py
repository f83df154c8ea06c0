"""The trials that a study begins with."""

from pathlib import Path
from typing import Any

import optuna
import pytest

from slb_autotune.errors import InputError
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, blank_ledger, open_ledger
from slb_autotune.search.warm_start import PAPER, initial_configurations
from tests.builders import TINY, play, shared_costs, tiny_study

BITS = {"choices": [1, 2, 4], "per": "stage"}
TEMPERATURE = {
    "T_s": {"log": [0.001, 1]},
    "T_e": {"log": [1, 10000]},
    "schedule": ["exp", "sin"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("slb_autotune.search.feasibility.CostModel", shared_costs)
    monkeypatch.setattr("os.fsync", lambda file: None)


def ledger_of(space: dict[str, Any], **changes: Any) -> Ledger:
    config = tiny_study(**{"warm_start": {}, "space": space, **changes})
    return blank_ledger(config)


def first_trials(ledger: Ledger) -> list[tuple[str, dict[str, Any]]]:
    return list(initial_configurations(ledger))


def all_at(bits: int) -> dict[str, int]:
    return {f"weight_bits/layer{stage}.*": bits for stage in (1, 2, 3)}


def test_uniform_bits_come_first_and_then_the_paper() -> None:
    found = first_trials(ledger_of({**TEMPERATURE, "lr": {"log": [0.01, 1]}, "weight_bits": BITS}))
    assert [source for source, _ in found] == [
        *("uniform 1 bit", "uniform 2 bit", "uniform 4 bit"),
        "paper",
    ]
    base = {
        "temperature.T_s": 0.01,
        "temperature.T_e": 1000.0,
        "temperature.schedule": "exp",
        "optimizer.lr": 0.1,
    }
    expected = [{**base, **all_at(bits)} for bits in (1, 2, 4)]
    assert [values for _, values in found] == [*expected, {**base, **PAPER, **all_at(1)}]


def test_what_the_space_does_not_hold_of_the_fixed_part_is_left_open() -> None:
    found = first_trials(
        ledger_of({"lr": {"log": [0.2, 1]}, "T_e": [1.0, 1000.0], "weight_bits": BITS})
    )
    assert found[0][1] == {"temperature.T_e": 1000.0, **all_at(1)}


@pytest.mark.parametrize(
    ("space", "sources"),
    [
        ({"lr": {"log": [0.01, 1]}}, []),
        ({"weight_bits": [2, 8]}, ["uniform 2 bit"]),
        ({"weight_bits": [1, 2, 3]}, ["uniform 1 bit", "uniform 2 bit"]),
        ({"activation_bits": [2, 4]}, []),
        ({**TEMPERATURE}, ["paper"]),
    ],
)
def test_only_what_is_searched_starts_warm(space: dict[str, Any], sources: list[str]) -> None:
    assert [source for source, _ in first_trials(ledger_of(space))] == sources


@pytest.mark.parametrize(
    "space",
    [{"T_s": {"log": [0.001, 1]}}, {**TEMPERATURE, "T_e": {"log": [100, 1000]}}],
    ids=["T_e fixed at 1000", "T_e searched above 10"],
)
def test_a_trial_is_the_paper_s_only_if_all_of_its_schedule_is(space: dict[str, Any]) -> None:
    assert [source for source, _ in first_trials(ledger_of(space))] == []


def test_each_kind_can_be_switched_off() -> None:
    space = {**TEMPERATURE, "weight_bits": BITS}
    without = first_trials(ledger_of(space, warm_start={"uniform": False}))
    assert [source for source, _ in without] == ["paper"]
    assert len(first_trials(ledger_of(space, warm_start={"paper": False}))) == 3


def test_what_breaks_a_constraint_is_left_out() -> None:
    space = {**TEMPERATURE, "weight_bits": BITS}
    feasibility = ledger_of(space).feasibility
    sizes = [
        feasibility.check(feasibility.base.updated({"weight_bits": b})).costs["size_bytes"]
        for b in (1, 2, 4)
    ]
    between = (sizes[1] + sizes[2]) // 2
    found = first_trials(ledger_of(space, constraints=[f"size_bytes <= {between}"]))
    assert [source for source, _ in found] == ["uniform 1 bit", "uniform 2 bit", "paper"]
    found = first_trials(ledger_of(space, constraints=["average_weight_bits >= 1.5"]))
    assert [source for source, _ in found] == ["uniform 2 bit", "uniform 4 bit"]


def test_the_ledger_takes_them_in_order() -> None:
    ledger = ledger_of({**TEMPERATURE, "weight_bits": BITS}, budget={"trials": 5})
    for source, values in first_trials(ledger):
        ledger.enqueue([values], source)
    play(ledger)
    sources = [record.source for record in ledger.records.values()]
    assert sources == ["uniform 1 bit", "uniform 2 bit", "uniform 4 bit", "paper", "sampler"]
    paper = ledger.records[3].config
    assert paper.temperature.T_e == 10.0
    assert set(dict(paper.weight_bits).values()) == {1}  # type: ignore[arg-type]


def earlier_study(folder: Path) -> Ledger:
    config = tiny_study(
        name="earlier",
        trial={**TINY, "lr": 0.05},
        space={"T_e": {"log": [1, 10000]}, "weight_bits": BITS, "lr": {"log": [0.01, 1]}},
        budget={"trials": 6},
        storage={"folder": str(folder)},
    )
    files = StudyFolder(folder, "earlier")
    files.path.mkdir(parents=True)
    files.config_path.write_text(config.to_yaml())
    ledger = open_ledger(config, files)
    play(ledger)
    return ledger


def test_the_front_of_an_earlier_study_starts_this_one_by_name(tmp_path: Path) -> None:
    earlier = earlier_study(tmp_path)
    ledger = ledger_of(
        {"T_e": {"log": [1, 10000]}, "weight_bits": BITS, "label_smoothing": [0.0, 0.1]},
        warm_start={"uniform": False, "paper": False, "study": "earlier"},
        storage={"folder": str(tmp_path)},
    )
    found = first_trials(ledger)
    assert [source for source, _ in found] == ["study earlier"] * len(earlier.snapshot().front())
    for (_, values), record in zip(found, earlier.snapshot().front(), strict=True):
        kept = {k: v for k, v in record.params.items() if k != "optimizer.lr"}
        assert values == {"label_smoothing": 0.0, **kept}


def test_looking_at_an_earlier_study_changes_nothing_in_it(tmp_path: Path) -> None:
    earlier_study(tmp_path)
    files = StudyFolder(tmp_path, "earlier")
    before = files.journal_path.read_bytes()
    ledger = ledger_of(
        {"T_e": {"log": [1, 10000]}},
        warm_start={"study": "earlier"},
        storage={"folder": str(tmp_path)},
    )
    assert first_trials(ledger)
    assert files.journal_path.read_bytes() == before


def test_an_earlier_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    earlier_study(tmp_path)
    ledger = ledger_of(
        {"T_e": [1.0, 2.0]}, warm_start={"study": "erlier"}, storage={"folder": str(tmp_path)}
    )
    with pytest.raises(InputError, match=r"no study 'erlier'.*did you mean 'earlier'"):
        first_trials(ledger)
