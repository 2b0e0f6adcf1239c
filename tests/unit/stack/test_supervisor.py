"""The supervisor, with stand-ins for our services and the real nats-server and Envoy where they matter."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from headrace.stack.problem import StackProblem, UsageProblem
from headrace.stack.state import StateDir
from tests.unit.stack.conftest import STAND_IN, until


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


async def test_a_killed_worker_is_started_again_at_its_old_address_and_said_so(run_stack):
    async with run_stack() as stack:
        old = stack.pid("worker-1")
        before = stack.record().services[0].address
        os.kill(old, signal.SIGKILL)
        await until(lambda: stack.pid("worker-1") not in (None, old) and stack.record().services[0].state == "running")
        service = stack.record().services[0]
        assert service.address == before
        assert service.restarts == 1
        assert listens(before)
        await until(lambda: "worker-1 is back" in stack.output.getvalue())
        assert "worker-1 died (killed by SIGKILL); it is started again in 0.2 s" in stack.output.getvalue()


async def test_a_gateway_that_is_the_public_door_comes_back_on_the_same_port(run_stack):
    async with run_stack() as stack:
        old = stack.pid("gateway-1")
        public = stack.record().address
        os.kill(old, signal.SIGKILL)
        await until(lambda: stack.pid("gateway-1") not in (None, old) and listens(public))


def is_there(path: str) -> bool:
    return Path(path).exists()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_stopping_goes_from_the_front_to_the_back_and_leaves_nothing(run_stack, tmp_path):
    async with run_stack(envoy=True, nats=True, workers=2, gateways=2) as stack:
        record = stack.record()
        assert [service.name for service in record.services] == [
            "nats",
            "worker-1",
            "worker-2",
            "gateway-1",
            "gateway-2",
            "envoy",
        ]
        stack.supervisor.request_stop()
        assert await asyncio.wait_for(stack.task, 30) == 0
    order = [name.split("-")[0] for name, event, _ in stack.journal() if event == "ended"]
    assert order == ["gateway", "gateway", "worker", "worker"]
    # Envoy was gone before the first gateway heard of it, NATS went last: nobody lost what it stood on.
    for service in record.services:
        assert service.pid is not None
        assert gone(service.pid)
        assert service.address is not None
        assert not listens(service.address)
    assert not is_there(record.run_dir)
    assert left(stack.state.path) == ["lock", "nats"]
    assert left(tmp_path) == ["a state folder", "journal", "some models"]


async def test_a_second_stop_request_kills_what_does_not_want_to_go(run_stack, tmp_path):
    (tmp_path / "worker-1.stubborn").touch()
    async with run_stack() as stack:
        pid = stack.pid("worker-1")
        stack.supervisor.request_stop()
        await until(lambda: ("worker-1", "asked to stop", pid) in stack.journal())
        stack.supervisor.request_stop()
        assert await asyncio.wait_for(stack.task, 10) == 130
        assert gone(pid)


async def test_a_process_that_ignores_sigterm_is_killed_after_the_drain_timeout(run_stack, tmp_path):
    (tmp_path / "gateway-1.stubborn").touch()
    async with run_stack(drain_timeout=timedelta(seconds=-4)) as stack:
        pid = stack.pid("gateway-1")
        stack.supervisor.request_stop()
        assert await asyncio.wait_for(stack.task, 20) == 0
        assert gone(pid)
    assert "gateway-1 did not stop" in stack.output.getvalue()


async def test_a_service_that_cannot_start_ends_the_start_with_its_own_words(run_stack, tmp_path):
    (tmp_path / "gateway-1.broken").touch()
    with pytest.raises(StackProblem, match=r"gateway-1 stopped before it was ready.*the model store is on fire"):
        async with run_stack():
            pass
    # Whatever had been started beside it is gone too.
    started = {pid for _, event, pid in StackJournal(tmp_path).read() if event == "started"}
    assert started
    assert all(gone(pid) for pid in started)


class StackJournal:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"

    def read(self) -> list[tuple[str, str, int]]:
        lines = [line.split(" ") for line in self._path.read_text().splitlines()]
        return [(words[0], " ".join(words[1:-1]), int(words[-1])) for words in lines]


async def test_stopping_while_it_starts_ends_what_had_started(run_stack, tmp_path):
    async with run_stack(wait=False, nats=True) as stack:
        await until(lambda: any(event == "started" for _, event, _ in stack.journal()))
        stack.supervisor.request_stop()
        assert await asyncio.wait_for(stack.task, 30) == 0
    assert all(gone(pid) for _, event, pid in stack.journal() if event == "started")


async def test_a_second_stack_in_the_same_folder_is_refused_in_one_sentence(run_stack):
    async with run_stack() as stack:
        with pytest.raises(UsageProblem, match=r"A stack already runs in .*headrace down --state '"):
            async with run_stack(state=StateDir(stack.state.path)):
                pass
        assert stack.record().phase == "ready"


async def test_a_taken_port_that_was_asked_for_is_refused(run_stack):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageProblem, match=rf"Port {port} on 127.0.0.1 is taken"):
            async with run_stack(port=port):
                pass


async def test_two_stacks_never_share_a_port_even_before_they_listen(run_stack, tmp_path):
    async with run_stack() as one:
        port = int(one.record().address.rpartition(":")[2])
        with pytest.raises(UsageProblem, match="is taken"):
            async with run_stack(state=StateDir(tmp_path / "other"), port=port):
                pass


async def test_a_gateway_behind_envoy_can_die_and_is_found_again(run_stack):
    async with run_stack(envoy=True) as stack:
        record = stack.record()
        gateway = next(service for service in record.services if service.name == "gateway-1")
        os.kill(gateway.pid, signal.SIGKILL)
        await until(lambda: stack.pid("gateway-1") not in (None, gateway.pid) and listens(gateway.address))
        assert f"port_value: {gateway.address.rpartition(':')[2]}" in (Path(record.run_dir) / "envoy.yaml").read_text(
            encoding="utf-8"
        )


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path, models):
    program = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        from headrace.stack.logs import Log, LogWriter, Text
        from headrace.stack.plan import Programs, UpOptions
        from headrace.stack.state import StateDir
        from headrace.stack.supervisor import Supervisor

        async def warm(**_): return ""
        log = Log(LogWriter(sys.stderr), render=Text(colour=False), level="info")
        supervisor = Supervisor(
            UpOptions(models=(Path({str(models)!r}),), port=0),
            state=StateDir(Path({str(tmp_path / "state")!r})), log=log,
            programs=Programs(gateway=({STAND_IN!r}, "gateway"), worker=({STAND_IN!r}, "worker")),
            warmup=warm, on_ready=lambda _: print("up", flush=True),
        )
        asyncio.run(supervisor.run())
        """
    )
    environment = {**os.environ, "STAND_IN_JOURNAL": str(tmp_path / "journal"), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        record = StateDir(tmp_path / "state").read()
        assert record is not None
        pids = [service.pid for service in record.services]
        assert len(pids) == 4
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if pid and psutil.pid_exists(pid)], timeout=5)
        assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    state = StateDir(tmp_path / "state")
    with state.hold():
        # What it could not tidy up itself, the next one in its folder does.
        fresh = state.make_run_dir()
        assert not Path(record.run_dir).exists()
        fresh.rmdir()
