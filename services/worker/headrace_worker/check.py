"""`headrace check PATH`: every decision and every problem of a model folder, without serving.

`python -m headrace_worker.check PATH` prints one JSON document; the command line makes it readable. Models are loaded
and probed as a worker would, one after the other. The exit status is 0 if everything can be served, else 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace_core import cpus
from headrace_core import logging as logs
from headrace_worker import loading
from headrace_worker.loading import Configured, Defaults, Loaded
from headrace_worker.model_config import ConfigProblem
from headrace_worker.repository import FoundModel, Repository
from headrace_worker.session import RUNTIME_VERSION, LoadFailed, devices


@dataclass(frozen=True, slots=True)
class TensorReport:
    """One input or output as it will be served."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_axis: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """What would become of one version. With a `problem` it can't be served."""

    version: str
    problem: str = ""
    inputs: tuple[TensorReport, ...] = ()
    outputs: tuple[TensorReport, ...] = ()
    batching: bool = False
    max_batch_rows: int = 1
    instances: int = 0
    provider: str = ""
    costs_us: tuple[tuple[int, float], ...] = ()
    """Rows and the microseconds that running them took."""
    notes: tuple[str, ...] = ()
    """What was decided and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model. `serves` names the versions that a worker would serve."""

    name: str
    problem: str = ""
    serves: tuple[str, ...] = ()
    versions: tuple[VersionReport, ...] = ()
    ignored: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole folder."""

    path: str
    runtime: str
    providers: tuple[str, ...]
    processors: int
    models: tuple[ModelReport, ...]
    ignored: dict[str, str]
    problem: str = ""

    @property
    def fine(self) -> bool:
        return (
            not self.problem
            and bool(self.models)
            and all(not one.problem and all(not version.problem for version in one.versions) for one in self.models)
        )


def check(path: Path, *, device: str = "auto", allowed_roots: Sequence[Path] = ()) -> Report:
    """Looks at a repository folder, one model's folder in it, or one ONNX file."""
    processors = cpus.available()
    defaults = Defaults(device=device, instances=0, processors=processors)
    root, only = _root(path)
    repository = Repository(root, allowed_roots=allowed_roots)
    problem = ""
    found: dict[str, FoundModel] = {}
    try:
        found = repository.scan()
    except OSError as error:
        problem = f"{root} can't be read: {error.strerror or error}"
    if only is not None:
        found = {name: one for name, one in found.items() if name == only}
    if not found and not problem:
        problem = f"no model in {path}"
    return Report(
        path=str(path),
        runtime=f"onnxruntime {RUNTIME_VERSION}",
        providers=tuple(devices()),
        processors=processors,
        models=tuple(_model(one, defaults) for one in found.values()),
        ignored=repository.ignored if only is None else {},
        problem=problem,
    )


def _root(path: Path) -> tuple[Path, str | None]:
    """The repository folder that a path means, and the one model in it if only one is meant."""
    if path.is_file():
        inside = path.name == "model.onnx"
        # A model file of a folder layout stands for its model.
        folder = path.parent.parent if inside and path.parent.name.isdigit() else path.parent
        return (folder.parent, folder.name) if inside else (path.parent, path.stem)
    is_model = (path / "model.onnx").exists() or any(path.glob("[1-9]*/model.onnx"))
    return (path.resolve().parent, path.resolve().name) if is_model else (path, None)


def _model(found: FoundModel, defaults: Defaults) -> ModelReport:
    ignored = dict(found.ignored)
    try:
        configured = loading.configure(found)
    except ConfigProblem as error:
        return ModelReport(name=found.name, problem=str(error), ignored=ignored)
    serves = configured.config.versions.choose(list(found.versions))
    if not serves:
        return ModelReport(name=found.name, problem="no version to serve", ignored=ignored)
    versions = tuple(_version(found, version, configured, defaults) for version in serves)
    return ModelReport(name=found.name, serves=tuple(serves), versions=versions, ignored=ignored)


def _version(found: FoundModel, version: str, configured: Configured, defaults: Defaults) -> VersionReport:
    try:
        loaded = loading.load(found.versions[version], configured, defaults=defaults)
    except (LoadFailed, ConfigProblem) as error:
        return VersionReport(version=version, problem=str(error))
    return VersionReport(
        version=version,
        inputs=_tensors(loaded, side="inputs"),
        outputs=_tensors(loaded, side="outputs"),
        batching=loaded.batching,
        max_batch_rows=loaded.max_rows if loaded.batching else 1,
        instances=loaded.instances,
        provider=loaded.provider,
        costs_us=tuple((rows, round(cost, 1)) for rows, cost in loaded.costs),
        notes=loaded.notes,
    )


def _tensors(loaded: Loaded, *, side: str) -> tuple[TensorReport, ...]:
    tensors = loaded.signature.inputs if side == "inputs" else loaded.signature.outputs
    return tuple(TensorReport(one.name, one.datatype.name, one.dims, one.batch_axis) for one in tensors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report of the path in the arguments."""
    parser = argparse.ArgumentParser(prog="headrace-worker-check", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--allowed-root", type=Path, action="append", default=[])
    chosen = parser.parse_args(arguments)
    logs.configure(level="error")
    report = check(chosen.path, device=chosen.device, allowed_roots=chosen.allowed_root)
    print(json.dumps(asdict(report) | {"fine": report.fine}, indent=2))
    return 0 if report.fine else 1


if __name__ == "__main__":
    sys.exit(main())
