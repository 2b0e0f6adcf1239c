"""`headrace status`: what runs, where, and what it serves."""

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="status")(status)


def status(
    *,
    state: Annotated[Path | None, typer.Option("--state", help="The stack's state folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
) -> None:
    """Show a local stack: addresses, process ids, models and their states.

    Exit codes: 0 when it is ready, 3 when nothing runs, 4 when it runs and is not ready.
    """
    from headrace.stack.control import NOT_RUNNING, Status, locate, look  # noqa: PLC0415
    from headrace.stack.problem import StackProblem  # noqa: PLC0415
    from headrace.stack.state import StateDir  # noqa: PLC0415

    try:
        found: Status = look(locate(StateDir(state) if state else None))
    except StackProblem as problem:
        if as_json:
            typer.echo(json.dumps({"running": False, "problem": str(problem)}))
        else:
            typer.echo(str(problem), err=True)
        raise typer.Exit(problem.exit_code) from problem
    record = found.record
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    elif record is None:
        typer.echo(f"No stack is running in {found.state.path}.")
    else:
        typer.echo(f"{record.phase} at {record.address} (process {record.pid}, state in {found.state.path})")
        for service in record.services:
            pid = f"pid {service.pid}" if service.pid else "-"
            again = f", {service.restarts} restarts" if service.restarts else ""
            typer.echo(f"  {service.name:<12} {service.state:<11} {pid:<12} {service.address or ''}{again}")
        for model in found.models:
            reason = f": {model.reason}" if model.reason else ""
            typer.echo(f"  model {model.name} {model.version} {model.state}{reason}")
    if record is None:
        raise typer.Exit(NOT_RUNNING)
    if record.phase != "ready":
        raise typer.Exit(4)
