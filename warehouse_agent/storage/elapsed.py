"""Moments of this process, and how long ago they are, whatever became of it meanwhile.

The monotonic clock stands still while a machine sleeps, and the other one may be set; what has
passed by either of them has passed. A clock of another machine is never compared with ours.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

# Without locks, a running attempt looks like a crashed one to `gc`: it keeps what is younger, and
# an attempt of half that age publishes nothing, so that nothing is removed that is published later.
KEEP_HOURS_MIN_REMOTE = 24
ATTEMPT_S_MAX = KEEP_HOURS_MIN_REMOTE * 3600 / 2


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment, by both clocks of this machine, in seconds."""

    wall_s: float
    monotonic_s: float

    @classmethod
    def now(cls) -> Self:
        """Return the present moment."""
        return cls(time.time(), time.monotonic())

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since then, by the clock that counted more."""
        return max(time.time() - self.wall_s, time.monotonic() - self.monotonic_s)
