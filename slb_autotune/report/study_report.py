"""The report of one study: its page, its figures and its tables, in one folder.

A StudyResult is all it needs, so that it can be written from a copied folder or, without the
figures of trained networks, from exported tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from slb_autotune.analysis.importance import importance_table
from slb_autotune.analysis.lessons import lessons
from slb_autotune.analysis.result import StudyResult
from slb_autotune.config.files import write_atomically
from slb_autotune.report import figures, own_tables, table
from slb_autotune.report.page import PageContent, render_page
from slb_autotune.search.records import ENDED
from slb_autotune.version import VERSION

Drawn = Iterator[tuple[str, str, Figure]]  # file name, caption, figure


def write_study_report(
    result: StudyResult, folder: Path, *, layer: str | None = None, picture: int = 1
) -> Path:
    """Write `index.html`, figures (PNG and SVG) and tables into `folder`; the page's path.

    `layer` is the one whose weights are shown, `picture` the one of super-resolution.
    """
    pictures = []
    for name, caption, figure in [*study_figures(result), *run_figures(result, layer, picture)]:
        _, svg = figures.save(figure, folder / "figures" / name)
        pictures.append((caption, svg.read_text(encoding="utf-8")))
    own = [found for found in own_tables.own_tables([result]) if found.rows]
    table.write_tables(own, folder / "tables")
    content = PageContent(
        result=result,
        question=question(result),
        answer=[sentence(line) for line in lessons(result)] or ["No trial has ended yet."],
        tables=[(found.title, table.to_html(found)) for found in own],
        figures=pictures,
        reproduce=commands(result),
        notes=notes(result),
    )
    page = folder / "index.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(page, render_page(content).encode())
    return page


def sentence(line: str) -> str:
    """A line of the terminal as a sentence of a page."""
    return f"{line[:1].upper()}{line[1:]}."


def question(result: StudyResult) -> str:
    """What was asked, in a sentence or two."""
    goals = " and ".join(
        f"{direction} {metric}" for metric, direction in result.objectives.items()
    )
    base, config = result.base, result.config
    what = f"{base.network.name} on {base.data.name}, {base.epochs} epochs a trial"
    if config.points:
        return f"{len(config.points)} listed configurations of {what}: {goals}."
    limits = "".join(f", with {constraint}" for constraint in result.constraints)
    return f"Which {', '.join(config.space)} {goals}{limits}? Asked of {what}."


def notes(result: StudyResult) -> list[str]:
    """Facts without which the numbers mean little."""
    statuses = result.trials["status"].value_counts()
    counts = [f"{statuses[s]} {s}" for s in (*ENDED, "running") if s in statuses]
    versions = result.provenance()["version"] or [VERSION]
    return [
        f"{', '.join(counts) or 'no trials'}; {result.infeasible} infeasible draws; "
        f"{result.trials['epochs_spent'].sum()} epochs in all, rungs included.",
        f"Validation values are of the quantised network. Hypervolume {result.hypervolume:.4f} "
        f"against the reference point {[float(f'{x:.6g}') for x in result.reference]}.",
        f"slb-autotune {', '.join(versions)}, seed {result.config.seed}.",
    ]


def commands(result: StudyResult) -> list[str]:
    """How to get all this again, and what to do next; exported tables have no study to name."""
    if result.folder is None:
        return []
    found = [f"slb-autotune search {result.folder / 'study.yaml'} --name {result.name}-again"]
    if not result.front.empty:
        found.append(f"slb-autotune train {result.name}:{result.front['trial'].iloc[-1]}")
        found.append(f"slb-autotune confirm {result.name}")
    return found


def study_figures(result: StudyResult) -> Drawn:
    """The figures that the tables of a study give."""
    if len(result.objectives.metrics) > 1:
        yield "front", "The front: quality against cost.", figures.draw_front(result)
    yield (
        "hypervolume",
        "Hypervolume over trials; the dashed level is that of the uniform allocations.",
        figures.draw_hypervolume(result),
    )
    yield (
        "bits",
        "Bits of every layer of the front's members, from the smallest to the largest.",
        figures.draw_bits(result),
    )
    if result.objectives.quality in result.epochs.columns:
        yield (
            "schedules",
            "Temperature over training, and the quality over training.",
            figures.draw_schedules(result),
        )
    yield (
        "response",
        "The first objective over two of the numbers that were searched.",
        figures.draw_response(result),
    )
    yield (
        "importance",
        "How much each parameter mattered to each objective (PED-ANOVA).",
        figures.draw_importance(importance_table(result)),
    )
    yield (
        "diagnostics",
        "Gap between W_q and W_c, frozen weights and flips of the front's members.",
        figures.draw_diagnostics(result),
    )


def run_figures(result: StudyResult, layer: str | None = None, picture: int = 1) -> Drawn:
    """The figures that need the folders of runs; none where only tables are left."""
    if result.folder is None:
        return
    from slb_autotune.report import trained  # imports torch

    yield from weight_figures(result, layer)
    yield from trained.strips(result, picture)


def weight_figures(result: StudyResult, layer: str | None = None) -> Drawn:
    """The weights of the best low-bit member of the front, one of SLB's if there is one."""
    from slb_autotune.report import trained
    from slb_autotune.training.run_folder import RunFolder

    low_bit = result.front["trial"].map(lambda trial: result.config_of(trial).quantises)
    members = result.front[low_bit.astype(bool)]
    own = members[members["method"] == "slb"]
    best = result.best(members if own.empty else own)
    folder = None if best is None else result.run_folder(best["trial"])
    if best is None or folder is None:
        return
    if layer is not None or RunFolder(folder).histograms_path.exists():
        name, figure = trained.weights(folder, layer)
        yield "weights", f"Weights of {name} of trial {best['trial']} over training.", figure
