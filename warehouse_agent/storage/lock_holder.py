"""Who holds a lock: a line of JSON in the file that is locked, for the error of who comes second.

The lock is that of the operating system; this line decides nothing. It is written after the lock
was taken and removed before it is given back, so one that is older is of an agent that died, and
is not shown: nobody holds its lock. A disk that is full costs the line, not the lock.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
from datetime import UTC, datetime
from typing import IO

from driftline.peer_text import one_line

_LINE_BYTES_MAX = 4096
_PART_CHARACTERS_MAX = 80


def note_holder(file: IO[str]) -> None:
    """Write who this process is into a file that it has locked."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    line = {"pid": os.getpid(), "user": _user(), "host": socket.gethostname(), "since": now}
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), json.dumps(line).encode() + b"\n")  # unbuffered: close() must work


def forget_holder(file: IO[str]) -> None:
    """Remove the line; the lock is still held."""
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)


def holder_of(file: IO[str]) -> str:
    """Return who holds the lock of a file, as the end of a sentence; empty: it does not say."""
    try:
        line = json.loads(os.pread(file.fileno(), _LINE_BYTES_MAX, 0))
        told = {key: line[key] for key in ("pid", "user", "host", "since")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none, or half of one
        return ""
    pid, user, host, since = (one_line(str(part), _PART_CHARACTERS_MAX) for part in told.values())
    return f": process {pid} of {user} on {host}, since {since}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        return f"uid {os.getuid()}"
