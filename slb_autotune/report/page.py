"""One HTML file for a study: it needs no network, and the same input gives the same bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import RUN_COLUMNS, layer_bits
from slb_autotune.config.metrics import METRICS
from slb_autotune.report.figures.curve_data import epoch_metric
from slb_autotune.report.figures.front_data import kinds, uniform_widths
from slb_autotune.report.quantities import SETTINGS, axes_of, quantity

# Columns of the runs that the page shows in a form of its own, or not at all.
HIDDEN = ("bits", "params", "config", "digest", "attempt", "started", "ended")
# Shown in the list from the start, after the objectives, where they differ between trials.
USUAL = ("average_weight_bits", "schedule", "T_s", "T_e", "lr", "source", "status")
# Numbers beside the metrics that can be drawn along an axis.
AXES = ("trial", "T_s", "T_e", "lr")
SCRIPTS = ("base", "columns", "chart", "pointing", "details", "list", "start")
_ASSETS = files("slb_autotune.report").joinpath("assets")
_DIGITS = {"runs": 7, "epochs": 5}  # significant ones that the page keeps


@dataclass(frozen=True)
class PageContent:
    """What a page shows of a study; `tables` and `figures` are our own and trusted."""

    result: StudyResult
    question: str
    answer: list[str]
    tables: list[tuple[str, str]]  # title, HTML fragment
    figures: list[tuple[str, str]]  # caption, SVG document
    reproduce: list[str]  # commands
    notes: list[str]


def render_page(content: PageContent) -> str:
    """The page as text; nothing in it is loaded from elsewhere."""
    script = _script()
    return _template().render(
        content=content,
        policy=_policy(script),
        style=Markup(_asset("page.css")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=Markup(_embedded(payload(content.result))),  # noqa: S704
        tables=[(title, Markup(fragment)) for title, fragment in content.tables],  # noqa: S704
        figures=[(caption, _data_uri(svg)) for caption, svg in content.figures],
    )


def payload(result: StudyResult) -> dict[str, Any]:
    """What the page's script reads: columns as arrays, one entry per trial, and their labels."""
    runs = result.trials.reset_index(drop=True)
    layers, bits = _bits(runs["bits"])
    columns = {
        **_filled({n: runs[n] for n in RUN_COLUMNS if n not in HIDDEN}, _DIGITS["runs"]),
        **_filled(_params(runs["params"]), _DIGITS["runs"]),
    }
    curves = curves_of(result)
    return {
        "objectives": result.objectives.items(),
        "start": axes_of(result.objectives),
        "axes": [name for name in (*AXES, *METRICS) if name in columns],
        "usual": USUAL,
        "labels": labels(),
        "count": len(runs),
        "columns": columns,
        "kinds": kinds(runs),
        "widths": uniform_widths(runs),
        "layers": layers,
        "bits": bits,
        "curves": curves,
        **_epochs(result, [c[n] for c in curves for n in ("key", "beside") if c[n]]),
    }


def labels() -> dict[str, dict[str, Any]]:
    """Column -> how it is called and how its numbers are shown, in the order of the page."""
    found = {}
    for name in (*SETTINGS, *METRICS):
        shown = quantity(name)
        found[name] = {
            "label": shown.short,
            "long": f"{shown.label[:1].upper()}{shown.label[1:]}",
            "unit": shown.unit,
            "scale": shown.scale,
            "decimals": shown.decimals,
            "log": shown.log,
        }
    return found


def curves_of(result: StudyResult) -> list[dict[str, Any]]:
    """What is drawn over the epochs of a trial; `beside` is the column of a dashed line.

    The metric of quality beside that of the continuous weights, every other objective that is
    measured in each epoch, the temperature and the gap.
    """
    measured = [m for m in result.objectives.measured if METRICS[m].stage == "epoch"]
    names = dict.fromkeys((epoch_metric(result), *measured, "temperature", "quantization_gap"))
    return [
        {
            "key": name,
            "beside": f"{name}_continuous" if f"{name}_continuous" in METRICS else "",
            "log": name == "temperature",
        }
        for name in names
    ]


def _epochs(result: StudyResult, names: Iterable[str]) -> dict[str, Any]:
    """The epochs in the order of the trials, and how many of them each trial has."""
    order = {trial: position for position, trial in enumerate(result.trials["trial"])}
    epochs = result.epochs.assign(position=result.epochs["trial"].map(order)).dropna(
        subset="position"
    )
    ordered = epochs.sort_values(["position", "rung", "epoch"], kind="stable")
    counts = ordered["position"].value_counts().reindex(range(len(result.trials)), fill_value=0)
    shown = {name: ordered[name] for name in ("rung", "epoch", *names)}
    return {"epochs": _filled(shown, _DIGITS["epochs"]), "epoch_counts": counts.tolist()}


def _bits(cells: Iterable[str]) -> tuple[list[str], list[list[int | None] | None]]:
    """The names of all layers, and for each run the bits of each layer."""
    allocations = [layer_bits(cell) for cell in cells]
    layers = list(dict.fromkeys(name for allocation in allocations for name in allocation))
    bits = [[found.get(name) for name in layers] if found else None for found in allocations]
    return layers, bits


def _params(cells: Iterable[str]) -> dict[str, list[Any]]:
    """What the study searched, as columns, where the runs have no such column already."""
    rows: list[dict[str, Any]] = [json.loads(cell) if cell else {} for cell in cells]
    names = sorted({name for row in rows for name in row})
    extra = [name for name in names if name.rsplit(".", 1)[-1] not in RUN_COLUMNS]
    return {name: [row.get(name) for row in rows] for name in extra}


def _filled(columns: dict[str, Any], digits: int) -> dict[str, list[Any]]:
    """Columns in which at least one cell is filled, compactly."""
    cells = {name: [_compact(cell, digits) for cell in cells] for name, cells in columns.items()}
    return {
        name: column
        for name, column in cells.items()
        if any(cell not in (None, "") for cell in column)
    }


def _compact(value: Any, digits: int) -> Any:
    """A value as JSON can hold it: missing and infinite ones are null, 100.0 is 100."""
    if isinstance(value, str | list | dict):
        return value
    if pd.isna(value) or math.isinf(value):
        return None
    number = float(f"{value:.{digits}g}") if isinstance(value, float) else int(value)
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def _embedded(value: Any) -> str:
    """JSON that no HTML parser can leave early and that is ASCII alone."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(script: str) -> str:
    """Content-Security-Policy: no request at all, and no script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _data_uri(svg: str) -> str:
    """A figure as a picture of its own, so that its styles and names stay inside it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@cache
def _script() -> str:
    """The page's script: its parts in one scope of their own."""
    parts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@cache
def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_asset("page.html.j2"))
