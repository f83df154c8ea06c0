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

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, layer_bits, typed
from slb_autotune.errors import ConfigError
from slb_autotune.pareto import DIRECTIONS

MOST_OBJECTIVES = 4
CURVES = (
    "rung",
    "epoch",
    "temperature",
    "val_accuracy",
    "val_accuracy_continuous",
    "val_psnr",
    "quantization_gap",
)
_ASSETS = files("slb_autotune.report").joinpath("assets")
_DIGITS = {"runs": 7, "epochs": 5}  # significant ones that the page keeps


@dataclass(frozen=True)
class PageContent:
    """What a page says of a study; `tables` and `figures` are our own and trusted."""

    study: str
    question: str
    answer: list[str]
    objectives: dict[str, str]  # metric -> maximize or minimize
    runs: pd.DataFrame  # run_table.RUN_COLUMNS
    epochs: pd.DataFrame  # run_table.EPOCH_COLUMNS
    tables: list[tuple[str, str]]  # title, HTML fragment
    figures: list[tuple[str, str]]  # caption, SVG document
    reproduce: list[str]  # commands
    notes: list[str]


def render_page(content: PageContent) -> str:
    """The page as text; nothing in it is loaded from elsewhere."""
    _check_objectives(content.objectives)
    script = _asset("page.js")
    return _template().render(
        content=content,
        policy=_policy(script),
        style=Markup(_asset("page.css")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=Markup(_embedded(payload(content))),  # noqa: S704
        tables=[(title, Markup(fragment)) for title, fragment in content.tables],  # noqa: S704
        figures=[(caption, _data_uri(svg)) for caption, svg in content.figures],
    )


def payload(content: PageContent) -> dict[str, Any]:
    """The measurements that the page's script reads: columns as arrays, a place a trial."""
    runs = typed(content.runs, RUN_COLUMNS).reset_index(drop=True)
    epochs = typed(content.epochs, EPOCH_COLUMNS)
    layers, bits = _bits(runs["bits"])
    return {
        "objectives": list(content.objectives.items()),
        "count": len(runs),
        "runs": _filled(
            {name: runs[name] for name in RUN_COLUMNS if name not in ("bits", "params")},
            _DIGITS["runs"],
        ),
        "params": _filled(_params(runs["params"]), _DIGITS["runs"]),
        "layers": layers,
        "bits": bits,
        **_curves(runs, epochs),
    }


def _check_objectives(objectives: dict[str, str]) -> None:
    """One to four metrics of the runs, each with a direction."""
    if not 1 <= len(objectives) <= MOST_OBJECTIVES:
        raise ConfigError(
            f"a page shows one to {MOST_OBJECTIVES} objectives; got {len(objectives)}",
            "name the metrics that the study searched for.",
        )
    for metric, direction in objectives.items():
        if RUN_COLUMNS.get(metric) not in ("float64", "Int64"):
            raise ConfigError(
                f"an objective must be a number of the runs; got {metric!r}", "see run_table.py."
            )
        if direction not in DIRECTIONS:
            raise ConfigError(f"a direction must be one of {DIRECTIONS}; got {direction!r}")


def _curves(runs: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, Any]:
    """The epochs in the order of the runs, and how many of them each run has."""
    places: dict[tuple[str, int], int] = {}
    for place, (study, trial) in enumerate(zip(runs["study"], runs["trial"], strict=True)):
        if not pd.isna(trial):
            places.setdefault((study, int(trial)), place)
    keys = zip(epochs["study"], epochs["trial"], strict=True)
    found = [
        -1 if pd.isna(trial) else places.get((study, int(trial)), -1) for study, trial in keys
    ]
    ordered = epochs.assign(place=found).sort_values(["place", "rung", "epoch"], kind="stable")
    ordered = ordered[ordered["place"] >= 0]
    counts = ordered["place"].value_counts().reindex(range(len(runs)), fill_value=0)
    return {
        "epochs": _filled({name: ordered[name] for name in CURVES}, _DIGITS["epochs"]),
        "epoch_counts": counts.tolist(),
    }


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
    """Columns in which at least one cell says something, compactly."""
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
