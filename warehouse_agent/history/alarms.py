"""Decide whether somebody has to look at a published table, in the terms of monitoring.

A failure that the same command may mend is a warning until it has come FAILURES_MAX times in a row;
any other is critical at once. A fragment with a timing that no refresh has reached for LATE times
its longest interval is late, whatever the reason: a timer that was never started writes no history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from driftline.errors import named

from warehouse_agent.history.failures import Failure, in_all, often, since_success
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.report import counted, span, utc_at

FAILURES_MAX: Final = 3  # in a row, of a kind that another try may mend
LATE: Final = 1.5  # times the longest interval: a refresh takes its time, and may fail once


class MonitoringState(Enum):
    """States of monitoring, with their exit codes (the convention of Nagios and its successors)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def word(self) -> str:
        """Return the state as JSON has it."""
        return self.name.lower()


_WORST = (
    MonitoringState.OK,
    MonitoringState.UNKNOWN,
    MonitoringState.WARNING,
    MonitoringState.CRITICAL,
)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about one table, from which its state follows.

    Attributes:
        is_published: a version is published.
        failure: the refreshes that failed since the last that went well; None: none did.
        damaged: data files that are noted as missing or damaged, for the next refresh to repair.
        stale: why a view stays behind its inputs; None: it does not.
        unseen_s: seconds since a refresh went well; None: not known.
        interval_s: the longest interval that is asked for, with the longest time in which no
            refresh may begin; None: none is asked for.
        put_off_until: its source reads nothing before, ISO 8601; None: it reads now.
    """

    is_published: bool = True
    failure: Failure | None = None
    damaged: int = 0
    stale: str | None = None
    unseen_s: float | None = None
    interval_s: float | None = None
    put_off_until: str | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A reason to look at a table, in words, and how urgent it is."""

    state: MonitoringState
    why: str


def known(
    history: RefreshHistory,
    now: datetime,
    *,
    version: int | None,
    checked_at: str | None,
    interval_s: float | None,
    damaged: int,
    stale: str | None,
) -> TableFacts:
    """Return from the history of a table what its state follows from, beside what is published.

    Args:
        history: read `failures.until_success`.
        now: with a time zone.
        version: that is published; None: none is.
        checked_at: when all rows were compared last, ISO 8601; None: no refresh is to be expected.
        interval_s, damaged, stale: as in `TableFacts`.
    """
    until, unseen_s = history.put_off_until, None
    if checked_at is not None:
        at = history.refreshed_at or datetime.fromisoformat(checked_at)
        unseen_s = (now - at).total_seconds()
    return TableFacts(
        is_published=version is not None,
        failure=in_all(since_success(history)),
        damaged=damaged,
        stale=stale,
        unseen_s=unseen_s,
        interval_s=interval_s,
        put_off_until=None if until is None or until <= now.timestamp() else utc_at(until),
    )


def alarms(known: TableFacts) -> list[Alarm]:
    """Return what is wrong with a table, the most urgent first; empty: nothing."""
    raised = []
    if (failure := known.failure) is not None:
        may_pass = failure.safe_to_retry and failure.times < FAILURES_MAX
        state = MonitoringState.WARNING if may_pass else MonitoringState.CRITICAL
        raised.append(Alarm(state, f"{often(failure.times)} failed: {named(failure.code)}"))
    elif not known.is_published:
        raised.append(Alarm(MonitoringState.UNKNOWN, "nothing published yet"))
    if known.damaged:
        raised.append(
            Alarm(MonitoringState.WARNING, f"{counted(known.damaged, 'data file')} damaged")
        )
    if known.stale is not None:
        raised.append(Alarm(MonitoringState.WARNING, f"stays behind its inputs: {known.stale}"))
    if (late := late_s(known)) is not None:
        raised.append(Alarm(MonitoringState.WARNING, late_text(late, limit_s(known) or 0.0)))
    return sorted(raised, key=lambda one: -_WORST.index(one.state))


def late_s(known: TableFacts) -> float | None:
    """Return for how many seconds no refresh went well, if that is longer than the timing that is
    asked for allows; None: it is not late."""
    limit = limit_s(known)
    if known.unseen_s is None or limit is None or known.put_off_until:
        return None
    return known.unseen_s if known.unseen_s > limit else None


def limit_s(known: TableFacts) -> float | None:
    """Return the seconds without a refresh after which a table is late; None: it never is."""
    return None if known.interval_s is None else LATE * known.interval_s


def late_text(seconds: float, limit: float) -> str:
    """Return what is said of a table that no refresh has reached for so many seconds."""
    return f"late: no refresh went well for {span(seconds)}; the limit is {span(limit)}"


def worst(states: Iterable[MonitoringState]) -> MonitoringState:
    """Return the most urgent state: critical, warning, unknown, ok; of none it is unknown."""
    listed: Sequence[MonitoringState] = list(states)
    return max(listed, key=_WORST.index) if listed else MonitoringState.UNKNOWN
