"""Finds models in a folder: what is there, what may be served, and why the rest is ignored.

Three layouts, no configuration needed::

    <models>/<name>/<version>/model.onnx      Triton's
    <models>/<name>/model.onnx                one version, "1"
    <models>/<name>.onnx                      one version, "1"

A version folder's name is a canonical decimal number, 1 or more; everything else is ignored, with the reason (V19).
A link is followed if where it leads is inside an allowed root (V21). Nothing is loaded or remembered here, so a look
can't do harm; whether a copy is still in progress is judged by comparing two looks (`Settling`).
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

MODEL_FILE: Final = "model.onnx"
CONFIG_FILE: Final = "model.yaml"
TRITON_CONFIG_FILE: Final = "config.pbtxt"
COMPLETE_MARKER: Final = ".complete"
"""A file of this name in a version's folder says: all there, don't wait."""

_PARTIAL: Final = (".part", ".partial", ".incomplete", ".tmp", ".crdownload")
_MOST_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class FileStamp:
    """One file of a version as it was seen. Times are in nanoseconds since the epoch."""

    name: str
    size: int
    modified: int
    changed: int
    linked_to: Path | None


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """A version's files. With a `problem` it can't be loaded as it is."""

    model: str
    version: str
    path: Path
    """The ONNX file."""
    files: tuple[FileStamp, ...]
    problem: str = ""

    @property
    def fingerprint(self) -> str:
        """The same for the same files, sizes and times. What failed once is tried again when this changes."""
        digest = hashlib.sha256()
        for one in self.files:
            digest.update(f"{one.name}\0{one.size}\0{one.modified}\0".encode())
        digest.update(self.problem.encode())
        return digest.hexdigest()[:16]

    @property
    def linked_data(self) -> Mapping[str, Path]:
        """Files beside the model that are links, and where they lead."""
        return {
            one.name: one.linked_to for one in self.files if one.linked_to is not None and one.name != self.path.name
        }

    @property
    def partial(self) -> bool:
        """Whether a file's name says that it is still being written."""
        return any(one.name.endswith(_PARTIAL) for one in self.files)

    @property
    def marked_complete(self) -> bool:
        return any(one.name == COMPLETE_MARKER for one in self.files)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model as it lies in the folder."""

    name: str
    folder: Path | None
    """Its own folder; None for a bare `<name>.onnx`."""
    versions: Mapping[str, VersionFiles]
    ignored: Mapping[str, str] = field(default_factory=dict)
    """What was passed over, and why."""

    @property
    def config(self) -> Path | None:
        return self._file(CONFIG_FILE)

    @property
    def triton_config(self) -> Path | None:
        return self._file(TRITON_CONFIG_FILE)

    @property
    def config_fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path in (self.config, self.triton_config):
            digest.update(_content(path) if path is not None else b"\0")
        return digest.hexdigest()[:16]

    def _file(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        path = self.folder / name
        return path if path.is_file() else None


def is_model_name(name: str) -> bool:
    """Whether this can be a model's name: one plain path component. Names come from callers too."""
    return (
        0 < len(os.fsencode(name)) <= 250  # file systems take 255, and `.onnx` may follow
        and not name.startswith(".")
        and "/" not in name
        and "\\" not in name
        and name.isprintable()
        and name == name.strip()
    )


def is_version(name: str) -> bool:
    """A canonical decimal number, 1 or more: `1`, `20`; not `01`, `0`, `-3`, `2.5` or `1 `."""
    return name.isascii() and name.isdigit() and not name.startswith("0") and len(name) <= 18


