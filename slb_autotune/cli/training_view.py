"""What a person sees while a network trains: a live bar, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slb_autotune.analysis.tables import bits_label
from slb_autotune.cli.output import labelled, print_note
from slb_autotune.config.metrics import COST, METRICS, quality_metric
from slb_autotune.config.trial import TrialConfig

if TYPE_CHECKING:
    from slb_autotune.training.loop import Progress as Step

GAP = "quantization_gap"  # of quantised networks only
SOFT = 0.1  # a mean gap above it: the temperature ended too low
LABEL_WIDTH = 22


class TrainingView:
    """Shows a run on standard error; give `report` and `progress` to `train`."""

    def __init__(self, config: TrialConfig) -> None:
        self.config = config
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self.epoch = 1
        self._drawn = 0.0
        self._row: Mapping[str, float] = {}
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[info]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.live,
        )
        self._task = self._bar.add_task(
            "train", total=None, epoch=1, epochs=config.epochs, info="preparing"
        )

    def __enter__(self) -> TrainingView:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def progress(self, step: Step) -> None:
        """One step is done."""
        self.epoch = step.epoch + 1
        now = time.monotonic()
        if not self.live or now - self._drawn < 0.1:
            return
        self._drawn = now
        info = f"loss {step.loss:.3f}  T {step.temperature:.3g}  {self._scores()}"
        self._bar.update(
            self._task,
            total=step.epochs * step.steps,
            completed=step.epoch * step.steps + step.step,
            epoch=self.epoch,
            info=info.rstrip(),
        )

    def report(self, **row: float) -> None:
        """One epoch is done."""
        self._row = row
        if not self.live:
            parts = [
                f"epoch {row['epoch']:g}/{self.config.epochs}",
                self._text("train_loss"),
                f"T {row['temperature']:.4g}" if GAP in row else "",
                self._scores(),
                f"{row['seconds'] * (self.config.epochs - row['epoch']):.0f} s left",
            ]
            print_note("  ".join(filter(None, parts)))

    def _scores(self) -> str:
        quality = quality_metric(super_resolution=self.config.super_resolution)
        return "  ".join(self._text(name) for name in (quality, GAP) if name in self._row)

    def _text(self, name: str) -> str:
        """A metric of the last epoch: `Val. accuracy 97.22 %`."""
        metric = METRICS[name]
        return f"{metric.short} {metric.text(self._row[name], unit=True)}"


def summary_lines(
    config: TrialConfig, metrics: Mapping[str, float], float_bytes: int
) -> list[str]:
    """The result of a run in a few aligned lines; `float_bytes` is the float network's size."""
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    weights, activations = bits_label(config.weight_bits), bits_label(config.activation_bits)
    rows = {
        "network": f"{config.network.name} on {config.data.name}, {epochs}",
        "bits": f"{weights} weights / {activations} activations",
    }
    quality = quality_metric(super_resolution=config.super_resolution)
    for name in (quality, COST, "bitops", "frozen_fraction", GAP, "seconds"):
        if name in metrics:
            rows[METRICS[name].label] = METRICS[name].text(metrics[name], unit=True)
    continuous = metrics.get(f"{quality}_continuous")
    if continuous is not None:
        text = METRICS[quality].text(continuous, unit=True)
        rows[METRICS[quality].label] += f" (continuous weights: {text})"
    rows[METRICS["bitops"].label] += " per image"
    if GAP in metrics:
        ratio = float_bytes / metrics[COST]
        rows[METRICS[COST].label] += f", {ratio:.1f} times smaller than in 32 bits"
        rows[METRICS[GAP].label] += f" at T = {metrics['temperature']:g}"
        if metrics[GAP] > SOFT:
            rows[METRICS[GAP].label] += "; the weights are still soft, a higher T_e hardens them"
    return [labelled(label, text, LABEL_WIDTH) for label, text in rows.items()]
