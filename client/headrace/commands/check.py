"""`headrace check`: what would become of a model if it were served, and what is wrong with it, without serving.

The worker's own code decides, in a process of its own: it loads and probes the models as a worker would, and a model
that brings the runtime down doesn't take the command line with it.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.console import REFUSED, AsJson, CommandProblem, print_json, working
from headrace.metadata import format_shape


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="check")(check)


def check(
    path: Annotated[Path, typer.Argument(help="A repository folder, a model's folder or an .onnx file.")],
    *,
    device: Annotated[str, typer.Option(help="Where they would run: auto, cpu, cuda, cuda:N.")] = "auto",
    allowed_roots: Annotated[
        list[Path] | None,
        typer.Option("--allowed-root", help="A folder outside that links may lead to. Repeat for more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain every decision that a worker would make about these models, and every problem. Exit code 1 if one fails."""
    if not path.exists():
        raise CommandProblem(f"there is no {path}")
    for package in ("headrace_worker", "onnxruntime"):
        if find_spec(package) is None:
            raise CommandProblem("checking models needs the worker: pip install 'headrace[worker]'")
    with working(f"checking {path}"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "headrace_worker.check", "--device", device),
                *(f"--allowed-root={root.expanduser().absolute()}" for root in allowed_roots or []),
                *("--", str(path)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with status {done.returncode}"]
        raise CommandProblem(f"the check itself failed: {last[0]}", exit_code=REFUSED) from error
    if as_json:
        print_json(report)
    else:
        for line in _lines(report):
            typer.echo(line)
    if done.returncode != 0:
        raise typer.Exit(REFUSED)


def _lines(report: dict[str, Any]) -> list[str]:
    text: list[str] = []
    for model in report.get("models", []):
        failed = {one["version"] for one in model.get("versions", []) if one.get("problem")}
        served = [version for version in model.get("serves", []) if version not in failed]
        verdict = model.get("problem") or (f"serves version {', '.join(served)}" if served else "serves nothing")
        text.append(f"{model['name']}: {verdict}")
        for version in model.get("versions", []):
            text += _version_lines(version)
        for name, why in (model.get("ignored") or {}).items():
            text.append(f"  ignored {name}: {why}")
    if report.get("problem"):
        text.append(str(report["problem"]))
    return text or ["no models here"]


def _version_lines(version: dict[str, Any]) -> list[str]:
    if version.get("problem"):
        return [f"  version {version['version']} fails: {version['problem']}"]
    batching = f"batches up to {version['max_batch_rows']} rows" if version.get("batching") else "does not batch"
    text = [
        f"  version {version['version']}: {batching}, {_counted(version.get('instances', 0), 'instance')} on {version.get('provider')}"
    ]
    for kind in ("inputs", "outputs"):
        text += [
            f"    {kind[:-1]} {one['name']} {one['datatype']} {format_shape(one['shape'])}"
            + (f", batch axis {one['batch_axis']}" if one.get("batch_axis") is not None else "")
            for one in version.get(kind, [])
        ]
    text += [
        f"    {_counted(rows, 'row')}: {microseconds / 1000:.3g} ms"
        for rows, microseconds in version.get("costs_us", [])
    ]
    text += [f"    {note}" for note in version.get("notes", [])]
    return text


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
