"""A stand-in for a service: binds its address, writes its ready file, leaves a journal of what happened to it."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

kind = sys.argv[1]
prefix = f"HEADRACE_{kind.upper()}_"
ready_file = Path(os.environ[prefix + "READY_FILE"])
name = ready_file.name.removesuffix(".ready.json")
journal = Path(os.environ["STAND_IN_JOURNAL"])


def note(event: str) -> None:
    with journal.open("a") as file:
        file.write(f"{name} {event} {os.getpid()}\n")


def end(*_: object) -> None:
    note("asked to stop")
    if (journal.parent / f"{name}.stubborn").exists():
        return
    note("ended")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
note("started")
if (journal.parent / f"{name}.broken").exists():
    sys.exit(json.dumps({"level": "error", "message": "the model store is on fire"}))
host, _, port = os.environ[prefix + "LISTEN"].rpartition(":")
listener = socket.create_server((host, int(port)))
fresh = ready_file.with_suffix(".new")
fresh.write_text(json.dumps({"address": f"{host}:{port}", "pid": os.getpid()}))
fresh.replace(ready_file)
print(json.dumps({"level": "info", "message": "serving", "address": f"{host}:{port}"}), flush=True)
while True:
    time.sleep(60)
