"""What a study taught, in a few lines, and which member of its front to take."""

from __future__ import annotations

import warnings

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from slb_autotune.analysis.frames import epoch_frame
from slb_autotune.errors import InputError
from slb_autotune.quant.convert import resolve_bits
from slb_autotune.search.ledger import Ledger, Record

FEWEST_FOR_IMPORTANCE = 8


def lessons(ledger: Ledger) -> list[str]:
    """The best schedule, the parameters that mattered, and what mixing bits was worth."""
    lines = [best_schedule(ledger), importance_line(ledger), uniform_line(ledger)]
    return [line for line in lines if line] + correlation_lines(ledger)


def occupancy(ledger: Ledger, slots: int) -> float | None:
    """Seconds of training / (slots x seconds), from the first trial's start to the last's end.

    None for a study that was interrupted: the time between its sessions is nobody's.
    """
    if any(record.attempt > 1 for record in ledger.records.values()):
        return None
    trials = [ledger.study.get_trials(deepcopy=False)[number] for number in ledger.records]
    starts = [trial.datetime_start for trial in trials if trial.datetime_start is not None]
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete is not None]
    if not ends:
        return None
    wall = (max(ends) - min(starts)).total_seconds()
    return float(epoch_frame(ledger)["seconds"].sum()) / (slots * wall)


def first_learned(ledger: Ledger) -> int | None:
    """The first objective that training decides."""
    found = [i for i, known in enumerate(ledger.goals.known) if not known]
    return found[0] if found else None


def best(ledger: Ledger, records: list[Record], objective: int) -> Record | None:
    """The best record in one objective."""
    if not records:
        return None
    metric = ledger.goals.metrics[objective]
    sign = -1 if ledger.goals.directions[objective] == "maximize" else 1
    return min(records, key=lambda record: sign * record.metrics[metric])


def best_schedule(ledger: Ledger) -> str:
    """The temperature of the best trial, beside the paper's where that was tried."""
    objective = first_learned(ledger)
    if objective is None:
        return ""
    record = best(ledger, ledger.results(), objective)
    if record is None or not record.config.quantises:
        return ""
    metric = ledger.goals.metrics[objective]
    chosen = record.config.temperature
    line = (
        f"best schedule: {chosen.schedule}, T {chosen.T_s:.3g} -> {chosen.T_e:.4g} "
        f"({metric} {record.metrics[metric]:.2f}, trial {record.number})"
    )
    paper = best(ledger, [r for r in ledger.results() if is_paper(r)], objective)
    if paper is not None:
        line += f"; the paper's exp, 0.01 -> 10 gave {paper.metrics[metric]:.2f}"
    return line


def is_paper(record: Record) -> bool:
    """Whether the trial has the temperatures of the paper's figure."""
    schedule = record.config.temperature
    return (schedule.schedule, schedule.T_s, schedule.T_e) == ("exp", 0.01, 10.0)


def importances(ledger: Ledger, objective: int | None) -> dict[str, float]:
    """Parameter -> share of what moved an objective (PED-ANOVA)."""
    if objective is None or len(ledger.results()) < FEWEST_FOR_IMPORTANCE:
        return {}
    # PED-ANOVA asks what leads to low values.
    sign = -1.0 if ledger.goals.directions[objective] == "maximize" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = get_param_importances(
                ledger.study,
                evaluator=PedAnovaImportanceEvaluator(),
                target=lambda trial: sign * trial.values[objective],
            )
        except (ValueError, RuntimeError):
            return {}
    return dict(found)


def importance_line(ledger: Ledger) -> str:
    """The three parameters that mattered most."""
    shares = importances(ledger, first_learned(ledger))
    found = sorted(shares.items(), key=lambda item: -item[1])[:3]
    if not found:
        return ""
    return "what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in found)


def uniform_line(ledger: Ledger) -> str:
    """Hypervolume of everything against that of the uniform allocations alone."""
    uniform = [record for record in ledger.results() if is_uniform(ledger, record)]
    if not uniform or len(uniform) == len(ledger.results()):
        return ""
    return (
        f"hypervolume {ledger.hypervolume():.4f}, of the {len(uniform)} uniform allocations "
        f"alone {ledger.hypervolume(uniform):.4f}"
    )


def is_uniform(ledger: Ledger, record: Record) -> bool:
    """Whether all weights have the same bits."""
    bits = resolve_bits("weight_bits", record.config.weight_bits, ledger.layers)
    return len(set(bits.values())) == 1


def correlation_lines(ledger: Ledger) -> list[str]:
    """How well each rung foretold the end, with a warning where it did not."""
    lines = []
    for rung in ledger.correlations():
        if not rung.trials:
            continue
        line = (
            f"rung {rung.rung} ({rung.epochs} epochs): rank correlation with the end "
            f"{rung.spearman:.2f} over {rung.trials} spared trials"
        )
        if not rung.trusted:
            few = "too few to tell" if rung.trials < 5 else "early stopping was not to be trusted"
            line += f"; warning: {few}"
        lines.append(line)
    return lines


def recommend(ledger: Ledger, size: float | None, score: float | None) -> Record:
    """The best member of the front of at most `size` bytes, or the smallest with this score."""
    objective = first_learned(ledger)
    members = ledger.front()
    if objective is None or not members:
        raise InputError("the study has no front yet", "let it finish some trials first.")
    metric = ledger.goals.metrics[objective]
    if size is not None:
        members = [r for r in members if r.metrics["size_bytes"] <= size]
        if not members:
            least = min(r.metrics["size_bytes"] for r in ledger.front())
            raise InputError(
                f"no member of the front fits {size:,.0f} bytes; the smallest has {least:,.0f}",
                "raise the size, or search with a constraint on it.",
            )
    if score is not None:
        sign = -1 if ledger.goals.directions[objective] == "maximize" else 1
        good = [r for r in members if sign * r.metrics[metric] <= sign * score]
        if not good:
            top = min((r.metrics[metric] for r in members), key=lambda value: sign * value)
            where = (
                "no member of the front" if size is None else f"nothing within {size:,.0f} bytes"
            )
            raise InputError(
                f"{where} reaches {metric} {score:g}; the best has {top:.2f}",
                "lower the score, allow more bytes, or search on.",
            )
        return min(good, key=lambda r: r.metrics["size_bytes"])
    chosen = best(ledger, members, objective)
    assert chosen is not None
    return chosen
