"""The commands of slb-autotune for single networks: train, evaluate and validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slb_autotune.cli.options import (
    DEFAULT_RUNS,
    STUDY_KEYS,
    JsonFlag,
    RunsFolder,
    find_run,
    load_config,
    parse_settings,
    parse_value,
)
from slb_autotune.cli.output import (
    labelled,
    print_error,
    print_json,
    print_note,
    print_table,
    table_rows,
)
from slb_autotune.errors import InputError

if TYPE_CHECKING:
    from slb_autotune.config.trial import TrialConfig


def add_commands(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command(short_help="Train one network.")(train)
    app.command(short_help="Measure a trained network on the test set.")(evaluate)
    app.command(short_help="Check a trial's or a study's file without running it.")(validate)


def train(
    source: Annotated[
        str,
        typer.Argument(help="A recipe (slb-autotune list recipes), a YAML file, or STUDY:TRIAL."),
    ] = "digits",
    network: Annotated[str | None, typer.Option(help="Network, or torchvision:NAME.")] = None,
    width: Annotated[int | None, typer.Option(help="Channels of the first stage.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set.")] = None,
    root: Annotated[str | None, typer.Option(help="Where the data is.")] = None,
    method: Annotated[str | None, typer.Option(help="slb, float or a rival.")] = None,
    weight_bits: Annotated[
        str | None,
        typer.Option(
            help="A number, or a map: '{layer1.*: 2, \"*\": 1}'; what it leaves out is float."
        ),
    ] = None,
    activation_bits: Annotated[str | None, typer.Option(help="The same for activations.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="How T rises: see `list schedules`.")
    ] = None,
    t_s: Annotated[float | None, typer.Option("--T-s", help="T at the start.")] = None,
    t_e: Annotated[float | None, typer.Option("--T-e", help="T at the end.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and crops.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field, as norm.mode=paper."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="The run's folder; by default one named by its settings.")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again where a run exists.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train one network, and show its accuracy, its size and how far its weights hardened.

    A run that was stopped continues when the same command is given again.

    Examples:

      slb-autotune train digits --weight-bits 2

      slb-autotune train cifar10_resnet20_short --root ./data --T-e 10

      slb-autotune train my.yaml --set optimizer.lr=0.05 --set norm.mode=paper
    """
    options = {
        "network.name": network,
        "network.width": width,
        "data.name": data,
        "data.root": root,
        "method": method,
        "weight_bits": parse_value("--weight-bits", weight_bits),
        "activation_bits": parse_value("--activation-bits", activation_bits),
        "temperature.schedule": schedule,
        "temperature.T_s": t_s,
        "temperature.T_e": t_e,
        "optimizer.lr": lr,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "threads": threads,
        "device": device,
    }
    config = load_config(source, runs).updated(
        {name: value for name, value in options.items() if value is not None}
        | parse_settings(settings or [])
    )
    train_run(config, folder or runs / "trials" / run_name(config), fresh, as_json)


def train_run(config: TrialConfig, folder: Path, fresh: bool, as_json: bool) -> None:
    """Train a configuration in a folder, or show the run that is there already."""
    from slb_autotune.cli.training_view import LABEL_WIDTH, TrainingView, summary_lines
    from slb_autotune.cost import estimate
    from slb_autotune.data import info
    from slb_autotune.training import loop
    from slb_autotune.training.device import keep_freed_memory
    from slb_autotune.training.run_folder import RunFolder

    keep_freed_memory()
    files = RunFolder(folder)
    earlier = None if fresh else files.result()
    view = TrainingView(config)
    if earlier is not None and earlier["status"] == "done":
        files.open(config)
        print_note(f"{folder} is trained already; --fresh trains it again.")
        metrics = earlier["metrics"]
    else:
        try:
            with view:
                result = loop.train(
                    config, view.report, folder=folder, fresh=fresh, progress=view.progress
                )
        except KeyboardInterrupt:
            begun = files.checkpoint_path.exists()
            kept = f"whole epochs are kept in {folder}" if begun else "nothing was kept yet"
            print_error(
                f"stopped in epoch {view.epoch}; {kept}",
                "give the same command again to continue.",
            )
            raise typer.Exit(130) from None
        metrics = result.metrics
    if as_json:
        print_json({"folder": str(folder), "metrics": metrics, "config": config.to_mapping()})
    else:
        float_cost = estimate(config.updated({"method": "float"}), info(config.data))
        typer.echo("\n".join(summary_lines(config, metrics, float_cost.size_bytes)))
        typer.echo("")
        typer.echo(labelled("run", folder, LABEL_WIDTH))
        typer.echo(labelled("test set", f"slb-autotune evaluate {folder}", LABEL_WIDTH))


