"""Whether a process that was just started is ready: its ready file, its greeting, or its page.

Each is looked at a few times a second until the process is ready or gone; nothing here waits for long itself.
"""

import asyncio
import json
from pathlib import Path

from headrace.stack.plan import Greets, HttpOk, Readiness, ReadyFile

_PATIENCE_S = 1.0


async def is_ready(readiness: Readiness, *, pid: int) -> bool:
    """Looks once. `pid` tells this process's ready file from one that its predecessor wrote."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            match readiness:
                case ReadyFile(path):
                    return _wrote(path, pid=pid)
                case Greets(host, port, prefix):
                    return await _greets(host, port, prefix)
                case HttpOk(host, port, path):
                    status, _ = await http("GET", path, host=host, port=port)
                    return status == 200
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        return False


async def http(method: str, path: str, *, host: str, port: int) -> tuple[int, str]:
    """One HTTP/1.1 request to a page on loopback: status, and body as it came (chunk sizes too). Raises `OSError` or `ValueError`."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        msg = "the answer was not HTTP"
        raise ValueError(msg)
    return int(words[1]), body.decode("utf-8", "replace")


def _wrote(path: Path, *, pid: int) -> bool:
    told = json.loads(path.read_bytes())
    return isinstance(told, dict) and told.get("pid") == pid


async def _greets(host: str, port: int, prefix: bytes) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.readexactly(len(prefix)) == prefix
    finally:
        writer.close()
