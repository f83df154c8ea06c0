"""What a table is, and how it is written: Markdown, CSV, LaTeX and HTML.

A table holds values until it is rendered: Markdown, LaTeX and HTML show them to people, CSV
gives them to programs.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from slb_autotune.analysis.comparisons import MINUS, TIMES, Value


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
    """Values, not yet text: a row holds one value per column. A rule parts rows by `groups`."""

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


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Value]],
    notes: Iterable[str] = (),
    groups: tuple[str, ...] = (),
) -> Table:
    """A table of rows that are mappings: each column takes what stands under its key."""
    values = tuple(tuple(row.get(column.key) for column in columns) for row in rows)
    said = tuple(dict.fromkeys(notes))
    return Table(name, title, tuple(columns), values, said, groups)


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
    """Plain numbers, one column per key, without notes."""
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
