"""Envoy's configuration: our settings in, one YAML document out.

`render(EnvoySettings(...))` gives the text for `envoy --config-path`. Run as `python -m headrace.stack.envoy` it
reads the settings as JSON from standard input and prints the configuration, for deployments that start Envoy themselves.
The template is `deploy/compose/envoy/envoy.yaml.j2`; a wheel carries it beside this file.
"""

import ipaddress
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_TEMPLATE = "envoy.yaml.j2"
_IN_WHEEL = Path(__file__).with_name(_TEMPLATE)
_IN_CHECKOUT = Path(__file__).parents[3] / "deploy" / "compose" / "envoy" / _TEMPLATE

Port = Annotated[int, Field(ge=0, le=65535)]


class Address(BaseModel):
    """Where one gateway listens."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str
    """A name, or an IPv4 or IPv6 address."""
    port: Port
    """TCP port."""


class EnvoySettings(BaseModel):
    """What the public door needs to know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gateways: tuple[Address, ...] = Field(min_length=1)
    """The gateways behind this door; requests go to the one with fewest outstanding of two drawn by lot."""
    host: str = "127.0.0.1"
    """Public address."""
    port: Port = 8001
    """Public port (Triton's)."""
    admin_port: Port = 0
    """Envoy's own administration page, always on loopback. 0: any free port."""
    node_id: str = "headrace"
    """Name of this Envoy in its own logs."""
    max_timeout: timedelta = timedelta(seconds=600)
    """Longest life of a call: bounds `grpc-timeout`, and stands in where a caller set none."""
    max_connections: int = Field(default=16384, ge=1)
    """Client connections; further ones are closed at once."""
    max_requests: int = Field(default=65536, ge=1)
    """Requests in flight through this door before it answers UNAVAILABLE itself. Workers shed long before that."""
    max_concurrent_streams: int = Field(default=4096, ge=1)
    """Streams on one connection, both sides."""
    stream_window_bytes: int = Field(default=1 << 20, ge=65535)
    """HTTP/2 receive window of a stream."""
    connection_window_bytes: int = Field(default=8 << 20, ge=65535)
    """HTTP/2 receive window of a connection."""
    connection_buffer_bytes: int = Field(default=1 << 20, ge=16384)
    """Soft limit of what one connection holds; above it the sender is held back."""
    retry_buffer_bytes: int = Field(default=64 << 10, ge=0)
    """A request body up to this size is kept for the one permitted retry."""
    identity_headers: tuple[str, ...] = (
        "x-tenant-id",
        "x-user-id",
        "x-authenticated-user",
        "x-headrace-tenant",
        "x-headrace-principal",
        "headrace-peer",
    )
    """Request headers that name a caller: removed, since only services behind the door may set them."""
    trace_collector: Address | None = None
    """An OTLP/gRPC collector. With it Envoy starts a W3C trace or continues the caller's; without it, the caller's passes through."""
    trace_sampling: float = Field(default=0.01, ge=0, le=1)
    """Share of new traces marked as sampled. A caller's own mark is kept."""
    access_log: Literal["all", "errors", "off"] = "all"
    """One JSON line a request on standard output: all, only those that did not end OK, or none."""


def render(settings: EnvoySettings) -> str:
    """The configuration as YAML text. Raises `ModuleNotFoundError` without Jinja2."""
    # Imported here: the client is usable without Jinja2, only the local stack needs it.
    import jinja2  # noqa: PLC0415

    # The output is YAML, whose quoting `tojson` does; HTML's escapes would be wrong in it.
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
    )
    template = _IN_WHEEL if _IN_WHEEL.exists() else _IN_CHECKOUT
    source = environment.from_string(template.read_text(encoding="utf-8"))
    return source.render(s=settings, discovery=_discovery)


def _discovery(addresses: Iterable[Address]) -> str:
    """Envoy's cluster type: names are resolved again and again, addresses are taken as they are."""
    return "STATIC" if all(_is_ip(address.host) for address in addresses) else "STRICT_DNS"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(render(EnvoySettings.model_validate_json(sys.stdin.read())))
