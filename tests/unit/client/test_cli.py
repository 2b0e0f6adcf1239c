import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from headrace.cli import app
from headrace_core import errors
from tests.unit.client.echo_server import EchoServer, EchoService

runner = CliRunner()


def run(*arguments: str | Path) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments], prog_name="headrace")


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_models_are_a_tab_separated_table_in_a_pipe(server: EchoServer) -> None:
    server.service.unloaded.add("pair")
    done = run("models", "--url", server.url)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "MODEL\tVERSION\tSTATE\tREASON",
        "echo\t1\tREADY\t",
        "pair\t1\tUNAVAILABLE\tunloaded",
        "photo\t1\tREADY\t",
    ]
    verbose = run("models", "-v", "--ready", "--url", server.url).stdout
    assert "echo\t1\tREADY\t\tx FP32 [-1,4]\ty FP32 [-1,4]\t" in verbose
    assert "tells red from green from blue" in verbose


def test_models_as_json(server: EchoServer) -> None:
    listed = json.loads(run("models", "--json", "-v", "--url", server.url).stdout)
    assert listed[0] == {
        "name": "echo",
        "version": "1",
        "state": "READY",
        "reason": "",
        "platform": "numpy",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
        "card": None,
    }


def test_infer_takes_json_and_prints_tensors(server: EchoServer) -> None:
    for given in ("x=[[1,2,3,4]]", "[[1,2,3,4]]"):
        done = run("infer", "echo", "--input", given, "--url", server.url)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines() == ["echo version 1", "y FP32 [1,4]", "  [[1. 2. 3. 4.]]"]


