"""The base of every service's settings: frozen, documented where declared, read once.

Values come from flags (`--drain-timeout 20s`) and then from the environment (`HEADRACE_WORKER_DRAIN_TIMEOUT=20s`).
A variable with a service's prefix that names no setting is reported with the nearest name that does.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)?\s*")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}

# Kubernetes puts a variable for each Service into every pod; a Service named `headrace-worker` must not look like a typo.
_KUBERNETES: Final = re.compile(r".*(_SERVICE_(HOST|PORT.*)|_PORT(_\d+_(TCP|UDP|SCTP).*)?)")


def parse_duration(value: Any) -> Any:
    """Reads `250ms`, `30s`, `2m`, `1h`, or a bare number of seconds; what isn't text or a number is pydantic's."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError("no length of time: 250ms, 30s, 2m and 1h are")
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A length of time in settings."""


def milliseconds(length: timedelta) -> int:
    """A length of time as the Rust halves read it."""
    return round(length.total_seconds() * 1e3)


def _split(value: Any) -> Any:
    return tuple(one.strip() for one in value.split(",") if one.strip()) if isinstance(value, str) else value


CommaList: Final = BeforeValidator(_split)
"""Annotation of a tuple that is written comma-separated; goes with pydantic-settings' `NoDecode`."""


class Settings(BaseSettings):
    """Settings that every service has in common declare themselves in a subclass, with a docstring each."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
    )

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Self:
        """The settings from these flags and the environment.

        Raises:
            pydantic.ValidationError: a value is wrong; `explain` makes sentences of it.
            SystemExit: a flag is unknown, or help was asked for.
        """
        return cls(_cli_parse_args=list(arguments))  # type: ignore[call-arg]  # taken by BaseSettings.__init__


def nearest(name: str, *, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_variables(settings: type[Settings], *, environ: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that has the service's prefix and names no setting."""
    prefix = settings.model_config.get("env_prefix", "")
    known = {f"{prefix}{name.upper()}" for name in settings.model_fields}
    sentences: list[str] = []
    for name in sorted(environ):
        if not name.startswith(prefix) or name in known or _KUBERNETES.fullmatch(name):
            continue
        meant = nearest(name, known=known)
        sentences.append(f"{name} is no setting" + (f"; did you mean {meant}?" if meant else ""))
    return sentences


def explain(error: ValidationError, *, settings: type[Settings]) -> list[str]:
    """One sentence for each thing that is wrong with the settings, with the name to look for."""
    prefix = settings.model_config.get("env_prefix", "")
    sentences: list[str] = []
    for one in error.errors(include_url=False):
        name = str(one["loc"][0]) if one["loc"] else ""
        if one["type"] == "extra_forbidden":
            meant = nearest(name, known=settings.model_fields)
            sentences.append(f"unknown setting {name}" + (f"; did you mean {meant}?" if meant else ""))
        else:
            flag = "--" + name.replace("_", "-")
            sentences.append(
                f"{flag} ({prefix}{name.upper()}) is {one['input']!r}: {one['msg'].removeprefix('Value error, ')}"
            )
    return sentences
