"""The command `slb-autotune list`: every name with one line, and the runs of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slb_autotune.cli.options import DEFAULT_RUNS, JsonFlag, RunsFolder
from slb_autotune.cli.output import metrics_text, print_json
from slb_autotune.config.methods import ACTIVATIONS, METHODS, activation_widths
from slb_autotune.config.metrics import COST, METRICS, QUALITY, Metric
from slb_autotune.config.recipes import RECIPES
from slb_autotune.config.registry import DATASETS, NETWORKS, SAMPLERS, SCHEDULES, Entry, Registry
from slb_autotune.config.section import SHORT_NAMES, Section
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError, nearest

WHEN_KNOWN = {
    "before": "known before training",
    "epoch": "measured after every epoch",
    "end": "measured at the end of a trial",
    "test": "measured on the test set, by confirm and evaluate alone",
}


def add_commands(app: typer.Typer) -> None:
    """Put the command on the command line."""
    summary = "Networks, data sets, methods, schedules, metrics, recipes, runs."
    app.command(name="list", short_help=summary)(list_names)


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="networks, data, methods, activations, schedules, samplers, recipes, metrics, "
            "fields or runs."
        ),
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Show what can be chosen by name, one line each; without KIND all but fields and runs.

    Examples: slb-autotune list recipes, slb-autotune list metrics, slb-autotune list runs
    """
    tables = catalogue()
    known = [*tables, "runs"]
    if kind is not None and kind not in known:
        raise InputError(f"there is no list of {kind!r}", nearest(kind, known))
    if kind == "runs":
        tables = {"runs": run_rows(runs)}
    elif kind is not None:
        tables = {kind: tables[kind]}
    else:
        tables.pop("fields")
    if as_json:
        print_json(tables if kind is None else tables[kind])
        return
    for title, rows in tables.items():
        typer.echo(title)
        indent = max((len(name) for name in rows), default=0)
        for name, summary in rows.items():
            typer.echo(f"  {name:{indent}}  {summary}")
        if not rows:
            typer.echo("  none yet")


def catalogue() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    registries = {
        "networks": NETWORKS,
        "data": DATASETS,
        "methods": METHODS,
        "activations": ACTIVATIONS,
        "schedules": SCHEDULES,
        "samplers": SAMPLERS,
        "recipes": RECIPES,
    }
    tables = {kind: _lines(registry) for kind, registry in registries.items()}
    tables["methods"] = {name: _method(entry) for name, entry in METHODS.items()}
    tables["networks"]["torchvision:NAME"] = "any classifier of torchvision"
    tables["networks"]["MODULE:FUNCTION"] = "a function of your own that returns a network"
    tables["metrics"] = {name: _metric(metric) for name, metric in METRICS.items()}
    tables["fields"] = _fields(TrialConfig, "")
    return tables


def _lines(registry: Registry) -> dict[str, str]:
    return {name: entry.summary for name, entry in registry.items()}


def _method(entry: Entry) -> str:
    """What it does, the bits that weights and activations can have, and who published it."""
    details = entry.details
    weights = "/".join(map(str, details["weight_bits"]))
    inputs = "/".join(map(str, activation_widths(entry.name, "method"))) or "32"
    source = details["paper"].rpartition(" (")[2].rstrip(")")
    summary = entry.summary.partition(" (")[0] if source else entry.summary
    return f"{summary}; W {weights}, A {inputs}" + (f"; {source}" if source else "")


def _metric(metric: Metric) -> str:
    """Its label and unit, the direction that is better, and when it is known."""
    unit = f"{'in' if metric.scale == 1 else 'shown in'} {metric.unit}" if metric.unit else ""
    parts = (metric.label, unit, metric.direction, WHEN_KNOWN[metric.stage])
    return "; ".join(filter(None, parts))


def _fields(section: type[Section], prefix: str) -> dict[str, str]:
    """Every field by its dotted name, with its default and what it means."""
    short = {long: name for name, long in SHORT_NAMES.items()}
    rows: dict[str, str] = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            rows |= _fields(kind, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        also = f" (also {short[prefix + name]})" if prefix + name in short else ""
        rows[prefix + name] = f"[{default}] {field.description or ''}{also}".rstrip()
    return rows


def _result(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"status": "unfinished"}
    try:
        result = json.loads(path.read_text())
    except ValueError:
        result = None
    return result if isinstance(result, dict) and "status" in result else {"status": "damaged"}


def run_rows(runs: Path) -> dict[str, str]:
    """Run -> how it ended, newest last."""
    rows = {}
    for folder in sorted((runs / "trials").glob("*/"), key=lambda path: path.stat().st_mtime):
        result = _result(folder / "result.json")
        text = metrics_text((*QUALITY, COST), result.get("metrics", {}), ", ")
        rows[folder.name] = ", ".join(filter(None, (result["status"], text)))
    return rows
