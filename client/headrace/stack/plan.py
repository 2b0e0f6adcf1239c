"""What a stack consists of: options in, programs with their arguments and environment out. Starts nothing."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from headrace.stack.envoy import Address, EnvoySettings, render
from headrace.stack.ports import Claim
from headrace.stack.repository import Repository
from headrace_core import cpus

AccessLog = Literal["all", "errors", "off"]


@dataclass(frozen=True)
class UpOptions:
    """What `headrace up` was asked for."""

    models: tuple[Path, ...]
    """Repository folders, model folders or `.onnx` files; checked by `repository.assemble`."""
    host: str = "127.0.0.1"
    """Public address."""
    port: int | None = None
    """Public port; None: 8001, or any free one if that is taken; 0: any free one."""
    workers: int = 1
    """Number of worker processes; each serves all models."""
    gateways: int = 1
    """Number of gateways behind Envoy."""
    envoy: bool = True
    """Without it the one gateway is the public door itself."""
    nats: bool = True
    """Without it the gateways know the workers from a fixed list."""
    allowed_roots: tuple[Path, ...] = ()
    """Folders outside MODELS that links in them may lead to."""
    log_level: str = "info"
    """Least level that is shown and that services log at."""
    access_log: AccessLog = "errors"
    """Which requests Envoy logs."""
    device: str = "auto"
    """Where workers run models: auto, cpu, cuda, cuda:N."""
    start_timeout: timedelta = timedelta(minutes=10)
    """Longest wait for the first ready model."""
    drain_timeout: timedelta = timedelta(seconds=30)
    """Longest wait for requests in flight when the stack stops."""


@dataclass(frozen=True)
class ReadyFile:
    """Ready when the process has written this file with its own pid in it."""

    path: Path


@dataclass(frozen=True)
class Greets:
    """Ready when a connection to this address brings bytes that begin with this."""

    host: str
    port: int
    prefix: bytes


@dataclass(frozen=True)
class HttpOk:
    """Ready when this page answers 200."""

    host: str
    port: int
    path: str


Readiness = ReadyFile | Greets | HttpOk


@dataclass(frozen=True)
class ChildSpec:
    """One program: how it is started, when it is ready, how it stops."""

    name: str
    argv: tuple[str, ...]
    """Program (an absolute path) and its arguments."""
    ready: Readiness
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's environment."""
    address: str | None = None
    admin: str | None = None
    """Loopback address of its administration page, where it has one."""
    stop_timeout: timedelta = timedelta(seconds=35)
    """After SIGTERM, before SIGKILL."""
    drain_by_admin: bool = False
    """Envoy: SIGTERM cuts what is in flight, so its administration page is asked to drain first."""


@dataclass(frozen=True)
class Programs:
    """Where the programs are; the tests put stand-ins here."""

    python: str = sys.executable
    envoy: Path | None = None
    nats: Path | None = None
    gateway: tuple[str, ...] = ("-m", "headrace_gateway")
    """Arguments to `python`."""
    worker: tuple[str, ...] = ("-m", "headrace_worker")


@dataclass(frozen=True)
class Ports:
    """Claimed before anything starts, so that a restarted process comes back where it was."""

    public: Claim
    workers: tuple[Claim, ...]
    gateways: tuple[Claim, ...] = ()
    """Empty when the one gateway is the public door."""
    nats: Claim | None = None
    envoy_admin: Claim | None = None

    def close(self) -> None:
        """Gives all of them back."""
        for claim in (self.public, *self.workers, *self.gateways, self.nats, self.envoy_admin):
            if claim is not None:
                claim.close()


