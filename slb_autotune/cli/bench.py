"""The commands under `slb-autotune bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from slb_autotune.cli.options import JsonFlag
from slb_autotune.cli.output import print_table

bench_app = typer.Typer(
    help="Measure speed and search quality: both sides interleaved in one run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Threads = Annotated[int, typer.Option("--threads", help="CPU threads of the wall-time side.")]
CORES = os.cpu_count() or 1


@bench_app.command()
def step(
    network: Annotated[list[str] | None, typer.Option(help="resnet20 by default.")] = None,
    seconds: Annotated[
        float, typer.Option(help="Time for each network, once on one thread and once on all.")
    ] = 120.0,
    threads: Threads = CORES,
    batch_size: Annotated[int, typer.Option(help="Images in a step.")] = 100,
    method: Annotated[
        list[str] | None, typer.Option(help="Rivals to measure beside SLB; `all` for every one.")
    ] = None,
    side: Annotated[
        list[str] | None,
        typer.Option(help="A row to measure beside the float ones; fewer rows, more turns."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """SLB step / float step, our float step / a plain one, and peak memory.

    The row `float again` is the float network once more: how far it is from 1 is the noise.

    Examples:

      slb-autotune bench step --network resnet20 --seconds 60

      slb-autotune bench step --side "slb 2 bits" --side "slb 4 bits"

      slb-autotune bench step --method all --seconds 300
    """
    from slb_autotune.bench import steps
    from slb_autotune.config.methods import METHODS

    methods = list(METHODS) if method == ["all"] else [METHODS[name].name for name in method or []]
    table = steps.step(network or ["resnet20"], seconds, threads, batch_size, methods, side or ())
    print_table(table, as_json)


@bench_app.command()
def epoch(
    images: Annotated[int, typer.Option(help="Images of the epoch.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Epochs of each side; their median counts.")] = 9,
    root: Annotated[
        str | None, typer.Option(help="The real CIFAR-10; random pixels without it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """A training epoch with augmentation / the sum of its bare steps.

    Example: slb-autotune bench epoch --root ./data --images 5000
    """
    from slb_autotune.bench import steps

    print_table(steps.epoch(images, rounds, root), as_json)


@bench_app.command()
def harness(
    trials: Annotated[int, typer.Option(help="Trials of the study.")] = 200,
    concurrent: Annotated[int, typer.Option(help="Trials at once.")] = 2,
    as_json: JsonFlag = False,
) -> None:
    """Wall time of a trial that trains nothing: what the harness itself costs.

    A trial reports 10 epochs of 12 metrics; Optuna's journal is written as in a real study.

    Example: slb-autotune bench harness --trials 2000
    """
    from slb_autotune.bench.harness import idle_study

    print_table(idle_study(trials, concurrent), as_json)


@bench_app.command()
def search(
    seeds: Annotated[int, typer.Option(help="Replays of each search.")] = 30,
    truth: Annotated[Path, typer.Option(help="Where the table of the whole space is.")] = Path(
        "results/runs"
    ),
    study: Annotated[Path, typer.Option(help="The study file of that space.")] = Path(
        "search_spaces/digits_truth.yaml"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Epochs that searches spend to reach 95 % of the true front's hypervolume.

    Random, grid, NSGA-II, Ray's OptunaSearch and our default, replayed on a table in which every
    configuration of a small space was trained.

    Example: slb-autotune bench search --seeds 10
    """
    from slb_autotune.bench.replay import Truth, compare, default_study

    print_table(compare(Truth.read(truth), default_study(study), seeds), as_json)


@bench_app.command()
def rungs(
    truth: Annotated[Path, typer.Option(help="Where the table of the whole space is.")] = Path(
        "results/runs"
    ),
    as_json: JsonFlag = False,
) -> None:
    """How well a small budget predicts the end: a prefix of the schedule, or all of it compressed.

    Example: slb-autotune bench rungs --json
    """
    from slb_autotune.bench.replay import Truth, rung_correlations

    print_table(rung_correlations(Truth.read(truth)), as_json)
