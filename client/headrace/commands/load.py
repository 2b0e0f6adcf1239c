"""`headrace load` and `headrace unload`: which models a server holds."""

import json
from typing import Annotated, Any

import typer

from headrace.channel import DEFAULT_URL
from headrace.client import Client
from headrace.console import AsJson, CommandProblem, Seconds, Url, print_json, working


def register(app: typer.Typer) -> None:
    """Adds both commands to the command line."""
    app.command(name="load")(load)
    app.command(name="unload")(unload)


def load(
    model: Annotated[str, typer.Argument(help="Its name in the server's repository.")],
    *,
    url: Url = DEFAULT_URL,
    config: Annotated[
        str | None, typer.Option("--config", help="Settings that override the model's own, as JSON in Triton's form.")
    ] = None,
    timeout: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Load a model, or load it anew. What served before serves until the new one is ready, also if that fails."""
    with Client(url) as client:
        with working(f"loading {model}"):
            client.load(model, config=_config(config), timeout=timeout)
        _report(client, model, "loaded", as_json=as_json)


def unload(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    *,
    url: Url = DEFAULT_URL,
    timeout: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Unload a model once its work in flight is finished."""
    with Client(url) as client:
        with working(f"unloading {model}"):
            client.unload(model, timeout=timeout)
        _report(client, model, "unloaded", as_json=as_json)


def _report(client: Client, model: str, done: str, *, as_json: bool) -> None:
    versions = [one for one in client.models() if one.name == model]
    if as_json:
        states = [{"version": one.version, "state": one.state, "reason": one.reason} for one in versions]
        print_json({"model": model, "done": done, "versions": states})
        return
    for one in versions:
        typer.echo(f"{model} {one.version} {one.state} {one.reason}".rstrip())
    if not versions:
        typer.echo(f"{model} {done}")


def _config(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandProblem(f"--config is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CommandProblem("--config must be a JSON object")
    return config
