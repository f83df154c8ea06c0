"""Tables: the paper's beside what was measured, and our own. Compute, then render.

Which runs belong to a cell of a paper table, and what its verdict means, is said in `paper.py`.
Tables hold values until they are rendered: Markdown, LaTeX and HTML show them to people, CSV
gives them to programs.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from slb_autotune.errors import InputError
from slb_autotune.pareto import IDEAL, hypervolume
from slb_autotune.report.paper import (
    BUDGET,
    MINUS,
    SETTINGS,
    TABLES,
    TIMES,
    PaperTable,
    Run,
    Value,
    compare,
    grouped,
    key,
    mean_and_spread,
    one_a_seed,
    records,
    run_name,
    run_names,
)
from slb_autotune.run_table import layer_bits

OBJECTIVES = {"val_accuracy": "maximize", "val_psnr": "maximize", "size_bytes": "minimize"}

CONFIGURATION = ("network", "width", "data", "scale", "method", "weight_bits", "bits")


@dataclass(frozen=True)
class Column:
    """A column: its key in CSV, its heading for people, and how its values are written."""

    key: str
    heading: str = ""
    align: Literal["left", "right"] = "left"
    digits: int | None = None  # after the point; None: four significant ones
    signed: bool = False
    spread: str = ""  # key of the column that is joined by ±
    empty: str = ""
    wraps: bool = False  # on paper, where text may be long
    where: Literal["both", "page", "csv"] = "both"


@dataclass(frozen=True)
class Table:
    """Values, not yet text: a row holds a value a column. A rule parts rows by `groups`."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def cells(self) -> list[list[str]]:
        """The rows as people read them."""
        return [
            [self._text(row, i) for i, column in enumerate(self.columns) if column.where != "csv"]
            for row in self.rows
        ]

    def shown(self) -> list[Column]:
        """The columns that people see."""
        return [column for column in self.columns if column.where != "csv"]

    def breaks(self) -> list[bool]:
        """For each row whether it starts a new group; the first does not."""
        at = [i for i, column in enumerate(self.columns) if column.key in self.groups]
        keys = [[row[i] for i in at] for row in self.rows]
        return [False, *(one != other for one, other in pairwise(keys))][: len(keys)]

    def _text(self, row: tuple[Value, ...], index: int) -> str:
        column = self.columns[index]
        text = _text(row[index], column)
        if column.spread and row[index] is not None:
            keys = [other.key for other in self.columns]
            spread = row[keys.index(column.spread)]
            plain = replace(column, signed=False)
            text += f" ± {_text(spread, plain)}" if spread is not None else ""
        return text


def _text(value: Value, column: Column) -> str:
    if value is None:
        return column.empty
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if column.digits is None:
        return f"{value:.4g}"
    text = f"{abs(value):.{column.digits}f}"
    if float(text) == 0:
        return text
    return (MINUS if value < 0 else "+" if column.signed else "") + text


def _table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Value]],
    notes: Iterable[str] = (),
    groups: tuple[str, ...] = (),
) -> Table:
    values = tuple(tuple(row.get(column.key) for column in columns) for row in rows)
    said = tuple(dict.fromkeys(notes))
    return Table(name, title, tuple(columns), values, said, groups)


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
    return _table(paper.name, paper.title, columns, rows, notes, groups)


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


def own_tables(runs: pd.DataFrame) -> list[Table]:
    """What the searches found: schedules, fronts, gain over uniform bits, confirmation."""
    return [
        best_schedules(runs),
        front_table(runs),
        search_against_uniform(runs),
        search_against_confirmed(runs),
    ]


def best_schedules(runs: pd.DataFrame) -> Table:
    """The best temperature by validation value, among trials of one network, bits and budget."""
    names = ("data", "scale", "network", "width", "weight_bits", "activation_bits", *BUDGET)
    searched = [
        run
        for run in records(runs)
        if run["method"] == "slb" and run["status"] == "done" and _score(run) is not None
    ]
    rows = []
    for group in grouped(searched, names):
        best = max(group, key=lambda run: _score(run) or 0.0)
        rows.append({**_described(best), "trials": len(group)})
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
        *_BUDGET_COLUMNS,
        Column("run", "Run"),
    ]
    notes = ["Values are on validation data, the best of the trials compared: they flatter."]
    return _table("schedules_found", "Best schedules found", columns, rows, notes, ("data",))


_BUDGET_COLUMNS = (
    Column("epochs", "Epochs", "right"),
    Column("train_images", "Images", "right", empty="unknown"),
)


