"""Values from the command line: `name=file.npy`, `name=[[1,2]]`, `name=@photo.png`, and `1.5s`.

`VALUE` is a `.npy` file, `@` and a file (`.npy`, `.json`, an image, or bytes for a `BYTES` input), JSON, or for a
`BYTES` input plain text.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.console import CommandProblem
from headrace.metadata import ModelMetadata, TensorSpec
from headrace.result import Parameter

IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|µs|ms|s|m)?")
_UNITS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, None: 1.0}


def parse_inputs(given: Iterable[str], *, metadata: ModelMetadata) -> dict[str, Any]:
    """The values of `--input`, by input name. Images come back as their path, for the model's card to turn into pixels.

    Raises:
        CommandProblem: an unknown input, a file that can't be read, or something that is no value.
    """
    values: dict[str, Any] = {}
    for text in given:
        spec, value = _split(text, metadata)
        if spec.name in values:
            raise CommandProblem(f"--input gives {spec.name!r} twice")
        values[spec.name] = _value(value, spec)
    return values


def parse_parameters(given: Iterable[str]) -> dict[str, Parameter]:
    """The values of `--parameter key=value`: JSON numbers, booleans and strings; anything else is a string."""
    parameters: dict[str, Parameter] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise CommandProblem(f"--parameter {text!r} should be key=value")
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = value
        parameters[key] = parsed if isinstance(parsed, bool | int | float | str) else value
    return parameters


def parse_duration(text: str, *, option: str) -> timedelta:
    """`100ms`, `1.5s`, `2m`, or plain seconds; more than zero.

    Raises:
        CommandProblem: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0.0:
        raise CommandProblem(f"{option} {text!r} is no length of time: 100ms, 1.5s and 2m are")
    return timedelta(seconds=seconds)


def parse_outputs(given: Sequence[str]) -> dict[str, Path | None]:
    """The values of `--output`: `name` to ask for one, `name=file.npy` to save it too."""
    outputs: dict[str, Path | None] = {}
    for text in given:
        name, separator, path = text.partition("=")
        if not name or (separator and not path):
            raise CommandProblem(f"--output {text!r} should be name or name=file.npy")
        outputs[name] = Path(path) if separator else None
    return outputs


def read_bytes(path: Path) -> bytes:
    """A file's contents.

    Raises:
        CommandProblem: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandProblem(f"{path} can't be read: {error.strerror}") from error


def _split(text: str, metadata: ModelMetadata) -> tuple[TensorSpec, str]:
    specs = {spec.name: spec for spec in metadata.inputs}
    name, separator, value = text.partition("=")
    if separator and name in specs:
        return specs[name], value
    if not separator and len(specs) == 1:
        return next(iter(specs.values())), text
    names = ", ".join(specs)
    if not separator:
        raise CommandProblem(f"--input {text!r} should be name=value; the inputs of {metadata.name} are {names}")
    raise CommandProblem(f"{metadata.name} has no input {name!r}; it has {names}")


def _value(text: str, spec: TensorSpec) -> Any:
    if text.startswith("@"):
        return _from_file(Path(text[1:]), spec)
    if text.endswith(".npy"):
        return _load_npy(Path(text))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if spec.datatype == "BYTES":
            return [text]
        raise CommandProblem(
            f"--input {spec.name}: {text[:40]!r} is neither JSON nor a .npy file; for other files write @file"
        ) from error


def _from_file(path: Path, spec: TensorSpec) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _load_npy(path)
    contents = read_bytes(path)
    if suffix == ".json":
        try:
            return json.loads(contents)
        except ValueError as error:
            raise CommandProblem(f"{path} is not JSON: {error}") from error
    if spec.datatype == "BYTES":
        return [contents]
    if suffix in IMAGE_SUFFIXES:
        return path
    raise CommandProblem(f"--input {spec.name}: {path} is no .npy, .json or image file")


def _load_npy(path: Path) -> Any:
    try:
        # Pickles inside a .npy file can run code: never load them.
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise CommandProblem(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandProblem(f"{path} is no array of numbers that numpy saved: {error}") from error
