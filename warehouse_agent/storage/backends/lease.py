"""Locks where storage has none: a small file that says who works on a fragment, and until when.

It is made by create, and written again under the condition that nobody else has, by a thread while
it is held. One that has ended is taken over. It is a courtesy: two commands that work at once are
kept apart by the table's log, and a lease only saves the second one its work. So nothing here waits
for a clock to be right. A clock that is wrong by more than LEASE_S gives locks that do not exclude,
and none that stays: an end that is too far away was written by such a clock, and counts as past.

Rejected: to delete it under a condition, which not every server knows.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

from warehouse_agent.storage.elapsed import Moment
from warehouse_agent.storage.locks import holder_line, locked

LEASE_S = 60.0
RENEW_S = LEASE_S / 4
_TRIES = 5  # of others that come and go meanwhile


class TaggedFiles(Protocol):
    """A backend whose small files have tags, by which a write has a condition."""

    def tagged(self, path: str) -> tuple[bytes, str | None] | None:
        """Return the bytes of a file and its tag; None if there is none."""

    def put_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write a file if it has this tag, None: if there is none; return its new tag, or None."""

    def modified(self, path: str) -> datetime | None:
        """Return when a file was written; None if it is not there."""

    def remove_file(self, path: str, above: int) -> None:
        """Remove a file."""


class Lease:
    """A lease that is held (`interface.HeldLock`); safe for threads."""

    def __init__(self, backend: TaggedFiles, path: str, name: str) -> None:
        """Take the lease of a fragment. Raises Locked or OSError."""
        self._backend, self._path, self._name = backend, path, name
        self._line = {**holder_line(), "id": secrets.token_hex(8)}
        self._guard = threading.Lock()
        self._tag: str | None = None
        self._written = Moment.now()
        self._is_lost = False
        self._take()

    def check(self) -> None:
        """Write it again, if that was long ago. Raises OSError, or Locked: it is another's."""
        with self._guard:
            self._is_lost = self._is_lost or (
                self._written.elapsed_s > LEASE_S / 2 and not self._write()
            )
            if self._is_lost:
                found = self._backend.tagged(self._path)
                raise locked(self._name, b"" if found is None else found[0])

    def stored_at(self) -> datetime:
        """Return when it was written last, by the clock of the store. Raises OSError."""
        at = self._backend.modified(self._path)
        return datetime.now(UTC) if at is None else at

    def keep(self, until: threading.Event) -> None:
        """Write it again and again until the event is set, or another command took it."""
        while not until.wait(RENEW_S):
            with self._guard, contextlib.suppress(OSError):  # then it is tried again
                if not self._is_lost and not self._write():
                    self._is_lost = True
            if self._is_lost:
                return

    def give_back(self) -> None:
        """Remove it, unless another command may have taken it."""
        with self._guard, contextlib.suppress(OSError):
            if not self._is_lost and self._written.elapsed_s < LEASE_S:
                self._backend.remove_file(self._path, 0)

    def _take(self) -> None:
        found = None
        for _ in range(_TRIES):
            if self._write():
                return
            found = self._backend.tagged(self._path)
            if found is not None and is_running(found[0], time.time()):
                break
            self._tag = None if found is None else found[1]
        raise locked(self._name, b"" if found is None else found[0])

    def _write(self) -> bool:
        """Write it for another LEASE_S; return False if it is not as it was."""
        written = Moment.now()
        data = json.dumps({**self._line, "until": written.wall_s + LEASE_S}).encode() + b"\n"
        tag = self._backend.put_if(self._path, data, self._tag)
        if tag is None:
            found = self._backend.tagged(self._path)
            if found is None or found[0] != data:  # else by a put that was repeated
                return False
            tag = found[1]
        self._tag, self._written = tag, written
        return True


@contextlib.contextmanager
def held(backend: TaggedFiles, path: str, name: str) -> Iterator[Lease]:
    """Hold the lease of a fragment. Raises Locked or OSError."""
    lease, is_over = Lease(backend, path, name), threading.Event()
    threading.Thread(target=lease.keep, args=(is_over,), daemon=True).start()
    try:
        yield lease
    finally:
        is_over.set()
        lease.give_back()


def is_running(data: bytes, now_s: float) -> bool:
    """Return True if a lease has not ended, by our clock, and was written by one that agrees."""
    try:
        line: Any = json.loads(data)
        return 0 < float(line["until"]) - now_s <= 2 * LEASE_S
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
