"""How many processors this process may use: the smaller of its affinity and its control group's quota.

Never the host's count: in a container with 2 of 64 cores, pools sized from the host explode latency (V42).
"""

import os
from pathlib import Path


def available(*, root: Path = Path("/")) -> int:
    """Whole processors, at least 1. `root` is where `/proc` and `/sys` are."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return max(1, count if quota is None else min(count, int(quota)))


def _quota(root: Path) -> float | None:
    """The smallest quota from this process's control group upwards, in processors."""
    mount = root / "sys/fs/cgroup"
    group = ""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", "", ""][:3]
        if not controllers or "cpu" in controllers.split(","):
            group = path.lstrip("/")
            break
    found: list[float] = []
    folder = mount / group
    while True:
        found += [one for one in (_version_2(folder), _version_1(folder)) if one is not None]
        if folder == mount or mount not in folder.parents:
            break
        folder = folder.parent
    first = _version_1(mount / "cpu" / group) or _version_1(mount / "cpu")
    if first is not None:
        found.append(first)
    return min(found, default=None)


def _version_2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota or quota == "max" or not period.strip():
        return None
    return int(quota) / int(period)


def _version_1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    if not quota or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not this kind of system
        return ""
