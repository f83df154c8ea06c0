"""Comparisons of runs at matched settings: schedules, fronts, uniform bits, confirmation, methods.

They take plain rows, so that runs of several studies, exported at different times, compare.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from slb_autotune.analysis.lessons import is_uniform
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import RUN_COLUMNS, layer_bits, typed
from slb_autotune.config.metrics import COST, METRICS, QUALITY, TEST_QUALITY
from slb_autotune.search.records import FINISHED

Value = str | int | float | None
Run = dict[str, Any]  # a row of the runs table, None where there is no value

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

# Two runs that agree in these differ in the seed alone.
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
CONFIGURATION = ("network", "width", "data", "scale", "method", "weight_bits", "bits")

# Chosen anew when a front is confirmed: they do not tell configurations apart.
FREE = ("seed", "epochs", "data.val_fraction", "data.train_images")


# -- runs as plain values ----------------------------------------------------------------------


def all_runs(results: Iterable[StudyResult]) -> pd.DataFrame:
    """The trials of several studies as one table."""
    parts = [result.trials for result in results]
    return pd.concat(parts, ignore_index=True) if parts else typed([], RUN_COLUMNS)


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


def one_per_seed(runs: Iterable[Run]) -> list[Run]:
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
    """Runs for people: eight characters of an id; a study's name once, with all its trials."""
    names: dict[str, list[str]] = {}
    for run in runs:
        study, _, trial = run_name(run).rpartition(":")
        names.setdefault(study, []).append(trial if study else trial[:8])
    return "; ".join(
        f"{study}:" * bool(study) + ", ".join(found) for study, found in names.items()
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


def score_metric(run: Run) -> str | None:
    """The metric by which a run is compared on validation data, where it has one."""
    return next((name for name in QUALITY if run[name] is not None), None)


def tested_metric(run: Run) -> str | None:
    """The metric by which a run is compared on the test set, where it has one."""
    return next((name for name in TEST_QUALITY if run[name] is not None), None)


def described(run: Run, metric: str) -> dict[str, Any]:
    """A run under the names of our own tables, with its value in a metric."""
    scale = f" {TIMES}{run['scale']}" if run["scale"] else ""
    width = f", width {run['width']}" if run["width"] else ""
    return {
        **run,
        "data": f"{run['data']}{scale}",
        "network": f"{run['network']}{width}",
        "layer_bits": run["bits"],
        "layers": layers_text(run["bits"]),
        "bits": f"{run['weight_bits']}/{run['activation_bits']}",
        "metric": metric,
        "value": run[metric],
        **{f"shown_{name}": _scaled(name, run[name]) for name in METRICS},
        "run": run_names([run]),
    }


def _scaled(name: str, value: float | None) -> float | None:
    return None if value is None else value * METRICS[name].scale


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


# -- comparisons -------------------------------------------------------------------------------


def best_schedules(runs: pd.DataFrame) -> list[Run]:
    """The best temperature by validation value, among trials of one network, bits and budget."""
    names = ("data", "scale", "network", "width", "weight_bits", "activation_bits", *BUDGET)
    searched = [
        run
        for run in records(runs)
        if run["method"] == "slb" and run["status"] == "done" and score_metric(run) is not None
    ]
    rows = []
    for group in grouped(searched, names):
        metric = score_metric(group[0]) or ""
        best = _best([run for run in group if run[metric] is not None], metric)
        rows.append({**described(best, metric), "trials": len(group)})
    return rows


def _best(runs: list[Run], metric: str) -> Run:
    sign = METRICS[metric].sign
    return min(runs, key=lambda run: sign * run[metric])


def searches(results: Iterable[StudyResult]) -> list[StudyResult]:
    """The studies that searched, ordered by name: confirmations are left out."""
    found = [result for result in results if result.config.confirms is None]
    return sorted(found, key=lambda result: result.name)


def front_members(results: Iterable[StudyResult]) -> list[Run]:
    """The members of each study's front, the smallest first."""
    return [
        described(run, _quality(result))
        for result in searches(results)
        for run in _members(result)
    ]


def _quality(result: StudyResult) -> str:
    return result.objectives.quality or result.objectives.metrics[0]


def _members(result: StudyResult) -> list[Run]:
    metric = _quality(result)
    members = [run for run in records(result.front) if run[metric] is not None]
    return sorted(members, key=lambda run: (run[COST] or 0, run[metric]))


def against_uniform(results: Iterable[StudyResult]) -> list[dict[str, Value]]:
    """Hypervolume of each study that mixes bits, and of its uniform allocations alone."""
    return [
        _uniform_row(result)
        for result in searches(results)
        if not is_uniform(result.results).all() and result.reference
    ]


def _uniform_row(result: StudyResult) -> dict[str, Value]:
    found = result.results
    uniform = found[is_uniform(found)]
    volume, level = result.hypervolume, result.hypervolume_of(uniform)
    return {
        "study": result.name,
        "objectives": ", ".join(result.objectives.metrics),
        **{name: _range(found[name]) for name in BUDGET},
        "results": len(found),
        "uniform_results": len(uniform),
        "hypervolume": volume,
        "hypervolume_uniform": level,
        "gain": 100 * (volume / level - 1) if level else None,
        "reference": ", ".join(f"{value:,.6g}" for value in result.reference),
    }


def _range(values: pd.Series[int]) -> Value:
    """The value that all share, or `8 to 20` where they differ."""
    known = values.dropna()
    if known.empty:
        return None
    low, high = int(known.min()), int(known.max())
    return low if low == high else f"{low:,} to {high:,}"


def against_confirmed(results: Sequence[StudyResult]) -> list[dict[str, Any]]:
    """What a search saw of each member of its front beside what `confirm` measured of it."""
    confirmations = {result.config.confirms: result for result in results}
    rows = []
    for result in searches(results):
        if result.name in confirmations:
            tested = records(confirmations[result.name].trials)
            tested = [run for run in tested if tested_metric(run) is not None]
            rows += [_confirmed(run, _quality(result), tested) for run in _members(result)]
    return rows


def _confirmed(member: Run, metric: str, runs: list[Run]) -> dict[str, Any]:
    """A member of the front and the runs of the largest budget that trained it again."""
    same = [run for run in runs if _same_configuration(member, run)]
    groups = grouped(same, BUDGET)
    groups.sort(key=lambda g: ((g[0]["epochs"] or 0), (g[0]["train_images"] or 0)), reverse=True)
    group = one_per_seed(groups[0]) if groups else []
    mean, spread = mean_and_spread([run[tested_metric(run) or ""] for run in group])
    return {
        **described(member, metric),
        "confirmed": mean,
        "spread": spread,
        "seeds": len(group) or None,
        "drop": None if mean is None else member[metric] - mean,
        "runs": run_names(group),
        "run_ids": " ".join(run_name(run) for run in group),
        **{f"confirmed_{name}": group[0][name] if group else None for name in BUDGET},
    }


def _same_configuration(one: Run, other: Run) -> bool:
    """Whether two runs differ in seed and budget at most, as far as the table shows."""
    names = [*CONFIGURATION, *(name for name in SETTINGS if name != "searched")]
    shared = one["params"].keys() & other["params"].keys()
    return key(one, names) == key(other, names) and all(
        one["params"][name] == other["params"][name] for name in shared
    )


def methods(runs: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Test values of several methods that one study trained on one budget, the best first.

    Only runs on the whole training data with a test value count. Methods are compared at the same
    bits; a temperature of its own makes a row of its own. The notes say where SLB stands.
    """
    names = ("study", "weight_bits", "activation_bits", *BUDGET)
    setting = ("method", "schedule", "T_s", "T_e")
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for group in grouped([run for run in records(runs) if tested_metric(run) is not None], names):
        found = [_method_row(same) for same in grouped(group, setting)]
        found.sort(key=lambda row: (-row["value"], row["method"]))
        if len({row["method"] for row in found}) < 2 and found[0]["method"] != "float":
            continue
        rows += [{**row, "behind": row["value"] - found[0]["value"]} for row in found]
        notes += _standing(found)
    several = {row["study"] for row in rows if row["method"] != "float"}
    return [row for row in rows if row["study"] in several], notes


def _method_row(runs: list[Run]) -> dict[str, Any]:
    runs = one_per_seed(runs)
    first = runs[0]
    metric = tested_metric(first) or ""
    mean, spread = mean_and_spread([run[metric] for run in runs if run[metric] is not None])
    annealed = first["T_e"] is not None
    return {
        **described(first, metric),
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
    ours_text = f"{ours['study']}, {ours['bits']}: SLB ({ours['setting']}), {ours['value']:.2f},"
    rival = f"{best['method']}, {best['value']:.2f}"
    if min(ours["seeds"], best["seeds"]) < 2:
        side = "ahead of" if lead > 0 else "behind"
        return [f"{ours_text} is {abs(lead):.2f} {side} {rival}; one seed cannot say more."]
    if abs(lead) <= 2 * error:
        return [f"{ours_text} does not win: it is level with {rival}, within two standard errors."]
    if lead > 0:
        return [f"{ours_text} wins: {lead:.2f} ahead of {rival}."]
    better = sum(row["value"] > ours["value"] for row in rivals)
    count = "one method is" if better == 1 else f"{better} methods are"
    return [f"{ours_text} does not win: {count} ahead of it, {rival}, by {-lead:.2f}."]
