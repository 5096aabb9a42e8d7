"""The index of a report as plain values: a row for each table, what to look at, what was saved.

Messages of errors may name keys and values of rows. A report shows a message only if its code is
one of VALUE_FREE, or on asking; of any other error it shows what its code means. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from driftline.errors import (
    CommandKilled,
    DriftlineError,
    Locked,
    NotFound,
    NotNow,
    RecipeChanged,
    SourceUnreachable,
    TableShrank,
    Unauthenticated,
    VersionMismatch,
    WarehouseUnavailable,
    meaning,
    named,
)

from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.command_records import DONE, FAILED, CommandRecord
from warehouse_agent.history.failures import RECENT, Failure
from warehouse_agent.history.history_lines import RowCounts
from warehouse_agent.history.totals import Totals
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.inspection.state_words import proof_text, short_span, state_text, urgency
from warehouse_agent.monitoring.messages import without_name
from warehouse_agent.monitoring.report.axes import moment_text
from warehouse_agent.monitoring.report.refresh_series import TableSeries
from warehouse_agent.report import age, counted, span

# Codes of errors whose messages name files, addresses, columns and counts, but no value of a row.
VALUE_FREE: Final = frozenset(
    one.code
    for one in (
        CommandKilled, Locked, NotFound, NotNow, RecipeChanged, SourceUnreachable, TableShrank,
        Unauthenticated, VersionMismatch, WarehouseUnavailable,
    )
)  # fmt: skip
FAILING: Final = "failed"  # the kind of trouble of tables whose last refresh failed
NAMED_MAX: Final = 8  # tables with one cause that are named
TROUBLES_MAX: Final = 40  # causes that are explained; the table names the other tables
_HIDDEN: Final = "The message may name values of rows: `driftline status` of the table shows it."


@dataclass(frozen=True, slots=True)
class Cause:
    """An error as a report may show it.

    Attributes:
        why: its message; if that may hold values, what its code means in general.
        details: by name; empty unless asked for.
    """

    code: str
    why: str
    where: str
    remedy: str
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """A thing to look at that is no failure: in a word, in words, and what to do.

    `remedy` may have `{name}` for the table. `when` differs from table to table.
    """

    word: str
    text: str
    remedy: str
    when: str = ""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A table in the index.

    Attributes:
        state: in the words of `status`; `urgency` in those of monitoring.
        source: its name, where the warehouse has several; empty: it has one, or it is a view.
        as_of, age: the source's time of the rows, and how long ago that is at the report's time.
        changes, seconds: of the newest refresh that went well; None: not known, or a load.
        moved, copied: bytes of all refreshes of which both are known.
        read: rows that the source read for the newest refresh that went well; `reads`: the same in
            reads of the whole table; `all_reads`: those of all refreshes; None: not known.
        since: the first day or month of which totals are known.
        due: when it is refreshed next, in words.
        limit: how long after a refresh that went well it is late, in words; empty: never.
        failure: since the last refresh that went well.
        recovered: failures of the last day, after which a refresh went well; it may fail again.
        wrong: what else needs a look.
    """

    name: str
    kind: str
    urgency: str
    state: str
    source: str = ""
    version: int | None = None
    as_of: str = ""
    age: str = ""
    rows: int | None = None
    changes: RowCounts | None = None
    proof: str = ""
    moved: int = 0
    copied: int = 0
    read: int | None = None
    reads: float | None = None
    all_reads: float | None = None
    since: str | None = None
    seconds: float | None = None
    due: str = ""
    limit: str = ""
    failure: Failure | None = None
    recovered: tuple[Failure, ...] = ()
    wrong: tuple[Remark, ...] = ()

    @property
    def needs_a_look(self) -> bool:
        """Return True if something is wrong with the table."""
        return self.failure is not None or bool(self.wrong)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing to look at, of one or more tables.

    Attributes:
        kind: in a word, as in `TroubleKind`.
        names: the first NAMED_MAX of the tables; `more` others have the same.
        what: in few words.
        when: the times of failures, in words.
        cause: the error; None: it is no failure.
        remedy: what to do.
    """

    kind: str
    urgency: str
    names: tuple[str, ...]
    more: int
    what: str
    when: str
    cause: Cause | None
    remedy: str


@dataclass(frozen=True, slots=True)
class TroubleKind:
    """Tables that need a look for one reason, in a word: their number, and the first of them."""

    word: str
    urgency: str
    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastFailure:
    """Refreshes of a table that failed in the last day, and whether it fails still."""

    name: str
    cause: Cause
    when: str
    fails_still: bool


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A refresh command that runs, or was killed."""

    who: str
    began: str
    is_running: bool
    text: str