def test_infer_reads_and_saves_npy_files(server: EchoServer, tmp_path: Path) -> None:
    ids, weights, saved = tmp_path / "ids.npy", tmp_path / "a=b.npy", tmp_path / "out.npy"
    np.save(ids, np.array([[1, 2, 3]]))
    np.save(weights, np.ones((1, 2), np.float32))
    done = run(
        "infer", "pair", "-i", f"ids={ids}", "-i", f"weights=@{weights}", "-o", f"ids_out={saved}", "--url", server.url
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    np.testing.assert_array_equal(np.load(saved), [[1, 2, 3]])
    assert "weights_out" not in done.stdout
    assert f"ids_out saved to {saved}" in done.stdout


def test_a_pickle_in_an_npy_file_is_never_loaded(server: EchoServer, tmp_path: Path) -> None:
    evil = tmp_path / "evil.npy"
    np.save(evil, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    done = run("infer", "echo", "-i", f"x={evil}", "--url", server.url)
    assert done.exit_code == 2
    assert "no array of numbers" in done.stderr


def test_an_image_goes_through_the_card_and_comes_back_as_class_names(server: EchoServer, tmp_path: Path) -> None:
    green = tmp_path / "green.png"
    Image.new("RGB", (30, 20), (20, 200, 30)).save(green)
    for option in (("--image", str(green)), ("--input", f"image=@{green}")):
        done = run("infer", "photo", *option, "--url", server.url)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == ["  green   80.0 %", "  blue    12.0 %"]
    both = run("infer", "photo", "--image", green, "--image", green, "--top", "1", "--json", "--url", server.url)
    values = json.loads(both.stdout)
    assert [row[0]["label"] for row in values["classes"]] == ["green", "green"]
    assert values["outputs"][0]["shape"] == [2, 3]


def test_json_output_holds_what_json_can_not(server: EchoServer) -> None:
    done = run("infer", "identity_FP32", "-i", "[NaN, 1e400, -1e400, 0.5]", "--json", "--url", server.url)
    assert json.loads(done.stdout)["outputs"][0]["data"] == ["NaN", "Infinity", "-Infinity", 0.5]


def test_text_for_a_bytes_input(server: EchoServer, tmp_path: Path) -> None:
    done = run("infer", "identity_BYTES", "-i", "x=hello there", "--json", "--url", server.url)
    assert json.loads(done.stdout)["outputs"][0]["data"] == ["hello there"]
    blob = tmp_path / "blob"
    blob.write_bytes(b"\xff\0")
    done = run("infer", "identity_BYTES", "-i", f"x=@{blob}", "--json", "--url", server.url)
    assert json.loads(done.stdout)["outputs"][0]["data"] == [{"base64": "/wA="}]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["infer", "echo"], 2, "echo takes x FP32 [-1,4]: give --input NAME=VALUE"),
        (["infer", "echo", "-i", "z=[1]"], 2, "echo has no input 'z'; it has x"),
        (["infer", "echo", "-i", "x=nonsense"], 2, "neither JSON nor a .npy file"),
        (["infer", "echo", "-i", "x=missing.npy"], 2, "missing.npy can't be read: No such file"),
        (["infer", "echo", "-i", "x=[[1]]"], 1, "inputs[x].shape: expected [-1,4], got [1,1] [INVALID_TENSOR]"),
        (["infer", "echo", "--image", "x.png"], 2, "echo has no card that says how it takes pictures"),
        (["infer", "echo", "-i", "[[1,2,3,4]]", "-o", "nope"], 1, "outputs[nope]: the model has no such output"),
        (["infer", "nope", "-i", "[1]"], 1, "no model 'nope' [MODEL_NOT_FOUND]"),
        (["load", "nope"], 1, "no model 'nope' [MODEL_NOT_FOUND]"),
        (["load", "echo", "--config", "["], 2, "--config is not JSON"),
        (["bench", "echo", "--duration", "soon"], 2, "--duration 'soon' is no length of time"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_an_exit_code(
    server: EchoServer, arguments: list[str], exit_code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own tests don't need the compiled extension.
    monkeypatch.setattr("headrace.commands.bench._extension", lambda: None)
    done = run(*arguments, "--url", server.url)
    assert done.exit_code == exit_code, done.output
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"headrace {arguments[0]}: ")


def test_nobody_there_and_too_late_have_exit_codes_of_their_own(nobody: str, server: EchoServer) -> None:
    done = run("models", "--url", nobody)
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"nothing answers at {nobody}" in done.stderr

    async def hang(context: Any) -> None:
        import asyncio

        await asyncio.sleep(60)

    server.service.script.append(hang)
    assert run("infer", "echo", "-i", "[[1,2,3,4]]", "--timeout", "0.3", "--url", server.url).exit_code == 4


def test_load_and_unload_say_what_became_of_it(server: EchoServer) -> None:
    assert run("unload", "echo", "--url", server.url).stdout == "echo 1 UNAVAILABLE unloaded\n"
    done = run("load", "echo", "--json", "--url", server.url)
    assert json.loads(done.stdout)["versions"] == [{"version": "1", "state": "READY", "reason": ""}]


def test_a_real_process_exits_with_these_codes_and_no_traceback(server: EchoServer, nobody: str) -> None:
    fine = run_process("infer", "echo", "-i", "[[1,2,3,4]]", "--url", server.url)
    assert (fine.returncode, fine.stderr) == (0, "")
    gone = run_process("models", "--url", nobody)
    assert gone.returncode == 3
    assert len(gone.stderr.splitlines()) == 1
    assert run_process("models", "--nonsense").returncode == 2
    assert run_process("models", "--url", "nonsense").returncode == 2


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(server: EchoServer) -> None:
    arrived = threading.Event()

    async def hang(context: Any) -> None:
        import asyncio

        arrived.set()
        await asyncio.sleep(60)

    server.service.script.append(hang)
    command = [sys.executable, "-c", "from headrace.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "infer", "echo", "-i", "[[1,2,3,4]]", "--url", server.url], stderr=subprocess.PIPE, text=True
    )
    assert arrived.wait(30)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in stderr


class FakeExtension:
    """Stands where the compiled load generator is; it does what its arguments say, and no more."""

    def __init__(self) -> None:
        self.configs: list[dict[str, Any]] = []

    def load_test(self, config: str) -> str:
        self.configs.append(json.loads(config))
        latency = {"count": 1, "min": 1, "mean": 1.0, "p50": 1, "p90": 2, "p95": 2, "p99": 3, "p99.9": 4, "max": 20_000}
        report = {
            "requests": 1000, "ok": 998, "rps": 200.0, "goodput_rps": 190.0, "errors": {"UNAVAILABLE": 2},
            "reasons": {"DRAINING": 2}, "messages": {"DRAINING": "going"}, "latency_us": latency,
            "error_latency_us": latency, "lag_us": latency, "dropped": 0, "mismatches": 0, "reconnects": 0,
            "bytes_in": 1, "bytes_out": 1, "seconds": 5.0, "client_cpu_us_per_request": 2.0, "client_busy": 0.1,
        }  # fmt: skip
        return json.dumps(report)


def test_bench_sends_valid_requests_and_reports_server_cpu(
    server: EchoServer, service: EchoService, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    from headrace_protos.inference import grpc_service_pb2 as pb

    fake = FakeExtension()
    monkeypatch.setattr("headrace.commands.bench._extension", lambda: fake)
    done = run(
        "bench", "pair", "--url", server.url, "--rows", "2", "--dim", "5", "--rate", "100", "--deadline", "50ms", "--json"
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    warmed, measured = fake.configs
    assert (warmed["duration_ms"], measured["duration_ms"], measured["warmup_ms"]) == (500, 5000, 0)
    assert (measured["rate"], measured["timeout_us"]) == (100, 50_000)
    request = pb.ModelInferRequest.FromString(base64.b64decode(measured["payloads"][0]["base64"]))
    assert [list(one.shape) for one in request.inputs] == [[2, 5], [2, 2]]
    assert len(service.seen) == 1, "one checked request goes before the load"
    assert values["rps"] == 200.0
    # The echo server is this very process.
    assert len(values["server_cpu_us_per_request"]) == 1
    plain = run("bench", "pair", "--url", server.url).stdout
    assert "answered   998 of 1,000: 200 a second" in plain
    assert "max 20.0 ms" in plain
    assert "DRAINING: going" in plain


def test_a_refused_request_ends_a_bench_before_any_load(
    server: EchoServer, service: EchoService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeExtension()
    monkeypatch.setattr("headrace.commands.bench._extension", lambda: fake)
    service.script.append(errors.InvalidTensor("wrong values"))
    done = run("bench", "echo", "--url", server.url)
    assert done.exit_code == 1
    assert fake.configs == []


@pytest.mark.parametrize("arguments", [["--help"], ["models"], ["status", "--state", "/nowhere"]])
def test_a_script_may_close_standard_output(server: EchoServer, arguments: list[str]) -> None:
    line = 'exec "$@" >&-'
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "headrace", *arguments]
    environment = os.environ | {"HEADRACE_URL": server.url}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (3 if "status" in arguments else 0, "")
