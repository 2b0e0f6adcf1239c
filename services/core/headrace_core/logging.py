"""Logs: standard `logging`, one line an event, JSON for machines or readable on a terminal.

Give facts as `extra`, not in the text: `log.info("model ready", extra={"model": name, "version": version})`.
The level can change at run time (`set_level`, the LogSettings RPC).
"""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

Format = Literal["auto", "json", "text"]
Level = Literal["debug", "info", "warning", "error"]

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS: Final = {logging.DEBUG: "2", logging.INFO: "36", logging.WARNING: "33", logging.ERROR: "31"}


def stand_in_for_closed_streams() -> None:
    """Gives a process that was started without standard output or error (`>&-`) something to write to.

    Python has None there then. Call it before anything else opens a file: that file would get the free number, and
    everything which a child process or a library writes to number 1 or 2.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for the process's whole life


def configure(*, level: Level = "info", style: Format = "auto", stream: TextIO | None = None) -> None:
    """Sends everything to one stream (standard error unless told otherwise). Call once, first thing."""
    stand_in_for_closed_streams()
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    readable = style == "text" or (style == "auto" and target.isatty())
    handler.setFormatter(_Readable(colour=target.isatty()) if readable else _JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    # These two speak at INFO about every call.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("grpc").setLevel(logging.WARNING)


def set_level(level: Level) -> None:
    """Changes the level for the whole process, at once."""
    logging.getLogger().setLevel(level.upper())


def get_level() -> Level:
    """The level that holds now."""
    effective = logging.getLogger().getEffectiveLevel()
    if effective <= logging.DEBUG:
        return "debug"
    if effective <= logging.INFO:
        return "info"
    return "warning" if effective <= logging.WARNING else "error"


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


class _Readable(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = f"{record.levelname.lower():<7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelno, '0')}m{level}\x1b[0m"
        facts = " ".join(f"{key}={value}" for key, value in _facts(record).items())
        line = f"{when} {level} {record.getMessage()}" + (f"  {facts}" if facts else "")
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)
            place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            line += f"  {type(error).__name__}: {error}{place}"
        # One line an event, whatever a message carries.
        return line.replace("\r", "\\r").replace("\n", "\\n")
