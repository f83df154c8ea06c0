"""The commands of slb-autotune that deal with studies: search, resume, confirm and the like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slb_autotune.cli.output import (
    DEFAULT_RUNS,
    JsonFlag,
    RunsFolder,
    parse_settings,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from slb_autotune.config.study import StudyConfig
    from slb_autotune.search.driver import Outcome
    from slb_autotune.search.ledger import Ledger

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field of the fixed trial, or resources.gpus and the like.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="FIELD=VALUES",
        help="Of a list of points those with these values: method=slb,lsq. May be repeated.",
    ),
]
Trials = Annotated[int | None, typer.Option(help="Trials, in all.")]
Seconds = Annotated[float | None, typer.Option(help="Wall-clock seconds, in all.")]


def add_commands(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command(short_help="Run a study: Ray trains the trials, Optuna chooses them.")(search)
    app.command(short_help="Go on with a study that was stopped or killed.")(resume)
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
    runs: Annotated[Path | None, typer.Option("--runs", help="The run folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and stop.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: Ray trains the trials, Optuna chooses them.

    Ctrl-C stops it cleanly; `slb-autotune resume NAME` goes on, also after a crash.

    Examples:

      slb-autotune search search_spaces/digits_demo.yaml

      slb-autotune search search_spaces/digits_mixed_bits.yaml --trials 20 --set epochs=5
    """
    from slb_autotune.config.study import StudyConfig

    config = StudyConfig.from_file(study)
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if settings:
        changes |= _changed(config, settings)
    if runs is not None:
        storage = changes.get("storage", config.storage.model_dump())
        changes["storage"] = {**storage, "folder": str(runs)}
    if only:
        changes["points"] = _chosen(config, only)
    config = _with_budget(config, trials, seconds, changes)
    if dry_run:
        from slb_autotune.search.plan import plan

        typer.echo("measuring a few steps of training ...", err=True)
        found = plan(config)
        if as_json:
            print_json({**vars(found), "seconds": found.seconds})
        else:
            typer.echo("\n".join(found.lines()))
        return
    _run(config, resumed=False, as_json=as_json)


def _changed(study: StudyConfig, settings: list[str]) -> dict[str, Any]:
    """What `--set` changes: the fixed trial, or a part of the study such as `resources`."""
    changes: dict[str, Any] = {"trial": dict(study.trial)}
    for name, value in parse_settings(settings).items():
        section, dot, field = name.partition(".")
        if dot and section in ("resources", "storage", "budget", "early_stopping", "sampler"):
            old = changes.get(section, getattr(study, section).model_dump())
            changes[section] = {**old, field: value}
        else:
            changes["trial"][name] = value
    return changes


def _chosen(study: StudyConfig, only: list[str]) -> list[dict[str, Any]]:
    """The points of a study that have, in each named field, one of the named values."""
    from slb_autotune.config.section import SHORT_NAMES
    from slb_autotune.errors import InputError, nearest

    if not study.points:
        raise InputError("--only chooses among points, and this study has none", "leave it out.")
    base = study.base()
    points = [(dict(point), base.updated(point).flat()) for point in study.points]
    for word in only:
        field, equals, values = word.partition("=")
        name = SHORT_NAMES.get(field, field)
        if not equals or name not in points[0][1]:
            known = [*points[0][1], *SHORT_NAMES]
            raise InputError(f"--only takes FIELD=VALUES; got {word!r}", nearest(field, known))
        left = [pair for pair in points if str(pair[1].get(name)) in values.split(",")]
        if not left:
            found = ", ".join(dict.fromkeys(str(flat.get(name)) for _, flat in points))
            raise InputError(f"--only {word}: no point is left", f"{field} can be {found}.")
        points = left
    return [point for point, _ in points]


