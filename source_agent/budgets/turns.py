"""Turns: how often a client may ask for something that costs the database little, but not nothing.

Thread-safe; the clock is injected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from driftline.errors import WAIT_SECONDS, NotNow


class Turns:
    """One turn of a client in every `every_s()` seconds; None: every turn is free."""

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
