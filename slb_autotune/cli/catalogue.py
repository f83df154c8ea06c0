"""What `slb-autotune list` shows: every name with one line, and the runs of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slb_autotune.config.methods import ACTIVATIONS, METHODS
from slb_autotune.config.recipes import RECIPES
from slb_autotune.config.registry import DATASETS, NETWORKS, SAMPLERS, SCHEDULES, Entry, Registry
from slb_autotune.config.section import SHORT_NAMES, Section
from slb_autotune.config.trial import TrialConfig, activation_widths


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
    words = entry.summary.partition(" (")[0] if source else entry.summary
    return f"{words}; W {weights}, A {inputs}" + (f"; {source}" if source else "")


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
        metrics = result.get("metrics", {})
        score = {name: metrics[name] for name in ("val_accuracy", "val_psnr") if name in metrics}
        parts = [result["status"], *(f"{name} {value:.2f}" for name, value in score.items())]
        if "size_bytes" in metrics:
            parts.append(f"{metrics['size_bytes']:,} bytes")
        rows[folder.name] = ", ".join(parts)
    return rows
