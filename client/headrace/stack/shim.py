"""Becomes the program it is told to run, after tying its life to the supervisor's.

Run as a file, `python -I -S shim.py SUPERVISOR_PID PROGRAM ARGS…`. It asks the kernel to kill this process when the
supervisor goes, whatever way it goes, and then executes the program in place: same process id, nothing left of Python.
This replaces a function run between fork and exec, which is not safe in a process that has threads.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    supervisor, program, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[2:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only where it is needed: this runs before every start

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The supervisor may have gone before the request was made; the kernel tells nobody afterwards.
        if os.getppid() != supervisor:
            sys.exit(1)
    # Python ignores these two; an ignored signal would stay ignored in the program.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(program, arguments)  # noqa: S606
    except OSError as problem:
        sys.exit(f"cannot start {program}: {problem.strerror}")


main()
