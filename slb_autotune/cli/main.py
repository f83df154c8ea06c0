"""slb-autotune: the command line. Heavy imports wait inside the commands that need them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slb_autotune.cli import listing, reports, studies, train
from slb_autotune.cli.bench import bench_app
from slb_autotune.cli.output import print_error
from slb_autotune.errors import SlbError
from slb_autotune.version import VERSION

app = typer.Typer(
    name="slb-autotune",
    help="Train and search networks of low-bit weights (SLB). Start with: slb-autotune train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; what we can explain ends in one sentence and a hint."""
    # A user's own network is looked for where the command is given; a file there that is named
    # like a package must not hide it.
    sys.path.append(str(Path.cwd()))
    try:
        app()
    except SlbError as error:
        print_error(error.message, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_error("stopped", "")
        sys.exit(130)
    except OSError as error:
        print_error(str(error), "check the path, the disk's space and its permissions.")
        sys.exit(1)


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


train.add_commands(app)
listing.add_commands(app)
studies.add_commands(app)
reports.add_commands(app)
app.add_typer(bench_app, name="bench", short_help="Measure speed and search quality.")
