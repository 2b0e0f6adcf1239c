"""Generates the Python stubs of every `.proto` file into `protos/gen/headrace_protos`.

    python protos/generate.py            write them
    python protos/generate.py --check    fail, naming the files, if what is checked in differs

The compiler's output is changed in two ways. Imports go through the package (`headrace_protos.inference`), and messages
are registered in a descriptor pool of our own (`headrace_protos.pool`) instead of protobuf's global one: tritonclient,
kserve and mlserver each register `inference.*` there as well, and protobuf refuses the second who does.
"""

import argparse
import filecmp
import importlib.resources
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
PACKAGE = "headrace_protos"
CHECKED_IN = ROOT / "gen" / PACKAGE
OWN_PREFIX = "headrace."
"""Left out of Python's names: `headrace.control.v1` is `headrace_protos.control.v1`."""

POOL = '''"""The descriptor pool of this package's messages.

protobuf's global pool holds one definition of a name in a process, and other packages define `inference.*` too.
Everything here lives in a pool of its own, so that all of them can be imported together, in any order.
Give `POOL` to whatever looks messages up by name, such as gRPC's server reflection.
"""

from typing import Final

from google.protobuf import any_pb2, descriptor_pool, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

POOL: Final = descriptor_pool.DescriptorPool()

for _well_known in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
    POOL.AddSerializedFile(_well_known.DESCRIPTOR.serialized_pb)
'''

INIT = '"""Generated from `protos/`; `make proto` writes it anew."""\n'


def sources() -> list[str]:
    """Every `.proto` file, relative to this folder."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.proto"))


def compile_into(target: Path, *, protos: list[str]) -> None:
    """Runs protoc with its Python, gRPC and type-stub plugins."""
    include = str(importlib.resources.files("grpc_tools") / "_proto")
    flags = [f"--{kind}_out={target}" for kind in ("python", "grpc_python")]
    flags += [f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")]
    # protoc looks for its plugins on PATH; they stand beside the interpreter even when no environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    status = protoc.main(["protoc", f"--proto_path={ROOT}", f"--proto_path={include}", *flags, *protos])
    if status != 0:
        raise SystemExit(f"protoc ended with status {status}")


def rewrite(text: str, *, packages: list[str]) -> str:
    """Points imports at our package and messages at our pool."""
    for package in packages:
        ours = f"{PACKAGE}.{package.removeprefix(OWN_PREFIX)}"
        text = re.sub(rf"^from {re.escape(package)} import ", f"from {ours} import ", text, flags=re.MULTILINE)
    text = text.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        f"from {PACKAGE}.pool import POOL as _POOL\n",
    )
    return text.replace("_descriptor_pool.Default()", "_POOL")


def generate(target: Path) -> None:
    """Writes the whole package into `target`, which must be empty."""
    protos = sources()
    packages = sorted({Path(name).parent.as_posix().replace("/", ".") for name in protos})
    compile_into(target, protos=protos)
    for path in [*target.rglob("*.py"), *target.rglob("*.pyi")]:
        path.write_text(rewrite(path.read_text(), packages=packages))
    own = target / OWN_PREFIX.rstrip(".")
    for path in own.iterdir():
        path.rename(target / path.name)
    own.rmdir()
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").write_text(INIT)
    (target / "pool.py").write_text(POOL)
    (target / "py.typed").touch()


def differences(left: Path, right: Path) -> list[str]:
    """Files that are not the same in both folders, or are in one only."""

    def files(folder: Path) -> set[str]:
        found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(folder).as_posix() for path in found}

    everything = files(left) | files(right)
    _, changed, missing = filecmp.cmpfiles(left, right, everything, shallow=False)
    return sorted([*changed, *missing])


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the Python stubs.")
    parser.add_argument("--check", action="store_true", help="only compare with what is checked in")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / PACKAGE
        fresh.mkdir()
        generate(fresh)
        if not check:
            shutil.rmtree(CHECKED_IN, ignore_errors=True)
            shutil.copytree(fresh, CHECKED_IN)
            return
        drifted = differences(fresh, CHECKED_IN)
    if drifted:
        raise SystemExit("Generated stubs differ from protos/: " + ", ".join(drifted) + ". Run `make proto`.")


if __name__ == "__main__":
    main()
