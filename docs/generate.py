"""Writes those parts of the documentation that follow from the code: tables of settings and of errors.

    python docs/generate.py            fills the marked parts of docs/*.md
    python docs/generate.py --check    exits 1 and names the pages that have drifted

A part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from headrace.stack.envoy import EnvoySettings
from headrace_core import errors
from headrace_core.settings import Settings
from headrace_gateway.settings import GatewaySettings
from headrace_worker.settings import WorkerSettings

DOCS: Final = Path(__file__).resolve().parent
_PART: Final = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL)


def settings_table(settings: type[Settings]) -> Iterator[str]:
    """A service's settings: flag, default, meaning. The environment variable follows from the flag."""
    yield "| flag | default | meaning |"
    yield "|---|---|---|"
    for name, field in settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        yield f"| `{flag}` | {_default(field)} | {_cell(field.description or '')}{_choices(field)} |"


def envoy_table() -> Iterator[str]:
    """What Envoy's template is rendered from."""
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for name, field in EnvoySettings.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {_cell(field.description or '')} |"


def error_table() -> Iterator[str]:
    """Every reason with its code."""
    yield "| reason | gRPC code | meaning |"
    yield "|---|---|---|"
    for kind in _leaves(errors.ServingError):
        if kind.reason and kind.__module__ == errors.__name__:
            yield f"| `{kind.reason}` | `{kind.code.name}` | {_cell(kind.__doc__ or '')} |"


PARTS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "worker-settings": lambda: settings_table(WorkerSettings),
    "gateway-settings": lambda: settings_table(GatewaySettings),
    "envoy-settings": envoy_table,
    "errors": error_table,
}


def filled(text: str) -> str:
    """The page with its parts as the code has them now.

    Raises:
        KeyError: a part has a name that nothing makes.
    """

    def part(match: re.Match[str]) -> str:
        name = match["name"]
        body = "\n".join(PARTS[name]())
        return f"<!-- generated: {name} -->\n{body}\n<!-- end of {name} -->"

    return _PART.sub(part, text)


def drifted() -> list[Path]:
    """The pages that differ from what the code says."""
    return [page for page in sorted(DOCS.glob("*.md")) if (text := page.read_text("utf-8")) != filled(text)]


def _leaves(kind: type[errors.ServingError]) -> Iterator[type[errors.ServingError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _leaves(one)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "host name and process id"
    value: Any = field.default
    if isinstance(value, timedelta):
        return f"`{_duration(value)}`"
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    if isinstance(value, int) and value >= 1 << 16 and value % 1024 == 0:
        mebibytes = value / (1 << 20)
        return f"`{value}` ({mebibytes:g} MiB)" if mebibytes >= 1 else f"`{value}` ({value >> 10} KiB)"
    return f"`{value}`"


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def _choices(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not Literal:
        return ""
    choices = [f"`{one}`" for one in get_args(field.annotation)]
    if all(one in (field.description or "") for one in choices):
        return ""
    return f" One of {', '.join(choices)}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Fills the pages, or tells which have drifted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page has drifted")
    options = parser.parse_args()
    pages = drifted()
    if options.check:
        for page in pages:
            print(f"{page.name} has drifted; run python docs/generate.py", file=sys.stderr)
        return 1 if pages else 0
    for page in pages:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
