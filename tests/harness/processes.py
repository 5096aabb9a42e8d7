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


def is_stopped(pid: int) -> bool:
    """Return True if a process was stopped by a signal, and does not run until it is continued."""
    return is_alive(pid) and _fields(pid)[0] == "T"


def having(variable: str, value: str) -> list[str]:
    """Return the command lines of the processes that have a variable in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{variable}={value}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def _fields(pid: int) -> list[str]:
    """Return what follows the name, which may hold anything, in the process's status."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
