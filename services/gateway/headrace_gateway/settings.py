"""Everything that can be set about a gateway: flags (`--drain-timeout 20s`) or `HEADRACE_GATEWAY_*` variables."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from headrace_core.settings import CommaList, Duration, Settings

Addresses = Annotated[tuple[str, ...], NoDecode, CommaList]


class GatewaySettings(Settings):
    """A gateway's settings."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_GATEWAY_", cli_prog_name="headrace-gateway")

    listen: str = "127.0.0.1:8001"
    """Address of the one port, `host:port`. Port 0: any free one."""
    replicas: Addresses = ()
    """Workers that are always looked for, `host:port,host:port`, beside those that NATS lists."""
    nats_url: Addresses = ()
    """NATS servers where workers announce themselves. Empty: only `replicas` count."""
    silence: Duration = timedelta(seconds=3)
    """A worker that has not been heard of for so long gets no requests. Workers speak once a second."""
    remember: Duration = timedelta(minutes=10)
    """A model whose last worker went is called unavailable for so long, then unknown."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads of the front. One is enough for some ten thousand requests a second; more only where cores are free."""
    max_message_bytes: int = Field(default=64 << 20, ge=1024)
    """Largest message either way. The same number belongs to workers and clients."""
    max_connections: int = Field(default=16384, ge=1)
    """Client connections; further ones are refused."""
    max_timeout: Duration = timedelta(seconds=600)
    """Longest life of a call: bounds `grpc-timeout`, and stands in where a caller set none."""
    handshake_timeout: Duration = Field(default=timedelta(seconds=10), ge=timedelta(milliseconds=10))
    """Longest that a new connection may take to greet."""
    body_timeout: Duration = Field(default=timedelta(seconds=30), ge=timedelta(milliseconds=10))
    """Longest that a request's body, or the reader of a reply, may stand still."""
    drain_beat: Duration = timedelta(seconds=1)
    """Between readiness off and refusing new connections, so that a balancer has noticed."""
    drain_timeout: Duration = timedelta(seconds=30)
    """Longest wait for requests in flight at the end."""
    ready_file: Path | None = None
    """Written once the port is bound and served: `{"address": …, "pid": …}`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON otherwise."""

    @field_validator("listen", "replicas")
    @classmethod
    def _has_a_port(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            host, colon, port = address.rpartition(":")
            if not (host and colon and port.isdecimal() and int(port) <= 65535):
                raise ValueError(f"{address!r} is no address: expected host:port")
        return value
