"""The published numbers, and what was measured of each.

`results/paper/published.csv` holds a number a row, named by our metrics, with the place where the
paper prints it. `results/paper/references.csv` holds what others measured, with its source.

A cell of a paper table comes from finished runs with a test value (`confirm`, `evaluate`) whose
network, width, data, method and bits are the paper's. Runs that differ in the seed alone are
averaged; of several settings the one of the largest budget is shown, then the one with the
paper's temperature, then with the paper's SBN, then with the most seeds; never the one that
tested best. Settings of the same budget that are not shown are named in a note.

Verdicts:
- `not run`: there is no such run;
- `reduced budget`: epochs or training images are fewer than the paper's, or not recorded; the
  number is not judged;
- `no number`: the paper prints none;
- `reproduced`: |difference| <= max(tolerance, 2 standard errors), where the tolerance is 0.5
  points of accuracy or 0.1 dB; a single seed has no standard error;
- `above`, `below`: otherwise.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.config.recipes import RECIPES
from slb_autotune.errors import DataError

Value = str | int | float | None
Run = dict[str, Any]  # a row of the runs table, None where there is no value

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

FINISHED = ("done", "reused")
FOLDER = Path("results/paper")

PUBLISHED_COLUMNS: dict[str, str] = {
    "table": "str",  # table1, table2, table3, schedules, sbn, vdsr
    "part": "str",  # half of a table, schedule, or scale of super-resolution
    "row": "Int64",  # counted from 1 in each part, as printed
    "method": "str",  # the paper's name of it
    "weight_bits": "str",  # 32 is full precision
    "activation_bits": "str",  # empty where the paper does not say
    "metric": "str",  # our name of it: percent, dB, or a temperature
    "value": "float64",
    "network": "str",
    "data": "str",
    "place": "str",  # label or section, and line of the LaTeX source
}

REFERENCE_COLUMNS: dict[str, str] = {
    "source": "str",
    "method": "str",
    "network": "str",
    "data": "str",
    "weight_bits": "str",
    "activation_bits": "str",
    "metric": "str",
    "value": "float64",
    "detail": "str",
}

WITHOUT_SBN = "SLB (w/o SBN)"

# The paper's name of a method -> ours. A method that is not here cannot be run.
METHODS: dict[str, str] = {
    "FP32": "float",
    "SLB": "slb",
    WITHOUT_SBN: "slb",
    "DoReFa": "dorefa",
    "BNN": "bnn",
    "XNORNet": "xnor",
    "BWN": "bwn",
    "LQ-Net": "lqnet",
    "DSQ": "dsq",
    "SQ": "sq",
    "PACT": "pact",
    "HWGQ": "hwgq",
    "TTQ": "ttq",
    "SYQ": "syq",
    "TBN": "tbn",
    "ABCNet": "abcnet",
    "BiRealNet": "bireal",
}

# Channels of the first stage as published: a run of another width is another network.
WIDTHS: dict[str, int] = {"resnet20": 16, "vgg_small": 128, "resnet18": 64, "vdsr": 64}

# Two runs with the same of these differ in the seed alone.
SETTINGS = (
    "activation_bits",
    "schedule",
    "T_s",
    "T_e",
    "lr",
    "norm",
    "batch_size",
    "searched",
)
BUDGET = ("epochs", "train_images")

# Chosen anew when a front is confirmed: they do not tell configurations apart.
FREE = ("seed", "epochs", "data.val_fraction", "data.train_images")


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper, and the budget behind its numbers."""

    name: str
    title: str
    part: str  # what the column `part` holds; empty where there is none
    metrics: tuple[str, ...]  # the first one decides the verdict
    digits: int  # as printed
    tolerance: float  # a difference up to this is none
    recipe: str
    train_images: int
    notes: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """The paper's epochs, as its recipe has them."""
        return int(RECIPES[self.recipe].details["epochs"])

    @property
    def temperature(self) -> dict[str, Any]:
        """The paper's schedule, T_s and T_e."""
        return dict(RECIPES[self.recipe].details["temperature"])


_TOP1 = ("test_accuracy",)
_TOP5 = ("test_accuracy", "test_accuracy_top5")
_README_EPOCHS = (
    "The paper does not say how long it trained here; 240 epochs are the authors' README's."
)