def row_of(
    table: PublishedState,
    series: TableSeries,
    now: datetime,
    due: str,
    recovered: Sequence[Failure] = (),
    source: str = "",
) -> IndexRow:
    """Return the row of a table.

    Args:
        now: with a time zone.
        due: in words.
        recovered: failures of the last day, after which a refresh went well.
        source: as in `IndexRow`.
    """
    newest = series.points[-1] if series.points else None
    read, rows = (None, None) if newest is None else (newest.rows_read, newest.total)
    return IndexRow(
        name=table.name,
        kind=table.kind,
        urgency=urgency(table),
        state=state_text(table, words=True),
        source=source,
        version=table.version,
        as_of=_moment_text(table.as_of),
        age=age(table.as_of, now).removesuffix(" ago") if table.version is not None else "",
        rows=table.rows_total,
        changes=None if newest is None or newest.is_load else newest.rows,
        proof=proof_text(table.proof, table.consistency) if table.version is not None else "",
        moved=series.whole.moved_beside,
        copied=series.whole.copied,
        read=read,
        reads=_ratio(read, rows),
        all_reads=_ratio(series.whole.rows_read, table.rows_total),
        since=series.since,
        seconds=None if newest is None else newest.seconds,
        due=due,
        limit="" if table.late_after_s is None else short_span(table.late_after_s),
        failure=table.failed,
        recovered=tuple(recovered),
        wrong=tuple(_wrong(table, now)),
    )


def _ratio(one: int | None, other: int | None) -> float | None:
    return one / other if one is not None and other else None


def kinds_of(rows: Sequence[IndexRow]) -> list[TroubleKind]:
    """Return what is wrong with tables by kind, the most urgent first."""
    found: dict[str, list[IndexRow]] = {}
    for row in urgent_rows(rows):
        words = [FAILING] if row.failure is not None else []
        for word in words + [one.word for one in row.wrong]:
            found.setdefault(word, []).append(row)
    return [
        TroubleKind(word, like[0].urgency, len(like), tuple(r.name for r in like[:NAMED_MAX]))
        for word, like in found.items()
    ]


def of_last_day(rows: Sequence[IndexRow], now: datetime, *, values: bool) -> list[PastFailure]:
    """Return the failures of the last day: of tables that fail still, then those that are over.

    Args:
        now: with a time zone.
    """
    since = (now - RECENT).timestamp()
    found = [
        PastFailure(row.name, cause_of(one, values=values), failed_when(one, now), is_now)
        for row in urgent_rows(rows)
        for one, is_now in (*_now(row.failure), *((one, False) for one in row.recovered))
        if _seconds(one.at) >= since
    ]
    return sorted(found, key=lambda one: not one.fails_still)


def _now(failure: Failure | None) -> tuple[tuple[Failure, bool], ...]:
    return () if failure is None else ((failure, True),)


def unread(name: str, kind: str, error: DriftlineError, source: str = "") -> IndexRow:
    """Return the row of a table whose state cannot be read."""
    failure = failure_of(error, name)
    state = f"cannot be read: {named(error.code)}"
    return IndexRow(name, kind, MonitoringState.UNKNOWN.word, state, source, failure=failure)


def failure_of(error: DriftlineError, name: str) -> Failure:
    """Return an error that no history has as a failure; `name`: of the table."""
    return Failure(
        1, None, None, None, error.code, error.message, error.where or name, error.remedy,
        error.is_retryable, error.exit_code, error.details,
    )  # fmt: skip


def cause_of(failure: Failure, *, values: bool) -> Cause:
    """Return an error as a report may show it; `values`: messages may hold values of rows."""
    is_shown = values or failure.code in VALUE_FREE
    return Cause(
        failure.code,
        failure.message if is_shown else f"{meaning(failure.code)} {_HIDDEN}".strip(),
        failure.where,
        failure.what_to_do,
        tuple(failure.details.items()) if values else (),
    )


def urgent_rows(rows: Iterable[IndexRow]) -> list[IndexRow]:
    """Return rows with those first that fail, then those that are behind, then all others."""
    order = [state.word for state in _URGENT_FIRST]
    return sorted(rows, key=lambda row: (order.index(row.urgency), row.failure is None))


_URGENT_FIRST: Final = (
    MonitoringState.CRITICAL, MonitoringState.WARNING, MonitoringState.UNKNOWN, MonitoringState.OK,
)  # fmt: skip


def troubles(rows: Sequence[IndexRow], now: datetime, *, values: bool) -> list[Trouble]:
    """Return what to look at, the most urgent first; tables with one cause are one trouble."""
    by_cause: dict[tuple[str, ...], list[IndexRow]] = {}
    for row in urgent_rows(rows):
        if (failure := row.failure) is not None:
            remedy = without_name(failure.remedy, row.name)
            by_cause.setdefault((row.urgency, failure.code, remedy), []).append(row)
        for one in row.wrong:
            by_cause.setdefault((row.urgency, one.text, one.remedy), []).append(row)
    return [_trouble(key, like, now, values=values) for key, like in by_cause.items()]


def of_disk(no_room: WarehouseUnavailable) -> Trouble:
    """Return why the next refresh may find no room, as a thing to look at first."""
    return Trouble(
        "full disk", MonitoringState.CRITICAL.word, (), 0, "The disk is nearly full", "",
        cause_of(failure_of(no_room, ""), values=False), no_room.remedy,
    )  # fmt: skip


