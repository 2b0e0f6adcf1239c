"""One readable stream out of the output of many processes.

Services write one JSON object a line (or plain text: NATS). `Lines` cuts bytes into lines of bounded length, `Entry`
understands one, a `Renderer` makes it text for people or JSON for programs, and `LogWriter` writes without ever
holding up the supervisor: whoever reads too slowly loses lines and is told how many.
"""

import contextlib
import json
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, Protocol

_LONGEST_LINE = 16 * 1024
_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_SYNONYMS = {"trace": "debug", "warn": "warning", "fatal": "critical", "exception": "error"}
# [pid] 2026/01/01 00:00:00.000000 [INF] text
_NATS = re.compile(r"^\[\d+\] \S+ \S+ \[(?P<level>[A-Z]{3})\] (?P<message>.*)$")
# What NATS says at INF is its banner, twenty lines of it.
_NATS_LEVELS = {"INF": "debug", "WRN": "warning", "ERR": "error", "FTL": "critical", "DBG": "debug", "TRC": "debug"}
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_LEVEL_COLOURS = {"debug": 2, "info": 0, "warning": 33, "error": 31, "critical": 31}


class Lines:
    """Cuts a stream of bytes into lines; a line beyond 16 KiB is cut there and its rest dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes."""
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._take(piece)
            yield self._rest.decode("utf-8", "replace").rstrip("\r")
            self._rest.clear()
            self._skipping = False
        self._take(rest)

    def end(self) -> Iterator[str]:
        """What came after the last line end."""
        if self._rest:
            yield self._rest.decode("utf-8", "replace")
            self._rest.clear()

    def _take(self, piece: bytes) -> None:
        if self._skipping:
            return
        room = _LONGEST_LINE - len(self._rest)
        self._rest += piece[:room]
        self._skipping = len(piece) > room


@dataclass(frozen=True)
class Entry:
    """One line of one service."""

    service: str
    level: str
    message: str
    time: str
    """UTC, ISO 8601."""
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Order of levels; unknown ones count as info."""
        return _RANK.get(self.level, 20)


def entry(service: str, line: str) -> Entry:
    """Understands one line of a service, whatever it is."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    if line.startswith("{"):
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if isinstance(told, dict):
            level = str(told.pop("level", "info")).lower()
            message = str(told.pop("message", told.pop("event", "")))
            time = str(told.pop("time", told.pop("timestamp", now)))
            told.pop("service", None)
            return Entry(
                service, _SYNONYMS.get(level, level), message, time, {k: v for k, v in told.items() if v is not None}
            )
    nats = _NATS.match(line)
    if nats:
        return Entry(service, _NATS_LEVELS.get(nats["level"], "info"), nats["message"], now)
    return Entry(service, "info", line, now)


class Renderer(Protocol):
    """Makes one line of text of an entry."""

    def __call__(self, entry: Entry, /) -> str: ...


def as_json(entry: Entry, /) -> str:
    """For programs: one object a line, always with time, service, level and message."""
    own = {"time": entry.time, "service": entry.service, "level": entry.level, "message": entry.message}
    return json.dumps({**entry.fields, **own}, ensure_ascii=False, default=str)


class Text:
    """For people: time, service, what happened; coloured on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._known: dict[str, int] = {}

    def __call__(self, entry: Entry, /) -> str:
        clock = entry.time[11:23] if len(entry.time) >= 23 else entry.time
        extra = "".join(
            f" {key}={_short(value)}" for key, value in entry.fields.items() if key not in ("logger", "pid")
        )
        level = "" if entry.level == "info" else f"{entry.level}: "
        if not self._colour:
            return f"{clock} {entry.service:<10} {level}{entry.message}{extra}"
        hue = _COLOURS[self._known.setdefault(entry.service, len(self._known)) % len(_COLOURS)]
        loud = _LEVEL_COLOURS.get(entry.level, 0)
        return f"\x1b[2m{clock}\x1b[0m \x1b[{hue}m{entry.service:<10}\x1b[0m \x1b[{loud}m{level}{entry.message}\x1b[0m\x1b[2m{extra}\x1b[0m"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if " " in text else text


class LogWriter:
    """Writes lines from a thread of its own, since a pipe that nobody reads would stop the supervisor."""

    def __init__(self, sink: "IO[str] | RollingFile", *, capacity: int = 10_000) -> None:
        self._sink = sink
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=capacity)
        self._dropped = 0
        self._on_broken: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def when_broken(self, tell: Callable[[], object]) -> None:
        """`tell` is called, from another thread, when the reader has gone."""
        self._on_broken = tell

    def write(self, line: str) -> None:
        """Hands over one line without its line end."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Writes out what is queued, for a bounded time."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            try:
                if dropped:
                    self._sink.write(f"({dropped} lines were dropped: they came faster than they could be written)\n")
                self._sink.write(line + "\n")
                if self._lines.empty():
                    self._sink.flush()
            except (OSError, ValueError):
                if self._on_broken is not None:
                    self._on_broken()
                return
        with contextlib.suppress(OSError, ValueError):
            self._sink.flush()


class RollingFile:
    """A log file that keeps itself and one predecessor within `limit` bytes each."""

    def __init__(self, path: Path, *, limit: int = 32 << 20) -> None:
        self._path = path
        self._limit = limit
        self._file = path.open("a", encoding="utf-8")
        self._size = path.stat().st_size

    def write(self, text: str) -> int:
        """Appends text."""
        if self._size + len(text) > self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("a", encoding="utf-8")
            self._size = 0
        self._size += len(text)
        return self._file.write(text)

    def flush(self) -> None:
        """Hands what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Ends it."""
        self._file.close()


class Log:
    """Where the supervisor and the children's readers put what they have to say."""

    def __init__(self, writer: LogWriter, *, render: Renderer, level: str) -> None:
        self._writer = writer
        self._render = render
        self._rank = _RANK.get(level, 20)

    def line(self, service: str, line: str) -> None:
        """A line that a child wrote."""
        if line.strip():
            self._put(entry(service, line))

    def say(
        self, message: str, *, level: Literal["debug", "info", "warning", "error"] = "info", **fields: object
    ) -> None:
        """Something the supervisor has to say."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._put(Entry("headrace", level, message, now, fields))

    def _put(self, told: Entry) -> None:
        if told.rank >= self._rank:
            self._writer.write(self._render(told))
