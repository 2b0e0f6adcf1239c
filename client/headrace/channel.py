"""How a client connects: the server's address, and gRPC options that fit tensors.

The options, and why:

- message limits are the servers' own (64 MiB), not gRPC's 4 MiB default, which a photo batch exceeds;
- dead peers are noticed within 40 s while a call waits. Pings go out only then, and only two without data between
  them, so that servers with gRPC's strict defaults never answer with "too_many_pings";
- after a refused connection gRPC dials again within 2 s, not after its usual 2 minutes;
- a proxy that the environment names (`http_proxy`) is not asked for a server on this machine, which it can't reach;
- gRPC takes no retry settings from DNS: what is repeated is decided in `headrace.retry`.
"""

import ipaddress
import os
from typing import Final

DEFAULT_URL: Final = "127.0.0.1:8001"
"""Where `headrace up` and Triton listen."""

URL_VARIABLE: Final = "HEADRACE_URL"
DEFAULT_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024

ChannelOptions = tuple[tuple[str, int | str], ...]


def target(url: str | None) -> str:
    """The address that gRPC dials for `url`: `host:port`, `unix:/path`, or either with a `grpc://` in front.

    None means the environment's `HEADRACE_URL`, or else `127.0.0.1:8001`.

    Raises:
        ValueError: the URL has no port, or a scheme that this client doesn't speak.
    """
    given = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    scheme, separator, rest = given.partition("://")
    if separator and scheme not in {"grpc", "http", "unix", "dns", "ipv4", "ipv6"}:
        msg = f"{given!r}: this client speaks plain gRPC (host:port), not {scheme}"
        raise ValueError(msg)
    if separator and scheme in {"unix", "dns", "ipv4", "ipv6"}:
        return given
    address = (rest if separator else given).rstrip("/")
    if address.startswith(("unix:", "dns:", "ipv4:", "ipv6:")):
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) <= 65535:
        msg = f"{given!r} is no address: it should be host:port, such as {DEFAULT_URL}"
        raise ValueError(msg)
    return address


def is_local(address: str) -> bool:
    """Whether the address that gRPC dials, as `target` gives it, is on this machine."""
    scheme, separator, rest = address.partition(":")
    if separator and scheme in {"unix", "unix-abstract"}:
        return True
    host = (rest if scheme in {"dns", "ipv4", "ipv6"} else address).rpartition("/")[2].rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel_options(max_message_bytes: int, *, address: str) -> ChannelOptions:
    """Options of a gRPC channel to `address` for messages up to `max_message_bytes` each way."""
    return (
        ("grpc.enable_http_proxy", int(not is_local(address))),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 2),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.service_config_disable_resolution", 1),
    )
