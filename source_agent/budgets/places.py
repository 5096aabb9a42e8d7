"""Places: a limited number of simultaneous calls or scans, in all and for each client.

A client is identified by its certificate (`catalogue.Client.label`), however many connections it
has. One client can take no more than its own number of places; the rest stays free for others.
Thread-safe.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driftline.errors import NotNow

LOOK_S = 0.25  # the longest time until a waiting client's departure is noticed


class Places:
    """Places for one kind of work."""

    def __init__(
        self,
        most: Callable[[], int],
        refusal: Callable[[], NotNow],
        *,
        of_one: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """Limit to `most` in all and `of_one` a client; `refusal` makes the error beyond that."""
        self._most, self._refusal, self._of_one = most, refusal, of_one
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def taken(
        self, client: str, *, wait_s: float = 0.0, check: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Hold one place. Raises NotNow after `wait_s`; `check` may raise earlier."""
        with self._changed:
            self._waiting[client] += 1
            try:
                self._wait(client, time.monotonic() + wait_s, check)
                self._taken[client] += 1
            finally:
                self._waiting -= Counter([client])
        try:
            yield
        finally:
            with self._changed:
                self._taken -= Counter([client])
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


def fixed_places(what: str, most: int, of_one: int) -> Places:
    """Return `most` places in all and `of_one` for each client, for calls of this name."""

    def refusal() -> NotNow:
        return NotNow(
            f"The source already answers the maximum number of {what}, in all or for this client.",
            remedy="Run the command again when others have ended.",
        )

    return Places(lambda: most, refusal, of_one=lambda: of_one)
