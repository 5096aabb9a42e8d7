"""Failed refreshes in the history of refreshes: what went wrong, when, how often, and what to do.

Each attempt that failed is a line of the history. It counts until a refresh goes well. A source
that put a refresh off, such as outside hours of its DBA, is no failure and clears none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from warehouse_agent.history.history_lines import FailureLine, HistoryLine, SuccessLine, moment
from warehouse_agent.history.refresh_history import Enough, RefreshHistory
from warehouse_agent.report import age

RECENT: Final = timedelta(hours=24)  # for which a failure is told of a table that is well again
FAILURES_LONG: Final = 3  # in a row: waiting alone does not help
FAILURES_READ_MAX: Final = 200  # since the last success: some 400 kB of a history are read


@dataclass(frozen=True, slots=True)
class Failure:
    """Refreshes that failed one after the other with one cause.

    Attributes:
        times: their number.
        since, at: when the first and the last of them failed, by the clock of the warehouse,
            ISO 8601 in UTC; None: an older release did not say.
        version: which was published then; None: none was.
        code, message, where, remedy, safe_to_retry, exit_code, details: of the newest error.
    """

    times: int
    since: str | None
    at: str | None
    version: int | None
    code: str
    message: str
    where: str
    remedy: str
    safe_to_retry: bool
    exit_code: int
    details: dict[str, str]

    def has_cause_of(self, other: Failure) -> bool:
        """Return True if both are one cause, met while the same version was published."""
        mine = (self.version, self.code, self.where, self.message)
        return mine == (other.version, other.code, other.where, other.message)

    @property
    def why(self) -> str:
        """Return the cause and the remedy, in words."""
        said = [f"{self.code}: {self.where}: {self.message}", self.what_to_do]
        return " ".join(filter(None, said))

    @property
    def what_to_do(self) -> str:
        """Return the remedy; of one that has none, what may help; empty: nothing is known."""
        if self.remedy or not self.safe_to_retry:
            return self.remedy
        often = " If it goes on: `driftline doctor`." if self.times >= FAILURES_LONG else ""
        return f"It is tried again by itself, or run it again.{often}"

    def lines(self, name: str, now: datetime) -> list[str]:
        """Return as lines how often and when refreshes of a table failed, why, and what to do."""
        when = "" if self.at is None else f" {age(self.at, now)}"
        if self.times > 1 and self.since is not None and self.at is not None:
            when = f", the first {age(self.since, now)}, the last{when}"
        said = [f"{name}: {often(self.times)} failed{when}: {self.why}"]
        return said + [f"  {what}: {text}" for what, text in self.details.items()]

    @property
    def attempt(self) -> str:
        """Return a line about these refreshes among the versions of a table."""
        when = self.at if self.times == 1 else f"{self.since} to {self.at}, {self.times:,} times"
        return f"failed: {when}: {self.why}"


def until_success() -> Enough:
    """Read until a refresh that went well, or FAILURES_READ_MAX that failed."""
    read = 0

    def enough(line: HistoryLine) -> bool:
        nonlocal read
        read += _failure(line) is not None
        return isinstance(line, SuccessLine) or read == FAILURES_READ_MAX

    return enough


def since_success(history: RefreshHistory) -> list[Failure]:
    """Return the failures since the last refresh that went well, the newest first.

    At most FAILURES_READ_MAX are counted.
    """
    later = itertools.takewhile(lambda line: isinstance(line, FailureLine), history.lines)
    failed = (failure for line in later if (failure := _failure(line)) is not None)
    return list(_merged(itertools.islice(failed, FAILURES_READ_MAX)))


def kept(history: RefreshHistory) -> list[Failure]:
    """Return all failures in the history of which a time is known, the newest first."""
    failed = (failure for line in history.lines if (failure := _failure(line)) is not None)
    return list(_merged(one for one in failed if one.at is not None))


def recovered(history: RefreshHistory, now: datetime) -> list[Failure]:
    """Return the failures of the last RECENT after which a refresh went well, the newest first.

    Args:
        history: read whole.
        now: with a time zone.
    """
    over = itertools.dropwhile(lambda line: isinstance(line, FailureLine), history.lines)
    failed = (failure for line in over if (failure := _failure(line)) is not None)
    return list(_merged(one for one in failed if _is_recent(one, now)))


def _is_recent(one: Failure, now: datetime) -> bool:
    try:
        return one.at is not None and moment(one.at) >= now - RECENT
    except (ValueError, OverflowError):
        return False


def in_all(newest_first: Iterable[Failure]) -> Failure | None:
    """Return the newest failure with the number and the begin of all; None: there is none."""
    failures = list(newest_first)
    if not failures:
        return None
    times = sum(one.times for one in failures)
    return replace(failures[0], times=times, since=failures[-1].since)


def often(times: int) -> str:
    """Return how many refreshes failed, in words."""
    if times == 1:
        return "the last refresh"
    return f"the last {times:,} refreshes{' or more' * (times >= FAILURES_READ_MAX)}"


def _failure(line: HistoryLine) -> Failure | None:
    """Return a refresh that failed; None: it went well, was put off, or its error is damaged."""
    if isinstance(line, SuccessLine) or line.is_put_off or not line.code or line.exit_code is None:
        return None
    return Failure(
        1,
        line.failed_at,
        line.failed_at,
        line.version,
        line.code,
        line.message,
        line.where,
        line.remedy,
        line.safe_to_retry,
        line.exit_code,
        dict(line.details),
    )


def _merged(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Add up failures with one cause that follow each other; the newest comes first."""
    newest: Failure | None = None
    for one in failures:
        if newest is not None and newest.has_cause_of(one):
            newest = replace(newest, times=newest.times + one.times, since=one.since)
            continue
        if newest is not None:
            yield newest
        newest = one
    if newest is not None:
        yield newest
