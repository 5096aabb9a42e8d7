"""The lines of a history of refreshes as typed values; the keys of their JSON are here alone.

Each line is the report of one refresh, which went well or failed. A line is a file's: it may be
cut, damaged or another program's. What is no report of a refresh is no line. A field that a line
does not say, or that says what cannot be, is None: what needs it skips the line, and the others use
it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from driftline.relations.activity import Activity, from_json

from warehouse_agent.json_values import GREATEST
from warehouse_agent.planning.change_forecast import EarlierRefresh
from warehouse_agent.report import MovedViews

# What reading a line raises that is none.
DAMAGED: Final = (
    ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
_SPARK: Final = "spark"  # of the places in a report


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that a refresh inserted, updated and deleted."""

    inserted: int
    updated: int
    deleted: int

    @property
    def changed(self) -> int:
        """Return the number of changed rows."""
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True)
class RefreshCost:
    """The cost of a refresh, whether it went well or not.

    Attributes:
        seconds: of all phases.
        sent, received: bytes, from the view of the warehouse.
        held_back_s: seconds among `seconds` by which the source read more slowly.
        copied: bytes that a copy of all rows would have taken.
        rows_read, scans: rows that the source read, and its scans of the relation.
        phases: the seconds of each phase; empty if `seconds` is None.
        requests: to the bucket for the table, by kind; None: not known, or on a disk.
    """

    seconds: float | None
    sent: int | None
    received: int | None
    held_back_s: float | None
    copied: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    rows_read: int | None = None
    scans: int | None = None
    requests: Mapping[str, int] | None = None

    @property
    def bytes(self) -> int | None:
        """Return the bytes in both directions."""
        if self.sent is None or self.received is None:
            return None
        return self.sent + self.received


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """Numbers of changes that a refresh found by place, as the report's `changed` has them.

    Attributes:
        compared: updated rows whose columns were compared.
        columns: of these those that changed in a column, by its name.
        parts: changed rows in each part of the key's order; empty: not known.
        moves: the name of a numeric column, of how many compared rows it was measured, and the mean
            square of its moves in these; None: none was asked for.
    """

    compared: int
    columns: Mapping[str, int]
    parts: tuple[int, ...]
    moves: tuple[str, int, float] | None = None


@dataclass(frozen=True, slots=True)
class PredictedCost:
    """The expected way of a refresh, in words, and its bytes and seconds; None: not known."""

    what: str
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SuccessLine:
    """A refresh that went well.

    Attributes:
        at: when it had compared, or a marker claimed its changes, by the clock of the warehouse.
        ended: the same, or when its files were proven, to the millisecond.
        as_of, refreshed_at: as the line has them: they identify it. An older release says when the
            refresh was as `checked_at`.
        is_load: nothing was published before.
        is_part: some rows were not compared.
        counts_changes: the columns stayed, so that changed rows are changes of the source.
        is_repair: data files were missing or damaged, whose rows came again.
        total: rows that it left.
        exchange_s: of the exchange; 0 where the line has none.
        is_tiled, is_resumed: a pass over tiles; one that an earlier command had begun.
        scans: of the relation at the source.
        staleness: of a view that moved, as its report has it.
        run: names the command; None: of an older release.
        expected: low, median and high number of rows that were expected to have changed.
        changed: where it found changes; None: not known.
        why: why a view was computed in its way; None: a fragment, or not known.
        predicted: before the refresh; None: not known.
        retried: codes of the errors of earlier attempts.
        consistency, proof: as the report has them.
    """

    at: datetime | None
    ended: datetime | None
    as_of: str | None
    refreshed_at: str | None
    version: int | None
    previous_version: int | None
    is_load: bool
    is_part: bool
    counts_changes: bool
    is_repair: bool
    rows: RowCounts | None
    total: int | None
    method: str | None
    scans: int | None
    exchange_s: float
    reduce_s: float | None
    is_tiled: bool
    is_resumed: bool
    on_spark: bool
    activity: Activity | None
    view_phases: tuple[MovedViews, ...]
    staleness: Mapping[str, Any] | None
    spent: RefreshCost
    run: str | None = None
    expected: tuple[int, int, int] | None = None
    changed: ChangeCounts | None = None
    why: str | None = None
    predicted: PredictedCost | None = None
    retried: tuple[str, ...] = ()
    consistency: str | None = None
    proof: str | None = None

    @property
    def identity(self) -> tuple[int | None, int | None, str | None, str | None]:
        """Return what tells the line of a version from all others."""
        return self.version, self.previous_version, self.as_of, self.refreshed_at

    @property
    def as_earlier(self) -> EarlierRefresh | None:
        """Return the refresh for forecasts; None for a part, which counts only some changes."""
        if self.is_part or self.at is None or self.rows is None or self.total is None:
            return None
        if self.scans is None or self.spent.seconds is None:
            return None
        return EarlierRefresh(
            self.at,
            self.rows.inserted,
            self.rows.updated,
            self.rows.deleted,
            self.total,
            self.is_load,
            self.method,
            self.scans,
            self.spent.seconds,
            self.counts_changes,
            self.on_spark,
            self.reduce_s,
        )