def _trouble(
    key: tuple[str, ...], rows: Sequence[IndexRow], now: datetime, *, values: bool
) -> Trouble:
    first, more = rows[0], max(len(rows) - NAMED_MAX, 0)
    names = tuple(row.name for row in rows[:NAMED_MAX])
    if first.failure is None or first.failure.code != key[1]:
        kind = next(one.word for one in first.wrong if one.text == key[1])
        when = _by_table(
            [(r.name, one.when) for r in rows for one in r.wrong if one.text == key[1]]
        )
        remedy = key[2].replace(" {name}", f" {first.name}" if len(rows) == 1 else "")
        return Trouble(kind, key[0], names, more, key[1], when, None, remedy)
    failure, cause = first.failure, cause_of(first.failure, values=values)
    if len(rows) > 1:
        same = all((r.failure or failure).message == failure.message for r in rows)
        where = all((r.failure or failure).where == failure.where for r in rows)
        cause = replace(cause, why=cause.why if same else meaning(cause.code), details=())
        cause = replace(cause, where=cause.where if where else "")
    what = first.state if len(rows) == 1 else f"failed: {named(failure.code)}"
    when = _when(rows[:NAMED_MAX], now)
    return Trouble(FAILING, key[0], names, more, what, when, cause, cause.remedy)


def _when(rows: Sequence[IndexRow], now: datetime) -> str:
    """Return when the refreshes of tables failed, once if it is the same for all."""
    return _by_table(
        [(row.name, failed_when(row.failure, now)) for row in rows if row.failure is not None]
    )


def _by_table(told: Sequence[tuple[str, str]]) -> str:
    """Return what is told of the first NAMED_MAX tables, once if it is the same for all."""
    if len({what for _, what in told}) == 1:
        return told[0][1]
    return "; ".join(f"{name}: {what}" for name, what in told[:NAMED_MAX])


def failed_when(failure: Failure, now: datetime) -> str:
    """Return how often and when refreshes failed, in words, with absolute times in UTC."""
    if failure.at is None:
        return ""
    last = f"{_moment_text(failure.at)} UTC, {age(failure.at, now)}"
    if failure.times == 1 or failure.since is None:
        return last
    return f"{failure.times:,} times since {_moment_text(failure.since)} UTC, last {last}"


def whole_of(every: Iterable[Totals]) -> Totals:
    """Return the totals of all tables that the top of an index shows."""
    whole = Totals()
    for one in every:
        whole = replace(
            whole,
            refreshes=whole.refreshes + one.refreshes,
            failed={"": sum(whole.failed.values()) + sum(one.failed.values())},
            inserted=whole.inserted + one.inserted,
            updated=whole.updated + one.updated,
            deleted=whole.deleted + one.deleted,
            copied=whole.copied + one.copied,
            moved_beside=whole.moved_beside + one.moved_beside,
            read_in=whole.read_in + one.read_in,
            rows_read=whole.rows_read + one.rows_read,
            scans=whole.scans + one.scans,
            held_back_s=whole.held_back_s + one.held_back_s,
            requests=whole.requests + one.requests,
        )
    return whole


def commands_of(records: Sequence[CommandRecord]) -> list[CommandRow]:
    """Return the commands that run, or were killed, the newest first."""
    return [_command(one) for one in reversed(records)]


def _command(record: CommandRecord) -> CommandRow:
    states = [work.state for work in record.works.values()]
    done, failed = states.count(DONE), states.count(FAILED)
    said = f"{done:,} of {counted(len(record.names), 'table')} done, {failed or 'none'} failed"
    began = moment_text(record.began)
    if record.is_running:
        return CommandRow(record.who, began, True, said)
    last = moment_text(record.said)
    return CommandRow(record.who, began, False, f"was killed after {last} UTC, {said}")


def _wrong(table: PublishedState, now: datetime) -> Iterator[Remark]:
    """Yield what needs a look beside a failure."""
    if table.failed is None and table.version is None:
        yield Remark("not published", "nothing published yet", "Run `driftline refresh {name}`.")
    if table.damaged:
        yield Remark("damaged", "data files damaged", "The next refresh pulls the rows again.")
    if table.stale is not None and table.failed is None:  # why may hold values of rows
        remedy = "`driftline status --verbose {name}` says why."
        yield Remark("behind", "stays behind its inputs", remedy)
    if table.late_s is not None:
        late = "late: no refresh went well in the time that is asked for"
        when = f"none for {span(table.late_s)}; the limit is {span(table.late_after_s or 0.0)}"
        if table.failed is not None:
            yield Remark("late", late, "See why it failed.", when)
            return
        if table.tried_at is not None:
            when += f"; last tried {_moment_text(table.tried_at)} UTC, {age(table.tried_at, now)}"
        yield Remark("late", late, "See whether `driftline run`, or a timer, runs.", when)


def _seconds(at: str | None) -> float:
    try:
        return datetime.fromisoformat(at or "").timestamp()
    except (ValueError, OverflowError):
        return float("-inf")


def _moment_text(at: str | None) -> str:
    """Return a moment of a report to the minute, in UTC; as it is, if it is none."""
    seconds = _seconds(at)
    return moment_text(seconds) if seconds != float("-inf") else at or ""
