"""ONNX Runtime must not write about its user: no device id, no database of events."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import models

RUN = """
import sys
from headrace_worker import session
session.ort.InferenceSession(sys.argv[1])
"""


def test_a_session_leaves_nothing_in_the_users_cache_folder(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(models.identity().SerializeToString())
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if name not in {"XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"}
    }
    subprocess.run(
        [sys.executable, "-c", RUN, str(model)], env=environment | {"HOME": str(home)}, check=True, timeout=60
    )
    assert list(home.rglob("*")) == []
