"""The processors that may be used: affinity and quota, never the host's count (V42)."""

import os
from pathlib import Path

import pytest

from headrace_core import cpus


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            1,
        ),
    ],
)
def test_the_smaller_of_affinity_and_quota_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpus.available(root=tmp_path) == (expected or len(os.sched_getaffinity(0)))
