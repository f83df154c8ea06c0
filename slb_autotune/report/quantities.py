"""What the columns of runs and epochs are called, in figures and on the page.

Metrics are described in `config/metrics.py` alone. This file describes everything else: the
settings of a trial, and what is recorded of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from slb_autotune.config.metrics import METRICS, Objectives


@dataclass(frozen=True)
class Quantity:
    """A column: `label` in a sentence or beside an axis, `short` over a column of a table.

    Numbers are shown times `scale`, in `unit`. `log`: a log axis suits it where it reaches far.
    """

    label: str
    short: str
    unit: str = ""
    scale: float = 1.0
    decimals: int | None = None
    log: bool = False

    @property
    def axis_label(self) -> str:
        """`size (kB)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


# In the order in which the page offers them, after the metrics.
SETTINGS = {
    "trial": Quantity("trial", "Trial"),
    "study": Quantity("study", "Study"),
    "weight_bits": Quantity("weight bits", "Weight bits"),
    "activation_bits": Quantity("activation bits", "Activation bits"),
    "schedule": Quantity("schedule", "Schedule"),
    "T_s": Quantity("start temperature T_s", "T_s", log=True),
    "T_e": Quantity("end temperature T_e", "T_e", log=True),
    "temperature": Quantity("temperature T", "T", log=True),
    "lr": Quantity("learning rate", "lr", log=True),
    "source": Quantity("source", "Source"),
    "status": Quantity("status", "Status"),
    "on_front": Quantity("front", "Front"),
    "reason": Quantity("reason", "Reason"),
    "epochs": Quantity("epochs", "Epochs"),
    "epochs_spent": Quantity("epochs spent", "Epochs spent"),
    "batch_size": Quantity("batch size", "Batch"),
    "train_images": Quantity("training images", "Training images"),
    "seed": Quantity("seed", "Seed"),
    "network": Quantity("network", "Network"),
    "width": Quantity("width", "Width"),
    "data": Quantity("data", "Data"),
    "scale": Quantity("scale", "Scale"),
    "method": Quantity("method", "Method"),
    "norm": Quantity("norm", "Norm"),
    "run_id": Quantity("run", "Run"),
    "version": Quantity("version", "Version"),
    "torch": Quantity("torch", "Torch"),
    "machine": Quantity("machine", "Machine"),
    "device": Quantity("device", "Device"),
    "threads": Quantity("threads", "Threads"),
    "precision": Quantity("precision", "Precision"),
    "command": Quantity("command", "Command"),
}


def quantity(name: str) -> Quantity:
    """A column by its name; one that nothing is known of is called by its own name."""
    if name in METRICS:
        m = METRICS[name]
        log = m.direction == "minimize"  # costs and losses: it is the ratio that counts
        return Quantity(m.label, m.short, m.unit, m.scale, m.decimals, log)
    return SETTINGS.get(name, Quantity(name, name))


def axes_of(objectives: Objectives) -> tuple[str, str]:
    """What to draw across and upwards: quality goes up, cost goes across.

    A single objective is drawn over the trials.
    """
    upwards = objectives.quality or objectives.metrics[0]
    return next((name for name in objectives.metrics if name != upwards), "trial"), upwards