@dataclass(frozen=True, slots=True)
class FailureLine:
    """A refresh that failed, or that its source put off.

    Attributes:
        failed_at: as the line has it; None: it does not say.
        at: the same as a moment.
        put_off_until: the source reads nothing before, which is no failure; None: it did not say.
        version: which was published then.
        code, exit_code: of the error; empty and None: damaged.
        run: names the command; None: of an older release.
        retried: codes of the errors of earlier attempts.
    """

    failed_at: str | None
    at: datetime | None
    put_off_until: datetime | None
    is_put_off: bool
    version: int | None
    code: str
    message: str
    where: str
    remedy: str
    safe_to_retry: bool
    exit_code: int | None
    details: Mapping[str, str]
    spent: RefreshCost
    run: str | None = None
    retried: tuple[str, ...] = ()


HistoryLine = SuccessLine | FailureLine


def parse(line: bytes) -> HistoryLine | None:
    """Return a line; None if it is no report of a refresh, or damaged."""
    try:
        return of_report(json.loads(line))
    except DAMAGED:
        return None


def of_report(body: Mapping[str, Any]) -> HistoryLine | None:
    """Return the line of a report as JSON; None of another command.

    Raises:
        One of DAMAGED: it is no report.
    """
    error = body["error"]
    if body["command"] != "refresh":
        return None
    return _success(body) if error is None else _failure(body, error)


def _success(body: Mapping[str, Any]) -> SuccessLine:
    get = body.get
    seconds, places, proven_at = get("seconds"), get("places"), get("proven_at")
    exchange, reduce = (
        seconds.get(phase) if isinstance(seconds, dict) else None
        for phase in ("exchange", "reduce")
    )
    refreshed_at = _text(get("refreshed_at") or get("checked_at"))
    at = _moment(refreshed_at)
    phases, staleness = get("view_phases"), get("staleness")
    return SuccessLine(
        at=at,
        ended=_moment(proven_at) if proven_at else at,
        as_of=_text(get("as_of")),
        refreshed_at=refreshed_at,
        version=_whole(get("version")),
        previous_version=_whole(get("previous_version")),
        is_load="previous_version" in body and body["previous_version"] is None,
        is_part=bool(get("rows_left")),
        counts_changes=not get("schema_changed"),
        is_repair=bool(get("repaired_files")),
        rows=_rows(body),
        total=_count(get("rows_total")),
        method=_text(get("method")),
        scans=_count(get("source_scans", 0)),
        exchange_s=_amount(exchange) or 0.0,
        reduce_s=_amount(reduce),
        is_tiled=bool(get("tiles")),
        is_resumed=get("resumed_at") is not None,
        on_spark=_needs_spark(places, get("places_why")),
        activity=from_json(activity) if (activity := get("activity")) else None,
        view_phases=tuple(moved_views(phases)) if phases else (),
        staleness=staleness if isinstance(staleness, dict) else None,
        spent=_spent(body),
        run=_text(body.get("run")),
        expected=_expected(get("changes_expected")),
        changed=_changed(get("changed")),
        why=_text(get("method_why")),
        predicted=_predicted(get("predicted")),
        retried=_retried(get("retried")),
        consistency=_text(get("consistency")),
        proof=_text(get("proof")),
    )


def _predicted(value: object) -> PredictedCost | None:
    if not isinstance(value, dict) or (what := _text(value.get("what"))) is None:
        return None
    return PredictedCost(what, _count(value.get("bytes")), _amount(value.get("seconds")))


def _retried(value: object) -> tuple[str, ...]:
    errors = value if isinstance(value, list) else ()
    codes = (_text(one.get("code")) for one in errors if isinstance(one, dict))
    return tuple(code for code in codes if code)