def plan(
    options: UpOptions, *, programs: Programs, ports: Ports, repository: Repository, nats_dir: Path, run_dir: Path
) -> tuple[tuple[ChildSpec, ...], ...]:
    """The programs in tiers, from the back to the front: NATS, workers, gateways, Envoy. A tier stops after the next one.

    Writes the configuration files of NATS and Envoy into `run_dir`.
    """
    common = {
        "TMPDIR": str(run_dir),
        # Where services would put their private sockets first: a killed one must leave nothing there.
        "XDG_RUNTIME_DIR": str(run_dir),
        "PYTHONUNBUFFERED": "1",
    }
    nats_url = f"nats://{ports.nats}" if ports.nats else None
    tiers: list[tuple[ChildSpec, ...]] = []
    if ports.nats is not None:
        assert programs.nats is not None, "a port for NATS is only claimed with its program at hand"
        tiers.append((_nats(programs.nats, port=ports.nats, store=nats_dir, run_dir=run_dir),))
    tiers.append(
        tuple(
            _service(
                "worker",
                number,
                claim,
                program=(programs.python, *programs.worker),
                options=options,
                run_dir=run_dir,
                env={
                    **common,
                    "HEADRACE_WORKER_ID": f"worker-{number}",
                    "HEADRACE_WORKER_MODELS": str(repository.path),
                    "HEADRACE_WORKER_ALLOWED_ROOTS": ",".join(map(str, (*repository.roots, *options.allowed_roots))),
                    "HEADRACE_WORKER_DEVICE": options.device,
                    "HEADRACE_WORKER_INSTANCES": str(_instances(options.workers)),
                    **({"HEADRACE_WORKER_NATS_URL": nats_url} if nats_url else {}),
                },
            )
            for number, claim in enumerate(ports.workers, start=1)
        )
    )
    # The static list keeps the stack whole while NATS is away, also for a gateway that starts then.
    replicas = ",".join(map(str, ports.workers))
    tiers.append(
        tuple(
            _service(
                "gateway",
                number,
                claim,
                program=(programs.python, *programs.gateway),
                options=options,
                run_dir=run_dir,
                env={
                    **common,
                    "HEADRACE_GATEWAY_REPLICAS": replicas,
                    **({"HEADRACE_GATEWAY_NATS_URL": nats_url} if nats_url else {}),
                },
            )
            for number, claim in enumerate(ports.gateways or (ports.public,), start=1)
        )
    )
    if ports.envoy_admin is not None:
        assert programs.envoy is not None, "a port for Envoy is only claimed with its program at hand"
        tiers.append((_envoy(programs.envoy, ports=ports, admin=ports.envoy_admin, options=options, run_dir=run_dir),))
    return tuple(tiers)


def _service(
    kind: Literal["worker", "gateway"],
    number: int,
    claim: Claim,
    *,
    program: tuple[str, ...],
    options: UpOptions,
    run_dir: Path,
    env: Mapping[str, str],
) -> ChildSpec:
    name = f"{kind}-{number}"
    ready = run_dir / f"{name}.ready.json"
    prefix = f"HEADRACE_{kind.upper()}_"
    return ChildSpec(
        name=name,
        argv=program,
        ready=ReadyFile(ready),
        address=str(claim),
        stop_timeout=options.drain_timeout + timedelta(seconds=5),
        env={
            **env,
            f"{prefix}LISTEN": str(claim),
            f"{prefix}READY_FILE": str(ready),
            f"{prefix}DRAIN_TIMEOUT": f"{options.drain_timeout.total_seconds():g}",
            f"{prefix}LOG_FORMAT": "json",
            f"{prefix}LOG_LEVEL": options.log_level,
        },
    )


def _instances(workers: int) -> int:
    """Instances a worker: 0 (as many as it has cores) when it is alone, else its share of ours."""
    return 0 if workers == 1 else max(1, cpus.available() // workers)


def _nats(program: Path, *, port: Claim, store: Path, run_dir: Path) -> ChildSpec:
    config = run_dir / "nats.conf"
    # NATS' configuration language takes JSON strings, escapes included.
    config.write_text(
        f"server_name: headrace\nlisten: {json.dumps(str(port))}\n"
        f"jetstream {{ store_dir: {json.dumps(str(store))}, max_mem: 256MB, max_file: 20GB }}\n",
        encoding="utf-8",
    )
    return ChildSpec(
        name="nats",
        argv=(str(program), "-c", str(config)),
        ready=Greets(port.host, port.port, b"INFO "),
        address=str(port),
        stop_timeout=timedelta(seconds=10),
    )


def _envoy(program: Path, *, ports: Ports, admin: Claim, options: UpOptions, run_dir: Path) -> ChildSpec:
    settings = EnvoySettings(
        host=ports.public.host,
        port=ports.public.port,
        admin_port=admin.port,
        gateways=tuple(Address(host=gateway.host, port=gateway.port) for gateway in ports.gateways),
        access_log=options.access_log,
    )
    config = run_dir / "envoy.yaml"
    config.write_text(render(settings), encoding="utf-8")
    level = {"debug": "info", "info": "warning"}.get(options.log_level, options.log_level)
    return ChildSpec(
        name="envoy",
        argv=(
            str(program),
            "--config-path",
            str(config),
            "--concurrency",
            str(max(1, min(4, cpus.available() // 2))),
            # Without hot restart there is no shared memory to leave behind.
            "--disable-hot-restart",
            "--log-level",
            level,
        ),
        ready=HttpOk(admin.host, admin.port, "/ready"),
        address=str(ports.public),
        admin=str(admin),
        stop_timeout=options.drain_timeout,
        drain_by_admin=True,
    )