def evaluate(
    run: Annotated[str, typer.Argument(help="A run's folder, or its name in the runs folder.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    layers: Annotated[
        bool, typer.Option("--layers", help="Also bits, bytes and hardening of every layer.")
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Measure a finished run on the test set, which training and search never see.

    Examples:

      slb-autotune evaluate slb-runs/trials/NAME

      slb-autotune evaluate NAME --layers
    """
    folder = find_run(run, runs)
    from slb_autotune.training import evaluation

    metrics = evaluation.evaluate(folder, device=device)
    table = evaluation.describe_layers(folder) if layers else None
    if as_json:
        rows = {} if table is None else {"layers": table_rows(table)}
        print_json({"folder": str(folder), "metrics": metrics, **rows})
        return
    if table is not None:
        print_table(table, as_json)
        typer.echo()
    width = max(map(len, metrics))
    for name, value in metrics.items():
        typer.echo(f"{name:{width}}  {value:,.3f}".rstrip("0").rstrip("."))


def validate(
    file: Annotated[Path, typer.Argument(help="A trial's or a study's YAML file.")],
    as_json: JsonFlag = False,
) -> None:
    """Check a file without running it; exit code 2 where a rule is broken.

    Example: slb-autotune validate search_spaces/digits_demo.yaml
    """
    from slb_autotune.config.files import parse_yaml, read_text
    from slb_autotune.config.trial import TrialConfig

    values = parse_yaml(read_text(file), str(file))
    if not values:
        raise InputError(f"{file} is empty", "write at least one `field: value`.")
    if STUDY_KEYS & values.keys():
        _validate_study(file, as_json)
        return
    config = TrialConfig.from_mapping(values, str(file))
    _validate_network(config)
    if as_json:
        print_json({"valid": True, "config": config.to_mapping()})
    else:
        typer.echo(f"{file} is valid: {run_name(config)}, {config.epochs} epochs")


def _validate_study(file: Path, as_json: bool) -> None:
    from slb_autotune.config.study import StudyConfig
    from slb_autotune.search.feasibility import check_study

    study = StudyConfig.from_file(file)
    check_study(study)
    _validate_network(study.base())
    if as_json:
        print_json({"valid": True, "study": study.to_mapping()})
    else:
        goals = ", ".join(f"{way} {metric}" for metric, way in study.goals().items())
        typer.echo(f"{file} is valid: study {study.name}, {goals}")


def _validate_network(config: TrialConfig) -> None:
    """Build the network as a trial would, without its numbers."""
    from slb_autotune import data
    from slb_autotune.cost import estimate

    estimate(config, data.info(config.data))


def run_name(config: TrialConfig) -> str:
    """A run's name: what it trains, on what, its bits, and a digest of everything."""

    def bits(value: int | dict[str, int]) -> str:
        return "mix" if isinstance(value, dict) else str(value)

    network = config.network.name.replace(":", "-").replace("/", "-")
    widths = f"w{bits(config.weight_bits)}a{bits(config.activation_bits)}"
    return f"{network}-{config.data.name}-{widths}-{config.digest}"
