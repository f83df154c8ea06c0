"""The files of a study's report that MLflow records."""

from __future__ import annotations

import logging
from pathlib import Path

from slb_autotune.analysis.importance import importance_table
from slb_autotune.analysis.result import StudyResult
from slb_autotune.config.files import write_atomically
from slb_autotune.report import figures

log = logging.getLogger(__name__)


def recorded_files(result: StudyResult, page: Path) -> list[Path]:
    """The page, its figures as PNG, and beside it the importances and the interactive figures."""
    texts = {
        "importance.csv": importance_text(result),
        "interactive.html": interactive_text(result),
    }
    written = {page.with_name(name): text for name, text in texts.items() if text}
    for path, text in written.items():
        write_atomically(path, text.encode())
    return [page, *sorted((page.parent / "figures").glob("*.png")), *written]


def importance_text(result: StudyResult) -> str:
    """One row per parameter, one column per objective; empty while there are too few results."""
    shares = importance_table(result).T
    return "" if shares.empty else shares.to_csv(index_label="parameter", lineterminator="\n")


def interactive_text(result: StudyResult) -> str:
    """The front and the hypervolume as an HTML file; empty, with a warning, without plotly."""
    shown = {
        "front": figures.interactive_front(result),
        "hypervolume": figures.interactive_hypervolume(result),
    }
    text = figures.interactive_page(f"{result.name}: the front", shown)
    if text is None:
        log.warning(
            "plotly is not installed: the interactive figures are left out "
            "(pip install 'slb-autotune[plots]')"
        )
    return text or ""
