"""`headrace bench`: how much a server takes, how fast it answers, and what its processes spend on it.

The load is made by the Rust extension (`headrace_batcher.load_test`), so that the generator isn't what is measured.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, cast

import typer

from headrace.channel import DEFAULT_URL
from headrace.client import Client
from headrace.commands.infer import Inputs, gather
from headrace.console import UNREACHABLE, AsJson, CommandProblem, Url, Version, print_json, working
from headrace.metadata import ModelMetadata
from headrace.payloads import random_inputs
from headrace.values import parse_duration

_PAYLOADS: Final = 16
"""Different requests that take turns; fewer where they are large."""

_PAYLOAD_BYTES: Final = 32 * 1024 * 1024


class _Extension(Protocol):
    def load_test(self, config: str) -> str: ...


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="bench")(bench)


def bench(
    model: Annotated[str, typer.Argument(help="The model's name, or an alias.")],
    *,
    url: Url = DEFAULT_URL,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests outstanding, over all connections.")] = 64,
    connections: Annotated[int, typer.Option(min=1, help="HTTP/2 connections.")] = 1,
    duration: Annotated[str, typer.Option(help="How long answers are counted: 5, 500ms, 2m.")] = "5s",
    warmup: Annotated[str, typer.Option(help="How long the server is warmed first; 0: not.")] = "500ms",
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Open loop: requests a second, whatever comes back. Default: closed."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Sent with each request as its deadline: 100ms. Default: none.")
    ] = None,
    arrival: Annotated[str, typer.Option(help="Open loop: poisson or constant gaps.")] = "poisson",
    threads: Annotated[int, typer.Option(min=1, help="Threads of the load generator.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each random request.")] = 1,
    dynamic: Annotated[int, typer.Option("--dim", min=1, help="Size of other dynamic dimensions.")] = 16,
    inputs: Inputs = None,
    version: Version = "",
    state: Annotated[
        Path | None, typer.Option("--state", help="The local stack's state folder, to find its processes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of random requests and arrivals.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Put a model under load and report requests a second, latency, errors and the server's CPU time per request.

    Without --rate the loop is closed: a new request starts when one ends. With it the loop is open, and latency counts
    from the moment when a request was due.
    """
    extension = _extension()
    if arrival not in ("poisson", "constant"):
        raise CommandProblem(f"--arrival {arrival!r}: poisson and constant are known")
    length = parse_duration(duration, option="--duration")
    with Client(url, timeout=30.0) as client:
        metadata = client.metadata(model, version=version)
        requests = _requests(metadata, inputs=inputs or [], rows=rows, dynamic=dynamic, seed=seed)
        # One answer before any load: what is wrong with the request is said here, by name.
        client.infer(model, requests[0], version=version)
        payloads = [client.encode(model, values, version=version).SerializeToString() for values in requests]
        target = client.url
    config: dict[str, Any] = {
        "url": target,
        "payloads": [{"base64": base64.b64encode(payload).decode()} for payload in payloads],
        "threads": threads,
        "connections": connections,
        "concurrency": concurrency,
        "arrival": arrival,
        "warmup_ms": 0,
        "duration_ms": _milliseconds(length),
        "seed": seed,
    }
    if rate is not None:
        config["rate"] = rate
    if deadline is not None:
        config["timeout_us"] = int(parse_duration(deadline, option="--deadline").total_seconds() * 1e6)
    warm = timedelta(0) if warmup.strip() == "0" else parse_duration(warmup, option="--warmup")
    with working(f"loading {model} at {target} for {length.total_seconds():g} s"):
        report, spent = _measure(extension, config, warmup=warm, url=target, state=state)
    values = _result(report, spent, model=model, url=target, config=config)
    if as_json:
        print_json(values)
        return
    for line in _lines(values):
        typer.echo(line)


def _extension() -> _Extension:
    if find_spec("headrace_batcher") is None:
        raise CommandProblem("bench needs the extension headrace-batcher: pip install 'headrace[worker]'")
    if find_spec("psutil") is None:
        raise CommandProblem("bench needs psutil: pip install 'headrace[cli]'")
    import headrace_batcher  # noqa: PLC0415 — an extra

    return cast("_Extension", headrace_batcher)


