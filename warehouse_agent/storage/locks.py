"""Lock files by the operating system, with a line in a locked file that says who holds it.

The line is for the error of who comes second, and decides nothing. It is written after the lock
was taken and removed before it is given back, so one that is older is of an agent that died, and
is not shown: nobody holds its lock. A disk that is full costs the line, not the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from driftline.errors import Locked
from driftline.peer_text import one_line

APPEND_S_MAX = 10.0  # waited for another process that appends, or writes the lines anew
_APPEND_PAUSE_S = 0.01
_LINE_BYTES_MAX = 4096
_PART_CHARACTERS_MAX = 80


def take(file: IO[str], name: str) -> None:
    """Lock the file of a fragment until it is closed. Raises Locked or OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held = b""
        with contextlib.suppress(OSError):
            held = os.pread(file.fileno(), _LINE_BYTES_MAX, 0)
        raise locked(name, held) from None
    _note_holder(file)


def locked(name: str, line: bytes) -> Locked:
    """Return the error of who comes second; `line`: of who holds the lock, if it is known."""
    return Locked(
        f"Another warehouse agent works on this table{holder_in(line)}.",
        where=name,
        remedy="Run the command again when it has finished.",
    )


def _note_holder(file: IO[str]) -> None:
    """Write who this process is into a file that it has locked."""
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        # unbuffered: close() must work
        os.write(file.fileno(), json.dumps(holder_line()).encode() + b"\n")


def holder_line() -> dict[str, Any]:
    """Return who this process is, and that it begins now, for `holder_in`."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"pid": os.getpid(), "user": _user(), "host": socket.gethostname(), "since": now}


def this_process() -> str:
    """Return who this process is, in words."""
    return _named(**{key: value for key, value in holder_line().items() if key != "since"})


def forget_holder(file: IO[str]) -> None:
    """Remove the line; the lock is still held."""
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)


def holder_in(data: bytes) -> str:
    """Return who a line says that holds a lock, as the end of a sentence; empty: it does not."""
    try:
        line = json.loads(data)
        told = {key: line[key] for key in ("pid", "user", "host", "since")}
    except (ValueError, TypeError, KeyError, RecursionError):  # none, or half of one
        return ""
    pid, user, host, since = (one_line(str(part), _PART_CHARACTERS_MAX) for part in told.values())
    return f": {_named(pid, user, host)}, since {since}"


def _named(pid: object, user: str, host: str) -> str:
    return f"process {pid} of {user} on {host}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        return f"uid {os.getuid()}"


class FileLock:
    """The lock of a file, while it is held (`backends.interface.HeldLock`)."""

    def check(self) -> None:
        """Do nothing: the system gives it to nobody else."""

    def stored_at(self) -> datetime:
        """Return the present time: a disk has the clock of its machine."""
        return datetime.now(UTC)


@contextlib.contextmanager
def appended(path: str) -> Iterator[BinaryIO]:
    """Open a file of lines to append to it, while no other process does, or writes it anew.

    Raises:
        OSError: another process has it for longer than APPEND_S_MAX.
    """
    until = time.monotonic() + APPEND_S_MAX
    while True:
        with Path(path).open("ab+") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_APPEND_PAUSE_S)
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(out.fileno()), os.stat(path)):
                    yield out
                    return
