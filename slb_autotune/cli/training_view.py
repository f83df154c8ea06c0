"""What a person sees while a network trains: a live bar, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slb_autotune.config.trial import TrialConfig

if TYPE_CHECKING:
    from slb_autotune.training.loop import Progress as Step


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
            line = f"epoch {row['epoch']}/{self.config.epochs}  loss {row['train_loss']:.4f}"
            if "quantization_gap" in row:
                line += f"  T {row['temperature']:.4g}"
            left = row["seconds"] * (self.config.epochs - row["epoch"])
            parts = [line, self._scores(), f"{left:.0f} s left"]
            print("  ".join(filter(None, parts)), file=sys.stderr, flush=True)  # noqa: T201

    def _scores(self) -> str:
        names = {"val_accuracy": "acc", "val_psnr": "PSNR", "quantization_gap": "gap"}
        return "  ".join(
            f"{label} {self._row[name]:.3g}"
            if name == "quantization_gap"
            else f"{label} {self._row[name]:.2f}"
            for name, label in names.items()
            if name in self._row
        )


def summary_lines(
    config: TrialConfig, metrics: Mapping[str, float], float_bytes: int
) -> list[str]:
    """The result of a run in a few aligned lines; `float_bytes` is the float network's size."""
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    lines = [f"network    {config.network.name} on {config.data.name}, {epochs}"]
    bits = [
        "mixed" if isinstance(value, dict) else str(value)
        for value in (config.weight_bits, config.activation_bits)
    ]
    lines.append(f"bits       {bits[0]} weights / {bits[1]} activations")
    for name, label, unit in (("val_accuracy", "accuracy", "%"), ("val_psnr", "PSNR", "dB")):
        if name in metrics:
            line = f"{label:10} {metrics[name]:.2f} {unit} on validation"
            continuous = metrics.get(f"{name}_continuous")
            if continuous is not None:
                line += f" (continuous weights: {continuous:.2f} {unit})"
            lines.append(line)
    size = f"size       {metrics['size_bytes']:,.0f} bytes"
    if "quantization_gap" in metrics:
        ratio = float_bytes / metrics["size_bytes"]
        size += f", {ratio:.1f} times smaller than in 32 bits"
    lines.append(size)
    lines.append(f"bitops     {metrics['bitops'] / 1e6:,.1f} million an image")
    if "quantization_gap" in metrics:
        lines.append(
            f"weights    {metrics['frozen_fraction']:.1%} frozen, "
            f"mean gap |W_q - W_c| {metrics['quantization_gap']:.4f} at T = "
            f"{metrics['temperature']:g}"
        )
        if metrics["quantization_gap"] > 0.1:
            lines.append("           the weights are still soft: a higher T_e would harden them")
    lines.append(f"time       {metrics['seconds']:.1f} s")
    return lines
