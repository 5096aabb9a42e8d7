"""Facts of processes, from /proc."""

from __future__ import annotations

from pathlib import Path


def parent(pid: int) -> int:
    """Return the id of a process's parent."""
    return int(_fields(pid)[1])


def is_alive(pid: int) -> bool:
    """Return True if a process runs, and is no zombie."""
    try:
        return _fields(pid)[0] != "Z"
    except OSError:
        return False


def _fields(pid: int) -> list[str]:
    """Return what follows the name, which may hold anything, in the process's status."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
