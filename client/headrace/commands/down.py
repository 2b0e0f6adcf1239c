"""`headrace down`: drains a local stack and waits until nothing of it is left."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="down")(down)


def down(
    *,
    state: Annotated[Path | None, typer.Option("--state", help="The stack's state folder.")] = None,
    kill: Annotated[bool, typer.Option("--kill", help="Cut what is in flight.")] = False,
    patience: Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="The outcome as one JSON object.")] = False,
) -> None:
    """Stop a local stack: Envoy, then gateways, workers and NATS, each after what was in flight.

    Exit codes: 0 when nothing is left (also when nothing ran), 1 when it still runs after the timeout, 2 when several
    stacks run and none was named.
    """
    from headrace.stack.control import NOT_RUNNING, locate, take_down  # noqa: PLC0415
    from headrace.stack.problem import StackProblem  # noqa: PLC0415
    from headrace.stack.state import StateDir  # noqa: PLC0415

    try:
        stopped = take_down(
            locate(StateDir(state) if state else None),
            patience=timedelta(seconds=patience),
            kill=kill,
            say=lambda text: None if as_json else typer.echo(text),
        )
    except StackProblem as problem:
        if problem.exit_code != NOT_RUNNING:
            typer.echo(f"headrace down: {problem}", err=True)
            raise typer.Exit(problem.exit_code) from problem
        stopped = False
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
    elif stopped:
        typer.echo("stopped")
    else:
        typer.echo("No stack is running.")
