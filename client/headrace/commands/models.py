"""`headrace models`: what a server has, in what state, and what each model takes and gives."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.channel import DEFAULT_URL
from headrace.client import Client
from headrace.console import AsJson, Seconds, Url, print_json, print_table
from headrace.metadata import ModelMetadata, ModelStatus


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="models")(models)


def models(
    *,
    url: Url = DEFAULT_URL,
    ready: Annotated[bool, typer.Option("--ready", help="Only models that take requests.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Inputs, outputs and cards too.")] = False,
    timeout: Seconds = 10.0,
    as_json: AsJson = False,
) -> None:
    """List a server's models: name, version, state and, where one isn't ready, why."""
    with Client(url, timeout=timeout) as client:
        listed = client.models(ready=ready)
        described = {
            (one.name, one.version): client.metadata(one.name, version=one.version)
            for one in listed
            if verbose and one.ready
        }
    if as_json:
        print_json([_as_dict(one, described.get((one.name, one.version))) for one in listed])
        return
    headers = ["MODEL", "VERSION", "STATE", "REASON"] + (["INPUTS", "OUTPUTS", "WHAT FOR"] if verbose else [])
    print_table(headers, [_row(one, described.get((one.name, one.version)), verbose=verbose) for one in listed])


def _row(status: ModelStatus, metadata: ModelMetadata | None, *, verbose: bool) -> list[str]:
    row = [status.name, status.version or "-", status.state, status.reason]
    if metadata is not None:
        row.append(", ".join(map(str, metadata.inputs)))
        row.append(", ".join(map(str, metadata.outputs)))
        row.append(metadata.card.summary if metadata.card else "")
    elif verbose:
        row += ["", "", ""]
    return row


def _as_dict(status: ModelStatus, metadata: ModelMetadata | None) -> dict[str, Any]:
    values: dict[str, Any] = asdict(status)
    if metadata is not None:
        values["platform"] = metadata.platform
        values["inputs"] = [asdict(one) for one in metadata.inputs]
        values["outputs"] = [asdict(one) for one in metadata.outputs]
        values["card"] = metadata.card.model_dump(mode="json", exclude_defaults=True) if metadata.card else None
    return values
