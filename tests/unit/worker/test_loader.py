"""Load beside, then switch; failures that leave what served; operations on one model in turn (V18–V20)."""

from __future__ import annotations

import asyncio
import random
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from headrace_core.errors import InvalidParameter, ModelFailed, ModelLoading, ModelNotFound
from headrace_core.lifecycle import Changes
from headrace_worker import polling
from headrace_worker.loader import Loader
from headrace_worker.models import Models, State
from headrace_worker.repository import Repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from headrace_worker.loading import Defaults
    from tests.unit.worker.conftest import RecordingFront, Zoo


class House:
    def __init__(self, loader: Loader, models: Models, front: RecordingFront, root: Path) -> None:
        self.loader, self.models, self.front, self.root = loader, models, front, root

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.models.changes.beyond(self.models.changes.generation, at_most=timedelta(seconds=10))

    def states(self, name: str = "m") -> dict[str, State]:
        return {one.version: one.state for one in self.models.versions(name)}


@pytest.fixture
async def house(zoo: Zoo, front: RecordingFront, defaults: Defaults) -> AsyncIterator[House]:
    models = Models(front=front, changes=Changes())
    loader = Loader(
        repository=Repository(zoo.root),
        models=models,
        front=front,
        defaults=defaults,
        unload_limit=timedelta(seconds=1),
    )
    yield House(loader, models, front, zoo.root)
    await loader.close()


def aged(path: Path) -> None:
    """Says that the version is complete, as a copy tool would, so that nothing waits for it to settle."""
    (path.parent / ".complete").touch()


def quick(root: Path, name: str = "m") -> None:
    """Keeps the cost measurement out of tests that are not about it."""
    (root / name).mkdir(exist_ok=True)
    (root / name / "model.yaml").write_text("max_batch_rows: 1\n")


@pytest.mark.parametrize("fault", ["truncated", "missing data", "raises in warm-up"])
async def test_a_new_version_that_fails_leaves_the_old_one_serving(house: House, zoo: Zoo, fault: str) -> None:
    quick(zoo.root)
    aged(zoo.add("m/1"))
    await house.loader.load("m")
    if fault == "truncated":
        path = zoo.add("m/2")
        path.write_bytes(path.read_bytes()[:40])
    elif fault == "missing data":
        path = zoo.external("m/2")
        path.with_name("model.onnx_data").unlink()
    else:
        path = zoo.never_runs("m/2")
    aged(path)
    said = []
    for _ in range(2):
        with pytest.raises(ModelFailed) as failed:
            await house.loader.load("m")
        said.append(failed.value.message)
    assert said[0] == said[1]
    assert "version 2" in said[0]
    assert str(zoo.root) not in said[0]
    assert house.states() == {"1": State.READY, "2": State.FAILED}
    assert house.front.catalogs[-1]["models"]["m"]["default"] == "1"
    assert ("m", "1") in house.front.installed

    shutil.rmtree(zoo.root / "m" / "2")
    aged(zoo.add("m/2", 2.0))
    await house.loader.load("m")
    assert house.states() == {"2": State.READY}
    assert house.front.removed == [("m", "1")]


