"""How tables are written. The files in golden/ hold the rendering of invented runs.

`SLB_WRITE_GOLDEN=1` writes them again, for a look by eye.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.comparisons import MINUS
from slb_autotune.analysis.paper_numbers import read_published
from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.report.own_tables import own_tables
from slb_autotune.report.paper_tables import paper_tables
from slb_autotune.report.table import (
    Column,
    Table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    write_tables,
)
from tests.report.table_runs import INVENTED, results_of

GOLDEN = Path(__file__).parent / "golden"
NUMBERS = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    runs = typed(INVENTED, RUN_COLUMNS)
    found = [*paper_tables(runs, read_published(NUMBERS)), *own_tables(results_of(INVENTED))]
    return {table.name: table for table in found}


HOSTILE = "<script>alert('x')</script> a|b * _c_ `d` 50 % & $1 #2 \\end{document} ~^ [e] --"


@pytest.fixture
def hostile() -> Table:
    columns = (
        Column("name", "Name | x"),
        Column("value", "Value", "right", 2, signed=True, spread="spread"),
        Column("spread", where="csv"),
    )
    rows = ((HOSTILE, -0.004, 0.126), ("[x]\nsecond line", -1.5, None), ("漢字 é", None, None))
    return Table("hostile", HOSTILE, columns, rows, (HOSTILE,))


def test_numbers_have_a_real_minus_a_sign_and_no_minus_zero(hostile):
    assert [row[1] for row in hostile.cells()] == ["0.00 ± 0.13", MINUS + "1.50", ""]


def test_markdown_columns_are_aligned_and_cells_stay_cells(hostile, tables):
    for table in [hostile, *tables.values()]:
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.shown()) + 1}
    assert r"\<script>" in to_markdown(hostile)
    assert r"\_c\_ \`d\`" in to_markdown(hostile)


def test_csv_holds_bare_numbers(hostile, tables):
    rows = list(csv.DictReader(io.StringIO(to_csv(hostile))))
    assert rows[0] == {"name": HOSTILE, "value": "-0.004", "spread": "0.126"}
    assert rows[1]["name"] == "[x]\nsecond line"
    frame = pd.read_csv(io.StringIO(to_csv(tables["table1"])))
    assert frame["measured_test_accuracy"].dtype == "float64"
    assert frame.loc[0, "measured_test_accuracy"] == pytest.approx(92.2333333, abs=1e-6)
    assert len(frame) == 20


def test_html_is_well_formed_and_runs_nothing(hostile, tables):
    for table in [hostile, *tables.values()]:
        open_tags: list[str] = []
        texts: list[str] = []

        class Reader(HTMLParser):
            def handle_starttag(self, tag, attrs, open_tags=open_tags):
                open_tags.append(tag)
                assert tag in {"table", "thead", "tbody", "tr", "th", "td", "ul", "li"}

            def handle_endtag(self, tag, open_tags=open_tags):
                assert open_tags.pop() == tag

            def handle_data(self, data, texts=texts):
                texts.append(data)

        Reader().feed(to_html(table))
        assert open_tags == []
        shown = [cell for row in table.cells() for cell in row if cell]
        assert not shown or [text for text in texts if text in shown and text.strip()]
    assert HOSTILE not in to_html(hostile)


def latex_rows(text: str) -> list[str]:
    body = text.split("\\endfoot\n")[1].split("\\end{longtable}")[0]
    return [line for line in body.splitlines() if line.endswith(r"\\")]


def test_latex_is_a_document_of_balanced_parts(hostile, tables):
    for table in [hostile, *tables.values()]:
        text = to_latex(table)
        assert text.startswith("\\documentclass")
        assert text.endswith("\\end{document}\n")
        assert text.count("\\end{document}") == 1
        bare = re.sub(r"\\[\\{}$&]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
        assert sorted(begun) == sorted(ended)
        for row in latex_rows(text):
            assert len(re.findall(r"(?<!\\)&", row)) == len(table.shown()) - 1
        assert text.isascii() or "é" in text
        assert len(latex_rows(text)) == len(table.rows)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_on_its_own(hostile, tables, tmp_path):
    for path in write_tables([hostile, tables["table1"], tables["front"]], tmp_path):
        if path.suffix == ".tex":
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", path.name]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_latex_escapes_what_it_would_obey(hostile):
    first, second, third = latex_rows(to_latex(hostile))
    assert r"\textless{}script\textgreater{}" in first
    assert r"50 \% \& \$1 \#2 \textbackslash{}end\{document\}" in first
    assert "-{}- " in first
    assert second == r"{[}x{]} second line & $-$1.50 \\"
    assert third == r"?? é &  \\"


def test_rules_part_the_groups(tables):
    text = to_latex(tables["table1"])
    assert text.count("\\midrule") == 1 + sum(tables["table1"].breaks()) == 1 + 12
    assert to_html(tables["table1"]).count('<tr class="rule">') == 12


def test_every_format_is_as_the_golden_files(tables, tmp_path):
    chosen = [
        tables[name] for name in ("table1", "sbn", "vdsr", "schedules", "front", "confirmed")
    ]
    chosen += [tables["uniform"], tables["schedules_found"]]
    if os.environ.get("SLB_WRITE_GOLDEN"):
        write_tables(chosen, GOLDEN)
    written = write_tables(chosen, tmp_path / "new" / "folder")
    assert {path.name for path in written} == {path.name for path in GOLDEN.iterdir()}
    for path in written:
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes(), path.name
