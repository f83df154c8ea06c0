"""The paper's tables beside what was measured: which runs belong to a cell, and the verdict.

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

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from slb_autotune.analysis.comparisons import (
    BUDGET,
    MINUS,
    SETTINGS,
    TIMES,
    Run,
    Value,
    grouped,
    key,
    mean_and_spread,
    one_per_seed,
    run_name,
    run_names,
)
from slb_autotune.analysis.paper_numbers import METHODS, WIDTHS, WITHOUT_SBN, PaperTable


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
    groups = [one_per_seed(group) for group in grouped(fitting, (*SETTINGS, *BUDGET))]
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
    parts = [run["schedule"] or "schedule unknown"]
    parts += [f"{name} {_brief(run[name])}" for name in ("T_s", "T_e")]
    return ", ".join(part for part, as_printed in zip(parts, same, strict=True) if not as_printed)


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
    parts = (printed["part"], printed["method"], f"{printed['weight_bits']}/")
    return " ".join(part for part in parts if part) + (printed["activation_bits"] or "?")


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
