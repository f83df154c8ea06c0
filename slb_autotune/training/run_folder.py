"""A run's folder: its configuration, its checkpoint, its history, its histograms and its result.

Every file is written atomically (temporary file, fsync, rename): a kill at any moment leaves
either the old file or the new one, complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from slb_autotune.config.files import read_text, write_atomically
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import CheckpointError
from slb_autotune.training.history import HISTORY_FILE
from slb_autotune.version import VERSION


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.checkpoint_path = self.path / "checkpoint.pt"
        self.history_path = self.path / HISTORY_FILE
        self.histograms_path = self.path / "histograms.safetensors"
        self.result_path = self.path / "result.json"

    def check(self, config: TrialConfig) -> None:
        """Refuse a folder that holds the run of another configuration."""
        if self.config_path.exists():
            check_same(config, self.config(), str(self.path))

    def open(self, config: TrialConfig) -> None:
        """Create the folder for `config`, or check that it holds a run of `config`."""
        self.check(config)
        if not self.config_path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config_path, config.to_yaml().encode())

    def clear(self) -> None:
        """Delete the files of the run, and no others."""
        for path in (
            self.result_path,
            self.checkpoint_path,
            self.history_path,
            self.histograms_path,
            self.config_path,
        ):
            path.unlink(missing_ok=True)

    def config(self) -> TrialConfig:
        """The configuration of the run."""
        if not self.config_path.exists():
            raise CheckpointError(
                f"{self.path} is not the folder of a run: it has no config.yaml",
                "`slb-autotune train` prints the folder of a run when it ends.",
            )
        return TrialConfig.from_yaml(read_text(self.config_path), str(self.config_path))

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint, and the history and the histograms beside it."""
        buffer = BytesIO()
        torch.save({**state, "version": VERSION}, buffer)
        write_atomically(self.checkpoint_path, buffer.getbuffer())
        self.save_tables(state)

    def save_tables(self, state: Mapping[str, Any]) -> None:
        """Write the history and the histograms, which are read without the checkpoint.

        A resumed run writes them again: it may have been killed between the files.
        """
        table = pd.DataFrame(state["history"]).to_csv(index=False)
        write_atomically(self.history_path, table.encode())
        if state.get("histograms"):
            write_atomically(self.histograms_path, safetensors.torch.save(state["histograms"]))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint, or None where there is none yet."""
        if not self.checkpoint_path.exists():
            return None
        state = load_tensors(self.checkpoint_path)
        if not {"network", "optimizer", "history", "epoch"} <= state.keys():
            raise CheckpointError(f"{self.checkpoint_path} is not a checkpoint of slb_autotune")
        return state

    def histograms(self) -> dict[str, Tensor]:
        """Layer -> one row per epoch, as `weight_histograms` defines it; empty without a file."""
        if not self.histograms_path.exists():
            return {}
        try:
            return safetensors.torch.load_file(self.histograms_path)
        except safetensors.SafetensorError as error:
            raise CheckpointError(
                f"{self.histograms_path} is damaged",
                "delete it: resuming the run writes it again from the checkpoint.",
            ) from error

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write how the run ended."""
        text = json.dumps({**result, "version": VERSION}, indent=2)
        write_atomically(self.result_path, text.encode())

    def result(self) -> dict[str, Any] | None:
        """How the run ended, or None where it has not."""
        if not self.result_path.exists():
            return None
        try:
            result = json.loads(read_text(self.result_path))
        except ValueError as error:
            result = error
        if not isinstance(result, dict) or "status" not in result:
            raise CheckpointError(
                f"{self.result_path} is damaged", "delete it and resume the run."
            )
        return result


def load_tensors(path: Path) -> dict[str, Any]:
    """A dictionary of tensors and plain values; loading it runs no code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}", "check the path.") from None
    except Exception as error:  # torch raises many kinds on a damaged file
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint",
            "delete the file to start again, or give another one.",
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not a state dict")
    return state


def check_same(config: TrialConfig, found: TrialConfig, where: str) -> None:
    """Refuse to resume a run of another configuration."""
    ours, theirs = config.flat(), found.flat()
    different = [name for name in ours if ours[name] != theirs[name]]
    if different:
        name = different[0]
        raise CheckpointError(
            f"{where} holds a run of another configuration: "
            f"{name} is {theirs[name]!r} there, {ours[name]!r} here",
            "choose another folder.",
        )