def _requests(
    metadata: ModelMetadata, *, inputs: Sequence[str], rows: int, dynamic: int, seed: int
) -> list[dict[str, Any]]:
    if inputs:
        given = gather(metadata, inputs=list(inputs), images=[], texts=[], files=[], tokenizer=None, models=None)
        missing = [
            spec for spec in metadata.inputs if spec.name not in given and spec.name not in metadata.optional_inputs
        ]
        if missing:
            fill = random_inputs(metadata, rows=rows, dynamic=dynamic, seed=seed)
            given |= {spec.name: fill[spec.name] for spec in missing}
        return [given]
    first = random_inputs(metadata, rows=rows, dynamic=dynamic, seed=seed)
    size = sum(getattr(value, "nbytes", 0) for value in first.values())
    count = max(1, min(_PAYLOADS, _PAYLOAD_BYTES // max(size, 1)))
    return [first] + [random_inputs(metadata, rows=rows, dynamic=dynamic, seed=seed + n) for n in range(1, count)]


def _measure(
    extension: _Extension, config: Mapping[str, Any], *, warmup: timedelta, url: str, state: Path | None
) -> tuple[dict[str, Any], dict[str, float]]:
    """The generator's report, and the seconds of CPU that each local server process spent on it.

    The warm-up is a run of its own, so that what the processes spend belongs to the requests that are counted.
    """
    from headrace.cpu import cpu_seconds, server_processes  # noqa: PLC0415 — psutil is an extra

    if warmup:
        _load_test(extension, {**config, "duration_ms": _milliseconds(warmup)})
    processes = server_processes(url, state=state)
    before = cpu_seconds(processes)
    report = _load_test(extension, config)
    after = cpu_seconds(processes)
    return report, {name: after[name] - before[name] for name in before if name in after}


def _load_test(extension: _Extension, config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(extension.load_test(json.dumps(config)))
    except ValueError as error:
        raise CommandProblem(str(error)) from error
    except ConnectionError as error:
        raise CommandProblem(f"nothing answers at {config['url']}: {error}", exit_code=UNREACHABLE) from error
    return report


def _result(
    report: Mapping[str, Any], spent: Mapping[str, float], *, model: str, url: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    # Those that ended too early or too late to be counted cost the server as much.
    requests = max(int(report.get("all_requests", report["requests"])), 1)
    per_request = {name: round(seconds / requests * 1e6, 2) for name, seconds in spent.items()}
    return {
        "model": model,
        "url": url,
        "loop": "open" if "rate" in config else "closed",
        "concurrency": config["concurrency"],
        "connections": config["connections"],
        "rate": config.get("rate"),
        "deadline_us": config.get("timeout_us"),
        **report,
        "server_cpu_us_per_request": per_request,
        "server_cpu_us_per_request_total": round(sum(per_request.values()), 2),
    }


def _lines(values: Mapping[str, Any]) -> list[str]:
    load = (
        f"{values['rate']:g} requests a second (open loop)"
        if values["loop"] == "open"
        else f"{values['concurrency']} outstanding"
    )
    text = [
        f"{values['model']} at {values['url']}: {load} on {values['connections']} connection(s), {values['seconds']:.1f} s",
        f"  answered   {values['ok']:,} of {values['requests']:,}: {values['rps']:,.0f} a second",
    ]
    if values["deadline_us"]:
        text.append(f"  in time    {values['goodput_rps']:,.0f} a second")
    latency = values["latency_us"]
    shown = ", ".join(f"{name} {_time(latency[name])}" for name in ("p50", "p90", "p99", "p99.9", "max"))
    text.append(f"  latency    {shown}")
    if values["loop"] == "open":
        text.append(f"  sent late  p99 {_time(values['lag_us']['p99'])}; dropped {values['dropped']:,}")
    for name, count in {**values["errors"]}.items():
        text.append(f"  {name:<10} {count:,}")
    for reason, message in values["messages"].items():
        text.append(f"  {reason}: {' '.join(str(message).split())[:200]}")
    if values["server_cpu_us_per_request"]:
        parts = ", ".join(f"{name} {cost:,.1f} µs" for name, cost in values["server_cpu_us_per_request"].items())
        text.append(f"  server CPU {values['server_cpu_us_per_request_total']:,.1f} µs a request ({parts})")
    text.append(
        f"  client CPU {values['client_cpu_us_per_request']:,.1f} µs a request, {values['client_busy']:.0%} busy"
    )
    if values["client_busy"] > 0.9:
        text.append("  The load generator itself was busy all the time: try --threads 2.")
    return text


def _time(microseconds: float) -> str:
    return f"{microseconds:,.0f} µs" if microseconds < 10_000 else f"{microseconds / 1000:,.1f} ms"


def _milliseconds(length: timedelta) -> int:
    return max(1, round(length.total_seconds() * 1000))