async def test_changed_files_of_a_served_version_that_fail_leave_the_earlier_ones(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    path = zoo.add("m/1")
    aged(path)
    await house.loader.load("m")
    path.write_bytes(b"broken")
    with pytest.raises(ModelFailed):
        await house.loader.load("m")
    (version,) = house.models.versions("m")
    assert version.state is State.READY
    assert version.reason.startswith("serves its earlier files; the new ones failed: ")
    zoo.add("m/1")
    await house.loader.load("m")
    assert house.models.versions("m")[0].reason == ""


async def test_loading_what_serves_already_does_nothing(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    aged(zoo.add("m/1"))
    await house.loader.load("m")
    first = house.models.get("m")
    await house.loader.load("m")
    assert house.models.get("m") is first


async def test_unknown_models_are_not_found_and_leave_no_trace(house: House) -> None:
    for name in ("nope", "../models", ""):
        with pytest.raises(ModelNotFound):
            await house.loader.load(name)
        with pytest.raises(ModelNotFound):
            await house.loader.unload(name)
    assert not house.models.names()


async def test_a_bad_configuration_is_the_models_reason(house: House, zoo: Zoo) -> None:
    aged(zoo.add("m/1"))
    (zoo.root / "m" / "model.yaml").write_text("max_batch_row: 3")
    with pytest.raises(ModelFailed, match="did you mean max_batch_rows"):
        await house.loader.load("m")
    assert house.states() == {"1": State.FAILED}


async def test_an_override_holds_until_the_next_load(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    aged(zoo.matrix("m/1", 64))
    await house.loader.load("m", override='{"max_batch_size": 3, "instance_group": [{"count": 2}]}')
    spec, executors = house.front.installed["m", "1"]
    assert spec["max_rows"] == 3
    assert len(executors) == 2
    await house.loader.load("m")
    assert house.front.installed["m", "1"][0]["max_rows"] == 1


async def test_a_bad_override_is_the_callers_mistake_and_changes_nothing(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    aged(zoo.matrix("m/1", 64))
    await house.loader.load("m")
    with pytest.raises(InvalidParameter, match="'config' of this load"):
        await house.loader.load("m", override='{"max_batch_size": ')
    assert house.states() == {"1": State.READY}


async def test_a_copy_in_progress_is_waited_for_and_never_a_sticky_failure(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    path = zoo.external("m/6")
    data = path.with_name("model.onnx_data")
    whole = data.read_bytes()
    data.write_bytes(whole[:100])
    (path.parent / "model.onnx_data.part").touch()
    for _ in range(3):
        await house.loader.follow()
    assert house.states() == {}
    data.write_bytes(whole)
    (path.parent / "model.onnx_data.part").unlink()
    async with asyncio.timeout(10):
        while house.states() != {"6": State.READY}:
            await house.loader.follow()
            await asyncio.sleep(0.05)


async def test_a_copy_that_a_call_did_not_wait_for_is_taken_up_or_forgotten(
    house: House, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_worker.loader._SETTLE_LIMIT", timedelta(0))
    for name in ("comes", "goes"):
        quick(zoo.root, name)
        path = zoo.add(f"{name}/1")
        (path.parent / "model.onnx_data.part").touch()
        with pytest.raises(ModelLoading):
            await house.loader.load(name)
        assert house.states(name) == {"1": State.LOADING}
    (zoo.root / "comes" / "1" / "model.onnx_data.part").unlink()
    aged(zoo.root / "comes" / "1" / "model.onnx")
    shutil.rmtree(zoo.root / "goes")
    watching = asyncio.create_task(polling.take_up(house.loader, every=timedelta(milliseconds=10)))
    await house.until(lambda: house.states("comes") == {"1": State.READY} and house.states("goes") == {})
    watching.cancel()


async def test_a_poll_does_not_repeat_a_failure_until_the_files_change(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    path = zoo.add("m/1")
    path.write_bytes(b"broken")
    aged(path)
    await house.loader.follow()
    assert house.states() == {"1": State.FAILED}
    catalogs = len(house.front.catalogs)
    (zoo.root / "m" / "latest").mkdir()
    await house.loader.follow()
    assert len(house.front.catalogs) == catalogs
    zoo.add("m/1")
    await house.loader.follow()
    assert house.states() == {"1": State.READY}


async def test_a_poll_unloads_what_is_gone_and_leaves_unloaded_models_alone(house: House, zoo: Zoo) -> None:
    for name in ("a", "b"):
        quick(zoo.root, name)
        aged(zoo.add(f"{name}/1"))
    await house.loader.follow()
    await house.loader.unload("b")
    shutil.rmtree(zoo.root / "a")
    await house.loader.follow()
    assert house.models.names() == []


async def test_loads_and_unloads_of_one_model_at_once_end_as_the_last_one_says(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    aged(zoo.add("m/1"))
    chance = random.Random(4)

    async def one(number: int) -> None:
        for _ in range(6):
            if chance.random() < 0.5:
                await house.loader.load("m")
            else:
                await house.loader.unload("m")

    await asyncio.gather(*(one(number) for number in range(16)))
    await house.loader.load("m")
    assert house.states() == {"1": State.READY}
    assert set(house.front.installed) == {("m", "1")}
    await house.loader.unload("m")
    assert house.states() == {}
    assert not house.front.installed


async def test_a_caller_that_goes_away_does_not_stop_a_load(house: House, zoo: Zoo) -> None:
    quick(zoo.root)
    aged(zoo.add("m/1"))
    call = asyncio.create_task(house.loader.load("m"))
    await house.until(lambda: bool(house.models.names()))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await house.until(lambda: house.states() == {"1": State.READY})


async def test_everything_loads_at_start_but_what_cannot(house: House, zoo: Zoo) -> None:
    for name in ("good", "bad"):
        quick(zoo.root, name)
        aged(zoo.add(f"{name}/1"))
    (zoo.root / "bad" / "1" / "model.onnx").write_bytes(b"no")
    (zoo.root / "empty").mkdir()
    await house.loader.load_all()
    assert house.states("good") == {"1": State.READY}
    assert house.states("bad") == {"1": State.FAILED}
    assert set(house.models.names()) == {"good", "bad"}
