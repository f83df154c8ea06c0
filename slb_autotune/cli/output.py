"""How commands print: results on standard output, errors and notes on standard error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from slb_autotune.config.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd


def labelled(label: str, text: object, width: int = 10) -> str:
    """A line of a summary: the label in a column of its own."""
    return f"{label:<{width}} {text}"


def metrics_text(names: Iterable[str], metrics: Mapping[str, float], separator: str = "  ") -> str:
    """`validation accuracy 97.22 %  size 12.7 kB`: those of the named metrics that are known."""
    return separator.join(
        f"{METRICS[name].label} {METRICS[name].text(metrics[name], unit=True)}"
        for name in names
        if name in metrics
    )


def print_note(text: str) -> None:
    """A line for people that is no part of the result."""
    typer.echo(text, err=True)


def print_error(message: str, hint: str) -> None:
    """An error: one sentence, and a hint."""
    print_note(f"error: {message}")
    if hint:
        print_note(f"hint: {hint}")


def print_table(table: pd.DataFrame, as_json: bool) -> None:
    """A table for people or for programs."""
    if as_json:
        print_json(table_rows(table))
    else:
        typer.echo(table.to_string(index=False, na_rep="", float_format="{:.3f}".format))


def table_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as JSON has it: one object per row."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(_without_nan(value), indent=2))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