def front_table(runs: pd.DataFrame) -> Table:
    """The members of each study's front, smallest first, with the bits of every layer."""
    members = [run for run in records(runs) if run["on_front"] and _score(run) is not None]
    members.sort(key=lambda run: (run["study"] or "", run["size_bytes"] or 0, _score(run)))
    rows = [{**_described(run), "layers": layers_text(run["bits"])} for run in members]
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2),
        Column("size_bytes", where="csv"),
        Column("size", "Size (kB)", "right", 1, where="page"),
        Column("average_weight_bits", "Mean bits", "right", 2),
        Column("activation_bits", "A bits", "right"),
        Column("layers", "Weight bits by layer", where="page", wraps=True),
        Column("layer_bits", where="csv"),
        Column("schedule", "Schedule"),
        Column("T_s", "T_s", "right"),
        Column("T_e", "T_e", "right"),
        Column("lr", "lr", "right"),
        *_BUDGET_COLUMNS,
    ]
    notes = [
        "Values are on validation data.",
        "Weight bits stand in the order of the layers, one number where a block has but one.",
    ]
    return _table(
        "front", "The front, with the bits of every layer", columns, rows, notes, ("study",)
    )


def search_against_uniform(
    runs: pd.DataFrame, references: Mapping[str, Sequence[float]] | None = None
) -> Table:
    """Hypervolume of all results of a study and of its uniform allocations, one reference.

    The reference is the study's in `references`, in the order of OBJECTIVES, or else 0 for what
    is maximised and twice the largest value for what is minimised.
    """
    scored = [run for run in records(runs) if _score(run) is not None]
    rows = [
        _uniform_row(group, (references or {}).get(group[0]["study"] or ""))
        for group in grouped(scored, ("study",))
        if any(run["weight_bits"] == "mixed" for run in group)
        and any(run["size_bytes"] is not None for run in group)
    ]
    columns = [
        Column("study", "Study"),
        Column("objectives", "Objectives"),
        *_BUDGET_COLUMNS,
        Column("results", "Results", "right"),
        Column("uniform_results", "Uniform results", "right"),
        Column("hypervolume", "Hypervolume", "right", 4),
        Column("hypervolume_uniform", "Uniform hypervolume", "right", 4),
        Column("gain", "Gain (%)", "right", 2, signed=True),
        Column("reference", "Reference"),
    ]
    notes = [
        "Hypervolume: share of the box from the reference to the ideal of 100 %, 50 dB, 0 bytes.",
        "Uniform: all weights have the same bits.",
    ]
    return _table("uniform", "Search against uniform allocations", columns, rows, notes)


def _uniform_row(group: list[Run], reference: Sequence[float] | None) -> dict[str, Value]:
    """A study's hypervolume with and without the trials whose layers differ in bits."""
    metrics = [m for m in OBJECTIVES if any(run[m] is not None for run in group)]
    reference = _reference(group, metrics) if reference is None else reference
    if len(reference) != len(metrics):
        raise InputError(
            f"the reference of study {group[0]['study']!r} must have {len(metrics)} values; "
            f"got {len(reference)}",
            f"give one for each of {', '.join(metrics)}.",
        )
    uniform = [run for run in group if run["weight_bits"] != "mixed"]
    volume, volume_uniform = (_volume(runs, metrics, reference) for runs in (group, uniform))
    return {
        "study": group[0]["study"],
        "objectives": ", ".join(metrics),
        **{name: _range(group, name) for name in BUDGET},
        "results": len(group),
        "uniform_results": len(uniform),
        "hypervolume": volume,
        "hypervolume_uniform": volume_uniform,
        "gain": 100 * (volume / volume_uniform - 1) if volume_uniform else None,
        "reference": ", ".join(f"{value:,.6g}" for value in reference),
    }


