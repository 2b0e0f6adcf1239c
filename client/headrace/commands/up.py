"""`headrace up`: the whole stack on this machine under one supervisor."""

import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

_LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="up")(up)


def up(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODELS", help="Folders of models, single model folders or .onnx files."),
    ],
    *,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Public port; 0: any. Default: 8001, or any if that is taken."),
    ] = None,
    host: Annotated[str, typer.Option(help="Public address.")] = "127.0.0.1",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; each serves all models.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, help="Gateways behind Envoy.")] = 1,
    envoy: Annotated[bool, typer.Option("--envoy/--no-envoy", help="Envoy as the public door, or the gateway.")] = True,
    nats: Annotated[
        bool, typer.Option("--nats/--no-nats", help="NATS for discovery and jobs, or a fixed list.")
    ] = True,
    device: Annotated[str, typer.Option(help="Where models run: auto, cpu, cuda, cuda:N.")] = "auto",
    allowed_roots: Annotated[
        list[Path] | None,
        typer.Option("--allowed-root", help="A folder outside MODELS that links in them may lead to. Repeat for more."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Folder to keep the stack's state in. Default: a temporary one."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when ready and leave the stack running.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Logs as one JSON object a line.")] = False,
    access_log: Annotated[str, typer.Option(help="Requests that Envoy logs: all, errors or off.")] = "errors",
    as_json: Annotated[bool, typer.Option("--json", help="With --detach: print the stack as JSON.")] = False,
) -> None:
    """Start Envoy, gateways, workers and NATS, wait until the models are ready, print what to call.

    Ctrl-C drains and leaves nothing behind; a second one kills. Exit codes: 2 for a request that cannot be met as
    asked (a port that is taken, a folder that is not there), 1 if the stack did not come up, 130 if it was killed.
    """
    # Imported here, so that the other commands start fast and without the stack's own dependencies.
    from headrace.stack.detached import launch  # noqa: PLC0415
    from headrace.stack.logs import Log, LogWriter, Text  # noqa: PLC0415
    from headrace.stack.logs import as_json as json_line  # noqa: PLC0415
    from headrace.stack.plan import UpOptions  # noqa: PLC0415
    from headrace.stack.problem import StackProblem  # noqa: PLC0415
    from headrace.stack.serve import serve  # noqa: PLC0415
    from headrace.stack.state import StackRecord, StateDir  # noqa: PLC0415

    if log_level not in _LEVELS:
        raise typer.BadParameter(f"one of {', '.join(_LEVELS)}", param_hint="--log-level")
    if access_log not in ("all", "errors", "off"):
        raise typer.BadParameter("one of all, errors, off", param_hint="--access-log")
    if gateways > 1 and not envoy:
        raise typer.BadParameter("several gateways need Envoy in front of them", param_hint="--gateways")
    options = UpOptions(
        models=tuple(path.expanduser().absolute() for path in models),
        host=host,
        port=port,
        workers=workers,
        gateways=gateways,
        envoy=envoy,
        nats=nats,
        device=device,
        allowed_roots=tuple(path.expanduser().absolute() for path in allowed_roots or []),
        log_level=log_level,
        access_log=cast("Literal['all', 'errors', 'off']", access_log),
    )
    folder = StateDir(state) if state else None
    try:
        if detach:
            record, where = launch(options, state=folder, json_logs=json_logs)
            if as_json:
                typer.echo(record.model_dump_json(indent=2))
            else:
                typer.echo(record.announcement)
                typer.echo(f"It runs on; stop it with: headrace down --state {_quoted(where.path)}")
            return
        colour = sys.stdout.isatty() and not json_logs
        writer = LogWriter(sys.stdout)
        log = Log(writer, render=json_line if json_logs else Text(colour=colour), level=log_level)

        def ready(record: StackRecord, where: StateDir) -> None:
            if json_logs:
                log.say("ready", address=record.address, state_dir=str(where.path), announcement=record.announcement)
            else:
                writer.write(f"\n{record.announcement}\nCtrl-C stops it.\n")

        try:
            code = serve(options, state=folder, log=log, writer=writer, on_ready=ready)
        finally:
            writer.close()
    except StackProblem as problem:
        typer.echo(f"headrace up: {problem}", err=True)
        raise typer.Exit(problem.exit_code) from problem
    raise typer.Exit(code)


def _quoted(path: Path) -> str:
    import shlex  # noqa: PLC0415

    return shlex.quote(str(path))
