"""What the local server's processes spend: their CPU time, found from the port that a client calls."""

import ipaddress
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from headrace.stack.state import StateDir, running

_SERVICES = ("headrace_gateway", "headrace_worker", "headrace_jobs")


def server_processes(url: str, *, state: Path | None = None) -> dict[str, psutil.Process]:
    """The processes behind an address of this machine, by a readable name; none for another machine's.

    A stack that `headrace up` runs is known whole, by its record. Of any other server it is the process that listens
    there and its children.
    """
    host, _, port = url.rpartition(":")
    if not port.isdigit() or not _is_local(host):
        return {}
    for folder in [StateDir(state)] if state else running():
        record = folder.read()
        if record is not None and record.address.rpartition(":")[2] == port:
            return _named(
                {service.name: service.pid for service in record.services if service.pid and service.name != "nats"}
            )
    return _listeners(int(port))


def cpu_seconds(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """User and system time that each has spent so far, children included; those that have ended are left out."""
    spent: dict[str, float] = {}
    for name, process in processes.items():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        spent[name] = times.user + times.system
    return spent


def _is_local(host: str) -> bool:
    host = host.strip("[]")
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def _named(pids: Mapping[str, int]) -> dict[str, psutil.Process]:
    processes: dict[str, psutil.Process] = {}
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            processes[name] = process
            # A launcher and what it launched count as one service's processes, each by its own time.
            for child in process.children(recursive=True):
                processes[f"{name}/{child.name()}-{child.pid}"] = child
        except psutil.Error:
            continue
    return processes


def _listeners(port: int) -> dict[str, psutil.Process]:
    owners: set[int] = set()
    for process in psutil.process_iter():
        try:
            sockets = process.net_connections(kind="tcp")
        except psutil.Error:
            # Another user's; its time can't be had either.
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets):
            owners.add(process.pid)
    found = {process.pid: process for pid in owners for process in _whole_server(psutil.Process(pid))}
    seen: Counter[str] = Counter()
    named: dict[str, psutil.Process] = {}
    for process in found.values():
        name = _name(process)
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}-{seen[name]}"] = process
    return named


def _whole_server(process: psutil.Process) -> list[psutil.Process]:
    try:
        parent = process.parent()
        # The other services of a stack are its siblings, under `headrace up`.
        if parent is not None and _is_supervisor(parent):
            return [one for one in parent.children(recursive=True) if _name(one) != "nats-server"]
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _is_supervisor(process: psutil.Process) -> bool:
    command = process.cmdline()[:4]
    return "headrace.stack.detached" in command or (
        "up" in command and any(one.endswith("headrace") for one in command)
    )


def _name(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()[:4])
        return next((service for service in _SERVICES if service in command.replace("-", "_")), process.name())
    except psutil.Error:
        return str(process.pid)