TABLES: tuple[PaperTable, ...] = (
    PaperTable(
        "table1",
        "Table 1: ResNet20 on CIFAR-10, accuracy in %",
        "",
        _TOP1,
        1,
        0.5,
        "cifar10_resnet20",
        50_000,
    ),
    PaperTable(
        "table2",
        "Table 2: VGG-Small on CIFAR-10, accuracy in %",
        "",
        _TOP1,
        1,
        0.5,
        "cifar10_vgg_small",
        50_000,
    ),
    PaperTable(
        "table3",
        "Table 3: ResNet18 on ImageNet, accuracy in %",
        "Half",
        _TOP5,
        1,
        0.5,
        "imagenet_resnet18",
        1_281_167,
        (_README_EPOCHS, "The verdict is on top-1. The paper prints HWGQ 1/2 twice."),
    ),
    PaperTable(
        "schedules",
        "Temperature schedules: 1/1 ResNet20 on CIFAR-10, accuracy in %",
        "Schedule",
        _TOP1,
        1,
        0.5,
        "cifar10_resnet20",
        50_000,
        (
            "The paper's figure prints no accuracies; its text says that exp ends much higher "
            "than sin and linear, with T from 0.01 to 10.",
        ),
    ),
    PaperTable(
        "sbn",
        "State batch normalisation: 1/1 ResNet18 on ImageNet, accuracy in %",
        "",
        _TOP5,
        1,
        0.5,
        "imagenet_resnet18",
        1_281_167,
        (_README_EPOCHS, "The verdict is on top-1."),
    ),
    PaperTable(
        "vdsr",
        "Super-resolution: VDSR on Set5, PSNR in dB",
        "Scale",
        ("test_psnr",),
        2,
        0.1,
        "sr_vdsr",
        64_000,  # patches, since that is what a run counts here
        (
            "The paper says binarised and gives no activation bits; it trains as VDSR does, on "
            "291 pictures. Its budget is our recipe's reading of that: 80 epochs of 64,000 "
            "patches, and images are patches here.",
            "The figure does not say whether its numbers are of the picture shown or of all Set5; "
            "ours are the mean over the pictures of the test folder.",
        ),
    ),
)


def read_published(folder: Path = FOLDER) -> pd.DataFrame:
    """Every number that the paper prints, in the paper's order."""
    return _read(folder / "published.csv", PUBLISHED_COLUMNS)


def read_references(folder: Path = FOLDER) -> pd.DataFrame:
    """What the authors' README and later works report, with the source of each."""
    return _read(folder / "references.csv", REFERENCE_COLUMNS)


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(
            f"the published numbers are not at {path}",
            "run from the top folder of the repository, or give the folder results/paper.",
        )
    try:
        frame = pd.read_csv(path, dtype="str", keep_default_na=False)
        if list(frame.columns) != list(columns):
            raise ValueError(f"its columns must be {', '.join(columns)}")
        return frame.astype(columns)
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", "restore the file.") from error


def records(runs: pd.DataFrame) -> list[Run]:
    """Finished runs as plain values in a fixed order, with their scale and searched values."""
    found = []
    for row in runs.to_dict("records"):
        run: Run = {str(name): _plain(value) for name, value in row.items()}
        if run["status"] not in FINISHED:
            continue
        params = json.loads(run["params"]) if run["params"] else {}
        run["scale"] = run.get("scale") or params.get("data.scale")
        run["params"] = {name: value for name, value in params.items() if name not in FREE}
        run["searched"] = json.dumps(run["params"], sort_keys=True)
        found.append(run)
    return sorted(found, key=lambda run: (run["study"] or "", run["trial"] or 0, str(run["seed"])))


def _plain(value: Any) -> Any:
    """A value, or None for what is missing, empty or not finite."""
    if pd.isna(value) or value == "":
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | str) else int(value)


def one_a_seed(runs: Iterable[Run]) -> list[Run]:
    """Without the runs that repeat a seed: they repeat its numbers too."""
    kept: dict[Any, Run] = {}
    for index, run in enumerate(runs):
        kept.setdefault(("unknown", index) if run["seed"] is None else run["seed"], run)
    return list(kept.values())


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and the sample standard deviation, as far as there are values."""
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def run_name(run: Run) -> str:
    """The run id, or study:trial where there is none."""
    if run["run_id"]:
        return str(run["run_id"])
    return f"{run['study'] or 'no study'}:{'?' if run['trial'] is None else run['trial']}"


def run_names(runs: Iterable[Run]) -> str:
    """Runs for people: eight letters of an id; a study's name once, with all its trials."""
    words: dict[str, list[str]] = {}
    for run in runs:
        study, _, trial = run_name(run).rpartition(":")
        words.setdefault(study, []).append(trial if study else trial[:8])
    return "; ".join(
        f"{study}:" * bool(study) + ", ".join(found) for study, found in words.items()
    )


