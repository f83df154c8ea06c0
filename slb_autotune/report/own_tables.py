"""Tables of our own: what the searches found."""

from __future__ import annotations

from collections.abc import Sequence

from slb_autotune.analysis import comparisons
from slb_autotune.analysis.result import StudyResult
from slb_autotune.config.metrics import COST, METRICS, Metric
from slb_autotune.report.table import Column, Table, make_table

BUDGET_COLUMNS = (
    Column("epochs", "Epochs", "right"),
    Column("train_images", "Images", "right", empty="unknown"),
)


def metric_columns(name: str) -> list[Column]:
    """A metric's columns: the plain number in CSV, and in its unit for people."""
    metric = METRICS[name]
    heading = f"{metric.short} ({metric.unit})" if metric.unit else metric.short
    if metric.scale == 1:
        return [Column(name, heading, "right", metric.decimals)]
    shown = Column(f"shown_{name}", heading, "right", metric.decimals, where="page")
    return [Column(name, where="csv"), shown]


def own_tables(results: Sequence[StudyResult]) -> list[Table]:
    """What the searches found: schedules, fronts, gain over uniform bits, confirmation."""
    return [
        schedules_table(results),
        front_table(results),
        uniform_table(results),
        confirmed_table(results),
        methods_table(results),
    ]


def schedules_table(results: Sequence[StudyResult]) -> Table:
    """The best temperature by validation value, among trials of one network, bits and budget."""
    rows = comparisons.best_schedules(comparisons.all_runs(results))
    columns = [
        Column("data", "Data"),
        Column("network", "Network"),
        Column("bits", "W/A"),
        Column("schedule", "Schedule"),
        Column("T_s", "T_s", "right"),
        Column("T_e", "T_e", "right"),
        Column("lr", "lr", "right"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2),
        Column("trials", "Trials compared", "right"),
        *BUDGET_COLUMNS,
        Column("run", "Run"),
    ]
    notes = ["Values are on validation data, the best of the trials compared: they flatter."]
    return make_table("schedules_found", "Best schedules found", columns, rows, notes, ("data",))


def front_table(results: Sequence[StudyResult]) -> Table:
    """The members of each study's front, smallest first, with the bits of every layer.

    An objective beyond quality and size has a column of its own.
    """
    searched = dict.fromkeys(
        metric
        for result in comparisons.searches(results)
        for metric in result.objectives.metrics
        if metric not in (COST, "average_weight_bits", result.objectives.quality)
    )
    others = [column for name in searched for column in metric_columns(name)]
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2),
        *metric_columns(COST),
        *others,
        *metric_columns("average_weight_bits"),
        Column("activation_bits", "A bits", "right"),
        Column("layers", "Weight bits by layer", where="page", wraps=True),
        Column("layer_bits", where="csv"),
        Column("schedule", "Schedule"),
        Column("T_s", "T_s", "right"),
        Column("T_e", "T_e", "right"),
        Column("lr", "lr", "right"),
        *BUDGET_COLUMNS,
    ]
    rows = comparisons.front_members(results)
    notes = [
        "Values are on validation data.",
        "Weight bits stand in the order of the layers, one number where a block has but one.",
    ]
    title = "The front, with the bits of every layer"
    return make_table("front", title, columns, rows, notes, ("study",))


def uniform_table(results: Sequence[StudyResult]) -> Table:
    """Hypervolume of all results of a study and of its uniform allocations, one reference."""
    rows = comparisons.against_uniform(results)
    columns = [
        Column("study", "Study"),
        Column("objectives", "Objectives"),
        *BUDGET_COLUMNS,
        Column("results", "Results", "right"),
        Column("uniform_results", "Uniform results", "right"),
        Column("hypervolume", "Hypervolume", "right", 4),
        Column("hypervolume_uniform", "Uniform hypervolume", "right", 4),
        Column("gain", "Gain (%)", "right", 2, signed=True),
        Column("reference", "Reference"),
    ]
    metrics = dict.fromkeys(name for row in rows for name in str(row["objectives"]).split(", "))
    ideals = ", ".join(_ideal(METRICS[name]) for name in metrics)
    notes = [
        f"Hypervolume: share of the box from the reference to the ideal ({ideals}).",
        "Uniform: all weights have the same bits.",
    ]
    return make_table("uniform", "Search against uniform allocations", columns, rows, notes)


def _ideal(metric: Metric) -> str:
    return f"{metric.ideal * metric.scale:g} {metric.unit}".strip()


def confirmed_table(results: Sequence[StudyResult]) -> Table:
    """What the search saw of each member of a front beside what `confirm` measured of it."""
    rows = comparisons.against_confirmed(results)
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("bits", "W/A"),
        *metric_columns(COST),
        Column("metric", "Metric"),
        Column("value", "Search", "right", 2),
        Column("epochs", "Search epochs", "right"),
        Column("confirmed", "Confirmed", "right", 2, spread="spread", empty="not run"),
        Column("spread", where="csv"),
        Column("seeds", "Seeds", "right"),
        Column("confirmed_epochs", "Confirmed epochs", "right"),
        Column("confirmed_train_images", "Confirmed images", "right"),
        Column("drop", "Drop", "right", 2, signed=True),
        Column("runs", "Runs", where="page", wraps=True),
        Column("run_ids", where="csv"),
    ]
    notes = [
        "Search: validation value of the trial that was chosen for it. Confirmed: test value of "
        "networks trained anew on all training data, mean ± sample standard deviation over seeds.",
    ]
    title = "Search value against confirmed test value"
    return make_table("confirmed", title, columns, rows, notes, ("study",))


def methods_table(results: Sequence[StudyResult]) -> Table:
    """Test values of several methods that one study trained on one budget, the best first."""
    rows, standings = comparisons.methods(comparisons.all_runs(results))
    notes = ["Mean and standard deviation over seeds, on the test set; one recipe for all."]
    columns = [
        Column("study", "Study"),
        Column("bits", "W/A"),
        Column("method", "Method"),
        Column("setting", "Temperature"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2, spread="spread"),
        Column("spread", where="csv"),
        Column("behind", "Behind the best", "right", 2, signed=True),
        Column("seeds", "Seeds", "right"),
        *metric_columns(COST),
        *BUDGET_COLUMNS,
        Column("run", "Runs", where="csv"),
    ]
    title = "One budget, all methods"
    return make_table("methods", title, columns, rows, [*notes, *standings], ("study", "bits"))
