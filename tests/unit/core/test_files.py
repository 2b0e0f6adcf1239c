"""Files are there whole or not at all."""

import json
import os
from pathlib import Path

import pytest

from headrace_core import files


def test_the_ready_file_names_address_and_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ready.json"
    files.write_ready_file(path, address="127.0.0.1:1")
    assert json.loads(path.read_text()) == {"address": "127.0.0.1:1", "pid": os.getpid()}


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, text="old")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        files.write_atomically(path, text="new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
