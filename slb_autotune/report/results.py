"""`results/tables` and `results/figures`, regenerated from the studies in `results/runs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from slb_autotune.analysis.budgets import budget_correlations
from slb_autotune.analysis.comparisons import all_runs, searches
from slb_autotune.analysis.paper_numbers import read_published, read_references
from slb_autotune.analysis.result import StudyResult, load_result
from slb_autotune.errors import DataError
from slb_autotune.report import figures, own_tables, paper_tables, table
from slb_autotune.report.figures.curve_data import epoch_metric


def read_results(folder: Path) -> list[StudyResult]:
    """All studies that were exported to `folder`, in the order of the files' names."""
    names = [path.name.removesuffix(".runs.csv") for path in sorted(folder.glob("*.runs.csv"))]
    if not names:
        raise DataError(
            f"there are no measurements in {folder}",
            "export a study there: slb-autotune export NAME --to results/runs",
        )
    return [load_result(folder, f"{name}.") for name in names]


def regenerate(results: Path) -> list[table.Table]:
    """Write all tables and figures again; the tables."""
    studies = read_results(results / "runs")
    found = [
        *paper_tables.paper_tables(all_runs(studies), read_published(results / "paper")),
        *(own for own in own_tables.own_tables(studies) if own.rows),
        paper_tables.references_table(read_references(results / "paper")),
    ]
    table.write_tables(found, results / "tables")
    for study in searches(studies):
        for name, figure in _figures(study):
            # An SVG differs between machines, by the versions of fonts and libraries.
            figures.save(figure, results / "figures" / f"{study.name}_{name}", ("png",))
    return found


def _figures(result: StudyResult) -> Iterator[tuple[str, Figure]]:
    metric = epoch_metric(result)
    if result.trials[metric].notna().sum() < 2:
        return
    if len(result.objectives.metrics) > 1:
        yield "front", figures.draw_front(result)
    yield "schedules", figures.draw_schedules(result)
    if result.epochs["rung"].nunique() > 1:
        correlations = budget_correlations(result.epochs, metric, int(result.base.epochs))
        yield "budgets", figures.draw_budgets(correlations)
