import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import grpc
import numpy as np
import pytest

from headrace import NO_RETRIES, Client, InferRequest, errors
from headrace.channel import is_local
from tests.unit.client.echo_server import EchoServer, EchoService, answer

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_an_array_alone_is_enough_for_a_model_with_one_input(client: Client) -> None:
    result = client.infer("echo", ROW, id="r1", parameters={"tag": "a", "n": 2**63, "half": 0.5, "on": True})
    np.testing.assert_array_equal(result["y"], ROW)
    np.testing.assert_array_equal(result.only, ROW)
    assert (result.model, result.version, result.id) == ("echo", "1", "r1")
    assert dict(result.parameters) == {"tag": "a", "n": 2**63, "half": 0.5, "on": True}
    assert result.datatypes == {"y": "FP32"}
    with pytest.raises(KeyError, match="echo gave y"):
        result["z"]


def test_inputs_go_by_name_and_outputs_as_asked(client: Client, service: EchoService) -> None:
    ids = np.array([[1, 2, 3]], dtype=np.int64)
    result = client.infer("pair", {"weights": [[1, 2]], "ids": ids}, outputs=["ids_out"], priority=1)
    np.testing.assert_array_equal(result["ids_out"], ids)
    assert list(result.outputs) == ["ids_out"]
    assert service.seen[0].parameters["priority"].uint64_param == 1
    assert [one.name for one in service.seen[0].inputs] == ["ids", "weights"]


def test_everything_wrong_with_the_inputs_is_said_at_once_and_nothing_is_sent(
    client: Client, service: EchoService
) -> None:
    with pytest.raises(errors.UnknownTensor) as caught:
        client.infer("pair", {"idz": [[1]], "weights": np.zeros((2, 3), np.float32)})
    error = caught.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert {one.field: one.description for one in error.violations} == {
        "inputs[idz]": "the model has no such input; did you mean 'ids'?",
        "inputs[ids]": "is missing; the model takes ids INT64 [-1,-1]",
        "inputs[weights].shape": "expected [-1,2], got [2,3]",
    }
    assert all(one.field in error.message for one in error.violations)
    assert service.seen == []


def test_a_wrong_integer_width_is_refused_with_the_cast_to_write(client: Client) -> None:
    with pytest.raises(errors.InvalidTensor, match=r"expected INT64, got INT32 .*array\.astype\(numpy\.int64\)"):
        client.infer("pair", {"ids": np.zeros((1, 3), np.int32), "weights": [[0, 0]]})


def test_an_unknown_output_is_refused_before_sending(client: Client, service: EchoService) -> None:
    with pytest.raises(errors.UnknownTensor, match=r"outputs\[z\].*it has y"):
        client.infer("echo", ROW, outputs=["z"])
    assert service.seen == []


def test_metadata_is_asked_for_once(client: Client, service: EchoService) -> None:
    for _ in range(3):
        client.infer("echo", ROW)
    assert service.metadata_calls == 1


def test_a_model_loaded_anew_with_another_signature_is_noticed(client: Client, service: EchoService) -> None:
    client.infer("echo", ROW)
    service.models["echo"] = ([("x", "FP32", [-1, 5])], [("y", "FP32", [-1, 5])])
    wide = np.zeros((1, 5), np.float32)
    np.testing.assert_array_equal(client.infer("echo", wide)["y"], wide)
    assert service.metadata_calls == 2


def test_a_servers_refusal_of_checked_inputs_makes_the_client_ask_again(client: Client, service: EchoService) -> None:
    service.script.append(errors.InvalidTensor("no", violations=[errors.Violation("inputs[x].shape", "expected …")]))
    with pytest.raises(errors.InvalidTensor) as caught:
        client.infer("echo", ROW)
    assert caught.value.violations == (errors.Violation("inputs[x].shape", "expected …"),)
    client.infer("echo", ROW)
    assert service.metadata_calls == 2


def test_without_checks_nothing_is_asked_first(server: EchoServer) -> None:
    with Client(server.url, check=False) as client:
        np.testing.assert_array_equal(client.infer("echo", {"x": ROW})["y"], ROW)
    assert server.service.metadata_calls == 0


