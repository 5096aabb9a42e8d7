"""The report of one refresh: the line that jobs read and people see.

It is one JSON object for each fragment and command, also for a failure, with a stable set of keys.
The same object is kept in `runs/<name>.jsonl`.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import json
import logging
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from driftline.errors import DriftlineError, NotNow
from driftline.limits import DATABASE_FINGERPRINT_VERSION
from driftline.values.types import Recipe

JSON_SCHEMA = 1  # of the objects of `--json`; grows when a key goes or means something else
FINGERPRINT_BITS = 128
DATABASE_FINGERPRINT_BITS = 64
YEAR_S = 365.25 * 86_400
PUT_OFF_S_MAX = 86_400.0  # a wrong clock of the source must not stop refreshes for longer
# A unit, its length in seconds, and the least number of it that is shown.
_UNITS = (
    ("year", 365.25 * 86_400, 2),
    ("day", 86_400.0, 2),
    ("hour", 3600.0, 1),
    ("minute", 60.0, 1),
)
GREATEST_SHOWN = 1e30  # of any amount in words
PARTIAL = 3  # exit code: some fragments failed, some did not; or some were not started

_log = logging.getLogger("driftline")


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """The version that readers see after a refresh, and what it took.

    Counts are rows; `bytes_rewritten` is the size of our files that were replaced or deleted.
    `checked_at`, when rows were compared, and `refreshed_at`, when this refresh had its source's
    answer, are ISO 8601 in UTC; they differ where it compared nothing. `miss_probability` is None
    where not all rows were compared,
    `audit` (a `planning.marker_state.MarkerAudit`) where no marker is used,
    `modelled` (a `candidates.Candidate`) where the number of changed rows is not known, `changed`
    (a `changed_places.ChangedPlaces`) where there is no change feed.
    """

    version: int
    rows: int
    proof: str  # "total", "keys" or "part"
    checked_at: str
    refreshed_at: str
    fingerprint: str
    miss_probability: float | None
    modelled: dict[str, Any] | None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    schema_changed: bool = False
    schema_changes: list[str] = field(default_factory=list)
    bytes_rewritten: int = 0
    audit: dict[str, Any] | None = None
    changed: dict[str, Any] | None = None


@dataclass(slots=True)
class PhaseTime:
    """Time spent in a phase, without phases within it; 0 until the phase ends."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MovedViews:
    """A view phase of a component that is over; `at`: when it ended, ISO 8601 in UTC.

    `rows` are the changed rows of the component; None for a first load, or after a failure.
    """

    rows: int | None
    seconds: float
    at: str


HELD_BACK_SHOWN_S = 1.0  # less than this is not shown to people


