"""A stack that runs on after the command that started it: `headrace up --detach`.

`launch` starts this module as a process of its own session and waits for one line from it, `Outcome`: ready, or why
not. Everything after that goes to `headrace.log` in the state folder.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from headrace.stack.logs import Log, LogWriter, RollingFile, Text, as_json
from headrace.stack.plan import UpOptions
from headrace.stack.problem import StackProblem
from headrace.stack.serve import serve
from headrace.stack.state import StackRecord, StateDir, make_temporary, remove

_OPTIONS = TypeAdapter(UpOptions)


class Outcome(BaseModel):
    """What became of the start."""

    model_config = ConfigDict(frozen=True)

    ready: StackRecord | None = None
    problem: str | None = None
    exit_code: int = 0


def launch(options: UpOptions, *, state: StateDir | None, json_logs: bool) -> tuple[StackRecord, StateDir]:
    """Starts a detached stack and returns when it is ready. Raises `StackProblem` with its reason when it is not.

    Without `state` the stack gets a temporary folder, which it removes when it ends.
    """
    # A script that gives up waiting ends this command with SIGTERM; it leaves as from Ctrl-C, below.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        return _launch(options, state=state, json_logs=json_logs)
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _launch(options: UpOptions, *, state: StateDir | None, json_logs: bool) -> tuple[StackRecord, StateDir]:
    folder = state or make_temporary()
    command = [sys.executable, "-m", "headrace.stack.detached", str(folder.path)]
    flags = [*(["--json-logs"] if json_logs else []), *([] if state else ["--temporary"])]
    with subprocess.Popen(
        [*command, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None, "started with a pipe"
        assert process.stdout is not None, "started with a pipe"
        try:
            process.stdin.write(_OPTIONS.dump_json(options))
            process.stdin.close()
            # Ends when the other side lets go of the pipe, which it does long before it ends itself.
            told = process.stdout.read()
        except (KeyboardInterrupt, SystemExit):
            # To end this command while the stack starts means the stack too; it is in a session of its own.
            process.terminate()
            process.wait()
            raise
        try:
            outcome = Outcome.model_validate_json(told)
        except ValidationError as problem:
            raise StackProblem(f"The stack ended without a word; see {folder.log}.") from problem
        if outcome.ready is None:
            raise StackProblem(
                outcome.problem or "The stack ended before it was ready.", exit_code=outcome.exit_code or 1
            )
        # It lives on; nothing here waits for it. Its end is the init process's to collect.
        process.returncode = 0
    return outcome.ready, folder


def main() -> int:
    """The detached process: options as JSON on standard input, one `Outcome` on standard output."""
    folder = StateDir(Path(sys.argv[1]))
    temporary = "--temporary" in sys.argv[2:]
    render = as_json if "--json-logs" in sys.argv[2:] else Text(colour=False)
    options = _OPTIONS.validate_json(sys.stdin.buffer.read())
    try:
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = RollingFile(folder.log)
    except OSError as problem:
        _tell(Outcome(problem=f"The state folder {folder.path} cannot be used: {problem.strerror}.", exit_code=2))
        return 2
    writer = LogWriter(file)
    log = Log(writer, render=render, level=options.log_level)
    try:
        return serve(
            options, state=folder, log=log, writer=writer, on_ready=lambda record, _: _tell(Outcome(ready=record))
        )
    except StackProblem as problem:
        log.say(str(problem), level="error")
        _tell(Outcome(problem=str(problem), exit_code=problem.exit_code))
        return problem.exit_code
    finally:
        writer.close()
        file.close()
        if temporary:
            remove(folder)


def _tell(outcome: Outcome) -> None:
    """Says it once and lets go of the pipe, whose other end is waiting for just that; and of the caller's standard error."""
    try:
        sys.stdout.write(outcome.model_dump_json() + "\n")
        sys.stdout.flush()
    except OSError:
        # Whoever started this has gone; the log has it too.
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
