"""The commands as scripts meet them: sentences and exit codes, without anything that runs."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.stack import supervisor
from headrace.stack.state import StateDir


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(supervisor, "find_spec", lambda _: object())
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


def test_a_models_folder_that_is_not_there_is_one_sentence_and_exit_code_2(run, tmp_path):
    told = run("up", tmp_path / "nowhere")
    assert told.exit_code == 2
    assert told.stderr.strip() == (
        f"headrace up: There is no {tmp_path / 'nowhere'}: name a folder of models, a model folder or an .onnx file."
    )
    # Nothing is left of the attempt.
    assert list((tmp_path / "xdg").iterdir()) == []


def test_a_taken_port_is_one_sentence_and_exit_code_2(run, tmp_path):
    (tmp_path / "m.onnx").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        told = run("up", tmp_path / "m.onnx", "--port", other.getsockname()[1])
    assert told.exit_code == 2
    assert "is taken" in told.stderr


def test_several_gateways_without_envoy_are_refused(run, tmp_path):
    told = run("up", tmp_path, "--no-envoy", "--gateways", 2)
    assert told.exit_code == 2
    assert "Envoy" in told.stderr


def test_a_detached_start_that_fails_hands_its_sentence_and_code_on(run, tmp_path):
    told = run("up", tmp_path / "nowhere", "--detach", "--state", tmp_path / "s")
    assert told.exit_code == 2
    assert "There is no" in told.stderr
    assert not StateDir(tmp_path / "s").is_held()


def test_status_and_down_say_that_nothing_runs(run, tmp_path):
    told = run("status", "--json", "--state", tmp_path / "s")
    assert told.exit_code == 3
    assert json.loads(told.stdout)["running"] is False
    assert run("status").exit_code == 3
    told = run("down", "--state", tmp_path / "s")
    assert (told.exit_code, told.stdout) == (0, "No stack is running.\n")
    assert json.loads(run("down", "--json").stdout) == {"stopped": False}
