"""What a person sees of a study: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slb_autotune.search.driver import View
from slb_autotune.search.ledger import Ledger, Record

ENDED = ("done", "reused", "stopped", "failed")


class LiveView(View):
    """Counts, hypervolume, time left and the front; redrawn twice a second."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.ledger: Ledger | None = None
        self.began = time.monotonic()
        self.ended_before = 0
        self.told: set[int] = set()
        self.drawn = 0.0

    def start(self, ledger: Ledger) -> None:
        """Begin to show."""
        self.ledger, self.began = ledger, time.monotonic()
        ended = ledger.with_status(*ENDED)
        self.ended_before = len(ended)
        self.told = {record.number for record in ended}
        if self.console.is_terminal:
            self.live = Live(
                self._draw(), console=self.console, transient=True, auto_refresh=False
            )
            self.live.start()

    def update(self) -> None:
        """Show what changed."""
        if self.live is None:
            self._tell()
        elif time.monotonic() - self.drawn > 0.5:
            self.drawn = time.monotonic()
            self.live.update(self._draw(), refresh=True)

    def stop(self) -> None:
        """End the view."""
        if self.live is not None:
            self.live.stop()

    def _tell(self) -> None:
        assert self.ledger is not None
        for record in self.ledger.with_status(*ENDED):
            if record.number not in self.told:
                self.told.add(record.number)
                line = f"trial {record.number} {record.status}  {scores(self.ledger, record)}"
                print(f"{line}  [{status_line(self)}]", file=sys.stderr, flush=True)  # noqa: T201

    def _draw(self) -> Group:
        assert self.ledger is not None
        title = Text(f"study {self.ledger.config.name}", style="bold")
        return Group(title, Text(status_line(self)), front_table(self.ledger))


def status_line(view: LiveView) -> str:
    """12 done, 2 running, 3 stopped, 0 failed, hypervolume 0.912, 4:10 left."""
    ledger = view.ledger
    assert ledger is not None
    counts = {
        "done": len(ledger.with_status("done", "reused")),
        "running": len(ledger.with_status("running")),
        "stopped": len(ledger.with_status("stopped")),
        "failed": len(ledger.with_status("failed")),
    }
    parts = [f"{count} {name}" for name, count in counts.items()]
    parts.append(f"hypervolume {ledger.hypervolume():.4f}")
    left = seconds_left(view)
    if left is not None:
        parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
    return ", ".join(parts)


def seconds_left(view: LiveView) -> float | None:
    """From the pace so far; None before anything ended."""
    ledger = view.ledger
    assert ledger is not None
    budget = ledger.config.budget
    elapsed = time.monotonic() - view.began
    ended = len(ledger.with_status(*ENDED))
    guesses = []
    total = len(ledger.config.points) or budget.trials
    if total is not None and ended > view.ended_before:
        guesses.append((total - ended) * elapsed / (ended - view.ended_before))
    if budget.seconds is not None:
        guesses.append(budget.seconds - elapsed)
    return max(0.0, min(guesses)) if guesses else None


def scores(ledger: Ledger, record: Record) -> str:
    """The objectives of a trial, or why it has none."""
    if record.status in ("failed", "stopped"):
        return record.reason
    return "  ".join(f"{m} {number(record.metrics[m])}" for m in ledger.goals.metrics)


def front_table(ledger: Ledger) -> Table:
    """The front, a row a member: objectives, then what was chosen."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    for metric in ledger.goals.metrics:
        table.add_column(metric, justify="right")
    table.add_column("schedule")
    table.add_column("bits W/A")
    table.add_column("lr", justify="right")
    for record in ledger.front():
        config = record.config
        schedule = config.temperature
        table.add_row(
            str(record.number),
            *(number(record.metrics[metric]) for metric in ledger.goals.metrics),
            f"{schedule.schedule} {schedule.T_s:.3g} -> {schedule.T_e:.4g}",
            f"{bits_word(config.weight_bits)} / {bits_word(config.activation_bits)}",
            f"{config.optimizer.lr:.3g}",
        )
    return table


def bits_word(bits: int | dict[str, int]) -> str:
    """1, or 1-4 where layers differ, each digit a group in order: 1 1 2 4."""
    if isinstance(bits, int):
        return str(bits)
    values = list(bits.values())
    return str(values[0]) if len(set(values)) == 1 else " ".join(map(str, values))


def number(value: float) -> str:
    """97.22 or 12,712."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
