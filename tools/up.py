"""Serves the example models and shows a first inference: what `make up` runs once all is built.

    python tools/up.py [options of `headrace up`]

This process becomes `headrace up`, so that Ctrl-C and other signals reach it as if typed for it. A helper, left behind
as its child, waits for the stack to be ready, runs examples/models/demo.py against it, and ends. It ends as well when
the stack does.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from headrace.stack import state

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "models" / "demo.py"
LOOK_EVERY_S = 0.2
HELPER = "--show-first-inference-of"


def show_first_inference(supervisor: int, folder: Path | None) -> None:
    """Waits for the stack of the process `supervisor`, whose child this is, and runs the demonstration."""
    while os.getppid() == supervisor:
        folders = [state.StateDir(folder)] if folder else state.running()
        for record in (found.read() for found in folders):
            if record is not None and record.pid == supervisor and record.phase == "ready":
                subprocess.run([sys.executable, DEMO, "--url", record.address], check=False)
                return
        time.sleep(LOOK_EVERY_S)


def main() -> None:
    """Starts the helper, then becomes `headrace up`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(HELPER, type=int, dest="supervisor")
    parser.add_argument("--state", type=Path)
    known, _ = parser.parse_known_args()
    if known.supervisor is not None:
        show_first_inference(known.supervisor, known.state)
        return
    options = sys.argv[1:]
    helper = [sys.executable, __file__, HELPER, str(os.getpid())]
    subprocess.Popen([*helper, "--state", str(known.state)] if known.state else helper)
    os.execv(sys.executable, [sys.executable, "-m", "headrace", "up", str(ROOT / "models"), *options])  # noqa: S606


if __name__ == "__main__":
    main()
