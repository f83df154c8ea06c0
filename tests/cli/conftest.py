"""Commands, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slb_autotune.cli import main
from tests.builders import tiny_config
from tests.cli.helpers import Ended


@pytest.fixture
def slb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["slb-autotune", *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
        captured = capsys.readouterr()
        return Ended(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A file of the tiny configuration."""
    (tmp_path / "tiny.yaml").write_text(tiny_config().to_yaml())
    return "tiny.yaml"
