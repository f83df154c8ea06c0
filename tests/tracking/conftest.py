from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def runs_folder(tmp_path, migrated, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("slb_autotune.tracking.tracker.FLUSH_SECONDS", 0.1)
    folder = tmp_path / "slb-runs"
    (folder / "studies" / "tiny").mkdir(parents=True)
    (folder / "studies" / "tiny" / "study.yaml").write_text("name: tiny\n")
    shutil.copy(migrated, folder / "mlflow.db")
    return folder
