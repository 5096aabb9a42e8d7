"""How long a refresh will still take, by the phases of earlier ones of its fragment, without I/O.

Of the step that it is in, the rest of its usual seconds is left, or, where the source says how many
rows it has read, the time for the others at the rate so far; of the later steps all of theirs. What
is shown never rises and is never negative: a step that takes longer than usual holds the number.
Rejected: to let it rise. It then says the same moment again and again, or jumps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warehouse_agent.events import RowsRead

STEPS: Final = ("reduce", "exchange", "apply", "prove", "publish")  # in their order
REFRESHES: Final = 5  # of a fragment, from which the next one is expected
SOON_S: Final = 10.0  # less is not counted
_ROWS_MIN: Final = 0.02  # of those that are expected, before their rate says something


def usual(refreshes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median seconds of each step; a refresh that skipped a step counts 0.

    Args:
        refreshes: seconds of each phase of earlier refreshes; none: nothing is known.
    """
    if not refreshes:
        return {}
    return {step: statistics.median(one.get(step, 0.0) for one in refreshes) for step in STEPS}


@dataclass(frozen=True, slots=True)
class RowsSoFar:
    """Rows that the source has read in `seconds`, of those that it expects."""

    rows: int
    expected: int
    seconds: float

    @classmethod
    def of(cls, read: RowsRead, seconds: float) -> RowsSoFar | None:
        """Return the rows that came in `seconds`, without those before; None: nobody counts."""
        if not read.rows_expected:
            return None
        before = read.rows_before
        return cls(read.rows - before, read.rows_expected - before, seconds)

    @property
    def left_s(self) -> float | None:
        """Return the seconds for the others at the same rate; None: it is too early to say."""
        if self.rows < _ROWS_MIN * self.expected or self.rows <= 0 or self.seconds <= 0:
            return None
        return max(self.expected - self.rows, 0) * self.seconds / self.rows


@dataclass(slots=True)
class TimeLeft:
    """The seconds that are left of the refresh of one fragment.

    Attributes:
        usual: seconds of each step (`usual`); empty: nothing is known of earlier ones.
    """

    usual: Mapping[str, float] = field(default_factory=dict)
    _least: float = math.inf

    def at(self, step: str, spent_s: float, read: RowsSoFar | None = None) -> float | None:
        """Return the seconds that are left; None: not known.

        Args:
            step: of STEPS, in which the refresh is.
            spent_s: in this step so far.
            read: rows of the source; None: it reads nothing now.
        """
        by_rows = None if read is None else read.left_s
        if step not in STEPS or (by_rows is None and not any(self.usual.values())):
            return None
        here = by_rows if by_rows is not None else max(self.usual.get(step, 0.0) - spent_s, 0.0)
        later = STEPS[STEPS.index(step) + 1 :]
        left = here + sum(self.usual.get(one, 0.0) for one in later)
        self._least = min(left, self._least)
        return self._least


def words(left_s: float | None) -> str:
    """Return how long it will take as words, such as `about 2 min left`; empty: not known."""
    if left_s is None:
        return ""
    if left_s < SOON_S:
        return "less than 10 s left"
    if left_s < 95:
        return f"about {math.ceil(left_s / 10) * 10} s left"
    minutes = round(left_s / 60)
    if minutes < 60:
        return f"about {minutes} min left"
    hours, minutes = divmod(round(minutes / 10) * 10, 60)
    return f"about {hours} h{f' {minutes} min' if minutes else ''} left"
