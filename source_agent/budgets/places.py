"""Places: a limited number of simultaneous calls or scans, in all and for each client.

A client is identified by its certificate (`catalogue.Client.label`), however many connections it
has. One client can take no more than its own number of places; the rest stays free for others. A
place that becomes free goes to the client that holds the fewest, then to the one that has waited
the longest.

A place for a scan is held for as long as its scan goes on, but not for as long as a client likes:
only the time in which the agent waits for the client counts (`Place`), whatever the client sends or
takes meanwhile. Once that is too much, the place is given up if another client waits that holds
fewer. Thread-safe.

Rejected: to cut off who shows no sign of life. A client that takes a reply every few seconds shows
one, for good.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driftline.errors import WAIT_SECONDS, NotNow
from driftline.limits import NO_PROGRESS_S

LOOK_S = 0.25  # the longest time until a waiting client's departure is noticed
# Of waiting for the client, if another client has no place. On a line of 256 kbit/s that two share,
# 2 MB arrive in this time, and stay when the place is given up.
WAITED_S_MAX = 120.0
WAITED_BESIDE_S_MAX = NO_PROGRESS_S  # the same, for a client that holds more than this place


class Place:
    """A place that is held."""

    def __init__(self, places: Places, client: str) -> None:
        self._places, self._client = places, client
        self.is_given_up = self.is_left = False

    def is_wanted(self, waited_s: float) -> bool:
        """Return True if this place is to be given up, after so long a wait for its client."""
        return self._places.claim(self, self._client, waited_s)


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
        self._given_up: Counter[str] = Counter()  # of those that are taken
        self._waiting: dict[object, str] = {}  # in order of arrival

    @contextmanager
    def taken(
        self, client: str, *, wait_s: float = 0.0, check: Callable[[], None] = lambda: None
    ) -> Iterator[Place]:
        """Hold one place. Raises NotNow after `wait_s`; `check` may raise earlier."""
        with self._changed:
            ticket = object()
            self._waiting[ticket] = client
            try:
                self._wait(ticket, time.monotonic() + wait_s, check)
                self._taken[client] += 1
            finally:
                del self._waiting[ticket]
                self._changed.notify_all()
        place = Place(self, client)
        try:
            yield place
        finally:
            with self._changed:
                place.is_left = True
                self._taken -= Counter([client])
                if place.is_given_up:
                    self._given_up -= Counter([client])
                self._changed.notify_all()

    @property
    def held(self) -> int:
        """Return the number of places that are taken."""
        with self._changed:
            return self._taken.total()

    def claim(self, place: Place, client: str, waited_s: float) -> bool:
        """Return True if a place of this client is to be given up (`Place.is_wanted`)."""
        with self._changed:
            if place.is_given_up or place.is_left:
                return place.is_given_up
            held = self._held(client)
            want = {c for c in self._waiting.values() if self._held(c) < held}
            most_s = WAITED_S_MAX if held == 1 else WAITED_BESIDE_S_MAX
            # A place that is given up already, by whomever, is for one of them; so is one that
            # is free since then, until the one that waits for it has noticed.
            coming = self._given_up.total() + max(self._most() - self._taken.total(), 0)
            if len(want) <= coming or waited_s < most_s:
                return False
            place.is_given_up = True
            self._given_up[client] += 1
            return True

    def _held(self, client: str) -> int:
        """Return the places of a client that it may keep."""
        return self._taken[client] - self._given_up[client]

    def _wait(self, ticket: object, until: float, check: Callable[[], None]) -> None:
        while not self._is_free(ticket):
            check()
            left = until - time.monotonic()
            if left <= 0:
                raise self._refusal()
            self._changed.wait(min(left, LOOK_S))

    def _is_free(self, ticket: object) -> bool:
        """Return True if there is a place for this one of those that wait."""
        free = self._most() - self._taken.total()
        eligible = [t for t, c in self._waiting.items() if self._taken[c] < self._of_one()]
        first = sorted(eligible, key=lambda t: self._taken[self._waiting[t]])  # stable
        return ticket in first[: max(free, 0)]


def fixed_places(what: str, most: int, of_one: int) -> Places:
    """Return `most` places in all and `of_one` for each client, for calls of this name."""

    def refusal() -> NotNow:
        return NotNow(
            f"The source already answers the maximum number of {what}, in all or for this client.",
            remedy="Run the command again when others have ended.",
        )

    return Places(lambda: most, refusal, of_one=lambda: of_one)


class ClientTurns:
    """One turn of a client in every `every_s()` seconds; None: every turn is free.

    Thread-safe; the clock is injected.
    """

    def __init__(self, every_s: Callable[[], float | None], clock: Callable[[], float]) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        self._at: dict[str, float] = {}  # the last turn of each client, of the last `every_s`

    def take(self, client: str) -> None:
        """Take a turn. Raises NotNow, with the seconds to wait, if the last one was too recent."""
        every_s, now = self._every_s(), self._clock()
        if every_s is None:
            return
        with self._lock:
            self._at = {name: at for name, at in self._at.items() if now - at < every_s}
            at = self._at.get(client)
            if at is None:
                self._at[client] = now
        if at is not None:
            wait_s = max(1, round(every_s - (now - at)))
            raise NotNow(
                "The source's DBA lets a warehouse ask about activity once in "
                f"{every_s:g} s (limits.activity_seconds).",
                remedy=f"Ask again in {wait_s} s.",
                details={WAIT_SECONDS: str(wait_s)},
            )
