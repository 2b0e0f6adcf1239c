"""`headrace up`, `status` and `down` as a script uses them: the whole stack with a real model, and nothing left of it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.load import repository


class Folder:
    """A state folder with a space in its path, and the commands run on it."""

    def __init__(self, path: Path) -> None:
        self.state = path / "a state folder"
        self.models = repository.build(path / "my models", "add")

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        # Standard error is a pipe as in a script: a detached stack that held on to it would hang this.
        return subprocess.run(
            [sys.executable, "-m", "headrace", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def up(self, *options: object) -> subprocess.CompletedProcess[str]:
        return self.run("up", self.models, "--detach", "--port", 0, "--state", self.state, *options)

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.run("down", "--state", self.state)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.run("status", "--json", "--state", self.state).stdout)
        return status


def until(true: Callable[[], object], *, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.down()


def test_a_detached_stack_does_what_it_prints_and_leaves_nothing(folder: Folder):
    told = folder.up("--workers", 2, "--gateways", 2)
    assert told.returncode == 0, told.stderr
    status = folder.status()
    names = [service["name"] for service in status["services"]]
    assert names == ["nats", "worker-1", "worker-2", "gateway-1", "gateway-2", "envoy"]
    assert [(model["name"], model["state"]) for model in status["models"]] == [("add", "READY")]

    line = next(line for line in told.stdout.splitlines() if line.startswith("grpcurl "))
    grpcurl = [str(Path(sys.executable).with_name("grpcurl")), *shlex.split(line)[1:]]
    answer = json.loads(subprocess.run(grpcurl, capture_output=True, text=True, timeout=30, check=True).stdout)
    assert answer["outputs"][0]["contents"] == {"fp32_contents": [2, 2, 2, 2]}

    code = re.search(r"^import numpy.*?^print.*?$", told.stdout, re.MULTILINE | re.DOTALL)
    assert code is not None
    ran = subprocess.run([sys.executable, "-c", code[0]], capture_output=True, text=True, timeout=60, check=True)
    assert "2., 2., 2., 2." in ran.stdout

    second = folder.up()
    assert second.returncode == 2
    assert "already runs" in second.stderr

    assert folder.down().returncode == 0
    assert all(gone(service["pid"]) for service in status["services"])
    assert gone(status["pid"])
    assert not Path(status["run_dir"]).exists()
    assert sorted(path.name for path in folder.state.iterdir()) == ["headrace.log", "lock", "nats"]
    assert folder.run("status", "--state", folder.state).returncode == 3


def test_a_killed_worker_is_back_in_the_routes_without_anybody_s_help(folder: Folder):
    assert folder.up("--no-envoy", "--no-nats").returncode == 0
    before = folder.status()
    assert [service["name"] for service in before["services"]] == ["worker-1", "gateway-1"]
    (worker,) = (service for service in before["services"] if service["name"] == "worker-1")
    os.kill(worker["pid"], signal.SIGKILL)

    def restarted() -> bool:
        now = folder.status()
        (again,) = (service for service in now["services"] if service["name"] == "worker-1")
        return (
            again["pid"] not in (None, worker["pid"])
            and again["address"] == worker["address"]
            and [model["state"] for model in now["models"]] == ["READY"]
        )

    until(restarted)
    assert "worker-1 died (killed by SIGKILL)" in (folder.state / "headrace.log").read_text()


def test_models_that_cannot_be_loaded_end_the_start_with_their_reason(folder: Folder):
    (folder.models / "add" / "1" / "model.onnx").write_bytes(b"this is no model")
    told = folder.up("--no-envoy", "--no-nats")
    assert told.returncode == 1
    assert told.stderr.startswith("headrace up: No model could be loaded (add: ")
    assert told.stderr.count("\n") == 1
