"""How the command line talks: rich on a terminal, plain text in a pipe, JSON where asked; exit codes; one-line errors.

Exit codes of every command:

    0    done
    1    the server (or the model, or a check) said no
    2    the command line is wrong: an option, a file, a value
    3    nobody answers at the address, or the connection broke
    4    not in time, or running and not ready
    130  interrupted
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Never

import typer
from typer.core import TyperGroup

from headrace.channel import DEFAULT_URL, URL_VARIABLE, target
from headrace.errors import ConnectionLost, DeadlineExceeded, ServingError, Unreachable

REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_IN_TIME: Final = 4
INTERRUPTED: Final = 130


def _checked_url(url: str) -> str:
    try:
        return target(url)
    except ValueError as error:
        raise CommandProblem(str(error)) from error


Url = Annotated[
    str,
    typer.Option(
        "--url", envvar=URL_VARIABLE, callback=_checked_url, help="The server, host:port.", show_default=DEFAULT_URL
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]
Seconds = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for the server.")]
Version = Annotated[str, typer.Option("--version", help="The model's version. Default: the server's choice.")]


class CommandProblem(Exception):
    """The command can't do what was asked. `str()` is one sentence for people."""

    def __init__(self, sentence: str, *, exit_code: int = USAGE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Commands(TyperGroup):
    """The command line as a whole: the one place where an error becomes a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except CommandProblem as problem:
            _fail(ctx, str(problem), problem.exit_code)
        except ServingError as error:
            reason = f" [{error.reason}]" if error.reason else ""
            _fail(ctx, f"{error.message}{reason}", _exit_code(error))
        except KeyboardInterrupt:
            typer.echo("", err=True)
            raise typer.Exit(INTERRUPTED) from None


def _fail(ctx: typer.Context, sentence: str, exit_code: int) -> Never:
    command = f"headrace {ctx.invoked_subcommand}" if ctx.invoked_subcommand else "headrace"
    # One line, whatever a server puts into its message.
    typer.echo(f"{command}: {' '.join(sentence.split())}", err=True)
    raise typer.Exit(exit_code)


def _exit_code(error: ServingError) -> int:
    match error:
        case Unreachable() | ConnectionLost():
            return UNREACHABLE
        case DeadlineExceeded():
            return NOT_IN_TIME
        case _:
            return REFUSED


def print_json(value: object) -> None:
    """A value as JSON: indented for eyes, on one line for pipes."""
    typer.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, allow_nan=False, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal, tab-separated under one line of headers in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 — only terminals need it
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=None, header_style="bold", pad_edge=False)
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(markup=False, highlight=False).print(table)
        return
    for row in (headers, *rows):
        typer.echo("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what takes its time; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 — only terminals need it

    with Console(stderr=True).status(what):
        yield
