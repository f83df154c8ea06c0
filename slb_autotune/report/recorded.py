"""What MLflow is given of a study's report: the page, the pictures and what is made for it."""

from __future__ import annotations

import logging
from pathlib import Path

from slb_autotune.analysis.frames import run_frame
from slb_autotune.config.files import write_atomically
from slb_autotune.report import figures
from slb_autotune.report.study_report import importance_table
from slb_autotune.search.ledger import Ledger

log = logging.getLogger(__name__)


def recorded_files(ledger: Ledger, page: Path) -> list[Path]:
    """The page, its figures as PNG, and beside it the importances and the interactive figures."""
    pictures = sorted((page.parent / "figures").glob("*.png"))
    made = {
        "importance.csv": importance_text(ledger),
        "interactive.html": interactive_text(ledger),
    }
    for name, text in made.items():
        if text:
            write_atomically(page.with_name(name), text.encode())
    return [page, *pictures, *(page.with_name(name) for name, text in made.items() if text)]


def importance_text(ledger: Ledger) -> str:
    """A row a parameter, a column an objective; empty while there are too few results."""
    shares = importance_table(ledger).T
    return "" if shares.empty else shares.to_csv(index_label="parameter", lineterminator="\n")


def interactive_text(ledger: Ledger) -> str:
    """The front and the hypervolume as an HTML file; empty without plotly, which is told."""
    runs = run_frame(ledger)
    objectives = dict(zip(ledger.goals.metrics, ledger.goals.directions, strict=True))
    reference = dict(zip(ledger.goals.metrics, ledger.reference(), strict=False))
    shown = {
        "front": figures.interactive_front(runs, objectives),
        "hypervolume": figures.interactive_hypervolume(
            runs, objectives, reference=reference or None
        ),
    }
    text = figures.interactive_page(f"{ledger.config.name}: the front", shown)
    if text is None:
        log.warning(
            "plotly is not installed: the interactive figures are left out "
            "(pip install 'slb-autotune[plots]')"
        )
    return text or ""
