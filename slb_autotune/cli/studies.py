"""The commands of slb-autotune for studies: search, resume, confirm, recommend, sensitivity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slb_autotune.cli.options import (
    DEFAULT_RUNS,
    JsonFlag,
    Only,
    RunsFolder,
    RunsOverride,
    Seconds,
    Settings,
    Trials,
    changed_study,
    load_config,
    parse_settings,
)
from slb_autotune.cli.output import labelled, metrics_text, print_json, print_note, print_table
from slb_autotune.config.metrics import METRICS
from slb_autotune.errors import ConfigError, InputError

if TYPE_CHECKING:
    import pandas as pd

    from slb_autotune.analysis.result import StudyResult
    from slb_autotune.api import Session

STATUSES = ("done", "reused", "stopped", "failed", "running")


def add_commands(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command(short_help="Run a study: Ray trains the trials, Optuna chooses them.")(search)
    app.command(short_help="Resume a study that was stopped or killed.")(resume)
    app.command(short_help="Train the front again, several seeds, and test it.")(confirm)
    app.command(short_help="The best network of a study under a budget.")(recommend)
    app.command(short_help="How much loss each layer costs at each bit-width.")(sensitivity)


def search(
    study: Annotated[Path, typer.Argument(help="A study file; see search_spaces/README.md.")],
    trials: Trials = None,
    seconds: Seconds = None,
    name: Annotated[str | None, typer.Option(help="Another name for the study.")] = None,
    settings: Settings = None,
    only: Only = None,
    runs: RunsOverride = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and stop.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: Ray trains the trials, Optuna chooses them.

    Ctrl-C stops it cleanly; `slb-autotune resume NAME` continues it, also after a crash.

    Examples:

      slb-autotune search search_spaces/digits_demo.yaml

      slb-autotune search search_spaces/digits_mixed_bits.yaml --trials 20 --set epochs=5
    """
    from slb_autotune.api import Study

    values = changed_study(
        Study.load(study).config,
        name=name,
        settings=settings or (),
        only=only or (),
        trials=trials,
        seconds=seconds,
    )
    chosen = Study.load(values, runs=runs)
    if dry_run:
        print_note("measuring a few steps of training ...")
        plan = chosen.dry_run()
        if as_json:
            print_json({**vars(plan), "seconds": plan.seconds})
        else:
            typer.echo("\n".join(plan.lines()))
        return
    from slb_autotune.cli.live_view import LiveView

    _show(chosen.run(LiveView()), as_json)