@pytest.mark.parametrize("nasty", [[b"ab\0cd\0", b"", b"\xff\xfe\x80", "🎉", os.urandom(1 << 20)]])
def test_strings_with_nul_and_non_utf8_bytes_come_back_unchanged(client: Client, nasty: list[bytes | str]) -> None:
    expected = [one.encode() if isinstance(one, str) else one for one in nasty]
    assert client.infer("identity_BYTES", nasty)["y"].tolist() == expected
    assert client.infer("identity_BYTES", np.array(nasty, dtype=object))["y"].tolist() == expected


def test_half_precision_travels_bit_for_bit(client: Client) -> None:
    bits = np.array([0x7E01, 0xFC00, 0x8000, 0x0001, 0x7BFF], dtype=np.uint16)
    assert client.infer("identity_FP16", bits.view(np.float16))["y"].view(np.uint16).tolist() == bits.tolist()
    sent = client.infer("identity_BF16", bits)["y"]
    assert sent.view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "UINT64", "INT8", "INT64", "FP32", "FP64"])
def test_every_datatype_comes_back_as_it_went(client: Client, datatype: str) -> None:
    from headrace_core.datatypes import BY_NAME

    array = np.array([0, 1, 1, 0], dtype=BY_NAME[datatype].dtype)
    for sent in (array, array[::-1], array[:0], array.astype(array.dtype.newbyteorder(">"))):
        answer = client.infer(f"identity_{datatype}", sent)["y"]
        assert answer.dtype == array.dtype
        np.testing.assert_array_equal(answer, sent)


def test_a_refusal_that_is_safe_to_repeat_is_repeated(client: Client, service: EchoService) -> None:
    hurried = timedelta(milliseconds=1)
    service.script += [
        errors.Draining("going", retry_after=hurried),
        errors.QueueFull("full", retry_after=hurried),
    ]
    np.testing.assert_array_equal(client.infer("echo", ROW)["y"], ROW)
    assert len(service.seen) == 3


@pytest.mark.parametrize("error", [errors.WorkerLost("died"), errors.InferenceFailed("boom"), errors.OverQuota("no")])
def test_what_may_have_run_is_not_repeated(client: Client, service: EchoService, error: errors.ServingError) -> None:
    service.script.append(error)
    with pytest.raises(type(error)) as caught:
        client.infer("echo", ROW)
    assert caught.value.reason == error.reason
    assert len(service.seen) == 1


def test_the_whole_timeout_covers_the_retries(server: EchoServer) -> None:
    server.service.script += [errors.ModelLoading("wait", retry_after=timedelta(seconds=30))] * 5
    with Client(server.url, timeout=5) as client, pytest.raises(errors.ModelLoading):
        client.infer("echo", ROW)
    assert len(server.service.seen) == 1


def test_the_server_is_told_the_time_left(client: Client, service: EchoService) -> None:
    client.infer("echo", ROW, timeout=timedelta(seconds=3))
    assert service.timeouts[0] is not None
    assert 2 < service.timeouts[0] < 3.5
    client.infer("echo", ROW, timeout=None)
    assert service.timeouts[1] is None or service.timeouts[1] > 1e6


def test_no_answer_in_time_is_a_timeout_error_of_ours(client: Client, service: EchoService) -> None:
    gone = threading.Event()

    async def hang(context: grpc.aio.ServicerContext) -> None:
        import asyncio

        try:
            await asyncio.sleep(60)
        finally:
            gone.set()

    client.infer("echo", ROW)
    service.script.append(hang)
    with pytest.raises(errors.DeadlineExceeded, match="within the timeout"):
        client.infer("echo", ROW, timeout=0.2)
    assert gone.wait(5), "the server was not told"


def test_nobody_there_is_said_with_the_address(nobody: str) -> None:
    with Client(nobody, retries=NO_RETRIES) as client:
        with pytest.raises(errors.Unreachable, match=f"nothing answers at {nobody}: .*refused") as caught:
            client.infer("echo", ROW)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert not client.server_live(timeout=1)
        assert not client.server_ready(timeout=1)


