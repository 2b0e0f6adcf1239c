"""Files that another process may read at any moment."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_atomically(path: Path, *, text: str) -> None:
    """Puts the text there whole: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_ready_file(path: Path, *, address: str, extra: Mapping[str, str] | None = None) -> None:
    """Tells a supervisor that this process serves, and where: `{"address": "127.0.0.1:40213", "pid": 123}`."""
    write_atomically(path, text=json.dumps({"address": address, "pid": os.getpid(), **(extra or {})}) + "\n")
