"""`results/tables` and `results/figures`, made anew from the measurements in `results/runs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from slb_autotune.analysis.tables import (
    EPOCH_COLUMNS,
    RUN_COLUMNS,
    read_epochs,
    read_runs,
    typed,
    write,
)
from slb_autotune.errors import DataError
from slb_autotune.report import figures, own_tables, paper, table, tables
from slb_autotune.report.figures.compute import rung_correlations


def read_results(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All runs and all epochs of `folder`, in the order of the files' names."""
    runs = [read_runs(path) for path in sorted(folder.glob("*.runs.csv"))]
    epochs = [read_epochs(path) for path in sorted(folder.glob("*.epochs.csv"))]
    if not runs:
        raise DataError(
            f"there are no measurements in {folder}",
            "export a study there: slb-autotune export NAME --to results/runs",
        )
    return _joined(runs, RUN_COLUMNS), _joined(epochs, EPOCH_COLUMNS)


def _joined(parts: list[pd.DataFrame], columns: dict[str, str]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else typed([], columns)


def export_tables(runs: pd.DataFrame, epochs: pd.DataFrame, name: str, folder: Path) -> list[Path]:
    """Write a study's measurements as `NAME.runs.csv` and `NAME.epochs.csv`."""
    paths = [folder / f"{name}.runs.csv", folder / f"{name}.epochs.csv"]
    write(runs, paths[0])
    write(epochs, paths[1])
    return paths


def regenerate(results: Path) -> list[table.Table]:
    """Write all tables and figures anew; the tables."""
    runs, epochs = read_results(results / "runs")
    made = [
        *tables.paper_tables(runs, paper.read_published(results / "paper")),
        *(own for own in own_tables.own_tables(runs) if own.rows),
        tables.references_table(paper.read_references(results / "paper")),
    ]
    table.write_tables(made, results / "tables")
    for name, figure in _figures(runs, epochs):
        figures.save(figure, results / "figures" / name)
    return made


def _figures(runs: pd.DataFrame, epochs: pd.DataFrame) -> Iterator[tuple[str, Figure]]:
    for study in dict.fromkeys(runs["study"]):
        mine, curves = runs[runs["study"] == study], epochs[epochs["study"] == study]
        metric = "val_psnr" if mine["val_psnr"].notna().any() else "val_accuracy"
        if mine[metric].notna().sum() < 2:
            continue
        objectives = {metric: "maximize", "size_bytes": "minimize"}
        yield f"{study}_front", figures.draw_front(mine, objectives)
        yield f"{study}_schedules", figures.draw_schedules(mine, curves, metric)
        if curves["rung"].nunique() > 1:
            correlations = rung_correlations(curves, metric, int(mine["epochs"].max()))
            yield f"{study}_budgets", figures.draw_budgets(correlations)
