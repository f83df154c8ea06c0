"""The commands of slb-autotune that show and hand over what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slb_autotune.cli.options import DEFAULT_RUNS, JsonFlag, RunsFolder, find_run
from slb_autotune.cli.output import labelled, print_json


def add_commands(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command(short_help="The page of a study, or the paper's tables.")(report)
    app.command(short_help="Pack a trained network into its low-bit file.")(export)
    app.command(short_help="Serve MLflow's pages, and a study's dashboard.")(ui)


def report(
    source: Annotated[
        str | None,
        typer.Argument(help="A study's name, or a run; without one, the paper's tables."),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Show the weights of this layer, not of the largest.")
    ] = None,
    picture: Annotated[
        int, typer.Option(min=1, help="Show super-resolution on this picture.")
    ] = 1,
    results: Annotated[
        Path, typer.Option(help="Where runs/, paper/, tables/ and figures/ are.")
    ] = Path("results"),
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Write the page of a study, or regenerate the paper's tables from all measurements.

    Of a single run (its folder, or STUDY:NUMBER) it draws a layer's weights over training.

    Examples:

      slb-autotune report digits_demo

      slb-autotune report digits_demo:3 --layer layer1.0.conv1

      slb-autotune report
    """
    if source is not None:
        kind, path = _report_of(source, layer, picture, runs)
        if as_json:
            print_json({kind: str(path)})
        else:
            typer.echo(labelled(kind, path))
        return
    from slb_autotune.report.results import regenerate
    from slb_autotune.report.table import to_markdown

    tables = regenerate(results)
    if as_json:
        print_json({table.name: [list(row) for row in table.rows] for table in tables})
        return
    typer.echo("\n".join(to_markdown(table) for table in tables))
    for kind in ("tables", "figures"):
        typer.echo(labelled(kind, results / kind))


def _report_of(source: str, layer: str | None, picture: int, runs: Path) -> tuple[str, Path]:
    """Write the page of a study or the figure of a run: which of them, and where it is."""
    folders = (Path(source), runs / "trials" / source)
    if ":" in source or any((folder / "config.yaml").exists() for folder in folders):
        from slb_autotune.report import figures, trained

        folder = find_run(source, runs)
        return "figure", figures.save(trained.weights(folder, layer)[1], folder / "weights")[0]
    from slb_autotune.api import Study

    return "page", Study.load(source, runs=runs).report(layer=layer, picture=picture)


def export(
    source: Annotated[
        str, typer.Argument(help="A run's folder, STUDY:NUMBER, or a study's name.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="The file of a run, the folder of a study.")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Pack a trained network into its low-bit file, or a study's measurements into tables.

    Examples:

      slb-autotune export digits_demo:7 --to tiny.safetensors

      slb-autotune export digits_demo --to results/runs
    """
    from slb_autotune.search.records import study_folder

    study = study_folder(runs, source)
    if (study / "study.yaml").exists():
        from slb_autotune.analysis.result import current_result, save_result

        paths = save_result(current_result(runs, source), to or study, prefix=f"{source}.")
    else:
        from slb_autotune.export.packed import pack_run

        folder = find_run(source, runs)
        paths = [pack_run(folder, to or folder / "network.safetensors")]
    if as_json:
        print_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            typer.echo(labelled("wrote", f"{path} ({path.stat().st_size:,} bytes)"))


def ui(
    runs: RunsFolder = DEFAULT_RUNS,
    uri: Annotated[
        str | None, typer.Option(help="MLflow's store; by default the run folder's.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="MLflow's port; by default a free one.")] = None,
    study: Annotated[
        str | None, typer.Option(help="Show this study in optuna-dashboard too.")
    ] = None,
) -> None:
    """Serve MLflow's own interface, and a study in optuna-dashboard, to this machine alone.

    Ctrl-C ends them.

    Examples:

      slb-autotune ui

      slb-autotune ui --study digits_demo
    """
    from slb_autotune.cli.servers import serve

    serve(runs, uri, port, study)
