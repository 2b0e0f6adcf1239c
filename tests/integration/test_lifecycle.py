"""Models that come, go, fail, are half copied and linked, while others serve (V18–V21)."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import numpy as np
import onnx
import pytest

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.support import models
from tests.support.calls import PATIENCE, Door, Refusal, request, rows
from tests.support.processes import Processes, Service, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Site:
    """A worker with its own repository, a gateway before it, and `steady`, a model that nothing may disturb."""

    def __init__(self, root: Path, worker: Service, gateway: Service, *, outside: Path) -> None:
        self.root, self.service, self.outside = root, worker, outside
        self.doors = {"worker": Door("worker", worker.address), "gateway": Door("gateway", gateway.address)}
        self.worker = self.doors["worker"]

    def close(self) -> None:
        for one in self.doors.values():
            one.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lifecycle")
    root = folder / "models"
    models.save(root / "steady" / "1", models.add(1.0))
    blobs, outside = folder / "blobs", folder / "outside"
    blobs.mkdir()
    outside.mkdir()
    with Processes(folder) as processes:
        worker = processes.worker(root, allowed_roots=blobs)
        made = Site(root, worker, processes.gateway([worker]), outside=outside)
        yield made
        assert worker.alive
        made.close()


@pytest.fixture(params=["worker", "gateway"])
def door(request: pytest.FixtureRequest, site: Site) -> Door:
    return site.doors[request.param]


@contextmanager
def steadily(door: Door, model: str, *, amount: float, pause: float = 0.01) -> Iterator[list[Refusal]]:
    """Requests one after the other in the background; every failure is listed, a wrong answer too."""
    failures: list[Refusal] = []
    over = threading.Event()

    def ask() -> None:
        number = 0.0
        while not over.is_set():
            number += 1
            try:
                got = door.arrays(request(model, x=rows(number)))["y"]
                if got.tolist() != rows(number + amount).tolist():
                    failures.append(Refusal("WRONG", "", str(got), ()))
            except grpc.RpcError as error:
                failures.append(Refusal.of(error))
            over.wait(pause)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield failures
    finally:
        over.set()
        thread.join()


def load(door: Door, name: str) -> Refusal | None:
    return _control(
        lambda: door.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=name), timeout=PATIENCE)
    )


def unload(door: Door, name: str) -> Refusal | None:
    return _control(
        lambda: door.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=name), timeout=PATIENCE)
    )


def _control(call: Callable[[], object]) -> Refusal | None:
    try:
        call()
    except grpc.RpcError as error:
        return Refusal.of(error)
    return None


def index(door: Door, name: str) -> dict[str, tuple[str, str]]:
    """State and reason of each version."""
    told = door.stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=PATIENCE)
    return {one.version: (one.state, one.reason) for one in told.models if one.name == name}


def answer(door: Door, name: str, value: float = 1.0, *, version: str = "") -> float:
    got: float = door.arrays(request(name, version=version, x=rows(value)))["y"][0, 0]
    return got


# Control by call


def test_a_model_is_loaded_and_unloaded_by_call(site: Site, door: Door) -> None:
    name = f"called_{door.name}"
    models.save(site.root / name / "1", models.add(10.0))
    assert index(door, name)["1"][0] == "UNAVAILABLE"
    assert door.refusal(request(name, x=rows(1.0))).code == "NOT_FOUND"
    assert load(door, name) is None
    # Each call returns when its effect holds.
    assert answer(door, name) == 11
    assert index(door, name) == {"1": ("READY", "")}
    assert load(door, name) is None, "loading what is loaded changes nothing"
    assert unload(door, name) is None
    refused = door.refusal(request(name, x=rows(1.0)))
    assert refused.code in {"NOT_FOUND", "UNAVAILABLE"}
    assert index(door, name) == {"1": ("UNAVAILABLE", "unloaded")}
    assert load(door, name) is None
    assert answer(door, name) == 11


def test_what_is_not_in_the_repository_cannot_be_loaded(door: Door) -> None:
    for name in ("nobody", "../steady", "", "steady/1"):
        refused = load(door, name)
        assert refused is not None
        assert refused.code == "NOT_FOUND", name


def test_parameters_of_a_load_that_mean_nothing_here_are_refused(door: Door) -> None:
    for key, code in (("file:1/model.onnx", "UNIMPLEMENTED"), ("colour", "INVALID_ARGUMENT")):
        asked = pb.RepositoryModelLoadRequest(model_name="steady")
        asked.parameters[key].bytes_param = b"x"
        with pytest.raises(grpc.RpcError) as error:
            door.stub.RepositoryModelLoad(asked, timeout=PATIENCE)
        assert Refusal.of(error.value).code == code


def test_the_index_can_be_only_what_is_ready(site: Site, door: Door) -> None:
    models.save(site.root / "idle" / "1", models.add())
    ready = door.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True), timeout=PATIENCE)
    assert {one.state for one in ready.models} == {"READY"}
    assert "steady" in {one.name for one in ready.models}
    assert "idle" not in {one.name for one in ready.models}


def test_unloading_finishes_what_is_in_hand(site: Site, door: Door) -> None:
    name = f"busy_{door.name}"
    models.build(site.root, "slow")
    (site.root / "slow").rename(site.root / name)
    assert load(door, name) is None
    calls = [door.send(request(name, x=rows(100.0 + number))) for number in range(5)]
    assert door.infer(request(name, x=rows(0.0)))  # the others are there by now
    assert unload(door, name) is None
    assert [call.done() or call.result() is not None for call in calls] == [True] * 5
    assert [round(float(np.frombuffer(call.result().raw_output_contents[0], np.float32)[0])) for call in calls] == [
        100, 101, 102, 103, 104,
    ]  # fmt: skip


# V18


def _truncated(folder: Path) -> None:
    whole = models.save(folder, models.add(2.0)).read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])


def _without_data(folder: Path) -> None:
    models.external(folder)
    (folder / "model.onnx_data").unlink()


def _raising(folder: Path) -> None:
    models.save(folder, models.never_runs())


@pytest.mark.parametrize("broken", [_truncated, _without_data, _raising])
def test_a_new_version_that_fails_to_load_leaves_the_old_one_serving(
    site: Site, door: Door, broken: Callable[[Path], None]
) -> None:
    name = f"{broken.__name__.strip('_')}_{door.name}"
    models.save(site.root / name / "1", models.add(1.0))
    assert load(door, name) is None
    with steadily(door, name, amount=1.0) as failures:
        broken(site.root / name / "2")
        first, second = load(door, name), load(door, name)
        assert first is not None
        assert (first.code, first.reason) == ("FAILED_PRECONDITION", "MODEL_FAILED")
        assert second is not None
        assert (second.code, second.message) == (first.code, first.message), "the same call, the same truth"
        states = index(door, name)
        assert states["1"][0] == "READY"
        assert states["2"][0] == "UNAVAILABLE"
        assert states["2"][1]
        for secret in (str(site.root), "Traceback", ".py"):
            assert secret not in first.message + states["2"][1]
    assert not failures
    # Repaired, it loads without a restart, and takes over.
    for file in (site.root / name / "2").iterdir():
        file.unlink()
    models.save(site.root / name / "2", models.add(2.0))
    assert load(door, name) is None
    assert answer(door, name) == 3
    assert index(door, name)["2"] == ("READY", "")


def test_a_new_version_takes_over_without_a_failed_request(site: Site, door: Door) -> None:
    name = f"rolling_{door.name}"
    models.save(site.root / name / "1", models.identity())
    assert load(door, name) is None
    with steadily(door, name, amount=0.0, pause=0.0) as failures:
        for version in range(2, 5):
            models.save(site.root / name / str(version), models.identity())
            assert load(door, name) is None
            assert door.infer(request(name, x=rows(1.0))).model_version == str(version)
    assert not failures


# V19


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Door, Service]]:
    """A worker that follows its folder."""
    folder = tmp_path_factory.mktemp("polled")
    root = folder / "models"
    models.save(root / "m" / "1", models.add(1.0))
    for odd in ("01", "007", "2.5", "-3", ".tmp", "latest", "1 ", "0", "１"):
        models.save(root / "m" / odd, models.add(100.0))
    (root / "m" / "4").write_text("a file")
    (root / "m" / "5").mkdir()
    with Processes(folder) as processes:
        worker = processes.worker(root, model_control="poll", poll_interval="0.2s")
        door = Door("worker", worker.address)
        yield root, door, worker
        door.close()


def _version(door: Door, name: str = "m") -> str:
    served: str = door.infer(request(name, x=rows(1.0))).model_version
    return served


def test_odd_folders_are_ignored_and_said_once(polled: tuple[Path, Door, Service]) -> None:
    _, door, worker = polled
    assert {version for version, (state, _) in index(door, "m").items() if state == "READY"} == {"1"}
    assert answer(door, "m") == 2
    log = worker.log.read_text()
    for odd in ("01", "007", "2.5", "-3", "latest", "4", "5"):
        assert log.count(f'"entry": "m/{odd}"') == 1, odd


def test_a_version_that_is_being_copied_is_served_once_it_is_whole(polled: tuple[Path, Door, Service]) -> None:
    root, door, worker = polled
    loads = worker.log.read_text().count("model ready")
    staged = root.parent / "staged"
    weights = np.random.default_rng(3).standard_normal((256, 4)).astype(np.float32)
    made = models.model(
        [onnx.helper.make_node("ReduceSum", ["w", "axis"], ["s"], keepdims=1),
         onnx.helper.make_node("ReduceMax", ["s"], ["most"], keepdims=0),
         onnx.helper.make_node("Mul", ["most", "none"], ["nothing"]),
         onnx.helper.make_node("Add", ["x", "nothing"], ["y"])],
        [("x", models.FLOAT, ("N", 4))], [("y", models.FLOAT, ("N", 4))],
        {"w": weights, "axis": np.array([1], np.int64), "none": np.float32(0)},
    )  # fmt: skip
    models.save(staged, made, save_as_external_data=True, location="model.onnx_data", size_threshold=1024)
    target = root / "m" / "6"
    target.mkdir()
    (target / "model.onnx").write_bytes((staged / "model.onnx").read_bytes())
    data = (staged / "model.onnx_data").read_bytes()
    piece = len(data) // 10 + 1
    with (target / "model.onnx_data").open("wb") as file:
        for at in range(0, len(data), piece):
            file.write(data[at : at + piece])
            file.flush()
            # A slow copy: each look at the folder sees another size.
            time.sleep(0.2)
            assert _version(door) == "1"
            assert index(door, "m").get("6", ("", ""))[0] != "READY"
    wait_until(lambda: _version(door) == "6", "the whole copy is served", seconds=30)
    assert worker.log.read_text().count("model ready") == loads + 1


def test_a_folder_published_by_rename_is_served(polled: tuple[Path, Door, Service]) -> None:
    root, door, _ = polled
    models.save(root / "later" / ".new", models.add(5.0))
    (root / "later" / ".new").rename(root / "later" / "1")
    wait_until(
        lambda: door.stub.ModelReady(pb.ModelReadyRequest(name="later"), timeout=PATIENCE).ready,
        "it is served",
        seconds=30,
    )
    assert answer(door, "later") == 6
    for path in sorted((root / "later").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "later").rmdir()
    wait_until(
        lambda: not door.stub.ModelReady(pb.ModelReadyRequest(name="later"), timeout=PATIENCE).ready,
        "it is gone",
        seconds=30,
    )


def test_a_worker_that_follows_its_folder_takes_no_load_calls(polled: tuple[Path, Door, Service]) -> None:
    _, door, _ = polled
    refused = load(door, "m")
    assert refused is not None
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "STATE_CONFLICT")


# V20


def test_loads_and_unloads_at_once_end_as_the_last_one_says(site: Site, door: Door) -> None:
    name = f"contested_{door.name}"
    models.save(site.root / name / "1", models.identity())
    assert load(door, name) is None
    seen: set[str] = set()
    strange: list[object] = []

    def meddle(seed: int) -> None:
        luck = random.Random(seed)
        for _ in range(8):
            what = luck.choice(["load", "infer", "unload", "infer"])
            if what == "infer":
                told = door.outcome(request(name, x=rows(float(seed))))
                if isinstance(told, Refusal):
                    seen.add(told.code)
                elif told.raw_output_contents[0] != rows(float(seed)).tobytes():
                    strange.append(told)
            else:
                refused = load(door, name) if what == "load" else unload(door, name)
                # Unloading what another caller has just unloaded finds nothing, which is true.
                if refused is not None and refused.code not in {"NOT_FOUND", "UNAVAILABLE"}:
                    strange.append((what, refused))

    with steadily(door, "steady", amount=1.0) as failures, ThreadPoolExecutor(12) as threads:
        list(threads.map(meddle, range(12)))
    assert not strange
    assert not failures, "another model was disturbed"
    assert seen <= {"UNAVAILABLE", "NOT_FOUND"}
    assert load(door, name) is None
    assert answer(door, name, 3.0) == 3
    assert unload(door, name) is None
    assert door.refusal(request(name, x=rows(1.0))).code in {"NOT_FOUND", "UNAVAILABLE"}


def test_a_load_whose_caller_goes_is_finished_all_the_same(site: Site, door: Door) -> None:
    name = f"abandoned_{door.name}"
    models.save(site.root / name / "1", models.add(1.0))
    call = door.stub.RepositoryModelLoad.future(pb.RepositoryModelLoadRequest(model_name=name), timeout=PATIENCE)
    wait_until(lambda: index(door, name)["1"][0] in {"LOADING", "READY"}, "it is under way")
    call.cancel()
    wait_until(lambda: index(door, name)["1"][0] == "READY", "it is loaded")
    wait_until(lambda: not isinstance(door.outcome(request(name, x=rows(1.0))), Refusal), "it answers")


# V21


def _linked(site: Site, name: str, *, blobs: Path) -> Path:
    """A version whose files are links into a store of hash-named files, as model hubs lay them out."""
    staged = site.root.parent / f"staged_{name}"
    models.external(staged)
    target = site.root / name / "1"
    target.mkdir(parents=True)
    for number, file in enumerate(("model.onnx", "model.onnx_data")):
        blob = blobs / f"{number}{name.encode().hex()}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        (staged / file).rename(blob)
        (target / file).symlink_to(blob)
    return target


@pytest.mark.parametrize("deep", [False, True])
def test_links_into_an_allowed_store_are_followed(site: Site, door: Door, deep: bool) -> None:
    name = f"linked_{door.name}_{deep}"
    blobs = site.root.parent / "blobs"
    if deep:
        blobs = blobs / ("long" * 30) / ("longer" * 25)
        assert len(str(blobs)) > 255
    _linked(site, name, blobs=blobs)
    assert load(door, name) is None
    x = np.arange(64, dtype=np.float32)[None]
    assert door.arrays(request(name, x=x))["y"].tolist() == (2 * x).tolist()


def test_a_link_that_leads_outside_is_refused(site: Site, door: Door) -> None:
    name = f"outside_{door.name}"
    _linked(site, name, blobs=site.outside)
    refused = load(door, name)
    assert refused is not None
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "MODEL_FAILED")
    assert "outside the allowed roots" in refused.message
    assert str(site.outside) not in refused.message
    bad = request(name, x=np.zeros((1, 64), np.float32))
    # A gateway hears of the failure a moment later.
    wait_until(lambda: door.refusal(bad).reason == "MODEL_FAILED", "a request is told so too")


def test_a_link_that_leads_nowhere_is_refused(site: Site, door: Door) -> None:
    name = f"dangling_{door.name}"
    target = _linked(site, name, blobs=site.root.parent / "blobs")
    (target / "model.onnx_data").resolve().unlink()
    refused = load(door, name)
    assert refused is not None
    assert refused.code == "FAILED_PRECONDITION"
    assert "leads nowhere" in refused.message
    assert index(door, name)["1"][0] == "UNAVAILABLE"


def test_external_data_beside_the_model_are_found(site: Site, door: Door) -> None:
    name = f"external_{door.name}"
    models.external(site.root / name / "1")
    assert load(door, name) is None
    x = np.arange(64, dtype=np.float32)[None]
    assert door.arrays(request(name, x=x))["y"].tolist() == (2 * x).tolist()