def _expected(value: object) -> tuple[int, int, int] | None:
    match value:
        case [low, median, high]:
            one, two, three = _count(low), _count(median), _count(high)
            if one is not None and two is not None and three is not None:
                return one, two, three
    return None


def _changed(value: object) -> ChangeCounts | None:
    if not isinstance(value, dict) or (compared := _count(value.get("compared"))) is None:
        return None
    parts = value.get("parts")
    listed = _counts(parts) if isinstance(parts, list) else []
    counts = _named_counts(value.get("columns")) or {}
    return ChangeCounts(compared, counts, tuple(listed), _moves(value.get("moves")))


def _moves(value: object) -> tuple[str, int, float] | None:
    if not isinstance(value, dict) or (column := _text(value.get("column"))) is None:
        return None
    rows, square = _count(value.get("rows")), value.get("square")
    if rows is None or not isinstance(square, (int, float)) or not 0 <= square < math.inf:
        return None
    return column, rows, float(square)


def _needs_spark(places: object, whys: object) -> bool:
    """Return True if a step would have run on Spark also where no session was; an older release
    says where steps ran alone."""
    if isinstance(whys, dict) and whys:
        return any(
            isinstance(why, dict) and why.get("needs_spark") is True for why in whys.values()
        )
    return isinstance(places, dict) and _SPARK in places.values()


def _failure(body: Mapping[str, Any], error: object) -> FailureLine:
    cause: Mapping[str, Any] = error if isinstance(error, dict) else {}
    failed_at, until = body.get("failed_at"), body.get("put_off_until")
    details, exit_code = cause.get("details"), cause.get("exit_code")
    told = details if isinstance(details, dict) else {}
    return FailureLine(
        failed_at=None if failed_at is None else str(failed_at),
        at=_moment(failed_at),
        put_off_until=_moment(until),
        is_put_off=until is not None,
        version=_whole(body.get("version")),
        code=str(cause.get("code", "")),
        message=str(cause.get("message", "")),
        where=str(cause.get("where", "")),
        remedy=str(cause.get("remedy", "")),
        safe_to_retry=bool(cause.get("safe_to_retry")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        details={str(name): str(text) for name, text in told.items()},
        spent=_spent(body),
        run=_text(body.get("run")),
        retried=_retried(body.get("retried")),
    )


def _spent(body: Mapping[str, Any]) -> RefreshCost:
    phases = _phases(body.get("seconds"))
    return RefreshCost(
        None if phases is None else sum(phases.values()),
        _count(body.get("bytes_sent")),
        _count(body.get("bytes_received")),
        _amount(body.get("held_back_s")),
        _count(body.get("copy_bytes")),
        phases or {},
        _count(body.get("source_rows_read")),
        _count(body.get("source_scans")),
        _named_counts(body.get("requests")),
    )


def _named_counts(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    return {str(name): number for name, one in value.items() if (number := _count(one)) is not None}


def _rows(body: Mapping[str, Any]) -> RowCounts | None:
    inserted, updated = _count(body.get("rows_inserted")), _count(body.get("rows_updated"))
    deleted = _count(body.get("rows_deleted"))
    if inserted is None or updated is None or deleted is None:
        return None
    return RowCounts(inserted, updated, deleted)


def moved_views(phases: object) -> Iterator[MovedViews]:
    """Yield the view phases that a report names, the oldest first; skip damaged ones."""
    for one in phases if isinstance(phases, list) else ():
        if not isinstance(one, dict) or not one.keys() >= {"rows", "seconds", "at"}:
            continue
        rows, seconds = _count(one["rows"]), _amount(one["seconds"])
        if seconds is not None and (rows is not None or one["rows"] is None):
            yield MovedViews(rows, seconds, str(one["at"]))


def _phases(phases: object) -> dict[str, float] | None:
    """Return the seconds of phases; None if one of them is damaged."""
    if not isinstance(phases, dict):
        return None
    for one in phases.values():
        if _amount(one) is None:
            return None
    return phases


def _count(value: object) -> int | None:
    if type(value) is int:  # which is usual
        return value if 0 <= value <= GREATEST else None
    amount = _amount(value)
    return None if amount is None else int(amount)


def _counts(values: list[Any]) -> list[int]:
    """Return the values that are counts; at once where all are, which is usual."""
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= GREATEST:
        return values
    return [one for one in map(_count, values) if one is not None]


def _amount(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and 0 <= value <= GREATEST else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _moment(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return moment(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def moment(text: str) -> datetime:
    """Return a moment that a text names, in UTC if it has no time zone. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