def test_a_server_that_dies_with_the_request_is_not_asked_again(client: Client, server: EchoServer) -> None:
    arrived = threading.Event()

    async def hang(context: grpc.aio.ServicerContext) -> None:
        import asyncio

        arrived.set()
        await asyncio.sleep(60)

    client.infer("echo", ROW)
    server.service.script.append(hang)

    def stop() -> None:
        assert arrived.wait(5)
        server.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(errors.ServingError) as caught:
        client.infer("echo", ROW)
    stopper.join()
    assert not isinstance(caught.value, errors.Unreachable)
    assert len(server.service.seen) == 2


def test_a_request_over_the_limit_is_refused_here_with_the_setting(server: EchoServer) -> None:
    with Client(server.url, max_message_bytes=1000) as client, pytest.raises(errors.MessageTooLarge) as caught:
        client.infer("big", np.zeros(1000, np.float32))
    assert "1,000" in caught.value.message
    assert "max_message_bytes" in caught.value.message


def test_a_reply_over_the_limit_names_the_setting(server: EchoServer) -> None:
    with Client(server.url, max_message_bytes=4000) as client:
        with pytest.raises(errors.MessageTooLarge, match="max_message_bytes"):
            client.infer("big", np.zeros(100, np.float32), parameters={"times": 20})
        assert client.infer("big", np.zeros(100, np.float32))["y"].size == 100


