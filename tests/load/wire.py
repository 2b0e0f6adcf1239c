"""HTTP/2 by hand, for peers that no library would be: frames as bytes, a socket, and nothing that keeps to the rules."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_protos.inference import grpc_service_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
METHOD = b"/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is in no table (HPACK, literal without indexing)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEAD = (
    b"\x83\x86"  # :method POST, :scheme http, from the static table
    + literal(b":path", METHOD)
    + literal(b":authority", b"localhost")
    + literal(b"content-type", b"application/grpc")
    + literal(b"te", b"trailers")
)


def call(stream: int, *, end: bool = False, head: bytes = HEAD) -> bytes:
    """The headers of a `ModelInfer`."""
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, head)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    """DATA in frames of at most 16 KiB."""
    pieces = [payload[at : at + 16_384] for at in range(0, len(payload), 16_384)] or [b""]
    last = len(pieces) - 1
    return b"".join(frame(DATA, END_STREAM if end and n == last else 0, stream, one) for n, one in enumerate(pieces))


def message(request: pb.ModelInferRequest) -> bytes:
    """A request in gRPC's framing."""
    body = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(body)) + body


def settings(**values: int) -> bytes:
    """SETTINGS; names are HTTP/2's: `initial_window_size=0`."""
    numbers = {"header_table_size": 1, "max_concurrent_streams": 3, "initial_window_size": 4, "max_frame_size": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[name], value) for name, value in values.items()))


class Peer:
    """One raw connection. Everything it does ends within `timeout` seconds."""

    def __init__(self, address: str, *, timeout: float = 10.0) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def greet(self, **values: int) -> None:
        """The preface and our settings, and an acknowledgement of theirs before it is asked for."""
        self.send(PREFACE + settings(**values) + frame(SETTINGS, ACK, 0))

    def send(self, raw: bytes) -> None:
        self.sock.sendall(raw)

    def send_while_open(self, raw: bytes) -> bool:
        """Sends, and says whether the other side still took it."""
        try:
            self.sock.sendall(raw)
        except OSError:
            return False
        return True

    def frames(self, *, seconds: float) -> Iterator[tuple[int, int, int, bytes]]:
        """What the other side says: kind, flags, stream, payload, until it hangs up or is silent so long."""
        self.sock.settimeout(seconds)
        buffer = b""
        with contextlib.suppress(OSError):
            while piece := self.sock.recv(1 << 16):
                buffer += piece
                while len(buffer) >= 9 and len(buffer) >= 9 + (length := int.from_bytes(buffer[:3], "big")):
                    yield buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9 : 9 + length]
                    buffer = buffer[9 + length :]

    def hung_up(self, *, seconds: float) -> bool:
        """Reads all that comes until the other side closes: whether it did within the time."""
        self.sock.settimeout(seconds)
        try:
            while self.sock.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True
