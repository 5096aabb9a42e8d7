"""Decide whether fragments are tried again: an attempt that advanced does not count.

What an attempt staged is kept, and the next one goes on there. So a load over a line that breaks
every half a minute ends, however often it breaks, if only each attempt adds rows. An attempt counts
against the limit unless its exchange failed and left more staged than there ever was, by a least
amount:

 1. Up to the rows that are expected, and SLACK, it is a share of them, so about ADVANCES_MAX
    attempts at most are free.
 2. Where nothing is expected it is a share of what was staged before, and a larger one beyond what
    is expected. An estimate of a catalogue may be too low by any factor; but a source of an older
    release may send the same rows again and again, and these soon do not suffice.

Rejected: to begin to count anew after each attempt that stages a row, which has no end where rows
come again; and to ask how many of the rows are new, which the next attempt alone finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADVANCES_MAX = 1000  # by a cut every 30 s, that is eight hours
SLACK = 0.25  # of the expected rows: an estimate may be too low, and at a cut some come twice
UNKNOWN_SHARE, BEYOND_SHARE = 10, 2  # of what was staged
STUCK_MIN = 2  # attempts in turn without an advance, of which the last error tells


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of an attempt at a fragment.

    Attributes:
        before, done: staged rows, or tiles that are compared, when it began and when it ended.
        expected: rows or tiles in all; 0: not known.
        held_s: seconds for which its exchange lasted.
        scan_s: seconds that a scan is expected to take; None: not known.
    """

    before: int
    done: int
    expected: int
    held_s: float = 0.0
    scan_s: float | None = None

    def advances(self, most: int) -> bool:
        """Return True if it left enough more than the `most` that there was before."""
        if not self.expected:
            least = most // UNKNOWN_SHARE
        elif self.done <= self.expected * (1 + SLACK):
            least = self.expected // ADVANCES_MAX
        else:
            least = most // BEYOND_SHARE
        return self.done - most >= max(least, 1)


@dataclass(frozen=True, slots=True)
class Stuck:
    """Attempts at a fragment that ended in turn without an advance.

    Attributes:
        times: their number.
        held_s: seconds that the longest of their exchanges lasted.
        scan_s: seconds that a scan is expected to take; None: not known.
    """

    times: int
    held_s: float
    scan_s: float | None

    @property
    def is_outlasted(self) -> bool:
        """Return True if a scan is expected to last longer than the exchanges did."""
        return self.times >= STUCK_MIN and self.scan_s is not None and self.scan_s > self.held_s


@dataclass(slots=True)
class AttemptCount:
    """The attempts at the fragments of a run, `counted` of them against the `limit`.

    With a limit of 1 there is no second attempt, whatever the first one reached.
    """

    limit: int
    counted: int = 0
    _most: dict[str, int] = field(default_factory=dict)
    _stuck: dict[str, Stuck] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Return True if there is no attempt left."""
        return self.counted >= self.limit

    def add(self, reached: Mapping[str, Reached], *, is_last: bool = False) -> None:
        """Count an attempt.

        Args:
            reached: how far it came with the fragments whose exchange failed, by name.
            is_last: nothing more may be started, so it counts, however far it came.
        """
        advanced = False
        for name, one in reached.items():
            most = self._most.get(name, one.before)
            if one.advances(most):
                advanced = True
                self._stuck.pop(name, None)
            else:
                self._stuck[name] = _one_more(self._stuck.get(name), one)
            self._most[name] = max(most, one.done)
        self.counted += not advanced or is_last or self.limit == 1

    def stuck(self, name: str) -> Stuck | None:
        """Return the attempts at a fragment since its last advance; None: there was none."""
        return self._stuck.get(name)


def scan_s(read: int, rows: int, held_s: float, rows_per_s: float | None) -> float | None:
    """Return the seconds that a scan of `rows` rows takes, by the `read` rows of `held_s` seconds,
    else by the rate of an earlier refresh; None: not known."""
    if not rows:
        return None
    if read:
        return held_s * max(rows / read, 1.0)
    return rows / rows_per_s if rows_per_s else None


def _one_more(before: Stuck | None, one: Reached) -> Stuck:
    if before is None:
        return Stuck(1, one.held_s, one.scan_s)
    known = [seconds for seconds in (before.scan_s, one.scan_s) if seconds is not None]
    return Stuck(before.times + 1, max(before.held_s, one.held_s), max(known, default=None))