def key(run: Run, names: Iterable[str]) -> tuple[str, ...]:
    """What `names` hold, as text that survives a round trip through CSV."""
    values = [run[name] for name in names]
    return tuple(f"{v:.10g}" if isinstance(v, float) else str(v) for v in values)


def grouped(runs: Iterable[Run], names: Sequence[str]) -> list[list[Run]]:
    """The runs that agree in `names` together, ordered by what these hold."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run, names), []).append(run)
    return [group for _, group in sorted(groups.items(), key=lambda item: item[0])]


def compare(
    paper: PaperTable, published: pd.DataFrame, runs: list[Run]
) -> tuple[list[dict[str, Value]], list[str]]:
    """The rows of a paper table in its order, each with what was measured, and the notes."""
    rows, notes = [], list(paper.notes)
    for printed in _printed(paper, published):
        groups = _candidates(paper, printed, runs)
        rows.append(_compared(paper, printed, groups[0] if groups else []))
        notes += _others(paper, printed, groups)
    if paper.name == "sbn":
        notes.append(_drop_note(published, rows))
    if paper.name == "vdsr" and any(_unknown_scale(run) for run in runs):
        notes.append("Runs of VDSR whose scale is not recorded are left out.")
    return rows, notes


def _printed(paper: PaperTable, published: pd.DataFrame) -> list[Run]:
    """A row of the paper's table each: its method and bits, and metric -> number."""
    rows: dict[tuple[str, int], Run] = {}
    for entry in published[published["table"] == paper.name].to_dict("records"):
        named: Run = {str(name): value for name, value in entry.items()}
        row = rows.setdefault((entry["part"], entry["row"]), {**named, "numbers": {}})
        row["numbers"][entry["metric"]] = float(entry["value"])
    return list(rows.values())


def _candidates(paper: PaperTable, printed: Run, runs: list[Run]) -> list[list[Run]]:
    """The settings that belong to a row of the paper, the one to show first."""
    fitting = [run for run in runs if _fits(paper, printed, run)]
    groups = [one_a_seed(group) for group in grouped(fitting, (*SETTINGS, *BUDGET))]
    return sorted(groups, key=lambda group: _worth(paper, printed, group), reverse=True)


def _fits(paper: PaperTable, printed: Run, run: Run) -> bool:
    bits = printed["activation_bits"]
    return (
        run[paper.metrics[0]] is not None
        and run["method"] == METHODS.get(printed["method"])
        and (run["network"], run["data"]) == (printed["network"], printed["data"])
        and run["width"] in (None, WIDTHS[printed["network"]])
        and run["weight_bits"] == printed["weight_bits"]
        and (bits == "" or run["activation_bits"] == bits)
        and (
            run["method"] != "slb" or (run["norm"] == "off") == (printed["method"] == WITHOUT_SBN)
        )
        and (paper.name != "schedules" or run["schedule"] == printed["part"])
        and (paper.name != "vdsr" or f"x{run['scale']}" == printed["part"])
    )


def _unknown_scale(run: Run) -> bool:
    return run["network"] == "vdsr" and run["test_psnr"] is not None and run["scale"] is None


def _worth(
    paper: PaperTable, printed: Run, group: list[Run]
) -> tuple[float, int, bool, bool, int]:
    run = group[0]
    epochs = run["epochs"] or 0
    passes = epochs * (run["train_images"] or 0)
    temperature = not _temperature_note(paper, printed, run)
    return passes, epochs, temperature, run["norm"] == "paper", len(group)


def _compared(paper: PaperTable, printed: Run, group: list[Run]) -> dict[str, Value]:
    """A row: what the paper prints, what the runs of `group` measured, and how they compare."""
    bits = printed["activation_bits"]
    row: dict[str, Value] = {
        "part": printed["part"].replace("x", TIMES) if paper.name == "vdsr" else printed["part"],
        "method": printed["method"],
        "bits": f"{printed['weight_bits']}/{bits or '?'}",
        "weight_bits": printed["weight_bits"],
        "activation_bits": bits,
        "seeds": len(group) or None,
        "paper_epochs": paper.epochs,
        "paper_train_images": paper.train_images,
        "note": _note(paper, printed, group[0]) if group else None,
        "run_ids": " ".join(run_name(run) for run in group),
        "runs": run_names(group),
    }
    for metric in paper.metrics:
        values = [run[metric] for run in group if run[metric] is not None]
        mean, spread = mean_and_spread(values)
        number = printed["numbers"].get(metric)
        row |= {
            f"published_{metric}": number,
            f"measured_{metric}": mean,
            f"spread_{metric}": spread,
            f"difference_{metric}": _difference(mean, number),
        }
    if group:
        row |= {name: group[0][name] for name in BUDGET}
        row["budget"] = budget_text(paper, group[0])
    row["verdict"] = _verdict(paper, row)
    return row