def _range(group: list[Run], name: str) -> Value:
    """The value that the runs of a group share, or `8 to 20` where they differ."""
    known = [run[name] for run in group if run[name] is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return int(low) if low == high else f"{low:,} to {high:,}"


def _reference(group: list[Run], metrics: list[str]) -> list[float]:
    largest = {m: max(run[m] for run in group if run[m] is not None) for m in metrics}
    return [0.0 if OBJECTIVES[m] == "maximize" else 2.0 * largest[m] for m in metrics]


def _volume(group: list[Run], metrics: list[str], reference: Sequence[float]) -> float:
    points = [[math.nan if run[m] is None else run[m] for m in metrics] for run in group]
    ideal = [IDEAL.get(metric, 0.0) for metric in metrics]
    box = math.prod(abs(r - i) or 1.0 for r, i in zip(reference, ideal, strict=True))
    return hypervolume(points, reference, [OBJECTIVES[m] for m in metrics]) / box


def search_against_confirmed(runs: pd.DataFrame) -> Table:
    """What the search saw of each member of a front beside what `confirm` measured of it."""
    finished = records(runs)
    confirmed = _by_study(run for run in finished if _tested(run) is not None)
    rows = []
    for run in finished:
        study = f"{run['study']}.confirm"
        if run["on_front"] and _score(run) is not None and study in confirmed:
            rows.append(_confirmed(run, confirmed[study]))
    rows.sort(key=lambda row: (row["study"], row["size_bytes"] or 0))
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("bits", "W/A"),
        Column("size_bytes", where="csv"),
        Column("size", "Size (kB)", "right", 1, where="page"),
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
    return _table("confirmed", title, columns, rows, notes, ("study",))


def _confirmed(member: Run, runs: list[Run]) -> dict[str, Any]:
    """A member of the front and the runs of the largest budget that trained it again."""
    same = [run for run in runs if _same_configuration(member, run)]
    groups = grouped(same, BUDGET)
    groups.sort(key=lambda g: ((g[0]["epochs"] or 0), (g[0]["train_images"] or 0)), reverse=True)
    group = one_a_seed(groups[0]) if groups else []
    mean, spread = mean_and_spread([_tested(run) or 0.0 for run in group])
    row = _described(member)
    row |= {"confirmed": mean, "spread": spread, "seeds": len(group) or None}
    row["drop"] = None if mean is None else row["value"] - mean
    row["runs"] = run_names(group)
    row["run_ids"] = " ".join(run_name(run) for run in group)
    for name in BUDGET:
        row[f"confirmed_{name}"] = group[0][name] if group else None
    return row


def _same_configuration(one: Run, other: Run) -> bool:
    """Whether two runs differ in seed and budget at most, as far as the table tells."""
    names = [*CONFIGURATION, *(name for name in SETTINGS if name != "searched")]
    shared = one["params"].keys() & other["params"].keys()
    return key(one, names) == key(other, names) and all(
        one["params"][name] == other["params"][name] for name in shared
    )


def _by_study(runs: Iterable[Run]) -> dict[str, list[Run]]:
    studies: dict[str, list[Run]] = {}
    for run in runs:
        studies.setdefault(run["study"] or "", []).append(run)
    return studies


def _score(run: Run) -> float | None:
    return run["val_psnr"] if run["val_accuracy"] is None else run["val_accuracy"]


def _tested(run: Run) -> float | None:
    return run["test_psnr"] if run["test_accuracy"] is None else run["test_accuracy"]


def _described(run: Run) -> dict[str, Any]:
    """A run's columns under the names of our own tables."""
    scale = f" {TIMES}{run['scale']}" if run["scale"] else ""
    width = f", width {run['width']}" if run["width"] else ""
    size = run["size_bytes"]
    return {
        **run,
        "data": f"{run['data']}{scale}",
        "network": f"{run['network']}{width}",
        "layer_bits": run["bits"],
        "bits": f"{run['weight_bits']}/{run['activation_bits']}",
        "metric": "val_psnr" if run["val_accuracy"] is None else "val_accuracy",
        "value": _score(run),
        "size": None if size is None else size / 1000,
        "run": run_names([run]),
    }


def layers_text(cell: str | None) -> str:
    """`layer1 1 2 1, layer2 4`: bits by block, one number where all layers of it agree."""
    blocks: dict[str, list[int]] = {}
    for layer, bits in layer_bits(cell or "").items():
        blocks.setdefault(layer.split(".")[0], []).append(bits)
    parts = []
    for block, bits_of in blocks.items():
        chosen = bits_of[:1] if len(set(bits_of)) == 1 else bits_of
        parts.append(f"{block} {' '.join(map(str, chosen))}")
    return ", ".join(parts)


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
    return _table("references", title, columns, rows, (), ("source", "network"))


def to_markdown(table: Table) -> str:
    """A heading, a table whose columns are aligned in the source too, and the notes."""
    columns = table.shown()
    heads = [_markdown(column.heading) for column in columns]
    body = [[_markdown(cell) for cell in row] for row in table.cells()]
    widths = [max(3, *(len(row[i]) for row in [heads, *body])) for i in range(len(columns))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = [
        "-" * (width - 1) + ":" if column.align == "right" else "-" * width
        for width, column in zip(widths, columns, strict=True)
    ]
    notes = [f"- {_markdown(note)}" for note in _notes(table)]
    parts = [f"## {_markdown(table.title)}", "", line(heads), line(rule), *map(line, body)]
    return "\n".join([*parts, *(["", *notes] if notes else [])]) + "\n"


def to_csv(table: Table) -> str:
    """Plain numbers, a column a key, without notes."""
    columns = [(i, column) for i, column in enumerate(table.columns) if column.where != "page"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.key for _, column in columns])
    writer.writerows([_bare(row[i]) for i, _ in columns] for row in table.rows)
    return buffer.getvalue()


def to_latex(table: Table) -> str:
    """A document of its own with booktabs rules that runs over pages where it must."""
    columns = table.shown()
    layout = "".join(_latex_layout(column) for column in columns)
    heads = " & ".join(_latex(column.heading) for column in columns)
    body = []
    for row, starts_group in zip(table.cells(), table.breaks(), strict=True):
        body += ["\\midrule"] if starts_group else []
        body.append(" & ".join(map(_latex, row)) + r" \\")
    notes = [f"\\item {_latex(note)}" for note in _notes(table)]
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[a3paper,landscape,margin=15mm]{geometry}",
            r"\usepackage{array,booktabs,longtable}",
            r"\begin{document}",
            r"\pagestyle{empty}",
            r"\footnotesize",
            f"\\section*{{{_latex(table.title)}}}",
            f"\\begin{{longtable}}{{{layout}}}",
            r"\toprule",
            f"{heads} \\\\",
            r"\midrule",
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *body,
            r"\end{longtable}",
            *([r"\begin{itemize}", *notes, r"\end{itemize}"] if notes else []),
            r"\end{document}",
            "",
        ]
    )