@dataclass
class Report:
    """The result of a command on one fragment; its fields are the keys of the JSON object.

    Counts are rows or bytes, as their names say. None: not known.
    """

    name: str
    command: str = "refresh"
    version: int | None = None
    previous_version: int | None = None
    run: str | None = None  # the command that did it: all of its reports have the same one
    started_at: str | None = None
    release: str | None = None  # of this agent
    source: str | None = None  # its name in the file; null: a view
    source_release: str | None = None  # of its agent; null: it was not reached
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    schema_changed: bool = False  # with this version; the number of changed rows is unknown
    schema_changes: list[str] = field(default_factory=list)  # of columns and key, a phrase each
    rows_total: int | None = None
    rows_left: int | None = None  # our rows that were not compared, in a part
    updates_left: float | None = None  # rows among them that are expected to have been updated
    marker: dict[str, Any] | None = None  # how it was used; null: not asked for
    audit: dict[str, Any] | None = None  # of the marker, the last one; null: no marker is used
    allowed: str | None = None  # what the source's DBA allowed to be read; null: everything
    bytes_sent: int = 0
    bytes_received: int = 0
    copy_bytes: int | None = None  # that a copy of all rows is expected to take
    changed: dict[str, Any] | None = None  # a `changed_places.ChangedPlaces`
    bytes_rewritten: int = 0  # size of our files that were replaced or deleted
    repaired_files: int = 0  # our files that were missing or damaged
    repaired_rows: int = 0  # rows in them, by the log; they count as absent
    predicted: dict[str, Any] | None = None  # a `candidates.Candidate`, before the refresh
    modelled: dict[str, Any] | None = None  # the same, for the changes that were found
    changes_expected: tuple[int, int, int] | None = None  # low, median, high; 80 % lie within
    round_trips: int = 0
    source_scans: int = 0
    source_rows_read: int = 0
    held_back_s: float = 0.0  # the source read more slowly, to spare its database
    snapshot_s: float | None = None  # the longest that the source held a snapshot, at most
    seconds: dict[str, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # phase: "driver", or "spark" if any step
    places_why: dict[str, dict[str, Any]] = field(default_factory=dict)  # `PlacedStep.to_json`
    requests: dict[str, int] | None = None  # to a bucket for this table, by kind; null: a disk
    method: str | None = None
    method_why: str | None = None  # of a view: why it was computed in this way
    consistency: str | None = None
    proof: str = "none"
    fingerprint: str | None = None  # who makes what stands for a row: agent or database
    miss_probability: float | None = None
    as_of: str | None = None
    checked_at: str | None = None
    refreshed_at: str | None = None  # of a fragment; beside claims the same as `checked_at`
    activity: dict[str, Any] | None = None  # of the relation, before the snapshot of `as_of`
    attempts: int = 0
    retried: list[dict[str, Any]] = field(default_factory=list)  # errors of failed attempts
    tiles: int | None = None  # in the pass; None: one exchange
    tiles_done: int | None = None
    resumed_at: int | None = None  # tiles that earlier commands had finished
    not_started: str | None = None  # why; nothing was asked or written
    warehouse_version: int | None = None  # after the command; null where there are no views
    inputs: dict[str, int] | None = None  # of a view, the versions that it is made of
    stale: str | None = None  # of a view: why it stayed behind its inputs
    derived: str | None = None  # columns and rows of a kept relation; null: it is whole
    held: str | None = None  # why readers do not see the new version yet: a view failed
    ahead: dict[str, Any] | None = None  # changes that wait for the views: rows, since, due_by
    proven_at: str | None = None  # of a fragment with views: when its files were proven
    view_phases: list[MovedViews] = field(default_factory=list)  # of the command, before this
    staleness: dict[str, Any] | None = None  # of a view: seconds, averaged over changed rows
    failed_at: str | None = None  # when the last attempt did, by the warehouse's clock
    put_off_until: str | None = None  # nothing is wrong: hours of the source are closed until then
    error: dict[str, Any] | None = None
    schema: int = JSON_SCHEMA

    @property
    def rows_changed(self) -> int:
        """Return the number of inserted, updated and deleted rows."""
        return self.rows_inserted + self.rows_updated + self.rows_deleted

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command on this fragment alone."""
        if self.not_started is not None:
            return PARTIAL
        return int(self.error["exit_code"]) if self.error else 0

    def is_put_off(self, now: float) -> bool:
        """Return True if the source is closed for longer, which is no failure.

        Args:
            now: seconds since 1970.
        """
        until = self.put_off_until
        return until is not None and datetime.fromisoformat(until).timestamp() > now

    def note_published(self, done: PublishedVersion) -> None:
        """Note the version that readers see now and what it took."""
        self.version, self.rows_total = done.version, done.rows
        self.rows_inserted, self.rows_updated = done.inserted, done.updated
        self.rows_deleted, self.schema_changed = done.deleted, done.schema_changed
        self.schema_changes = done.schema_changes
        self.bytes_rewritten, self.modelled = done.bytes_rewritten, done.modelled
        self.proof, self.checked_at, self.audit = done.proof, done.checked_at, done.audit
        self.refreshed_at = done.refreshed_at
        self.fingerprint, self.miss_probability = done.fingerprint, done.miss_probability
        self.changed = done.changed

    def with_result(self, done: PublishedVersion) -> Report:
        """Return what this report becomes once `done` is published."""
        report = copy.deepcopy(self)
        report.note_published(done)
        report.recovered()
        return report

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(asdict(self))

    def fail(self, error: DriftlineError) -> None:
        """Note why the fragment was not refreshed; log the traceback at debug level.

        The error may be kept for long, so what the frames of its traceback hold is let go.
        """
        _log.debug("%s failed", self.name, exc_info=error)
        _clear_frames(error)
        self.recovered()
        self.error = {
            "code": error.code,
            "message": error.message,
            "where": error.where or self.name,
            "remedy": error.remedy,
            "safe_to_retry": error.is_retryable,
            "exit_code": error.exit_code,
            "details": error.details,
        }
        self.failed_at = utc_at(time.time())
        if isinstance(error, NotNow) and (until := error.until()) is not None:
            self.put_off_until = utc_at(min(until.timestamp(), time.time() + PUT_OFF_S_MAX))

    def explain(self, why: tuple[str, str] | None) -> None:
        """Give the error another message and remedy, if there is more to say after all attempts."""
        if self.error is not None and why is not None:
            details = self.error["details"] | {"cause": self.error["message"]}
            self.error |= {"message": why[0], "remedy": why[1], "details": details}

    def recovered(self) -> None:
        """Move the error to those of earlier attempts: another attempt begins, or has succeeded."""
        if self.error is not None:
            self.retried.append(self.error)
        self.error = self.failed_at = self.put_off_until = None

    @contextmanager
    def phase(self, name: str) -> Iterator[PhaseTime]:
        """Add the seconds spent inside to a phase, without those of a phase that lies within it."""
        start, others, spent = time.monotonic(), sum(self.seconds.values()), PhaseTime()
        try:
            yield spent
        finally:
            within = sum(self.seconds.values()) - others
            spent.seconds = time.monotonic() - start - within
            self.seconds[name] = round(self.seconds.get(name, 0.0) + spent.seconds, 3)


def new_run() -> str:
    """Return a new name of a command, which no other has."""
    return uuid.uuid4().hex[:12]


@functools.cache
def release() -> str:
    """Return the release of this agent; `unknown` in a source tree that is not installed."""
    try:
        return importlib.metadata.version("driftline")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def is_held_back_for_long(seconds: float) -> bool:
    """Return True if a source held reads back for long enough to tell a person."""
    return seconds >= HELD_BACK_SHOWN_S


def say_error(error: DriftlineError) -> None:
    """Print an error for a person on stderr: what, where, why, what to do."""
    retry = " Safe to run again." if error.is_retryable else ""
    print(f"error {error.code}: {error}{retry}", file=sys.stderr)
    for name, text in error.details.items():
        print(f"  {name}: {text}", file=sys.stderr)


def fingerprint_kind(recipe: Recipe) -> str:
    """Return who makes the fingerprints, in the words of the DBA's file: agent or database."""
    is_database = recipe.fingerprint_version == DATABASE_FINGERPRINT_VERSION
    return "database" if is_database else "agent"


def miss_probability(rows_changed: int, recipe: Recipe) -> float:
    """Return the probability that one refresh missed a change.

    A changed row is missed when its old and new fingerprints agree, 2^-b for b bits; a wrong result
    when the totals agree, once more 2^-b (Labio and Garcia-Molina, section 3.2). A fingerprint that
    the database makes has 64 bits, in which two rows may meet again at every further column.
    """
    if recipe.fingerprint_version == DATABASE_FINGERPRINT_VERSION:
        columns = len(recipe.columns)
        return float((rows_changed + 1) * columns * 2.0**-DATABASE_FINGERPRINT_BITS)
    return float((rows_changed + 1) * 2.0**-FINGERPRINT_BITS)


def years_until_missed(probability: float, refresh_interval_s: float) -> float:
    """Return the expected years until a change is missed.

    Labio and Garcia-Molina, section 3.2: with probability p of an error in a comparison, the
    expected number of comparisons before the first error is 1 / p.

    Args:
        probability: of a missed change in one refresh.
        refresh_interval_s: seconds between two refreshes.
    """
    return refresh_interval_s / YEAR_S / probability


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 row` or `1,204 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def age(at: str | None, now: datetime) -> str:
    """Return how long ago a moment was, in words: `just now`, `3 hours ago`.

    Args:
        at: ISO 8601, by the source's clock, which may be ahead of ours; anything else is returned
            as it is.
        now: with a time zone.
    """
    try:
        moment = datetime.fromisoformat(at or "")
        seconds = (now - moment).total_seconds()
    except (ValueError, TypeError):  # TypeError: it has no time zone
        return at or "unknown"
    if abs(seconds) < _UNITS[-1][1]:
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """Return a span of time in words, rounded: `3 hours`, `12 minutes`, `40 seconds`."""
    for unit, length, enough in _UNITS:
        if seconds >= length * enough:
            return counted(round(seconds / length), unit)
    return counted(round(seconds), "second")


def bytes_text(amount: float) -> str:
    """Return bytes in words with two or three digits: `812 B`, `1.2 kB`, `340 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if amount < 999.5 or unit == "PB":
            break
        amount /= 1000
    return f"{digits(amount) if unit != 'B' else f'{amount:.0f}'} {unit}"


def digits(amount: float) -> str:
    """Return an amount with two or three digits."""
    if amount >= 99.5 or amount == int(amount):
        return f"{min(amount, GREATEST_SHOWN):,.0f}"
    return f"{amount:.1f}" if amount >= 0.095 else f"{amount:.2g}"


def utc_now() -> str:
    """Return the current time in UTC to the second, ISO 8601."""
    return utc_at(datetime.now(UTC).timestamp())


def utc_at(seconds: float) -> str:
    """Return a moment, in seconds since 1970, in UTC to the second, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _clear_frames(error: BaseException) -> None:
    """Clear the local variables of the frames in which an error, and what led to it, was raised."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            left += filter(None, (one.__cause__, one.__context__))
