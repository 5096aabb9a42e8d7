"""What the DBA of a source lets a refresh read now, and how the rest is refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from driftline.errors import NEXT_SCAN, DriftlineError, LimitExceeded, NotNow
from driftline.limits import GROUPED_KEYS_MAX

from warehouse_agent.planning import group_selection
from warehouse_agent.report import counted

_BY_KEY = '`proof = "part"` or `incremental`'


@dataclass(frozen=True, slots=True)
class Allowance:
    """The source's word on what may be read of a relation now (protocol, section 9).

    It stays valid as time goes by, because `begins` is compared with our clock.

    Attributes:
        scan: a scan may begin.
        begins: when scans may begin next, if not when the source was asked; None: never.
        rows_by_key: the most rows that an exchange may compare by key; None: no limit.
        has_hours: scans may begin in some hours only; False: always, or never.
        knows_keys: the source takes rows that are named by their keys.
    """

    scan: bool
    begins: datetime | None = None
    rows_by_key: int | None = None
    has_hours: bool = False
    knows_keys: bool = False

    def may_scan(self, now: datetime) -> bool:
        """Return True if a scan may begin now."""
        return self.scan or (self.begins is not None and self.begins <= now)

    def covers(self, rows: int, now: datetime) -> bool:
        """Return True if `rows` rows may all be compared by key and no scan may begin: if the DBA
        named a limit, and a part of as many leaves the room for new rows that every part has."""
        if self.may_scan(now) or self.rows_by_key is None or not self.knows_keys:
            return False
        budget = group_selection.PartBudget.of(self.rows_by_key)
        return rows <= budget.likeliest + budget.in_turn

    def part(self, read_at_most: int | None, now: datetime) -> int | None:
        """Return how many rows a refresh that may be partial compares by key; None: it compares
        all.

        Hours for scans decide if there are any: all rows are compared within them, a part outside.

        Args:
            read_at_most: the fragment's own limit; None: as many as the source allows.
        """
        if not self.may_scan(now):
            return read_at_most or min(self.rows_by_key or GROUPED_KEYS_MAX, GROUPED_KEYS_MAX)
        return None if self.has_hours else read_at_most

    def describe(self, now: datetime) -> str:
        """Return when scans may begin, and the limit of rows by key, for people; empty if nothing
        is limited."""
        scans = ""
        if not self.may_scan(now):
            scans = f"no scan before {_instant(self.begins)}" if self.begins else "no scan"
        elif self.has_hours:
            scans = "scans in some hours, now one of them"
        limit = f"{counted(self.rows_by_key, 'row')} by key" if self.rows_by_key else ""
        return ", ".join(filter(None, (scans, limit)))

    def refusal(self, name: str, *, by_key: int | None, now: datetime) -> DriftlineError | None:
        """Return the error of a refresh that the source would refuse now; None: it would not.

        name: of the fragment; by_key: rows that an exchange compares by key, None for a scan.
        """
        if by_key is not None:
            return None if self.allows(by_key) else self._too_many(name, by_key)
        return None if self.may_scan(now) else self._no_scan(name)

    def allows(self, rows: int) -> bool:
        """Return True if an exchange may compare so many rows by key."""
        return self.rows_by_key is None or rows <= self.rows_by_key

    def _too_many(self, name: str, rows: int) -> LimitExceeded:
        limit = self.rows_by_key or 0
        return LimitExceeded(
            f"The source's DBA allows {counted(limit, 'row')} of the relation to be read by key"
            f" (rows_by_key), and this refresh would ask for {rows:,}.",
            where=name,
            remedy=f"Set `read_at_most`, or `rows` of `incremental`, to at most {limit}.",
        )

    def _no_scan(self, name: str) -> DriftlineError:
        if self.begins is None:
            return LimitExceeded(
                "All rows would be compared, and the source's DBA allows no scan of the relation.",
                where=name,
                remedy=f"Refresh it by key ({_BY_KEY}). A first load and a complete refresh need a"
                " scan: ask the DBA for hours in which one may begin.",
            )
        begins = _instant(self.begins)
        return NotNow(
            "All rows would be compared, and the source's DBA allows a scan of the relation not"
            f" before {begins}.",
            where=name,
            remedy=f"Run the refresh again then, or refresh it by key ({_BY_KEY}).",
            details={NEXT_SCAN: begins},
        )


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
