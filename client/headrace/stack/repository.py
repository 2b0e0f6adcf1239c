"""Turns the MODELS of `headrace up` into one repository folder for the workers.

One repository folder is used as it is. Model folders, single `.onnx` files and several repositories are brought
together as links in a folder of the stack's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.stack.problem import UsageProblem


@dataclass(frozen=True)
class Repository:
    """What the workers serve."""

    path: Path
    roots: tuple[Path, ...] = ()
    """Where its links lead: workers follow none that they were not told of."""


def assemble(models: Sequence[Path], *, links: Path) -> Repository:
    """The repository to serve. Makes `links` only if links are needed. Raises `UsageProblem`."""
    for path in models:
        _check(path)
    if len(models) == 1 and models[0].is_dir() and not _is_model(models[0]):
        return Repository(models[0].absolute())
    found: dict[str, Path] = {}
    for path in models:
        for entry in [path] if _is_model(path) else _entries(path):
            name = entry.name.removesuffix(".onnx")
            if name in found:
                raise UsageProblem(f"Two models are named {name!r}: {found[name]} and {entry}; rename one.")
            found[name] = entry.resolve()
    links.mkdir(parents=True)
    for target in found.values():
        (links / target.name).symlink_to(target)
        if target.is_file():
            # Weights that are kept beside the model are looked for beside the link.
            for beside in target.parent.iterdir():
                if beside.name.startswith(target.name) and beside != target and beside.is_file():
                    (links / beside.name).symlink_to(beside.resolve())
    return Repository(links, tuple(target if target.is_dir() else target.parent for target in found.values()))


def _check(path: Path) -> None:
    if not path.exists():
        raise UsageProblem(f"There is no {path}: name a folder of models, a model folder or an .onnx file.")
    if path.is_file() and path.suffix != ".onnx":
        raise UsageProblem(f"{path} is not a model: name a folder of models, a model folder or an .onnx file.")
    try:
        if path.is_dir() and not _is_model(path) and not any(_entries(path)):
            raise UsageProblem(
                f"No model was found in {path}: expected NAME.onnx, NAME/model.onnx or NAME/1/model.onnx in it."
            )
    except PermissionError as problem:
        raise UsageProblem(f"{problem.filename} cannot be read: {problem.strerror}.") from problem


def _is_model(path: Path) -> bool:
    """Whether this is one model rather than a folder of them."""
    if path.is_file():
        return path.suffix == ".onnx"
    if (path / "model.onnx").exists() or (path / "model.yaml").exists() or (path / "config.pbtxt").exists():
        return True
    return any(child.name.isdecimal() and (child / "model.onnx").exists() for child in path.iterdir() if child.is_dir())


def _entries(repository: Path) -> Iterator[Path]:
    for child in sorted(repository.iterdir()):
        if not child.name.startswith((".", "_")) and _is_model(child):
            yield child
