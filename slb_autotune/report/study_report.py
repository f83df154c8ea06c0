"""The report of one study: its page, its figures and its tables, in a folder beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from slb_autotune.analysis.frames import epoch_frame, run_frame
from slb_autotune.analysis.lessons import best, first_learned, importances, lessons
from slb_autotune.config.files import write_atomically
from slb_autotune.report import figures, own_tables, table, trained
from slb_autotune.report.page import PageContent, render_page
from slb_autotune.search.ledger import Ledger
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.version import VERSION


def write_study_report(
    ledger: Ledger, folder: Path, *, layer: str | None = None, picture: int = 1
) -> Path:
    """Write `index.html`, figures (PNG and SVG) and tables into `folder`; the page's path.

    `layer` is the one whose weights are shown, `picture` the one of super-resolution.
    """
    runs, epochs = run_frame(ledger), epoch_frame(ledger)
    drawn = [
        *study_figures(ledger, runs, epochs),
        *weight_figures(ledger, layer),
        *trained.strips(ledger, picture),
    ]
    pictures = []
    for name, caption, figure in drawn:
        _, svg = figures.save(figure, folder / "figures" / name)
        pictures.append((caption, svg.read_text(encoding="utf-8")))
    own = [found for found in own_tables.own_tables(runs) if found.rows]
    table.write_tables(own, folder / "tables")
    content = PageContent(
        study=ledger.config.name,
        question=question(ledger),
        answer=[sentence(line) for line in lessons(ledger)] or ["No trial has ended yet."],
        objectives=dict(zip(ledger.goals.metrics, ledger.goals.directions, strict=True)),
        runs=runs,
        epochs=epochs,
        tables=[(found.title, table.to_html(found)) for found in own],
        figures=pictures,
        reproduce=commands(ledger),
        notes=notes(ledger),
    )
    page = folder / "index.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(page, render_page(content).encode())
    return page


def sentence(line: str) -> str:
    """A line of the terminal as a sentence of a page."""
    return f"{line[:1].upper()}{line[1:]}."


def question(ledger: Ledger) -> str:
    """What was asked, in a sentence or two."""
    goals = " and ".join(
        f"{direction} {metric}"
        for metric, direction in zip(ledger.goals.metrics, ledger.goals.directions, strict=True)
    )
    base = ledger.base
    what = f"{base.network.name} on {base.data.name}, {base.epochs} epochs a trial"
    if ledger.config.points:
        return f"{len(ledger.config.points)} listed configurations of {what}: {goals}."
    searched = ", ".join(ledger.config.space)
    limits = "".join(f", with {constraint}" for constraint in ledger.constraints)
    return f"Which {searched} {goals}{limits}? Asked of {what}."


def notes(ledger: Ledger) -> list[str]:
    """Facts without which the numbers mean little."""
    counts = ", ".join(
        f"{len(ledger.with_status(status))} {status}"
        for status in ("done", "reused", "stopped", "failed", "running")
        if ledger.with_status(status)
    )
    return [
        f"{counts or 'no trials'}; {ledger.infeasible} infeasible draws; "
        f"{ledger.epochs_spent()} epochs in all, rungs included.",
        f"Validation values are of the quantised network. Hypervolume {ledger.hypervolume():.4f} "
        f"against the reference point {[float(f'{x:.6g}') for x in ledger.reference()]}.",
        f"slb-autotune {VERSION}, seed {ledger.config.seed}.",
    ]


def commands(ledger: Ledger) -> list[str]:
    """How to get all this again, and what to do next."""
    name = ledger.config.name
    found = [f"slb-autotune search {ledger.folder / 'study.yaml'} --name {name}-again"]
    front = ledger.front()
    if front:
        found.append(f"slb-autotune train {name}:{front[-1].number}")
        found.append(f"slb-autotune confirm {name}")
    return found


def study_figures(
    ledger: Ledger, runs: pd.DataFrame, epochs: pd.DataFrame
) -> Iterator[tuple[str, str, Figure]]:
    """(file name, caption, figure) of what this study has to show."""
    objectives = dict(zip(ledger.goals.metrics, ledger.goals.directions, strict=True))
    learned = next(
        (m for m, k in zip(ledger.goals.metrics, ledger.goals.known, strict=True) if not k),
        ledger.goals.metrics[0],
    )
    reference = dict(zip(ledger.goals.metrics, ledger.reference(), strict=False))
    if len(objectives) > 1:
        yield "front", "The front: quality against cost.", figures.draw_front(runs, objectives)
    yield (
        "hypervolume",
        "Hypervolume over trials; the dashed level is that of the uniform allocations.",
        figures.draw_hypervolume(runs, objectives, reference=reference or None),
    )
    yield (
        "bits",
        "Bits of every layer of the front's members, from the smallest to the largest.",
        figures.draw_bits(runs, objectives),
    )
    if learned in ("val_accuracy", "val_psnr"):
        yield (
            "schedules",
            "Temperature over training, and what training made of it.",
            figures.draw_schedules(runs, epochs, learned),
        )
    yield (
        "response",
        "The first objective over two of the numbers that were searched.",
        figures.draw_response(runs, objectives),
    )
    yield (
        "importance",
        "How much each parameter mattered to each objective (PED-ANOVA).",
        figures.draw_importance(importance_table(ledger)),
    )
    members = [record.number for record in ledger.front()]
    yield (
        "diagnostics",
        "Gap between W_q and W_c, frozen weights and flips of the front's members.",
        figures.draw_diagnostics(epochs, members or None),
    )


def weight_figures(ledger: Ledger, layer: str | None) -> Iterator[tuple[str, str, Figure]]:
    """The weights of the best low-bit member of the front, one of SLB's if there is one."""
    members = [record for record in ledger.front() if record.config.quantises]
    own = [record for record in members if record.config.method == "slb"]
    record = best(ledger, own or members, first_learned(ledger) or 0)
    if record is None:
        return
    folder = trained.run_folder(ledger, record)
    if layer is not None or RunFolder(folder).histograms_path.exists():
        name, figure = trained.weights(folder, layer)
        yield "weights", f"Weights of {name} of trial {record.number} over training.", figure


def importance_table(ledger: Ledger) -> pd.DataFrame:
    """A row an objective, a column a parameter: the share that it moved."""
    rows = {
        metric: importances(ledger, position)
        for position, metric in enumerate(ledger.goals.metrics)
    }
    return pd.DataFrame.from_dict(rows, orient="index").fillna(0.0)
