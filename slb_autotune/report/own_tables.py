"""Tables of our own: what the searches found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from slb_autotune.analysis.tables import layer_bits
from slb_autotune.errors import InputError
from slb_autotune.pareto import IDEAL, hypervolume
from slb_autotune.report.paper import (
    BUDGET,
    SETTINGS,
    TIMES,
    Run,
    Value,
    grouped,
    key,
    mean_and_spread,
    one_a_seed,
    records,
    run_name,
    run_names,
)
from slb_autotune.report.table import Column, Table, make_table

OBJECTIVES = {"val_accuracy": "maximize", "val_psnr": "maximize", "size_bytes": "minimize"}

CONFIGURATION = ("network", "width", "data", "scale", "method", "weight_bits", "bits")


def own_tables(runs: pd.DataFrame) -> list[Table]:
    """What the searches found: schedules, fronts, gain over uniform bits, confirmation."""
    return [
        best_schedules(runs),
        front_table(runs),
        search_against_uniform(runs),
        search_against_confirmed(runs),
        methods_table(runs),
    ]


def best_schedules(runs: pd.DataFrame) -> Table:
    """The best temperature by validation value, among trials of one network, bits and budget."""
    names = ("data", "scale", "network", "width", "weight_bits", "activation_bits", *BUDGET)
    searched = [
        run
        for run in records(runs)
        if run["method"] == "slb" and run["status"] == "done" and _score(run) is not None
    ]
    rows = []
    for group in grouped(searched, names):
        best = max(group, key=lambda run: _score(run) or 0.0)
        rows.append({**described(best), "trials": len(group)})
    columns = [
        Column("data", "Data"),
        Column("network", "Network"),
        Column("bits", "W/A"),
        Column("schedule", "Schedule"),
        Column("T_s", "T_s", "right"),
        Column("T_e", "T_e", "right"),
        Column("lr", "lr", "right"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2),
        Column("trials", "Trials compared", "right"),
        *BUDGET_COLUMNS,
        Column("run", "Run"),
    ]
    notes = ["Values are on validation data, the best of the trials compared: they flatter."]
    return make_table("schedules_found", "Best schedules found", columns, rows, notes, ("data",))


BUDGET_COLUMNS = (
    Column("epochs", "Epochs", "right"),
    Column("train_images", "Images", "right", empty="unknown"),
)


def front_table(runs: pd.DataFrame) -> Table:
    """The members of each study's front, smallest first, with the bits of every layer."""
    members = [run for run in records(runs) if run["on_front"] and _score(run) is not None]
    members.sort(key=lambda run: (run["study"] or "", run["size_bytes"] or 0, _score(run)))
    rows = [{**described(run), "layers": layers_text(run["bits"])} for run in members]
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2),
        Column("size_bytes", where="csv"),
        Column("size", "Size (kB)", "right", 1, where="page"),
        Column("average_weight_bits", "Mean bits", "right", 2),
        Column("activation_bits", "A bits", "right"),
        Column("layers", "Weight bits by layer", where="page", wraps=True),
        Column("layer_bits", where="csv"),
        Column("schedule", "Schedule"),
        Column("T_s", "T_s", "right"),
        Column("T_e", "T_e", "right"),
        Column("lr", "lr", "right"),
        *BUDGET_COLUMNS,
    ]
    notes = [
        "Values are on validation data.",
        "Weight bits stand in the order of the layers, one number where a block has but one.",
    ]
    return make_table(
        "front", "The front, with the bits of every layer", columns, rows, notes, ("study",)
    )


def search_against_uniform(
    runs: pd.DataFrame, references: Mapping[str, Sequence[float]] | None = None
) -> Table:
    """Hypervolume of all results of a study and of its uniform allocations, one reference.

    The reference is the study's in `references`, in the order of OBJECTIVES, or else 0 for what
    is maximised and twice the largest value for what is minimised.
    """
    scored = [run for run in records(runs) if _score(run) is not None]
    rows = [
        _uniform_row(group, (references or {}).get(group[0]["study"] or ""))
        for group in grouped(scored, ("study",))
        if any(run["weight_bits"] == "mixed" for run in group)
        and any(run["size_bytes"] is not None for run in group)
    ]
    columns = [
        Column("study", "Study"),
        Column("objectives", "Objectives"),
        *BUDGET_COLUMNS,
        Column("results", "Results", "right"),
        Column("uniform_results", "Uniform results", "right"),
        Column("hypervolume", "Hypervolume", "right", 4),
        Column("hypervolume_uniform", "Uniform hypervolume", "right", 4),
        Column("gain", "Gain (%)", "right", 2, signed=True),
        Column("reference", "Reference"),
    ]
    notes = [
        "Hypervolume: share of the box from the reference to the ideal of 100 %, 50 dB, 0 bytes.",
        "Uniform: all weights have the same bits.",
    ]
    return make_table("uniform", "Search against uniform allocations", columns, rows, notes)


