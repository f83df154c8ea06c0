"""What a study taught, in a few lines, and which member of its front to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from slb_autotune.analysis.importance import importances
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.statistics import spearman
from slb_autotune.analysis.tables import layer_bits
from slb_autotune.config.metrics import COST, METRICS
from slb_autotune.errors import InputError
from slb_autotune.search.early_stopping import is_spared, phases

FEWEST_FOR_CORRELATION = 5
TRUSTED_CORRELATION = 0.5
PAPER_TEMPERATURE = {"schedule": "exp", "T_s": 0.01, "T_e": 10.0}


def lessons(result: StudyResult) -> list[str]:
    """The best schedule, the parameters that mattered, and what mixing bits was worth."""
    lines = [best_schedule(result), importance_line(result), uniform_line(result)]
    return [line for line in lines if line] + correlation_lines(result)


def occupancy(result: StudyResult, slots: int) -> float | None:
    """Seconds of training / (slots x seconds), from the first trial's start to the last's end.

    None for a study that was interrupted: the time between its sessions is not training's.
    """
    trials = result.trials
    if (trials["attempt"] > 1).any() or trials["ended"].isna().all():
        return None
    wall = trials["ended"].max() - trials["started"].min()
    return float(result.epochs["seconds"].sum() / (slots * wall)) if wall > 0 else None


def best_schedule(result: StudyResult) -> str:
    """The temperature of the best trial, beside the paper's where that was tried."""
    metric, best = result.objectives.quality, result.best()
    if metric is None or best is None or not best["schedule"]:
        return ""
    line = (
        f"best schedule: {best['schedule']}, T {best['T_s']:.3g} -> {best['T_e']:.4g} "
        f"({metric} {METRICS[metric].text(best[metric])}, trial {best['trial']})"
    )
    paper = result.best(result.results[has_paper_temperature(result.results)])
    if paper is not None:
        line += f"; the paper's exp, 0.01 -> 10 gave {METRICS[metric].text(paper[metric])}"
    return line


def has_paper_temperature(trials: pd.DataFrame) -> pd.Series[bool]:
    """Which trials have the temperatures of the paper's figure."""
    return (trials[list(PAPER_TEMPERATURE)] == list(PAPER_TEMPERATURE.values())).all(axis=1)


def importance_line(result: StudyResult) -> str:
    """The three parameters that mattered most."""
    shares = importances(result, result.objectives.quality)
    found = sorted(shares.items(), key=lambda item: -item[1])[:3]
    if not found:
        return ""
    return "what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in found)


def uniform_line(result: StudyResult) -> str:
    """Hypervolume of everything against that of the uniform allocations alone."""
    uniform = result.results[is_uniform(result.results)]
    if uniform.empty or len(uniform) == len(result.results):
        return ""
    return (
        f"hypervolume {result.hypervolume:.4f}, of the {len(uniform)} uniform allocations "
        f"alone {result.hypervolume_of(uniform):.4f}"
    )


def is_uniform(trials: pd.DataFrame) -> pd.Series[bool]:
    """Which trials have the same bits in all their weights."""
    return trials["bits"].map(lambda cell: len(set(layer_bits(cell).values())) <= 1).astype(bool)


@dataclass(frozen=True)
class RungCorrelation:
    """How well a rung predicted the end, over trials that are never stopped."""

    rung: int
    epochs: int
    trials: int
    spearman: float

    @property
    def trusted(self) -> bool:
        """Whether stopping at this rung was reasonable."""
        return self.trials >= FEWEST_FOR_CORRELATION and self.spearman >= TRUSTED_CORRELATION


def rung_correlations(result: StudyResult) -> list[RungCorrelation]:
    """Each rung against the end, over the trials that were spared from early stopping."""
    metric = result.objectives.quality
    if metric is None or metric not in result.epochs.columns:
        return []
    stopping, seed = result.config.early_stopping, result.config.seed
    done = result.with_status("done")
    mask = [is_spared(stopping, seed, int(number)) for number in done["trial"]]
    spared = done[pd.Series(mask, index=done.index, dtype=bool)]
    final = spared.set_index("trial")[metric]
    found = []
    for phase in phases(stopping, result.base.epochs)[:-1]:
        rows = result.epochs[result.epochs["rung"] == phase.rung]
        rung = rows.sort_values("epoch").groupby("trial")[metric].last()
        both = pd.concat([rung, final], axis=1, join="inner").dropna().astype("float64")
        value = spearman(both.iloc[:, 0], both.iloc[:, 1])
        found.append(RungCorrelation(phase.rung, phase.until, len(both), value))
    return found


def correlation_lines(result: StudyResult) -> list[str]:
    """How well each rung predicted the end, with a warning where it did not."""
    lines = []
    for rung in rung_correlations(result):
        if not rung.trials:
            continue
        line = (
            f"rung {rung.rung} ({rung.epochs} epochs): rank correlation with the end "
            f"{rung.spearman:.2f} over {rung.trials} spared trials"
        )
        if not rung.trusted:
            few = rung.trials < FEWEST_FOR_CORRELATION
            why = "too few to tell" if few else "early stopping was not to be trusted"
            line += f"; warning: {why}"
        lines.append(line)
    return lines


def recommend(result: StudyResult, size: float | None, score: float | None) -> pd.Series[Any]:
    """The best member of the front of at most `size` bytes, or the smallest with this score."""
    metric, members = result.objectives.quality, result.front
    if metric is None or members.empty:
        raise InputError("the study has no front yet", "let it finish some trials first.")
    if size is not None:
        least = members[COST].min()
        members = members[members[COST] <= size]
        if members.empty:
            raise InputError(
                f"no member of the front fits {size:,.0f} bytes; the smallest has {least:,.0f}",
                "raise the size, or search with a constraint on it.",
            )
    if score is None:
        best = result.best(members, metric)
        assert best is not None
        return best
    sign = result.objectives.sign(metric)
    good = members[sign * members[metric] <= sign * score]
    if good.empty:
        top = result.best(members, metric)
        where = "no member of the front" if size is None else f"nothing within {size:,.0f} bytes"
        raise InputError(
            f"{where} reaches {metric} {score:g}; the best has "
            f"{'none' if top is None else METRICS[metric].text(top[metric])}",
            "lower the score, allow more bytes, or search on.",
        )
    return good.sort_values(COST, kind="stable").iloc[0]
