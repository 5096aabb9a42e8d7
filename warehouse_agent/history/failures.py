"""Failed refreshes in the history of runs: what went wrong, when, how often, and what to do.

Each attempt that failed is a line of the history. It counts until a refresh goes well. A source
that put a refresh off, such as outside hours of its DBA, is no failure and clears none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from warehouse_agent.history.record import DAMAGED_LINE
from warehouse_agent.report import age
from warehouse_agent.storage.store import PRIVATE, Store

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

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)

    def has_cause_of(self, other: Failure) -> bool:
        """Return True if both are one cause, met while the same version was published."""
        mine = (self.version, self.code, self.where, self.message)
        return mine == (other.version, other.code, other.where, other.message)

    @property
    def why(self) -> str:
        """Return the cause and the remedy, in words."""
        retry = "It is tried again by itself, or run it again." if self.safe_to_retry else ""
        said = [f"{self.code}: {self.where}: {self.message}", self.remedy or retry]
        return " ".join(filter(None, said))

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


def since_success(store: Store, name: str) -> list[Failure]:
    """Return the failures since the last refresh that went well, the newest first.

    At most FAILURES_READ_MAX are counted. Raises WarehouseUnavailable.
    """
    return list(_merged(_failures(_reports(store, name), ends_at_success=True)))


def kept(store: Store, name: str) -> list[Failure]:
    """Return all failures in the history of which a time is known, the newest first."""
    failed = _failures(_reports(store, name), ends_at_success=False)
    return list(_merged(one for one in failed if one.at is not None))


def in_all(found: Iterable[Failure]) -> Failure | None:
    """Return the newest failure with the number and the begin of all; None: there is none."""
    failures = list(found)
    if not failures:
        return None
    times = sum(one.times for one in failures)
    return replace(failures[0], times=times, since=failures[-1].since)


def often(times: int) -> str:
    """Return how many refreshes failed, in words."""
    if times == 1:
        return "the last refresh"
    return f"the last {times:,} refreshes{' or more' * (times >= FAILURES_READ_MAX)}"


def _reports(store: Store, name: str) -> Iterator[dict[str, Any]]:
    """Yield the reports of refreshes, the newest first; skip other commands and damaged lines."""
    for line in store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl"):
        with contextlib.suppress(*DAMAGED_LINE):
            body = json.loads(line)
            if body["command"] == "refresh":
                yield body


def _failures(reports: Iterable[dict[str, Any]], *, ends_at_success: bool) -> Iterator[Failure]:
    read = 0
    for body in reports:
        with contextlib.suppress(*DAMAGED_LINE):
            if (error := body["error"]) is None:
                if ends_at_success:
                    return
                continue
            if body.get("put_off_until") is not None:
                continue
            version, failed_at = body.get("version"), body.get("failed_at")
            yield Failure(
                1,
                None if failed_at is None else str(failed_at),
                None if failed_at is None else str(failed_at),
                version if isinstance(version, int) else None,
                str(error["code"]),
                str(error.get("message", "")),
                str(error.get("where", "")),
                str(error.get("remedy", "")),
                bool(error.get("safe_to_retry")),
                int(error["exit_code"]),
                {str(k): str(v) for k, v in dict(error.get("details") or {}).items()},
            )
            read += 1
            if ends_at_success and read == FAILURES_READ_MAX:
                return


def _merged(found: Iterable[Failure]) -> Iterator[Failure]:
    """Add up failures with one cause that follow each other; the newest comes first."""
    newest: Failure | None = None
    for one in found:
        if newest is not None and newest.has_cause_of(one):
            newest = replace(newest, times=newest.times + one.times, since=one.since)
            continue
        if newest is not None:
            yield newest
        newest = one
    if newest is not None:
        yield newest