class Repository:
    """The models under one folder. Every call looks anew."""

    def __init__(self, root: Path, *, allowed_roots: Sequence[Path] = ()) -> None:
        self.root = root
        self._allowed = tuple(one.resolve() for one in (root, *allowed_roots))
        self.ignored: dict[str, str] = {}
        """Entries of the folder itself that are no models, and why; as of the last `scan`."""

    def scan(self) -> dict[str, FoundModel]:
        """Every model, by name.

        Raises:
            OSError: the folder can't be read.
        """
        found: dict[str, FoundModel] = {}
        ignored: dict[str, str] = {}
        entries = sorted(self.root.iterdir())
        folders = {one.name for one in entries if one.is_dir()}
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                model = self._look(entry)
                if model is None:
                    ignored[entry.name] = f"has neither {MODEL_FILE} nor a version folder with one"
                elif not is_model_name(entry.name):
                    ignored[entry.name] = "can't be a model's name"
                else:
                    found[entry.name] = model
            elif entry.suffix == ".onnx":
                if entry.stem in folders:
                    ignored[entry.name] = f"the folder {entry.stem} has that name"
                elif is_model_name(entry.stem):
                    found[entry.stem] = self._bare(entry)
        self.ignored = ignored
        return found

    def find(self, name: str) -> FoundModel | None:
        """One model, or None if the folder has none of that name."""
        if not is_model_name(name):
            return None
        folder = self.root / name
        if folder.is_dir():
            return self._look(folder)
        bare = self.root / f"{name}.onnx"
        if bare.is_symlink() or bare.is_file():
            return self._bare(bare)
        return None

    def _bare(self, path: Path) -> FoundModel:
        beside = [path]
        # External data of a bare model is recognised by its name.
        beside += sorted(one for one in path.parent.glob(f"{_escaped(path.name)}*") if one != path and one.is_file())
        version = self._version(path.stem, "1", path, beside, folder=path.parent)
        return FoundModel(name=path.stem, folder=None, versions={"1": version})

    def _look(self, folder: Path) -> FoundModel | None:
        try:
            return self._folder(folder)
        except OSError as error:  # no permission, or gone since: one model's trouble, not everybody's
            reason = f"can't be read: {error.strerror or type(error).__name__}"
            return FoundModel(name=folder.name, folder=folder, versions={}, ignored={"the folder": reason})

    def _folder(self, folder: Path) -> FoundModel | None:
        versions: dict[str, VersionFiles] = {}
        ignored: dict[str, str] = {}
        flat = folder / MODEL_FILE
        seen_folder = False
        for entry in sorted(folder.iterdir()):
            if not entry.is_dir():
                if is_version(entry.name):
                    ignored[entry.name] = "a version is a folder, this is a file"
                continue
            if entry.name.startswith("."):
                ignored[entry.name] = "hidden"
            elif not is_version(entry.name):
                ignored[entry.name] = "not a version: those are decimal numbers from 1, without leading zeros"
            else:
                seen_folder = True
                path = entry / MODEL_FILE
                if not path.is_symlink() and not path.exists():
                    ignored[entry.name] = f"has no {MODEL_FILE} yet"
                    continue
                versions[entry.name] = self._version(folder.name, entry.name, path, _walk(entry), folder=entry)
        if flat.is_symlink() or flat.is_file():
            if versions:
                ignored[MODEL_FILE] = "there are version folders beside it"
            else:
                files = sorted(one for one in folder.iterdir() if not one.is_dir() or one.is_symlink())
                versions["1"] = self._version(folder.name, "1", flat, files, folder=folder)
        if not versions and not seen_folder and not ignored:
            return None
        return FoundModel(name=folder.name, folder=folder, versions=versions, ignored=ignored)

    def _version(
        self, model: str, version: str, path: Path, candidates: Sequence[Path], *, folder: Path
    ) -> VersionFiles:
        stamps: list[FileStamp] = []
        problem = ""
        for one in candidates:
            name = one.relative_to(folder).as_posix()
            if name in {CONFIG_FILE, TRITON_CONFIG_FILE}:
                continue
            try:
                resolved = one.resolve(strict=True)
                looked = resolved.stat()
            except (OSError, RuntimeError):
                problem = problem or (
                    f"{name} is a link that leads nowhere" if one.is_symlink() else f"{name} can't be read"
                )
                continue
            if not stat.S_ISREG(looked.st_mode):
                continue
            if not any(resolved.is_relative_to(root) for root in self._allowed):
                problem = (
                    problem or f"{name} leads outside the allowed roots; allow the folder there with --allowed-root"
                )
            linked = resolved if resolved != folder.resolve() / name else None
            stamps.append(FileStamp(name, looked.st_size, looked.st_mtime_ns, looked.st_ctime_ns, linked))
        return VersionFiles(model=model, version=version, path=path, files=tuple(stamps), problem=problem)


class Settling:
    """Tells a finished copy from one in progress.

    Files that nothing touched for a while are settled. Younger ones are when two looks, some time apart, agree. A
    marker file (`.complete`) settles at once, a file named `*.part` or the like prevents it.
    """

    QUIET: Final = timedelta(seconds=2)
    APART: Final = timedelta(milliseconds=400)

    def __init__(self) -> None:
        self._looks: dict[Path, tuple[str, float]] = {}

    def settled(self, files: VersionFiles, *, wall: float, now: float) -> bool:
        """Whether the files are complete as far as one can see.

        `wall` is the time of day in seconds since the epoch (to compare with the files' times), `now` is monotonic.
        """
        if files.partial:
            return False
        if files.marked_complete:
            return True
        newest = max((max(one.modified, one.changed) for one in files.files), default=0) / 1e9
        if 0 <= newest <= wall - self.QUIET.total_seconds():
            self._looks.pop(files.path, None)
            return True
        before = self._looks.get(files.path)
        if before is None or before[0] != files.fingerprint:
            self._looks[files.path] = (files.fingerprint, now)
            return False
        return now - before[1] >= self.APART.total_seconds()


def _walk(folder: Path) -> list[Path]:
    """The files below a folder, links to files included, in a fixed order."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders.sort()
        found.extend(Path(parent) / name for name in sorted(files))
        found.extend(Path(parent) / name for name in folders if (Path(parent) / name).is_symlink())
        if len(found) > _MOST_FILES:
            break
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:  # whoever reads the configuration says so; this only has to differ
        return type(error).__name__.encode()


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
