"""Claims TCP ports for the life of a stack, so that a restarted process finds its old port free.

A claim is a socket that is bound but never listens: a program that sets SO_REUSEADDR (Envoy, nats-server and our
own services do) can listen there, while the kernel hands the port to nobody who asks for "any". It does not keep two
stacks apart that both hold only such claims, so each claim also takes a name in Linux' abstract socket namespace, which
vanishes with the process and leaves no file.
"""

import errno
import socket
import sys
from dataclasses import dataclass, field


@dataclass
class Claim:
    """One claimed port; `close` gives it back."""

    host: str
    port: int
    _sockets: list[socket.socket] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Gives the port back."""
        while self._sockets:
            self._sockets.pop().close()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PortTaken(OSError):
    """Somebody else listens there, or another stack has claimed it."""


def claim(host: str, *, port: int = 0) -> Claim:
    """Claims a port; 0 takes any free one. Raises `PortTaken`, or `OSError` if the address is not ours at all."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # A port that the kernel calls free may be claimed by name by another stack: a few more tries then.
    for _ in range(20):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tcp.bind((host, port))
            except OSError as problem:
                if problem.errno == errno.EADDRINUSE:
                    raise PortTaken(errno.EADDRINUSE, f"port {port} is taken") from problem
                raise
            # Numeric from here on: Envoy takes no names.
            address, taken = tcp.getsockname()[:2]
            name = _claim_name(taken)
        except PortTaken:
            tcp.close()
            if port:
                raise
            continue
        except OSError:
            tcp.close()
            raise
        return Claim(address, taken, [tcp, name] if name else [tcp])
    raise PortTaken(errno.EADDRINUSE, "no free port was found")


def _claim_name(port: int) -> socket.socket | None:
    if sys.platform != "linux":
        return None
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0headrace/tcp/{port}")
    except OSError as problem:
        name.close()
        raise PortTaken(errno.EADDRINUSE, f"port {port} is claimed by another stack") from problem
    return name
