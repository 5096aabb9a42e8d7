"""When a fragment that failed is tried again: later with each failure, so that a source that is
down, or a table that somebody has to look at, is not read without end.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RETRY_S, RETRY_S_MAX = 60.0, 3600.0  # after a failure; it doubles with each
COUNTED: Final = 7  # failures in a row, from which the wait is the longest


def wait_s(times: int) -> float:
    """Return the seconds to wait after so many failures in a row, 1 or more."""
    return min(RETRY_S * 2.0 ** (min(times, COUNTED) - 1), RETRY_S_MAX)


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Refreshes of a fragment that failed, one after the other, since the last that went well.

    Attributes:
        times: how many, up to COUNTED.
        at: when the last one did, in seconds since 1970.
        code, exit_code: of its error.
    """

    times: int
    at: float
    code: str
    exit_code: int

    @property
    def until(self) -> float:
        """Return the moment from which it is tried again, in seconds since 1970."""
        return self.at + wait_s(self.times)

    @property
    def why(self) -> str:
        """Return why nothing is tried before, in words."""
        often = "its last refresh" if self.times == 1 else f"its last {self.times} refreshes"
        if self.times >= COUNTED:
            often = f"its last {COUNTED} refreshes or more"
        return f"{often} failed ({self.code}), so it is tried again then"