def resume(
    name: Annotated[str, typer.Argument(help="A study's name.")],
    trials: Trials = None,
    seconds: Seconds = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a study that was stopped or killed, or that shall have more trials or time.

    Example: slb-autotune resume digits_demo --trials 60
    """
    from slb_autotune.search.storage import StudyFolder

    config = StudyFolder(runs, name).config()
    _run(_with_budget(config, trials, seconds, {}), resumed=True, as_json=as_json)


def confirm(
    source: Annotated[
        str, typer.Argument(help="A study's name, or a study file with a list of points.")
    ],
    seeds: Annotated[int, typer.Option(help="Trainings of each configuration.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Epochs; none: the study's own.")] = None,
    settings: Settings = None,
    only: Only = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Train the front again with several seeds on all training data, and test it.

    A study file with a list of points, as those of the paper's tables, needs no search: all its
    points are trained and tested.

    Examples:

      slb-autotune confirm digits_demo --seeds 3

      slb-autotune confirm search_spaces/paper_table1_resnet20.yaml --set data.root=./data
    """
    from slb_autotune.cli.live_view import LiveView
    from slb_autotune.config.study import StudyConfig
    from slb_autotune.errors import InputError
    from slb_autotune.search.confirm import (
        confirm_points,
        confirm_study,
        confirmed_table,
        score_table,
    )
    from slb_autotune.search.driver import run_study
    from slb_autotune.search.storage import StudyFolder, read_ledger

    ledger = None
    if source.endswith((".yaml", ".yml")):
        study = StudyConfig.from_file(Path(source))
        changes = _changed(study, settings or [])
        storage = changes.get("storage", study.storage.model_dump())
        changes["storage"] = {**storage, "folder": str(runs)}
        if only:
            changes["points"] = _chosen(study, only)
        study = StudyConfig.from_mapping({**study.to_mapping(), **changes})
        config = confirm_points(study, seeds, epochs)
    else:
        if settings or only:
            raise InputError(
                "--set and --only are for a study file; a searched study keeps its settings",
                "use --epochs, or confirm a file with a list of points.",
            )
        files = StudyFolder(runs, source)
        ledger = read_ledger(files.config(), files)
        config = confirm_study(ledger, seeds, epochs)
    exists = StudyFolder(runs, config.name).config_path.exists()
    outcome = run_study(config, LiveView(), resume=exists, report=_write_report)
    table = (
        score_table(outcome.ledger) if ledger is None else confirmed_table(ledger, outcome.ledger)
    )
    print_table(table, as_json)
    page = outcome.folder / "report" / "index.html"
    if page.exists():
        typer.echo(f"report     {page}", err=True)
    if outcome.interrupted:
        typer.echo(f"stopped; go on with: slb-autotune resume {config.name}", err=True)
        raise typer.Exit(130)


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
    from slb_autotune.cli.live_view import scores
    from slb_autotune.config.study import parse_amount
    from slb_autotune.search.storage import StudyFolder, read_ledger

    files = StudyFolder(runs, name)
    ledger = read_ledger(files.config(), files)
    record = choose(ledger, None if size is None else parse_amount(size), accuracy)
    if as_json:
        print_json(
            {
                "trial": record.number,
                "metrics": record.metrics,
                "config": record.config.to_mapping(),
            }
        )
        return
    typer.echo(f"# trial {record.number} of {name}: {scores(ledger, record)}")
    typer.echo(record.config.to_yaml().rstrip())


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
    from slb_autotune.cli.output import load_config
    from slb_autotune.errors import ConfigError
    from slb_autotune.report.figures import draw_sensitivity, save
    from slb_autotune.search.allocations import best_allocations
    from slb_autotune.search.sensitivity import measure_sensitivity

    config = load_config(source).updated(parse_settings(settings or []))
    try:
        choices = [int(word) for word in bits.split(",")]
    except ValueError:
        raise ConfigError(f"--bits takes numbers; got {bits!r}", "write --bits 1,2,4") from None
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
    typer.echo(f"\nplot       {pictures[0]}")


def _with_budget(
    config: StudyConfig, trials: int | None, seconds: float | None, changes: dict[str, Any]
) -> StudyConfig:
    budget = config.budget.model_dump()
    budget |= {} if trials is None else {"trials": trials}
    budget |= {} if seconds is None else {"seconds": seconds}
    return type(config).from_mapping({**config.to_mapping(), "budget": budget, **changes})


def _run(config: StudyConfig, *, resumed: bool, as_json: bool) -> None:
    from slb_autotune.cli.live_view import LiveView
    from slb_autotune.search.driver import run_study

    view = LiveView()
    outcome = run_study(config, view, resume=resumed, report=_write_report)
    if view.unrecorded:
        waiting = f"{view.unrecorded} trials wait to be told to MLflow"
        typer.echo(f"{waiting}; `slb-autotune resume {config.name}` tries again.", err=True)
    if as_json:
        print_json(_summary(outcome))
    else:
        _show(outcome)
    if outcome.interrupted:
        typer.echo(f"stopped; go on with: slb-autotune resume {config.name}", err=True)
        raise typer.Exit(130)


def _write_report(ledger: Ledger) -> list[Path]:
    """The study's page and what else MLflow keeps of its report."""
    from slb_autotune.report.recorded import recorded_files
    from slb_autotune.report.study_report import write_study_report

    try:
        return recorded_files(ledger, write_study_report(ledger, ledger.folder / "report"))
    except Exception as error:  # all trials are safe; what a report lacks must not end the study
        words = " ".join(str(error).split()) or type(error).__name__
        again = f"`slb-autotune report {ledger.config.name}` tries again"
        typer.echo(f"the report could not be written: {words}; {again}.", err=True)
        return []


def _show(outcome: Outcome) -> None:
    from rich.console import Console

    from slb_autotune.analysis.lessons import lessons, occupancy
    from slb_autotune.cli.live_view import front_table
    from slb_autotune.search.driver import slots_of

    ledger = outcome.ledger
    typer.echo(_counts(ledger, outcome.seconds))
    busy = occupancy(ledger, slots_of(ledger.config))
    if busy is not None:
        typer.echo(f"training took {busy:.0%} of the slots' time, from first trial to last")
    typer.echo("\nthe front:")
    Console(width=120).print(front_table(ledger))
    typer.echo("")
    for line in lessons(ledger):
        typer.echo(line)
    page = outcome.folder / "report" / "index.html"
    report = str(page) if page.exists() else f"slb-autotune report {ledger.config.name}"
    typer.echo(f"\nreport     {report}")
    typer.echo(f"study      {outcome.folder}")
    typer.echo(f"confirm    slb-autotune confirm {ledger.config.name}")


def _counts(ledger: Ledger, seconds: float) -> str:
    names = ("done", "reused", "stopped", "failed", "running")
    counts = ", ".join(
        f"{len(ledger.with_status(name))} {name}" for name in names if ledger.with_status(name)
    )
    return (
        f"{ledger.config.name}: {counts or 'no trials'}, {ledger.infeasible} infeasible draws, "
        f"{ledger.epochs_spent()} epochs in {seconds:.0f} s"
    )


def _summary(outcome: Outcome) -> dict[str, Any]:
    from slb_autotune.analysis.lessons import lessons

    ledger = outcome.ledger
    return {
        "study": ledger.config.name,
        "folder": str(outcome.folder),
        "interrupted": outcome.interrupted,
        "hypervolume": ledger.hypervolume(),
        "epochs": ledger.epochs_spent(),
        "infeasible": ledger.infeasible,
        "front": [
            {"trial": r.number, "metrics": r.metrics, "config": r.config.to_mapping()}
            for r in ledger.front()
        ],
        "trials": {r.number: r.status for r in ledger.records.values()},
        "lessons": lessons(ledger),
    }
