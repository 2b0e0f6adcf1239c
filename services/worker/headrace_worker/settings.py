"""The worker's settings, from flags and `HEADRACE_WORKER_*`. The only reader of the environment in this service."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import NoDecode, SettingsConfigDict

from headrace_core.logging import Format, Level
from headrace_core.settings import CommaList, Duration, Settings


def _name() -> str:
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


class WorkerSettings(Settings):
    """Loads the models of a folder and serves them on one port."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_WORKER_", cli_prog_name="headrace-worker")

    models: Path = Path("models")
    """The folder with the models."""
    listen: str = "127.0.0.1:0"
    """`HOST:PORT` to serve on. Port 0: any free one."""
    id: str = Field(default_factory=_name, pattern=r"^[A-Za-z0-9_.=-]+$", max_length=128)
    """This worker's name in routes and metrics; unique in the fleet."""
    advertise: str = ""
    """`HOST:PORT` under which gateways reach this worker. Empty: the address it listens on."""
    nats_url: str = ""
    """NATS servers to register with, comma-separated. Empty: gateways know this worker from their settings."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto`, `cpu`, `cuda` or `cuda:N`. What was asked for and isn't there is an error."""
    instances: int = Field(default=0, ge=0, le=1024)
    """Batches of one model that run at once. 0: one for each processor this process may use."""
    model_control: Literal["explicit", "poll", "startup"] = "explicit"
    """All models are loaded at start. Then: `explicit` takes load and unload calls, `poll` follows the folder,
    `startup` changes nothing."""
    poll_interval: Duration = Field(default=timedelta(seconds=2), ge=timedelta(milliseconds=100))
    """How often `poll` looks at the folder."""
    allowed_roots: Annotated[tuple[Path, ...], NoDecode, CommaList] = ()
    """Folders outside MODELS that links in it may lead to, comma-separated."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads of the network half. One is enough up to two processors."""
    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Largest message, either way. The same number on every hop."""
    max_connections: int = Field(default=16_384, ge=1)
    """Connections beyond this are closed at once."""
    max_timeout: Duration = timedelta(minutes=10)
    """Longest a request may take, whatever its caller's deadline."""
    handshake_timeout: Duration = Field(default=timedelta(seconds=10), ge=timedelta(milliseconds=10))
    """Longest that a new connection may take to greet."""
    body_timeout: Duration = Field(default=timedelta(seconds=30), ge=timedelta(milliseconds=10))
    """Longest that a request's body, or the reader of a reply, may stand still."""
    drain_timeout: Duration = timedelta(seconds=30)
    """Longest that a stop waits for requests in flight."""
    drain_beat: Duration = timedelta(milliseconds=500)
    """Between readiness going off and the port closing, so that balancers notice first; and as long does a replaced
    version go on serving, so that gateways send to the new one by then."""
    unload_timeout: Duration = timedelta(seconds=30)
    """Longest that an unload waits for the model's requests."""
    stuck_after: Duration = timedelta(seconds=60)
    """A model is not ready while one of its batches runs for longer than this."""
    ready_file: Path | None = None
    """Written once serving: `{"address": …, "pid": …}`."""
    run_dir: Path | None = None
    """Where the private socket between the two halves goes. Empty: the system's place for such."""
    log_level: Level = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_format: Format = "auto"
    """`json`, `text`, or `auto`: text on a terminal."""
