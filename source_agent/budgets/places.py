"""Places that are few, shared by clients: so many at once over all, and of one client.

A client is who its certificate says it is (`publish.Client.label`), however many connections it
has. So what one client takes, and however long it keeps silent about it, the places above its own
number are there for the others. Thread-safe.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driftline.errors import NotNow

LOOK_S = 0.25  # at most this late is a client's leaving seen while it waits


class Places:
    """Places for one kind of work."""

    def __init__(
        self,
        most: Callable[[], int],
        refusal: Callable[[], NotNow],
        *,
        of_one: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """`most` over all, `of_one` client, both asked anew each time; `refusal` where none is
        free."""
        self._most, self._refusal, self._of_one = most, refusal, of_one
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def taken(
        self, client: str, *, wait_s: float = 0.0, check: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """One place, waited for `wait_s` at most; meanwhile `check` may raise to give it up.

        Raises:
            NotNow: none became free in time.
        """
        with self._changed:
            self._waiting[client] += 1
            try:
                self._wait(client, time.monotonic() + wait_s, check)
                self._taken[client] += 1
            finally:
                _drop(self._waiting, client)
        try:
            yield
        finally:
            with self._changed:
                _drop(self._taken, client)
                self._changed.notify_all()

    def wanted_by_others(self, client: str) -> bool:
        """Return True if another client waits for a place now."""
        with self._changed:
            return any(other != client for other in self._waiting)

    def _wait(self, client: str, until: float, check: Callable[[], None]) -> None:
        while not self._is_free(client):
            check()
            left = until - time.monotonic()
            if left <= 0:
                raise self._refusal()
            self._changed.wait(min(left, LOOK_S))

    def _is_free(self, client: str) -> bool:
        return self._taken.total() < self._most() and self._taken[client] < self._of_one()


def too_many(what: str) -> NotNow:
    """Return the refusal of a call where the client itself, or very many, have too many."""
    return NotNow(
        f"The source already answers the maximum number of {what}, in all or for this client.",
        remedy="Run the command again when others have ended.",
    )


def _drop(counts: Counter[str], client: str) -> None:
    counts[client] -= 1
    if not counts[client]:
        del counts[client]
