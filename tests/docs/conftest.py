"""One running stack for all pages, started as the README starts it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """What a reader's shell has after the README's first step."""
    unset = {"HEADRACE_URL", "HEADRACE_MODELS"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[str]:
    """Where the example models are served: 127.0.0.1:8001, unless somebody has that port."""
    state = tmp_path_factory.mktemp("docs") / "state"
    command = ["headrace", "up", "models", "--detach", "--json", "--state", str(state)]
    started = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    try:
        yield json.loads(started.stdout)["address"]
    finally:
        subprocess.run(["headrace", "down", "--state", str(state)], cwd=ROOT, env=environment, check=True)