def _latex_layout(column: Column) -> str:
    if column.wraps:
        return r">{\raggedright\arraybackslash}p{60mm}"
    return "r" if column.align == "right" else "l"


def to_html(table: Table) -> str:
    """A fragment: a table of class `slb-table`, numbers of class `num`, and a list of notes."""
    columns = table.shown()
    classes = [' class="num"' if column.align == "right" else "" for column in columns]
    heads = "".join(
        f'<th scope="col"{kind}>{html.escape(column.heading)}</th>'
        for kind, column in zip(classes, columns, strict=True)
    )
    body = []
    for row, starts_group in zip(table.cells(), table.breaks(), strict=True):
        cells = "".join(
            f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True)
        )
        body.append(f'<tr class="rule">{cells}</tr>' if starts_group else f"<tr>{cells}</tr>")
    notes = [f"<li>{html.escape(note)}</li>" for note in _notes(table)]
    return "\n".join(
        [
            f'<table class="slb-table" aria-label="{html.escape(table.title)}">',
            f"<thead><tr>{heads}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody>",
            "</table>",
            *(['<ul class="slb-notes">', *notes, "</ul>"] if notes else []),
            "",
        ]
    )


RENDERERS = {"md": to_markdown, "csv": to_csv, "tex": to_latex, "html": to_html}


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table as Markdown, CSV, LaTeX and HTML; the same tables give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for suffix, render in RENDERERS.items():
            path = folder / f"{table.name}.{suffix}"
            path.write_text(render(table), encoding="utf-8", newline="\n")
            written.append(path)
    return written


def _notes(table: Table) -> tuple[str, ...]:
    return table.notes if table.rows else ("Nothing was measured for this table yet.",)


def _bare(value: Value) -> str:
    """A value for machines: ten significant digits, and an ASCII minus."""
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    escaped = re.sub(r"([\\|*`<\[\]~&])", r"\\\1", _one_line(text))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    MINUS: "$-$",
    TIMES: r"$\times$",
    "±": r"$\pm$",
    "\N{EN DASH}": r"\textendash{}",
    **{sign: f"{{{sign}}}" for sign in "[]*"},
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _latex(text: str) -> str:
    """Text that LaTeX sets as it is; what the T1 fonts lack becomes a question mark."""
    signs = "".join(_latex_sign(sign) for sign in _one_line(text))
    return re.sub("-(?=-)", "-{}", signs)  # LaTeX joins two hyphens into a dash


def _latex_sign(sign: str) -> str:
    if sign in _LATEX:
        return _LATEX[sign]
    known = sign.isascii() or ("À" <= sign <= "ž" and sign.isalpha())
    return sign if known and sign.isprintable() else "?"
