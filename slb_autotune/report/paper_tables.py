"""The paper's tables beside what was measured.

Which runs belong to a cell and what its verdict means is in `analysis/paper.py`.
"""

from __future__ import annotations

import pandas as pd

from slb_autotune.analysis.comparisons import BUDGET, Run, Value, records
from slb_autotune.analysis.paper import compare
from slb_autotune.analysis.paper_numbers import TABLES, PaperTable
from slb_autotune.report.table import Column, Table, make_table


def paper_tables(runs: pd.DataFrame, published: pd.DataFrame) -> list[Table]:
    """Every table and figure of the paper with numbers, beside what was measured."""
    finished = records(runs)
    return [paper_table(paper, published, finished) for paper in TABLES]


def paper_table(paper: PaperTable, published: pd.DataFrame, runs: list[Run]) -> Table:
    """One table of the paper: its rows in its order, and the runs that belong to each."""
    rows, notes = compare(paper, published, runs)
    columns = [
        Column("part", paper.part, where="both" if paper.part else "csv"),
        Column("method", "Method"),
        Column("bits", "W/A", where="page"),
        Column("weight_bits", where="csv"),
        Column("activation_bits", where="csv"),
        *_number_columns(paper),
        Column("seeds", "Seeds", "right"),
        Column("budget", "Budget, of the paper's", where="page"),
        *(Column(name, where="csv") for name in BUDGET),
        Column("paper_epochs", where="csv"),
        Column("paper_train_images", where="csv"),
        Column("verdict", "Verdict"),
        Column(
            "note", "Unlike the paper", where="both" if any(r["note"] for r in rows) else "csv"
        ),
        Column("runs", "Runs", where="page", wraps=True),
        Column("run_ids", where="csv"),
    ]
    groups = (
        ("part", "weight_bits", "activation_bits") if paper.name.startswith("table") else ("part",)
    )
    return make_table(paper.name, paper.title, columns, rows, notes, groups)


def _number_columns(paper: PaperTable) -> list[Column]:
    """Published, measured and their difference, for each metric."""
    which = dict.fromkeys(paper.metrics, "")
    if len(paper.metrics) > 1:
        which = {"test_accuracy": " top-1", "test_accuracy_top5": " top-5"}
    published = [
        Column(
            f"published_{m}", f"Published{which[m]}", "right", paper.digits, empty="\N{EN DASH}"
        )
        for m in paper.metrics
    ]
    measured = [
        Column(f"measured_{m}", f"Measured{which[m]}", "right", 2, spread=f"spread_{m}")
        for m in paper.metrics
    ]
    spreads = [Column(f"spread_{m}", where="csv") for m in paper.metrics]
    differences = [
        Column(f"difference_{m}", f"Difference{which[m]}", "right", 2, signed=True)
        for m in paper.metrics
    ]
    return [*published, *measured, *spreads, *differences]


def references_table(references: pd.DataFrame) -> Table:
    """What the authors' README and later works report beyond the paper."""
    rows: list[dict[str, Value]] = []
    for entry in references.to_dict("records"):
        row = {str(name): value for name, value in entry.items()}
        row["bits"] = f"{row['weight_bits']}/{row['activation_bits']}"
        row["value"] = f"{row['value']:.2f}".removesuffix("0")  # 91.0 and 86.75, as printed
        rows.append(row)
    columns = [
        Column("source", "Source"),
        Column("method", "Method"),
        Column("network", "Network"),
        Column("data", "Data"),
        Column("bits", "W/A", where="page"),
        Column("weight_bits", where="csv"),
        Column("activation_bits", where="csv"),
        Column("value", "Accuracy (%)", "right"),
        Column("detail", "Detail"),
    ]
    title = "Beyond the paper's tables: what others report"
    return make_table("references", title, columns, rows, (), ("source", "network"))