def resume(
    name: Annotated[str, typer.Argument(help="A study's name.")],
    trials: Trials = None,
    seconds: Seconds = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Train the failed trials again, once mended.")
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Resume a study that was stopped or killed, or that shall have more trials or time.

    Examples:

      slb-autotune resume digits_demo --trials 60

      slb-autotune resume digits_demo --failed
    """
    from slb_autotune.api import Study
    from slb_autotune.cli.live_view import LiveView

    study = Study.load(name, runs=runs)
    if failed:
        numbers = ", ".join(map(str, study.result.with_status("failed")["trial"])) or "none failed"
        print_note(f"failed trials that are trained again: {numbers}")
    _show(study.resume(trials, seconds, LiveView(), failed=failed), as_json)


def confirm(
    source: Annotated[
        str, typer.Argument(help="A study's name, or a study file with a list of points.")
    ],
    seeds: Annotated[int, typer.Option(help="Trainings of each configuration.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Epochs; none: the study's own.")] = None,
    settings: Settings = None,
    only: Only = None,
    runs: RunsOverride = None,
    as_json: JsonFlag = False,
) -> None:
    """Train the front again with several seeds on all training data, and test it.

    A study file with a list of points, as those of the paper's tables, needs no search: all its
    points are trained and tested.

    Examples:

      slb-autotune confirm digits_demo --seeds 3

      slb-autotune confirm search_spaces/paper_table1_resnet20.yaml --set data.root=./data
    """
    from slb_autotune.api import Study
    from slb_autotune.cli.live_view import LiveView

    is_file = source.endswith((".yaml", ".yml"))
    if (settings or only) and not is_file:
        raise InputError(
            "--set and --only are for a study file; a searched study keeps its settings",
            "use --epochs, or confirm a file with a list of points.",
        )
    study = Study.load(source, runs=runs)
    if is_file:
        values = changed_study(study.config, settings=settings or (), only=only or ())
        study = Study.load(values, runs=runs)
    session = study.confirm(seeds, epochs, points=is_file, view=LiveView())
    print_table(session.table, as_json)
    if session.report is not None:
        print_note(labelled("report", session.report))
    _end(session)


def recommend(
    name: Annotated[str, typer.Argument(help="A study's name.")],
    size: Annotated[str | None, typer.Option(help="At most so large: 64kB, 43240.")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="At least so good (accuracy, or PSNR in dB).")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """The best member of the front under a budget, as a configuration for `train`.

    Example: slb-autotune recommend digits_demo --size 16kB > best.yaml
    """
    from slb_autotune.analysis.lessons import recommend as choose
    from slb_autotune.api import Study
    from slb_autotune.config.study import parse_amount

    result = Study.load(name, runs=runs).result
    row = choose(result, None if size is None else parse_amount(size), accuracy)
    if as_json:
        print_json(_member(result, row))
        return
    metrics = metrics_text(result.objectives.metrics, _metrics(row))
    typer.echo(f"# trial {row['trial']} of {name}: {metrics}")
    typer.echo(result.config_of(row["trial"]).to_yaml().rstrip())


def sensitivity(
    source: Annotated[str, typer.Argument(help="A recipe's name or a trial's YAML file.")],
    bits: Annotated[str, typer.Option(help="Bit-widths to try.")] = "1,2,4",
    allocations: Annotated[int, typer.Option(help="Best allocations to show.")] = 5,
    settings: Settings = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """How much loss each layer costs at each bit-width, from one trained float network.

    Example: slb-autotune sensitivity digits --bits 1,2,4
    """
    config = load_config(source, runs).updated(parse_settings(settings or []))
    try:
        choices = [int(text) for text in bits.split(",")]
    except ValueError:
        raise ConfigError(f"--bits takes numbers; got {bits!r}", "write --bits 1,2,4") from None
    from slb_autotune.report.figures import draw_sensitivity, save
    from slb_autotune.search.allocations import best_allocations
    from slb_autotune.search.sensitivity import measure_sensitivity

    folder = runs / "sensitivity" / config.updated({"method": "float"}).digest
    table = measure_sensitivity(config, choices, folder=folder)
    pictures = save(draw_sensitivity(table), folder / "sensitivity")
    if as_json:
        print_table(table, as_json)
        return
    wide = table.pivot(index="layer", columns="bits", values="cost").loc[table["layer"].unique()]
    wide.columns = [f"{bits} bit" for bits in wide.columns]
    typer.echo(wide.reset_index().to_string(index=False, float_format="{:.4f}".format))
    typer.echo("\nbest allocations (bits layer by layer):")
    for allocation in best_allocations(table, allocations):
        typer.echo("  " + " ".join(map(str, allocation.values())))
    typer.echo("\n" + labelled("plot", pictures[0]))


def _show(session: Session, as_json: bool) -> None:
    """Print what a session found."""
    if as_json:
        print_json(_summary(session))
    else:
        _print_summary(session)
    _end(session)


def _end(session: Session) -> None:
    """Say what is left to do; an interrupted session has an exit code of its own."""
    name = session.result.name
    if session.note:
        print_note(f"ended: {session.note}.")
    if session.waiting:
        waiting = f"{session.waiting} trials wait to be logged to MLflow"
        print_note(f"{waiting}; `slb-autotune resume {name}` tries again.")
    if session.interrupted:
        print_note(f"stopped; resume with: slb-autotune resume {name}")
        raise typer.Exit(130)


def _print_summary(session: Session) -> None:
    from rich.console import Console

    from slb_autotune.analysis.lessons import lessons, occupancy
    from slb_autotune.cli.live_view import front_table, result_members
    from slb_autotune.search.feasibility import concurrent_trials

    result = session.result
    typer.echo(_counts(result, session.seconds))
    busy = occupancy(result, concurrent_trials(result.config))
    if busy is not None:
        typer.echo(f"training took {busy:.0%} of the slots' time, from first trial to last")
    typer.echo("\nthe front:")
    Console(width=120).print(front_table(result.objectives, result_members(result)))
    typer.echo("")
    for line in lessons(result):
        typer.echo(line)
    report = session.report or f"slb-autotune report {result.name}"
    typer.echo("\n" + labelled("report", report))
    typer.echo(labelled("study", result.folder))
    typer.echo(labelled("confirm", f"slb-autotune confirm {result.name}"))


def _counts(result: StudyResult, seconds: float) -> str:
    """`digits_demo: 12 done, 3 stopped, 0 infeasible draws, 96 epochs in 41 s`."""
    counts = {status: len(result.with_status(status)) for status in STATUSES}
    trials = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return (
        f"{result.name}: {trials or 'no trials'}, {result.infeasible} infeasible draws, "
        f"{_epochs(result)} epochs in {seconds:.0f} s"
    )


def _summary(session: Session) -> dict[str, Any]:
    """The same for programs."""
    from slb_autotune.analysis.lessons import lessons

    result = session.result
    trials = result.trials[["trial", "status"]].itertuples(index=False)
    return {
        "study": result.name,
        "folder": str(result.folder),
        "interrupted": session.interrupted,
        "hypervolume": result.hypervolume,
        "epochs": _epochs(result),
        "infeasible": result.infeasible,
        "front": [_member(result, row) for _, row in result.front.iterrows()],
        "trials": {int(number): status for number, status in trials},
        "lessons": lessons(result),
    }


def _epochs(result: StudyResult) -> int:
    return int(result.trials["epochs_spent"].sum())


def _member(result: StudyResult, row: pd.Series[Any]) -> dict[str, Any]:
    """A trial for programs."""
    return {
        "trial": int(row["trial"]),
        "metrics": _metrics(row),
        "config": result.config_of(row["trial"]).to_mapping(),
    }


def _metrics(row: pd.Series[Any]) -> dict[str, float]:
    """The metrics of a trial that are known, as plain numbers."""
    known = row[[name for name in METRICS if name in row]].dropna()
    return {
        str(name): int(value) if METRICS[str(name)].dtype == "Int64" else float(value)
        for name, value in known.items()
    }
