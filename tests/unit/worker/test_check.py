"""`check` explains what a worker would do, and never raises over a bad model."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from headrace_worker import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.worker.conftest import Zoo


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_every_model_is_reported_with_its_problem_or_its_decisions(zoo: Zoo) -> None:
    zoo.identity("fixed", shape=(1, 4))
    zoo.add("broken").write_bytes(b"no model")
    zoo.add("misspelt")
    (zoo.root / "misspelt" / "model.yaml").write_text("bathcing: off")
    (zoo.root / "notes").mkdir()
    report = check.check(zoo.root, device="cpu")
    models = {one.name: one for one in report.models}
    assert not report.fine
    assert models["fixed"].versions[0].notes[0].startswith("served unbatched")
    assert "not a valid ONNX model" in models["broken"].versions[0].problem
    assert "did you mean batching?" in models["misspelt"].problem
    assert "notes" in report.ignored


@pytest.mark.parametrize("path", ["m", "m/1", "m/1/model.onnx"])
def test_one_model_can_be_meant(zoo: Zoo, path: str) -> None:
    zoo.identity("m/1", shape=(1, 4))
    zoo.add("other")
    report = check.check(zoo.root / path, device="cpu")
    assert report.fine
    if path != "m/1":
        assert [one.name for one in report.models] == ["m"]


def test_the_document_is_json_and_the_exit_status_tells(zoo: Zoo, capsys: pytest.CaptureFixture[str]) -> None:
    zoo.identity("m", shape=(1, 4))
    assert check.main([str(zoo.root)]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["serves"] == ["1"]
    assert check.main([str(zoo.root / "nowhere")]) == 1
    assert "can't be read" in json.loads(capsys.readouterr().out)["problem"]