def _uniform_row(group: list[Run], reference: Sequence[float] | None) -> dict[str, Value]:
    """A study's hypervolume with and without the trials whose layers differ in bits."""
    metrics = [m for m in OBJECTIVES if any(run[m] is not None for run in group)]
    reference = _reference(group, metrics) if reference is None else reference
    if len(reference) != len(metrics):
        raise InputError(
            f"the reference of study {group[0]['study']!r} must have {len(metrics)} values; "
            f"got {len(reference)}",
            f"give one for each of {', '.join(metrics)}.",
        )
    uniform = [run for run in group if run["weight_bits"] != "mixed"]
    volume, volume_uniform = (_volume(runs, metrics, reference) for runs in (group, uniform))
    return {
        "study": group[0]["study"],
        "objectives": ", ".join(metrics),
        **{name: _range(group, name) for name in BUDGET},
        "results": len(group),
        "uniform_results": len(uniform),
        "hypervolume": volume,
        "hypervolume_uniform": volume_uniform,
        "gain": 100 * (volume / volume_uniform - 1) if volume_uniform else None,
        "reference": ", ".join(f"{value:,.6g}" for value in reference),
    }


def _range(group: list[Run], name: str) -> Value:
    """The value that the runs of a group share, or `8 to 20` where they differ."""
    known = [run[name] for run in group if run[name] is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return int(low) if low == high else f"{low:,} to {high:,}"


def _reference(group: list[Run], metrics: list[str]) -> list[float]:
    largest = {m: max(run[m] for run in group if run[m] is not None) for m in metrics}
    return [0.0 if OBJECTIVES[m] == "maximize" else 2.0 * largest[m] for m in metrics]


def _volume(group: list[Run], metrics: list[str], reference: Sequence[float]) -> float:
    points = [[math.nan if run[m] is None else run[m] for m in metrics] for run in group]
    ideal = [IDEAL.get(metric, 0.0) for metric in metrics]
    box = math.prod(abs(r - i) or 1.0 for r, i in zip(reference, ideal, strict=True))
    return hypervolume(points, reference, [OBJECTIVES[m] for m in metrics]) / box


def search_against_confirmed(runs: pd.DataFrame) -> Table:
    """What the search saw of each member of a front beside what `confirm` measured of it."""
    finished = records(runs)
    confirmed = _by_study(run for run in finished if tested(run) is not None)
    rows = []
    for run in finished:
        study = f"{run['study']}.confirm"
        if run["on_front"] and _score(run) is not None and study in confirmed:
            rows.append(_confirmed(run, confirmed[study]))
    rows.sort(key=lambda row: (row["study"], row["size_bytes"] or 0))
    columns = [
        Column("study", "Study"),
        Column("trial", "Trial", "right"),
        Column("bits", "W/A"),
        Column("size_bytes", where="csv"),
        Column("size", "Size (kB)", "right", 1, where="page"),
        Column("metric", "Metric"),
        Column("value", "Search", "right", 2),
        Column("epochs", "Search epochs", "right"),
        Column("confirmed", "Confirmed", "right", 2, spread="spread", empty="not run"),
        Column("spread", where="csv"),
        Column("seeds", "Seeds", "right"),
        Column("confirmed_epochs", "Confirmed epochs", "right"),
        Column("confirmed_train_images", "Confirmed images", "right"),
        Column("drop", "Drop", "right", 2, signed=True),
        Column("runs", "Runs", where="page", wraps=True),
        Column("run_ids", where="csv"),
    ]
    notes = [
        "Search: validation value of the trial that was chosen for it. Confirmed: test value of "
        "networks trained anew on all training data, mean ± sample standard deviation over seeds.",
    ]
    title = "Search value against confirmed test value"
    return make_table("confirmed", title, columns, rows, notes, ("study",))


def _confirmed(member: Run, runs: list[Run]) -> dict[str, Any]:
    """A member of the front and the runs of the largest budget that trained it again."""
    same = [run for run in runs if _same_configuration(member, run)]
    groups = grouped(same, BUDGET)
    groups.sort(key=lambda g: ((g[0]["epochs"] or 0), (g[0]["train_images"] or 0)), reverse=True)
    group = one_a_seed(groups[0]) if groups else []
    mean, spread = mean_and_spread([tested(run) or 0.0 for run in group])
    row = described(member)
    row |= {"confirmed": mean, "spread": spread, "seeds": len(group) or None}
    row["drop"] = None if mean is None else row["value"] - mean
    row["runs"] = run_names(group)
    row["run_ids"] = " ".join(run_name(run) for run in group)
    for name in BUDGET:
        row[f"confirmed_{name}"] = group[0][name] if group else None
    return row


def _same_configuration(one: Run, other: Run) -> bool:
    """Whether two runs differ in seed and budget at most, as far as the table tells."""
    names = [*CONFIGURATION, *(name for name in SETTINGS if name != "searched")]
    shared = one["params"].keys() & other["params"].keys()
    return key(one, names) == key(other, names) and all(
        one["params"][name] == other["params"][name] for name in shared
    )


def methods_table(runs: pd.DataFrame) -> Table:
    """Test values of several methods that one study trained on one budget, the best first.

    Only runs on the whole training data with a test value count. Methods are compared at the same
    bits; a temperature of its own makes a row of its own.
    """
    names = ("study", "weight_bits", "activation_bits", *BUDGET)
    setting = ("method", "schedule", "T_s", "T_e")
    rows: list[dict[str, Any]] = []
    notes = ["Mean and standard deviation over seeds, on the test set; one recipe for all."]
    for group in grouped([run for run in records(runs) if tested(run) is not None], names):
        found = [_method_row(same) for same in grouped(group, setting)]
        found.sort(key=lambda row: (-row["value"], row["method"]))
        if len({row["method"] for row in found}) < 2 and found[0]["method"] != "float":
            continue
        rows += [{**row, "behind": row["value"] - found[0]["value"]} for row in found]
        notes += _standing(found)
    several = {row["study"] for row in rows if row["method"] != "float"}
    rows = [row for row in rows if row["study"] in several]
    columns = [
        Column("study", "Study"),
        Column("bits", "W/A"),
        Column("method", "Method"),
        Column("setting", "Temperature"),
        Column("metric", "Metric"),
        Column("value", "Value", "right", 2, spread="spread"),
        Column("spread", where="csv"),
        Column("behind", "Behind the best", "right", 2, signed=True),
        Column("seeds", "Seeds", "right"),
        Column("size_bytes", "Bytes", "right"),
        *BUDGET_COLUMNS,
        Column("run", "Runs", where="csv"),
    ]
    title = "One budget, all methods"
    return make_table("methods", title, columns, rows, notes, ("study", "bits"))


def _method_row(runs: list[Run]) -> dict[str, Any]:
    runs = one_a_seed(runs)
    mean, spread = mean_and_spread([value for run in runs if (value := tested(run)) is not None])
    first = runs[0]
    annealed = first["T_e"] is not None
    return {
        **described(first),
        "metric": "test_psnr" if first["test_accuracy"] is None else "test_accuracy",
        "setting": f"{first['schedule']} {first['T_s']:g} to {first['T_e']:g}" if annealed else "",
        "value": mean,
        "spread": spread,
        "seeds": len(runs),
        "run": run_names(runs),
    }


def _standing(found: list[dict[str, Any]]) -> list[str]:
    """Where SLB stands among methods of the same bits; a lead counts from two standard errors."""
    ours = next((row for row in found if row["method"] == "slb"), None)
    rivals = [row for row in found if row["method"] != "slb"]
    if ours is None or not rivals:
        return []
    best = rivals[0]
    lead = ours["value"] - best["value"]
    error = math.sqrt(sum((row["spread"] or 0.0) ** 2 / row["seeds"] for row in (ours, best)))
    place = f"{ours['study']}, {ours['bits']}: SLB ({ours['setting']}), {ours['value']:.2f},"
    rival = f"{best['method']}, {best['value']:.2f}"
    if min(ours["seeds"], best["seeds"]) < 2:
        words = "ahead of" if lead > 0 else "behind"
        return [f"{place} is {abs(lead):.2f} {words} {rival}; one seed cannot say more."]
    if abs(lead) <= 2 * error:
        return [f"{place} does not win: it is level with {rival}, within two standard errors."]
    if lead > 0:
        return [f"{place} wins: {lead:.2f} ahead of {rival}."]
    better = sum(row["value"] > ours["value"] for row in rivals)
    count = "one method is" if better == 1 else f"{better} methods are"
    return [f"{place} does not win: {count} ahead of it, {rival}, by {-lead:.2f}."]


def _by_study(runs: Iterable[Run]) -> dict[str, list[Run]]:
    studies: dict[str, list[Run]] = {}
    for run in runs:
        studies.setdefault(run["study"] or "", []).append(run)
    return studies


def _score(run: Run) -> float | None:
    return run["val_psnr"] if run["val_accuracy"] is None else run["val_accuracy"]


def tested(run: Run) -> float | None:
    """The value on the test set, where there is one."""
    return run["test_psnr"] if run["test_accuracy"] is None else run["test_accuracy"]


def described(run: Run) -> dict[str, Any]:
    """A run's columns under the names of our own tables."""
    scale = f" {TIMES}{run['scale']}" if run["scale"] else ""
    width = f", width {run['width']}" if run["width"] else ""
    size = run["size_bytes"]
    return {
        **run,
        "data": f"{run['data']}{scale}",
        "network": f"{run['network']}{width}",
        "layer_bits": run["bits"],
        "bits": f"{run['weight_bits']}/{run['activation_bits']}",
        "metric": "val_psnr" if run["val_accuracy"] is None else "val_accuracy",
        "value": _score(run),
        "size": None if size is None else size / 1000,
        "run": run_names([run]),
    }


def layers_text(cell: str | None) -> str:
    """`layer1 1 2 1, layer2 4`: bits by block, one number where all layers of it agree."""
    blocks: dict[str, list[int]] = {}
    for layer, bits in layer_bits(cell or "").items():
        blocks.setdefault(layer.split(".")[0], []).append(bits)
    parts = []
    for block, bits_of in blocks.items():
        chosen = bits_of[:1] if len(set(bits_of)) == 1 else bits_of
        parts.append(f"{block} {' '.join(map(str, chosen))}")
    return ", ".join(parts)
