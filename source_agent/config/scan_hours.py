"""Hours in which a scan may begin (`scan`).

Decisions without I/O and without a clock: the caller passes the local time of the agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from driftline.settings.hours import Hours


@dataclass(frozen=True, slots=True)
class ScanWindow:
    """One time, from `begins` on and before `ends`, in which scans may begin; local time."""

    begins: datetime
    ends: datetime

    def is_open(self, now: datetime) -> bool:
        """Return True if a scan may begin now."""
        return self.begins <= now < self.ends


@dataclass(frozen=True, slots=True)
class ScanHours:
    """The hours in which scans of a relation may begin, if not always.

    `spans` do not cover the whole day; none: never.
    """

    spans: tuple[Hours, ...]

    def window(self, now: datetime) -> ScanWindow | None:
        """Return the window that is open now, else the next one; None if there is none.

        Spans without a gap between them are one window. now: local time, without a zone.
        """
        midnight = datetime.combine(now.date(), time())
        # A window begins at most a day before or after `now`, and ends within a day.
        times = sorted(
            (
                midnight + timedelta(days=day, minutes=span.start),
                midnight + timedelta(days=day, minutes=span.end),
            )
            for day in (-1, 0, 1, 2)
            for span in self.spans
        )
        left = [(begins, ends) for begins, ends in times if ends > now]
        if not left:
            return None
        begins, ends = left[0]
        for start, end in left[1:]:
            if start <= ends:
                ends = max(ends, end)
        return ScanWindow(begins, ends)

    def __str__(self) -> str:
        return ", ".join(map(str, self.spans)) or "never"
