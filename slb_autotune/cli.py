"""slb-autotune: the command line. Heavy imports wait inside the commands that need them."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slb_autotune.errors import ConfigError, InputError, SlbError, nearest
from slb_autotune.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

    from slb_autotune.config import TrialConfig

app = typer.Typer(
    name="slb-autotune",
    help="Train and search networks of low-bit weights (SLB). Start with: slb-autotune train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench_app = typer.Typer(
    help="Measure speed: both sides interleaved in one run, best of many.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench_app, name="bench")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsFolder = Annotated[
    Path, typer.Option("--runs", help="The folder that holds everything of this machine.")
]
Threads = Annotated[int, typer.Option("--threads", help="CPU threads of the wall-time side.")]
CORES = os.cpu_count() or 1
DEFAULT_RUNS = Path("slb-runs")


def main() -> None:
    """Run the command line; what we can explain ends in one sentence and a hint."""
    try:
        app()
    except SlbError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain("stopped", "")
        sys.exit(130)
    except OSError as error:
        _complain(str(error), "check the path, the disk's space and its permissions.")
        sys.exit(1)


def _complain(message: str, hint: str) -> None:
    typer.echo(f"error: {message}", err=True)
    if hint:
        typer.echo(f"hint: {hint}", err=True)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"slb-autotune {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    source: Annotated[
        str, typer.Argument(help="A recipe's name (slb-autotune list recipes) or a YAML file.")
    ] = "digits",
    network: Annotated[str | None, typer.Option(help="Network, or torchvision:NAME.")] = None,
    width: Annotated[int | None, typer.Option(help="Channels of the first stage.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set.")] = None,
    root: Annotated[str | None, typer.Option(help="Where the data is.")] = None,
    method: Annotated[str | None, typer.Option(help="slb, or float for the baseline.")] = None,
    weight_bits: Annotated[
        str | None, typer.Option(help="A number, or a map: '{layer1.*: 2, \"*\": 1}'.")
    ] = None,
    activation_bits: Annotated[str | None, typer.Option(help="The same for activations.")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, sin, exp or cosine.")] = None,
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

    A run that was stopped goes on when the same command is given again.

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
        "weight_bits": _value("--weight-bits", weight_bits),
        "activation_bits": _value("--activation-bits", activation_bits),
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
    config = _load_config(source).updated(
        {name: value for name, value in options.items() if value is not None}
        | _settings(settings or [])
    )
    _train(config, folder or runs / "trials" / run_name(config), fresh, as_json)


def _train(config: TrialConfig, folder: Path, fresh: bool, as_json: bool) -> None:
    from slb_autotune import training
    from slb_autotune.cost import estimate
    from slb_autotune.data import info
    from slb_autotune.progress import TrainingView, summary_lines
    from slb_autotune.run_folder import RunFolder

    files = RunFolder(folder)
    earlier = None if fresh else files.result()
    view = TrainingView(config)
    if earlier is not None and earlier["status"] == "done":
        files.open(config)
        typer.echo(f"{folder} is trained already; --fresh trains it again.", err=True)
        metrics = earlier["metrics"]
    else:
        try:
            with view:
                result = training.train(
                    config, view.report, folder=folder, fresh=fresh, progress=view.progress
                )
        except KeyboardInterrupt:
            _complain(
                f"stopped in epoch {view.epoch}; whole epochs are kept in {folder}",
                "give the same command again to go on.",
            )
            raise typer.Exit(130) from None
        metrics = result.metrics
    if as_json:
        _print_json({"folder": str(folder), "metrics": metrics, "config": config.to_mapping()})
    else:
        float_cost = estimate(config.updated({"method": "float"}), info(config.data))
        typer.echo("\n".join(summary_lines(config, metrics, float_cost.size_bytes)))
        typer.echo(f"\nrun        {folder}\ntest set   slb-autotune evaluate {folder}")


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="A run's folder, or its name in the runs folder.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    layers: Annotated[
        bool, typer.Option("--layers", help="Show bits, bytes and hardening of every layer.")
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Measure a finished run on the test set, which training and search never see.

    Examples:

      slb-autotune evaluate slb-runs/trials/NAME

      slb-autotune evaluate NAME --layers
    """
    folder = _find_run(run, runs)
    from slb_autotune import training

    if layers:
        _print_table(training.describe_layers(folder), as_json)
        return
    metrics = training.evaluate(folder, device=device)
    if as_json:
        _print_json({"folder": str(folder), "metrics": metrics})
        return
    width = max(map(len, metrics))
    for name, value in metrics.items():
        typer.echo(f"{name:{width}}  {value:,.3f}".rstrip("0").rstrip("."))


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(help="A trial's YAML file.")], as_json: JsonFlag = False
) -> None:
    """Check a file without running it; exit code 2 where a rule is broken.

    Example: slb-autotune validate my.yaml
    """
    from slb_autotune.config import TrialConfig

    config = TrialConfig.from_file(file)
    if as_json:
        _print_json({"valid": True, "config": config.to_mapping()})
    else:
        typer.echo(f"{file} is valid: {run_name(config)}, {config.epochs} epochs")


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="networks, data, methods, activations, schedules, recipes, fields or runs."
        ),
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Show what can be chosen by name, one line each; without KIND all but fields and runs.

    Examples: slb-autotune list recipes, slb-autotune list fields, slb-autotune list runs
    """
    from slb_autotune.catalogue import catalogue, run_rows

    tables = catalogue()
    known = [*tables, "runs"]
    if kind is not None and kind not in known:
        raise InputError(f"there is no list of {kind!r}", nearest(kind, known))
    if kind == "runs":
        tables = {"runs": run_rows(runs)}
    elif kind is not None:
        tables = {kind: tables[kind]}
    else:
        tables.pop("fields")
    if as_json:
        _print_json(tables if kind is None else tables[kind])
        return
    for title, rows in tables.items():
        typer.echo(title)
        indent = max((len(name) for name in rows), default=0)
        for name, summary in rows.items():
            typer.echo(f"  {name:{indent}}  {summary}")
        if not rows:
            typer.echo("  none yet")


@bench_app.command()
def step(
    network: Annotated[
        list[str] | None, typer.Option(help="resnet20 and vgg_small by default.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Time for each network, once on one thread and once on all.")
    ] = 120.0,
    threads: Threads = CORES,
    batch_size: Annotated[int, typer.Option(help="Images in a step.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """SLB step / float step, our float step / a plain one, and peak memory.

    Example: slb-autotune bench step --network resnet20 --seconds 60
    """
    from slb_autotune import bench

    networks = network or ["resnet20", "vgg_small"]
    _print_table(bench.step(networks, seconds, threads, batch_size), as_json)


@bench_app.command()
def epoch(
    images: Annotated[int, typer.Option(help="Images of the epoch.")] = 2000,
    rounds: Annotated[int, typer.Option(help="Epochs of each side; the best counts.")] = 3,
    root: Annotated[
        str | None, typer.Option(help="The real CIFAR-10; random pixels without it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """A training epoch with augmentation / the sum of its bare steps.

    Example: slb-autotune bench epoch --root ./data --images 5000
    """
    from slb_autotune import bench

    _print_table(bench.epoch(images, rounds, root), as_json)


def run_name(config: TrialConfig) -> str:
    """A run's name: what it trains, on what, its bits, and a digest of everything."""

    def bits(value: int | dict[str, int]) -> str:
        return "mix" if isinstance(value, dict) else str(value)

    network = config.network.name.replace(":", "-").replace("/", "-")
    widths = f"w{bits(config.weight_bits)}a{bits(config.activation_bits)}"
    return f"{network}-{config.data.name}-{widths}-{config.digest}"


