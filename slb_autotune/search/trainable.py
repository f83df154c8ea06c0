"""Ray on a worker: trials, one after the other, in the same process.

A worker imports this and not the driver's books: Optuna and what comes with it take a second.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from slb_autotune.search.worker import Order, TrialWork
from slb_autotune.training.device import keep_freed_memory


class TrialTrainable(tune.Trainable):
    """Trains trials one after the other in the same process; a step is an epoch."""

    def setup(self, config: dict[str, Any]) -> None:
        keep_freed_memory()
        self.work = TrialWork(Order.from_mapping(config["order"]))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        row = self.work.next_epoch()
        return {**row, "done": row["status"] in ("done", "failed")}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """A trial's checkpoints are its own, in its folder."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Likewise: the folder is read when the work begins."""
