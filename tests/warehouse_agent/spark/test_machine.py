"""What this process may use: of the machine, and of control groups, which files of Linux tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from warehouse_agent.spark.machine import looked_at, machine

GROUPS = "sys/fs/cgroup"


def root(folder: Path, own: str, files: dict[str, str]) -> Path:
    """Write files of Linux below a folder."""
    for name, text in {"proc/self/cgroup": own, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {f"{GROUPS}/memory.max": "1000\n"}),  # a container
        ("0::/a/b\n", {f"{GROUPS}/a/b/memory.max": "1000\n"}),
        ("0::/a/b\n", {f"{GROUPS}/a/b/memory.max": "max\n", f"{GROUPS}/a/memory.max": "1000\n"}),
        ("0::/host/path\n", {f"{GROUPS}/memory.max": "1000\n"}),  # which is not seen here
        ("4:memory:/x\n0::/\n", {f"{GROUPS}/memory/x/memory.limit_in_bytes": "1000\n"}),
        ("4:cpu,memory:/x\n", {f"{GROUPS}/memory/memory.limit_in_bytes": "1000\n"}),
    ],
)
def test_the_least_limit_of_memory_counts(tmp_path: Path, own: str, files: dict[str, str]) -> None:
    assert looked_at(root(tmp_path, own, files)).memory == 1000


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("0::/\n", "max\n"),
        ("0::/\n", ""),
        ("0::/\n", "0\n"),
        ("0::/\n", "9223372036854771712\n"),
        ("0::/\n", "-1\n"),
        ("0::/../..\n", "1\n"),
        ("no group\n", "1\n"),
        ("", "1\n"),
    ],
)
def test_what_limits_nothing(tmp_path: Path, own: str, text: str) -> None:
    file = f"{GROUPS}/memory.max" if own.startswith("0::/\n") else "elsewhere"
    found = looked_at(root(tmp_path, own, {file: text}))
    assert found == machine() or found.memory >= machine().memory
    assert found.memory > 1 << 20
    assert found.cores >= 1


@pytest.mark.parametrize(
    ("text", "cores"),
    [("100000 100000", 1), ("10000 100000", 1), ("max 100000", None), ("5", None), ("1 0", None)],
)
def test_a_quota_of_processor_time(tmp_path: Path, text: str, cores: int | None) -> None:
    free = looked_at(tmp_path / "nothing").cores
    found = looked_at(root(tmp_path, "0::/\n", {f"{GROUPS}/cpu.max": text}))
    assert found.cores == (free if cores is None else cores)
