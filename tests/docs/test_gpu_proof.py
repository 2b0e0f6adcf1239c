"""`bench/gpu/prove.py` where there is no GPU: one sentence and its own exit status, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_worker.session import CUDA, devices

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "prove.py"


@pytest.mark.skipif(CUDA in devices(), reason="this ONNX Runtime has CUDA: run the script itself")
def test_without_a_gpu_it_says_what_is_missing_and_proves_nothing() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "no usable GPU here" in ran.stderr
    assert "headrace[worker-gpu]" in ran.stderr
    assert ran.stderr.count("\n") == 1
