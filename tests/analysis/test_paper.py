"""The published numbers, checked against the paper's own LaTeX where it is at hand."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from slb_autotune.analysis.paper import budget_text, judge
from slb_autotune.analysis.paper_numbers import (
    METHODS,
    TABLES,
    WIDTHS,
    read_published,
    read_references,
)
from slb_autotune.config.recipes import RECIPES
from slb_autotune.config.registry import DATASETS, NETWORKS
from slb_autotune.errors import DataError

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "results" / "paper"
SHARED = REPOSITORY.parent / "shared"


def paper_file() -> Path:
    """The LaTeX, as SLB_TEST_PAPER says (a file or its folder) or beside the repository."""
    given = Path(os.environ.get("SLB_TEST_PAPER", SHARED / "paper"))
    found = [given] if given.is_file() else sorted(given.glob("*.t[ex][xt]"))
    if not found:
        pytest.skip("the paper's LaTeX is not at hand; SLB_TEST_PAPER says where it is")
    return found[0]


@pytest.fixture(scope="module")
def latex() -> list[str]:
    return paper_file().read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def printed() -> list[dict[str, str]]:
    """The CSV as text: 92.0 stays 92.0."""
    with (FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tabulars(lines: list[str]) -> list[list[tuple[int, list[str]]]]:
    """Each tabular of the source as (line number, cells), markup taken off."""
    found: list[list[tuple[int, list[str]]]] = []
    inside = False
    for number, line in enumerate(lines, start=1):
        if r"\begin{tabular}" in line:
            found.append([])
            inside = True
        elif r"\end{tabular}" in line:
            inside = False
        elif inside and "&" in line:
            plain = re.sub(r"~?\\cite\{[^}]*\}|\\textbf|\\\\|[{}]", "", line)
            found[-1].append((number, [cell.strip() for cell in plain.split("&")]))
    return found


def numbers_of_tabular(rows: list[tuple[int, list[str]]]) -> list[tuple[str, ...]]:
    """(row, method, bits, metric, value, line) of each number in a table of accuracies."""
    found = []
    data = [(line, cells) for line, cells in rows if re.fullmatch(r"\d+/\d+", cells[1])]
    for row, (line, cells) in enumerate(data, start=1):
        for metric, value in zip(("test_accuracy", "test_accuracy_top5"), cells[2:], strict=False):
            if value != "-":
                found.append((str(row), cells[0], cells[1], metric, value, str(line)))
    return found


def numbers_of_csv(rows: list[dict[str, str]], table: str, part: str) -> list[tuple[str, ...]]:
    return [
        (
            row["row"],
            row["method"],
            f"{row['weight_bits']}/{row['activation_bits']}",
            row["metric"],
            row["value"],
            row["place"].rsplit("line ", 1)[1],
        )
        for row in rows
        if (row["table"], row["part"]) == (table, part)
    ]


@pytest.mark.parametrize(
    ("index", "table", "part", "count"),
    [
        (0, "table1", "", 20),
        (1, "table2", "", 20),
        (2, "table3", "left", 40),
        (3, "table3", "right", 27),
    ],
)
def test_every_number_of_the_tables_is_the_papers(latex, printed, index, table, part, count):
    expected = numbers_of_tabular(tabulars(latex)[index])
    assert len(expected) == count
    assert numbers_of_csv(printed, table, part) == expected


def test_no_number_of_a_table_is_missing(latex, printed):
    body = [line for rows in tabulars(latex)[:4] for line, _ in rows]
    text = "\n".join(re.sub(r"\\cite\{[^}]*\}", "", latex[line - 1]) for line in body)
    decimals = re.findall(r"(?<!\d)\d+\.\d+", text)
    ours = [row["value"] for row in printed if row["table"].startswith("table")]
    assert sorted(decimals) == sorted(ours)


def test_labels_are_those_of_the_tables(latex, printed):
    for row in printed:
        label = row["place"].rsplit(", line ", 1)[0]
        assert any(label in line for line in latex), label


def test_the_figure_of_super_resolution(latex, printed):
    expected = []
    scale = None
    for number, line in reversed(list(enumerate(latex, start=1))):
        found = re.search(r"scale factor \$\\times\$(\d)\.", line)
        scale = f"x{found[1]}" if found else scale
        for name, value in re.findall(r"(\w+) \((\d\d\.\d\d)\)", line):
            expected.append((scale, name, value, f"fig_vdsr, line {number}"))
    ours = [
        (r["part"], r["method"], r["value"], r["place"]) for r in printed if r["table"] == "vdsr"
    ]
    assert len(ours) == 6
    assert sorted(ours) == sorted(expected)


def test_the_figure_of_schedules_prints_temperatures_only(latex, printed):
    line = latex[250]
    T_s, T_e = re.findall(r"\$T_[se] = ([\d.]+)\$", line)
    ours = [r for r in printed if r["table"] == "schedules"]
    assert {(r["metric"], r["value"]) for r in ours} == {("T_s", T_s), ("T_e", T_e)}
    assert {r["part"] for r in ours} == set(re.findall(r"\\emph\{(\w+)\}", latex[243]))
    assert {r["place"] for r in ours} == {"fig_temperature_decay, line 251"}
    assert not re.search(r"\d\d\.\d", line)  # no accuracy there


def test_the_ablation(latex, printed):
    ours = {(r["method"], r["metric"]): r for r in printed if r["table"] == "sbn"}
    (fall,) = re.findall(r"decreases the Top-1 accuracy by ([\d.]+)\\%", latex[451])
    assert ours["SLB (w/o SBN)", "test_accuracy_drop"]["value"] == fall
    in_table = {
        (r["method"], r["metric"]): (r["value"], r["place"])
        for r in printed
        if (r["table"], r["part"], r["weight_bits"], r["activation_bits"])
        == ("table3", "left", "1", "1")
    }
    for key, row in ours.items():
        if key[1] != "test_accuracy_drop":
            assert (row["value"], row["place"]) == in_table[key]
    assert len(ours) == 5


def facts() -> str:
    path = SHARED / "slb-facts.md"
    if not path.is_file():
        pytest.skip("the collected facts are not at hand")
    return path.read_text(encoding="utf-8")


def test_the_readmes_results():
    expected = set()
    for line in facts().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"\d/\d+", cells[0]) and len(cells) == 4:
            for network, cell in zip(
                ("vgg_small", "resnet20", "resnet18"), cells[1:], strict=True
            ):
                values = re.findall(r"\d\d\.\d", cell)
                epochs = ("epoch 400", "epoch 500") if len(values) == 2 else ("",)
                expected |= {
                    (network, cells[0], epoch, float(value))
                    for epoch, value in zip(epochs, values, strict=False)
                }
    ours = read_references(FOLDER)
    ours = ours[ours["source"].str.startswith("authors' README")]
    found = {
        (
            r["network"],
            f"{r['weight_bits']}/{r['activation_bits']}",
            r["detail"].split(", as")[0],
            r["value"],
        )
        for r in ours.to_dict("records")
    }
    assert len(expected) == len(ours) == 57
    assert found == expected


def test_the_other_references():
    text = facts()
    ours = read_references(FOLDER)
    stick = ours[ours["source"].str.startswith("mindspore-ai/golden-stick")]
    (line,) = [line for line in text.splitlines() if line.startswith("[B], ResNet18 with BN")]
    expected = re.findall(r"W(\d)(?:A(\d))? (\d\d\.\d\d)", line)
    assert [
        (r["weight_bits"], r["activation_bits"].replace("32", ""), f"{r['value']:.2f}")
        for r in stick.to_dict("records")
    ] == expected
    (line,) = [line for line in text.splitlines() if line.startswith("Newer 1/1 references")]
    newer = ours[(ours["network"] == "resnet20") & (ours["method"] != "SLB")]
    assert newer["value"].tolist() == [float(v) for v in re.findall(r"\d\d\.\d+", line)]
    assert [m for m in dict.fromkeys(newer["method"]) if m not in line] == []
    assert len(stick) + len(newer) + 57 == len(ours)


# What holds without the LaTeX.


def test_published_numbers_are_typed_and_unique():
    frame = read_published(FOLDER)
    assert len(frame) == 124
    assert frame["value"].dtype == "float64"
    assert frame["value"].notna().all()
    assert not frame.duplicated(["table", "part", "row", "metric"]).any()
    assert set(frame["network"]) <= set(NETWORKS)
    assert set(frame["data"]) <= set(DATASETS)
    assert set(frame["table"]) == {table.name for table in TABLES}
    hwgq = frame[(frame["method"] == "HWGQ") & (frame["metric"] == "test_accuracy")]
    assert hwgq["value"].tolist() == [59.6, 59.6]  # the paper prints it twice


def test_the_paper_knows_every_method_that_we_map():
    assert set(METHODS) <= set(read_published(FOLDER)["method"])


def test_widths_are_the_networks_defaults():
    import inspect

    for name, width in WIDTHS.items():
        assert inspect.signature(NETWORKS[name].load()).parameters["width"].default == width


def test_a_missing_folder_says_where_to_look(tmp_path):
    with pytest.raises(DataError, match=r"published numbers are not at .*published.csv Hint: run"):
        read_published(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("table,value\ntable1,3\n", "its columns must be table, part, row"),
        (",".join(read_published(FOLDER).columns) + "\na,,1,b,1,1,m,high,n,d,p\n", "high"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text, message):
    (tmp_path / "published.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_published(tmp_path)


def test_the_papers_budget_is_the_recipes():
    for table in TABLES:
        assert table.epochs == RECIPES[table.recipe].details["epochs"]
        assert (table.temperature["T_s"], table.temperature["T_e"]) == (0.01, 10.0)
    assert {table.name: table.epochs for table in TABLES}["table1"] == 500
    (vdsr,) = [table for table in TABLES if table.name == "vdsr"]
    assert vdsr.train_images == RECIPES[vdsr.recipe].details["data"]["patches"]


@pytest.mark.parametrize(
    ("difference", "spread", "seeds", "verdict"),
    [
        (0.5, None, 1, "reproduced"),
        (-0.5, None, 1, "reproduced"),
        (0.51, None, 1, "above"),
        (-0.51, 0.1, 3, "below"),
        (-1.0, 1.0, 4, "reproduced"),  # two standard errors are 1.0
        (1.01, 1.0, 4, "above"),
        (0.0, 0.0, 5, "reproduced"),
    ],
)
def test_verdicts_of_a_full_budget(difference, spread, seeds, verdict):
    assert judge(difference, spread, seeds, tolerance=0.5) == verdict


@pytest.mark.parametrize(
    ("epochs", "images", "text"),
    [
        (5, 50_000, "1 % of epochs, 100 % of images"),
        (500, 45_000, "100 % of epochs, 90 % of images"),
        (499, 49_999, "99.8 % of epochs, 99.9 % of images"),
        (600, 10, "120 % of epochs, <0.1 % of images"),
        (1, None, "0.2 % of epochs, unknown share of images"),
    ],
)
def test_budgets_are_said_in_shares_of_the_papers(epochs, images, text):
    assert budget_text(TABLES[0], {"epochs": epochs, "train_images": images}) == text
