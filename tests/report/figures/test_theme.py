"""Numbers and ticks of figures, and how figures are saved."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pandas as pd
import pytest

from slb_autotune.report import figures
from slb_autotune.report.figures import theme


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (12.75, "12.75"), (0.0001, "0.0001"), (1e-5, "1e-5"),
        (1000, "1,000"), (123456, "123,456"), (2.5e7, "2.5e7"), (0.007328, "0.007328"),
    ],
)  # fmt: skip
def test_short_numbers(value, text):
    assert theme.short(value) == text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 2000, [1, 10, 100, 1000]),
        (8, 130, [10, 20, 50, 100]),
        (30, 95, [30, 40, 50, 60, 80]),
        (1e-3, 1e6, [0.001, 0.1, 10, 1000, 100000]),
    ],
)
def test_log_ticks_are_round_and_few(low, high, ticks):
    assert theme.log_ticks(low, high) == ticks


def test_a_figure_is_saved_the_same_every_time(result, tmp_path):
    for name in ("a", "b"):
        figures.save(figures.draw_front(result), tmp_path / name / "front v1.2")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["front v1.2.png", "front v1.2.svg"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "<dc:date>" not in (tmp_path / "a" / "front v1.2.svg").read_text()


def test_figures_can_stand_in_one_page(result):
    first = figures.svg_text(figures.draw_front(result), "front.light")
    second = figures.svg_text(figures.draw_diagnostics(result), "training")
    found = []
    for text in (first, second):
        root = ElementTree.fromstring(text)
        ids = [item.attrib["id"] for item in root.iter() if "id" in item.attrib]
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
        assert used
        assert set(used) <= set(ids)
        found += sorted(set(ids))
    assert len(found) == len(set(found))
    assert first.startswith("<svg")
    assert all(name.startswith(("front-light-", "training-")) for name in found)


def test_another_process_gives_the_same_bytes_and_keeps_its_settings():
    script = (
        "import sys, matplotlib, pandas as pd\n"
        "before = {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "from slb_autotune.report import figures\n"
        "shares = pd.DataFrame({'lr': [0.4], 'T_e': [0.6]}, index=['val_accuracy'])\n"
        "sys.stdout.write(figures.svg_text(figures.draw_importance(shares), 'bars'))\n"
        "assert all(matplotlib.rcParams[k] == v for k, v in before.items())\n"
        "heavy = {'matplotlib.pyplot', 'torch', 'plotly', 'scipy.stats'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    other = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    shares = pd.DataFrame({"lr": [0.4], "T_e": [0.6]}, index=["val_accuracy"])
    assert other == figures.svg_text(figures.draw_importance(shares), "bars")
