"""When a study ends by itself: its budget is spent, or every trial fails alike."""

from __future__ import annotations

import re

from slb_autotune.search.records import ENDED, FINISHED, StudySnapshot

SAME_FAILURES = 3
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?|\bnan\b|\binf\b")


def exhausted(study: StudySnapshot) -> bool:
    """Whether the budget of trials or epochs is spent, or hypervolume has stopped growing."""
    budget = study.config.budget
    listed = bool(study.config.points)  # a list has its own end
    if budget.trials is not None and not listed and len(study.records) >= budget.trials:
        return True
    if budget.epochs is not None and study.epochs_spent() >= budget.epochs:
        return True
    return budget.patience is not None and _stagnates(study, budget.patience, budget.growth)


def _stagnates(study: StudySnapshot, patience: int, growth: float) -> bool:
    ended = study.with_status(*ENDED)
    if len(ended) <= patience or len(study.front()) == 0:
        return False
    old = {record.number for record in ended[:-patience]}
    before = study.hypervolume([r for r in study.results() if r.number in old])
    return before > 0 and study.hypervolume() < before * (1 + growth)


def common_failure(study: StudySnapshot) -> str:
    """The reason, where every trial so far failed for the same one."""
    if study.with_status(*FINISHED, "stopped"):
        return ""
    failed = study.with_status("failed")
    # Where and when it failed may differ: numbers do not make another reason.
    reasons = {_NUMBER.sub("#", record.reason) for record in failed}
    return failed[0].reason if len(failed) >= SAME_FAILURES and len(reasons) == 1 else ""