def _load_config(source: str) -> TrialConfig:
    from slb_autotune.config import TrialConfig
    from slb_autotune.recipes import RECIPES, recipe

    if source in RECIPES:
        return recipe(source)
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return TrialConfig.from_file(path)
    raise ConfigError(f"{source!r} is neither a recipe nor a YAML file", nearest(source, RECIPES))


def _settings(pairs: list[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--set takes FIELD=VALUE; got {pair!r}", "for example --set lr=0.05"
            )
        values[name.strip()] = _value(f"--set {name}", text)
    return values


def _value(source: str, text: str | None) -> Any:
    if text is None:
        return None
    from slb_autotune.config import parse_yaml

    return parse_yaml(f"value: {text}", source)["value"]


def _find_run(run: str, runs: Path) -> Path:
    named = runs / "trials" / run
    folder = Path(run) if Path(run).exists() or not named.exists() else named
    if not folder.is_dir():
        names = [path.name for path in (runs / "trials").glob("*")]
        raise InputError(f"there is no run {run!r}", nearest(run, names))
    return folder


def _print_table(table: pd.DataFrame, as_json: bool) -> None:
    if as_json:
        _print_json(json.loads(table.to_json(orient="records")))
    else:
        typer.echo(table.to_string(index=False, na_rep="", float_format="{:.3f}".format))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(_without_nan(value), indent=2))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
