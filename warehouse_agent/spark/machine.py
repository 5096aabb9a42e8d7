"""The cores and the memory that this process may use: of the machine, or of its control group."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEMORY_UNKNOWN = 4 << 30  # where neither the system nor a control group tells
_GROUPS = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources that this process may use. `memory`: bytes."""

    cores: int
    memory: int


@cache
def machine() -> Machine:
    """Return what this process may use, as it was when this was first asked."""
    return looked_at(Path("/"))


def looked_at(root: Path) -> Machine:
    """Return the same, with the files of Linux below `root`."""
    cores, memory = _cores(), _memory()
    for folder in _groups(root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")  # "max", or microseconds
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, math.ceil(int(quota) / int(period)))
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2; of version 1
            if (limit := _text(folder / name)).isdigit() and int(limit):
                memory = min(memory, int(limit))
    return Machine(max(cores, 1), memory)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, up to the outermost."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":  # of version 2, which has one tree
            base = root / _GROUPS
        elif "memory" in controllers.split(","):
            base = root / _GROUPS / "memory"
        else:
            continue
        folder = base / path.lstrip("/")
        yield folder
        for parent in folder.parents:  # in a container the path may be one of the host's
            if not parent.is_relative_to(base):
                break
            yield parent


def _text(file: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return file.read_text().strip()
    return ""


def _cores() -> int:
    with contextlib.suppress(AttributeError, OSError):  # Linux alone knows it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MEMORY_UNKNOWN
