"""The stack's small parts: ports, back-off, logs, state folders, repositories, tools."""

import json
import socket
import time
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest

from headrace.stack import tools
from headrace.stack.backoff import Backoff
from headrace.stack.logs import Lines, LogWriter, RollingFile, Text, as_json, entry
from headrace.stack.plan import Ports, Programs, UpOptions, plan
from headrace.stack.ports import PortTaken, claim
from headrace.stack.problem import StackProblem, UsageProblem
from headrace.stack.repository import Repository, assemble
from headrace.stack.state import StateDir, make_temporary, remove, running


def test_a_claimed_port_can_be_listened_on_but_not_claimed_twice():
    ours = claim("127.0.0.1")
    try:
        with pytest.raises(PortTaken):
            claim("127.0.0.1", port=ours.port)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", ours.port))
            server.listen()
    finally:
        ours.close()
    claim("127.0.0.1", port=ours.port).close()


def test_a_host_by_name_is_claimed_as_the_number_that_every_program_takes():
    ours = claim("localhost")
    ours.close()
    assert ours.host == "127.0.0.1"


def test_a_port_that_somebody_listens_on_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(PortTaken):
        claim("127.0.0.1", port=server.getsockname()[1])


def test_an_address_of_another_machine_is_no_taken_port():
    with pytest.raises(OSError, match="assign requested address") as problem:
        claim("192.0.2.1", port=0)
    assert not isinstance(problem.value, PortTaken)


def test_back_off_doubles_up_to_its_longest_and_forgives_a_long_life():
    backoff = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=5), forgive=timedelta(seconds=10))
    early = timedelta(seconds=1)
    waits = [backoff.after_death(lived=early).total_seconds() for _ in range(5)]
    assert waits == [1, 2, 4, 5, 5]
    assert backoff.after_death(lived=timedelta(seconds=10)) == timedelta(seconds=1)


def test_lines_are_put_together_across_reads_and_cut_when_endless():
    lines = Lines()
    assert list(lines.feed(b"a\nbc")) == ["a"]
    assert list(lines.feed(b"d\r\n" + b"x" * 100_000)) == ["bcd"]
    (long,) = lines.feed(b"x\n")
    assert len(long) == 16 * 1024
    assert list(lines.feed(b"next\nrest")) == ["next"]
    assert list(lines.end()) == ["rest"]


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ('{"level":"WARN","message":"hot","rows":3}', "warning", "hot"),
        ("[12] 2026/01/01 00:00:00.000000 [ERR] no space", "error", "no space"),
        ('{"half', "info", '{"half'),
        ('["list"]', "info", '["list"]'),
        ("plain", "info", "plain"),
    ],
)
def test_any_line_becomes_an_entry(line: str, level: str, message: str):
    told = entry("nats", line)
    assert (told.level, told.message) == (level, message)


def test_entries_render_for_people_and_for_programs():
    told = entry(
        "worker-1", '{"time":"2026-01-01T10:00:00.123Z","level":"info","message":"ready","service":"x","rows":3}'
    )
    assert Text(colour=False)(told) == "10:00:00.123 worker-1   ready rows=3"
    assert "\x1b[" in Text(colour=True)(told)
    assert json.loads(as_json(told)) == {
        "time": "2026-01-01T10:00:00.123Z",
        "service": "worker-1",
        "level": "info",
        "message": "ready",
        "rows": 3,
    }


def test_a_reader_that_does_not_read_holds_nobody_up():
    class Stuck(StringIO):
        def write(self, text: str) -> int:
            time.sleep(30)
            return len(text)

    writer = LogWriter(Stuck(), capacity=10)
    began = time.monotonic()
    for number in range(1000):
        writer.write(str(number))
    assert time.monotonic() - began < 5


def test_a_log_file_rolls_over_at_its_limit(tmp_path: Path):
    path = tmp_path / "log"
    rolling = RollingFile(path, limit=100)
    for _ in range(3):
        rolling.write("x" * 60)
    rolling.close()
    assert path.stat().st_size == 60
    assert path.with_name("log.1").stat().st_size == 60


def test_the_run_folder_is_short_and_plain_however_the_state_folder_is(tmp_path: Path):
    for name in ("x" * 120, "with a space"):
        state = StateDir(tmp_path / name)
        with state.hold():
            run = state.make_run_dir()
            assert len(str(run)) <= 60
            assert " " not in str(run)
            run.rmdir()


