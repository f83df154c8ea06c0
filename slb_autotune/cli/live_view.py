"""What a person sees of a study: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slb_autotune.cli.output import metrics_text, print_note
from slb_autotune.config.metrics import METRICS, Objectives
from slb_autotune.config.trial import TrialConfig
from slb_autotune.search.records import (
    ENDED,
    FINISHED,
    Outcome,
    Record,
    StudyListener,
    StudySnapshot,
)

if TYPE_CHECKING:
    from slb_autotune.analysis.result import StudyResult

REDRAW_SECONDS = 0.5

# A member of a front: its number, its metrics and its configuration.
Member = tuple[int, Mapping[str, float], TrialConfig]


class LiveView(StudyListener):
    """Counts, hypervolume, time left and the front, on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.began = self.drawn = time.monotonic()
        self.ended_before = 0
        self.reported: set[int] = set()

    def on_start(self, study: StudySnapshot) -> None:
        """Show the study as it is."""
        self.began = time.monotonic()
        self.reported = {record.number for record in study.with_status(*ENDED)}
        self.ended_before = len(self.reported)
        if self.console.is_terminal:
            self.live = Live(
                self._draw(study), console=self.console, transient=True, auto_refresh=False
            )
            self.live.start()

    def on_change(self, study: StudySnapshot) -> None:
        """Show what changed."""
        if self.live is None:
            self._print_ended(study)
        elif time.monotonic() - self.drawn > REDRAW_SECONDS:
            self.drawn = time.monotonic()
            self.live.update(self._draw(study), refresh=True)

    def on_end(self, outcome: Outcome) -> None:
        """Clear the terminal for the results."""
        if self.live is not None:
            self.live.stop()

    def _print_ended(self, study: StudySnapshot) -> None:
        for record in study.with_status(*ENDED):
            if record.number not in self.reported:
                self.reported.add(record.number)
                line = f"trial {record.number} {record.status}  {trial_text(study, record)}"
                print_note(f"{line}  [{self._status(study)}]")

    def _draw(self, study: StudySnapshot) -> Group:
        title = Text(f"study {study.config.name}", style="bold")
        members = [(r.number, r.metrics, r.config) for r in study.front()]
        return Group(title, Text(self._status(study)), front_table(study.objectives, members))

    def _status(self, study: StudySnapshot) -> str:
        elapsed = time.monotonic() - self.began
        return status_line(study, seconds_left(study, elapsed, self.ended_before))


def status_line(study: StudySnapshot, left: float | None) -> str:
    """12 done, 2 running, 3 stopped, 0 failed, hypervolume 0.9120, 4:10 left."""
    counts = {
        "done": len(study.with_status(*FINISHED)),
        "running": len(study.with_status("running")),
        "stopped": len(study.with_status("stopped")),
        "failed": len(study.with_status("failed")),
    }
    parts = [f"{count} {name}" for name, count in counts.items()]
    parts.append(f"hypervolume {study.hypervolume():.4f}")
    if left is not None:
        parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
    return ", ".join(parts)


def seconds_left(study: StudySnapshot, elapsed: float, ended_before: int) -> float | None:
    """From the pace of this session and its budget of time; None while neither is known."""
    budget = study.config.budget
    ended = len(study.with_status(*ENDED))
    guesses = []
    total = len(study.config.points) or budget.trials
    if total is not None and ended > ended_before:
        guesses.append((total - ended) * elapsed / (ended - ended_before))
    if budget.seconds is not None:
        earlier = sum(session["seconds"] for session in study.sessions[:-1])
        guesses.append(budget.seconds - earlier - elapsed)
    return max(0.0, min(guesses)) if guesses else None


def trial_text(study: StudySnapshot, record: Record) -> str:
    """The objectives of a trial, or why it has none."""
    if record.status in FINISHED:
        return metrics_text(study.objectives.metrics, record.metrics)
    return record.reason


def result_members(result: StudyResult) -> list[Member]:
    """The members of the front of a study's result."""
    names = result.objectives.metrics
    values = result.front[list(names)].astype("float64").to_numpy().tolist()
    numbers = [int(trial) for trial in result.front["trial"]]
    return [
        (number, dict(zip(names, row, strict=True)), result.config_of(number))
        for number, row in zip(numbers, values, strict=True)
    ]


def front_table(objectives: Objectives, members: Iterable[Member]) -> Table:
    """The front, one row per member: objectives, then what was chosen."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    for name in objectives.metrics:
        table.add_column(METRICS[name].axis_label, justify="right")
    table.add_column("schedule")
    table.add_column("bits W/A")
    table.add_column("lr", justify="right")
    for number, metrics, config in members:
        table.add_row(
            str(number),
            *(METRICS[name].text(metrics[name]) for name in objectives.metrics),
            schedule_text(config),
            f"{layer_digits(config.weight_bits)} / {layer_digits(config.activation_bits)}",
            f"{config.optimizer.lr:.3g}",
        )
    return table


def schedule_text(config: TrialConfig) -> str:
    """`exp 0.01 -> 10`; empty where there is no temperature."""
    if not config.uses_temperature:
        return ""
    temperature = config.temperature
    return f"{temperature.schedule} {temperature.T_s:.3g} -> {temperature.T_e:.4g}"


def layer_digits(bits: int | Mapping[str, int]) -> str:
    """The bits of a network: `1`, or `1 1 2 4` where layers differ, in their order."""
    if isinstance(bits, int):
        return str(bits)
    values = list(bits.values())
    return str(values[0]) if len(set(values)) == 1 else " ".join(map(str, values))
