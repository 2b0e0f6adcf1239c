"""The command line `headrace`: the local stack, a server's models, inference, checks and load tests.

Exit codes are those of `headrace.console`. Every command takes `--json`.
"""

import sys
from importlib import metadata
from typing import Annotated

import typer

from headrace.commands import bench, check, down, infer, load, models, status, up
from headrace.console import Commands
from headrace_core.logging import stand_in_for_closed_streams

# What follows asks standard output whether it is a terminal, and a script may have closed it.
stand_in_for_closed_streams()

app = typer.Typer(
    cls=Commands,
    help="Serve ONNX models, and call what serves them. Exit codes: 0 done, 1 refused, 2 wrong use, 3 nobody answers, "
    "4 not in time, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes and colours are for eyes.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 — typer's callback
    if wanted:
        typer.echo(f"headrace {metadata.version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


for command in (up, status, down, models, infer, check, load, bench):
    command.register(app)


def main() -> None:
    """Run the command that the arguments name."""
    app(prog_name="headrace")