def test_a_folder_that_is_held_says_so_and_lets_go(tmp_path: Path):
    state = StateDir(tmp_path / "s")
    assert not state.is_held()
    with state.hold():
        assert state.is_held()
    assert not state.is_held()


def test_a_state_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageProblem, match="cannot be used"), StateDir(tmp_path / "file" / "s").hold():
        pass


def test_temporary_folders_that_a_killed_stack_left_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    left = make_temporary()
    with left.hold():
        assert [one.path for one in running()] == [left.path]
    second = make_temporary()
    assert not left.path.exists()
    remove(second)
    assert list(tmp_path.iterdir()) == []


def model(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_one_repository_folder_is_served_as_it_is(tmp_path: Path):
    model(tmp_path / "repo" / "a" / "1" / "model.onnx")
    assert assemble([tmp_path / "repo"], links=tmp_path / "links") == Repository(tmp_path / "repo")
    assert not (tmp_path / "links").exists()


def test_models_named_one_by_one_become_one_repository(tmp_path: Path):
    single = model(tmp_path / "x" / "fraud.onnx")
    folder = model(tmp_path / "my models" / "b" / "model.onnx").parent
    model(tmp_path / "repo" / "a" / "1" / "model.onnx")
    repository = assemble([single, folder, tmp_path / "repo"], links=tmp_path / "links")
    assert repository.roots == (single.parent, folder, tmp_path / "repo" / "a")
    links = repository.path
    assert sorted(path.name for path in links.iterdir()) == ["a", "b", "fraud.onnx"]
    assert (links / "a" / "1" / "model.onnx").exists()


def test_weights_beside_a_single_file_come_with_it(tmp_path: Path):
    single = model(tmp_path / "x" / "net.onnx")
    model(tmp_path / "x" / "net.onnx.data")
    model(tmp_path / "x" / "other.onnx")
    links = assemble([single], links=tmp_path / "links").path
    assert sorted(path.name for path in links.iterdir()) == ["net.onnx", "net.onnx.data"]


def test_services_keep_their_temporary_files_and_sockets_in_the_stack_s_folder(tmp_path: Path):
    ports = Ports(public=claim("127.0.0.1"), workers=(claim("127.0.0.1"),))
    try:
        tiers = plan(
            UpOptions(models=(), envoy=False, nats=False),
            programs=Programs(),
            ports=ports,
            repository=Repository(tmp_path),
            nats_dir=tmp_path / "nats",
            run_dir=tmp_path,
        )
    finally:
        ports.close()
    for spec in (one for tier in tiers for one in tier):
        assert {spec.env["TMPDIR"], spec.env["XDG_RUNTIME_DIR"]} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("made", "asked", "sentence"),
    [
        ((), "nowhere", "There is no .*nowhere"),
        (("empty/readme.txt",), "empty", "No model was found in .*expected NAME.onnx"),
        (("notes.txt",), "notes.txt", "is not a model"),
    ],
)
def test_a_bad_models_folder_is_one_clear_sentence(tmp_path: Path, made: tuple[str, ...], asked: str, sentence: str):
    for name in made:
        model(tmp_path / name)
    with pytest.raises(UsageProblem, match=sentence):
        assemble([tmp_path / asked], links=tmp_path / "links")


def test_two_models_of_one_name_are_refused(tmp_path: Path):
    one, two = model(tmp_path / "1" / "m.onnx"), model(tmp_path / "2" / "m" / "model.onnx").parent
    with pytest.raises(UsageProblem, match="Two models are named 'm'"):
        assemble([one, two], links=tmp_path / "links")


def test_a_program_on_path_that_is_too_old_is_passed_over_for_the_wheel(tmp_path: Path):
    # A launcher script is never taken, whatever it says of itself.
    script = tmp_path / "envoy"
    script.write_text("#!/bin/sh\necho version 99.0.0\n")
    script.chmod(0o755)
    found = tools.find(tools.ENVOY, which=lambda _: str(script))
    assert found != script
    assert tools.find(tools.NATS).name == "nats-server"


def test_a_missing_program_says_how_to_get_it():
    tool = tools.Tool(program="no-such-program", wheel="no-such-wheel", oldest=(1, 0), before=(2, 0))
    with pytest.raises(StackProblem, match="pip install no-such-wheel"):
        tools.find(tool, which=lambda _: None)