def _difference(measured: float | None, published: float | None) -> float | None:
    return None if measured is None or published is None else round(measured - published, 6)


def _verdict(paper: PaperTable, row: Mapping[str, Any]) -> str:
    metric = paper.metrics[0]
    if row["seeds"] is None:
        return "not run"
    if (row["epochs"] or 0) < paper.epochs or (row["train_images"] or 0) < paper.train_images:
        return "reduced budget"
    difference = row[f"difference_{metric}"]
    if difference is None:
        return "no number"
    return judge(difference, row[f"spread_{metric}"], row["seeds"], paper.tolerance)


def judge(difference: float, spread: float | None, seeds: int, tolerance: float) -> str:
    """`reproduced` within the tolerance or two standard errors, else `above` or `below`."""
    error = 0.0 if spread is None else spread / math.sqrt(seeds)
    if abs(difference) <= max(tolerance, 2 * error):
        return "reproduced"
    return "above" if difference > 0 else "below"


def budget_text(paper: PaperTable, run: Run) -> str:
    """`1 % of epochs, 100 % of images`: shares of the paper's."""
    epochs = _share(run["epochs"], paper.epochs)
    images = _share(run["train_images"], paper.train_images)
    return f"{epochs} of epochs, {images} of images"


def _share(count: int | None, whole: int) -> str:
    """A share in percent, cut rather than rounded, so that 100 % is never said of less."""
    if count is None:
        return "unknown share"
    tenths = 1000 * count // whole
    return "<0.1 %" if tenths == 0 else f"{tenths / 10:.4g} %"


def _note(paper: PaperTable, printed: Run, run: Run) -> str:
    """What is not as in the paper, or what the paper leaves open."""
    parts = [_temperature_note(paper, printed, run)]
    if printed["activation_bits"] == "":
        parts.append(f"activations {run['activation_bits']} bit")
    if run["method"] == "slb" and run["norm"] == "calibrate":
        parts.append("SBN calibrated")
    return ", ".join(part for part in parts if part)


def _temperature_note(paper: PaperTable, printed: Run, run: Run) -> str:
    """The temperature where it is not the paper's; empty where it is, or where there is none."""
    if run["method"] != "slb":
        return ""
    wanted = paper.temperature
    if paper.name == "schedules":
        wanted |= {"schedule": printed["part"], **printed["numbers"]}
    same = [
        run["schedule"] == wanted["schedule"],
        *(
            run[name] is not None and math.isclose(run[name], wanted[name], rel_tol=1e-9)
            for name in ("T_s", "T_e")
        ),
    ]
    words = [run["schedule"] or "schedule unknown"]
    words += [f"{name} {_brief(run[name])}" for name in ("T_s", "T_e")]
    return ", ".join(word for word, as_printed in zip(words, same, strict=True) if not as_printed)


def _brief(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _others(paper: PaperTable, printed: Run, groups: list[list[Run]]) -> list[str]:
    """A note for each setting that has the budget of the one shown, and is not shown."""
    metric = paper.metrics[0]
    notes = []
    for group in groups[1:]:
        if key(group[0], BUDGET) == key(groups[0][0], BUDGET):
            mean, spread = mean_and_spread([run[metric] for run in group])
            measured = f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
            what = _note(paper, printed, group[0]) or "the paper's temperature"
            notes.append(
                f"{_label(printed)} has another setting of the same budget: {what}, "
                f"lr {_brief(group[0]['lr'])} gave {measured} ({run_names(group)})."
            )
    return notes


def _label(printed: Run) -> str:
    """SLB 1/1, with the part where there is one."""
    words = (printed["part"], printed["method"], f"{printed['weight_bits']}/")
    return " ".join(word for word in words if word) + (printed["activation_bits"] or "?")


def _drop_note(published: pd.DataFrame, rows: list[dict[str, Value]]) -> str:
    """The ablation in a sentence; means of different budgets are not compared."""
    printed = published[published["metric"] == "test_accuracy_drop"]["value"]
    text = f"Top-1 falls by {float(printed.iloc[0]):.1f} without SBN in the paper"
    with_sbn, without = (row["measured_test_accuracy"] for row in rows)
    same = all(rows[0].get(name) == rows[1].get(name) for name in BUDGET)
    if isinstance(with_sbn, float) and isinstance(without, float) and same:
        fall = f"{with_sbn - without:.2f}".replace("-", MINUS)
        return f"{text}, by {fall} here."
    return f"{text}; here the two were not run at the same budget."