def test_messages_of_many_megabytes_pass_both_ways(client: Client) -> None:
    sixty = np.zeros(60 * 1024 * 1024 // 4, np.float32)
    assert client.infer("big", sixty)["y"].nbytes == sixty.nbytes


def test_many_inputs_keep_their_order(client: Client) -> None:
    rows = (np.full((1, 4), n, np.float32) for n in range(50))
    assert [result["y"][0, 0] for result in client.infer_many("echo", rows, concurrency=7)] == list(range(50))


def test_threads_share_a_client(client: Client) -> None:
    def ask(n: int) -> list[float]:
        return [float(client.infer("echo", np.full((1, 4), n, np.float32))["y"][0, 0]) for _ in range(20)]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [[float(n)] * 20 for n in range(8)]


def test_a_stream_gives_every_answer_in_order(client: Client, service: EchoService) -> None:
    items = [
        np.full((1, 4), 1, np.float32),
        InferRequest(inputs=np.full((1, 4), 2, np.float32), id="two", parameters={"answers": 3}),
        {"x": np.full((1, 4), 3, np.float32)},
    ]
    results = list(client.stream("echo", items))
    assert [result["y"][0, 0] for result in results] == [1, 2, 2, 2, 3]
    assert [result.id for result in results] == ["", "two", "two", "two", ""]
    assert service.stream_metadata["triton_grpc_error"] == "true"


def test_a_failed_stream_gives_what_came_before_and_then_the_typed_error(client: Client, service: EchoService) -> None:
    service.script += [answer, errors.QueueFull("full")]
    results = client.stream("echo", [ROW, ROW])
    next(results)
    with pytest.raises(errors.QueueFull):
        next(results)


def test_an_error_inside_a_stream_is_raised_with_its_request(client: Client, service: EchoService) -> None:
    service.in_band_errors = True
    service.script.append(errors.InferenceFailed("it broke"))
    with pytest.raises(errors.StreamError, match="it broke") as caught:
        list(client.stream("echo", [InferRequest(inputs=ROW, id="seven")]))
    assert caught.value.request_id == "seven"


def test_an_error_of_the_callers_own_iterator_comes_through(client: Client) -> None:
    def items() -> Iterator[np.ndarray]:
        yield ROW
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        list(client.stream("echo", items()))


def test_a_bad_item_of_a_stream_is_refused_like_any_other(client: Client) -> None:
    with pytest.raises(errors.InvalidTensor, match=r"expected \[-1,4\], got \[1,3\]"):
        list(client.stream("echo", [np.zeros((1, 3), np.float32)]))


def test_leaving_a_stream_early_cancels_it(client: Client) -> None:
    def endless() -> Iterator[np.ndarray]:
        while True:
            yield ROW

    for _ in client.stream("echo", endless()):
        break
    np.testing.assert_array_equal(client.infer("echo", ROW)["y"], ROW)


def test_what_the_server_says_about_itself(client: Client, service: EchoService) -> None:
    assert client.server_live()
    assert client.server_ready()
    assert client.model_ready("echo")
    assert not client.model_ready("nope")
    assert client.server_metadata().extensions == ("statistics",)
    assert client.metadata("pair").optional_inputs == {"bias"}
    card = client.metadata("photo").card
    assert card is not None
    assert card.summary == "tells red from green from blue"
    assert client.config("echo")["max_batch_size"] == 8
    assert client.statistics("echo")[0]["version"] == "1"
    client.unload("pair")
    assert {one.name: (one.state, one.reason) for one in client.models()}["pair"] == ("UNAVAILABLE", "unloaded")
    assert [one.name for one in client.models(ready=True)] == ["echo", "photo"]
    client.load("pair")
    assert client.model_ready("pair")
    with pytest.raises(errors.ModelNotFound):
        client.load("nope")


def test_waiting_ends_when_the_server_is_ready(client: Client, service: EchoService) -> None:
    service.ready = False
    timer = threading.Timer(0.3, lambda: setattr(service, "ready", True))
    timer.start()
    client.wait_ready(timeout=10)
    timer.join()
    client.wait_ready("echo", timeout=10)


def test_waiting_in_vain_says_what_the_server_says(client: Client, service: EchoService) -> None:
    client.unload("pair")
    with pytest.raises(errors.DeadlineExceeded, match=r"pair is not ready after 0\.2 s: .*UNAVAILABLE unloaded"):
        client.wait_ready("pair", timeout=0.2)
    with pytest.raises(errors.DeadlineExceeded, match="no such model; it has echo, pair, photo"):
        client.wait_ready("nope", timeout=0.2)


def test_waiting_outlasts_a_server_that_is_not_there_yet(nobody: str) -> None:
    with Client(nobody) as client, pytest.raises(errors.DeadlineExceeded, match="nothing answers"):
        client.wait_ready(timeout=0.5)


def test_a_closed_client_says_so(server: EchoServer) -> None:
    client = Client(server.url)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.server_live()


def test_a_fork_is_refused_instead_of_hanging(client: Client) -> None:
    client._pid = os.getpid() + 1
    with pytest.raises(RuntimeError, match="fork"):
        client.server_live()
    client._pid = os.getpid()


@pytest.mark.parametrize("url", ["localhost", "https://x:1", ":8001", "x:port", "x:0"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=url.split("://", maxsplit=1)[0]):
        Client(url)


def test_the_environment_gives_the_address(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", f"grpc://{server.url}/")
    with Client() as client:
        assert client.server_live()


def test_errors_survive_a_process_pool() -> None:
    for error in (errors.Unreachable("nobody"), errors.StreamError("x", "id"), errors.QueueFull("full")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.message, copy.reason) == (type(error), error.message, error.reason)


def test_a_spawned_process_uses_a_client_of_its_own(server: EchoServer) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(_ask_in_child, (server.url,)) == 6.0


def _ask_in_child(url: str) -> float:
    with Client(url) as client:
        return float(client.infer("echo", ROW)["y"].sum())


def test_a_server_on_this_machine_is_never_asked_for_through_a_proxy(
    server: EchoServer, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{nobody}")
    monkeypatch.delenv("no_proxy", raising=False)
    with Client(server.url, timeout=10) as client:
        assert client.server_live()


@pytest.mark.parametrize(
    "address", ["localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/run/s", "ipv4:127.0.0.1:1", "dns:///localhost:1"]
)
def test_addresses_of_this_machine(address: str) -> None:
    assert is_local(address)


@pytest.mark.parametrize("address", ["example.org:1", "10.0.0.1:1", "dns:///example.org:1", "[fe80::1]:1"])
def test_addresses_of_other_machines(address: str) -> None:
    assert not is_local(address)
