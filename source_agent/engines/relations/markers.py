"""Markers: what a relation keeps about its own changes, as all engines treat them; no I/O.

A marker is the DBA's word. It is checked against the catalogue where that can tell, and nothing is
proven by it: inserted and deleted rows are found by their keys, only updates rest on it.

 1. Rows of a time column are read again until `late` has passed, because a transaction shows its
    rows after it has taken the time. A login with SELECT alone sees no transaction of others, so
    nothing but the DBA can say how long one lasts. The mark is the snapshot's own clock minus
    `late`, never a time that a row has: one from the future would hide all that follow.
 2. Marks are cut to whole seconds (dates to days), and rows at the mark are behind it: columns may
    be less precise than the clock.
 3. A time without a time zone needs the `zone` of its writers. Where its clocks are set back in
    autumn, an hour of times comes twice: the mark is in the zone's least offset of the year.
 4. PostgreSQL's `xmin` needs no promise: a row version that this snapshot shows and the one before
    did not has the number of a transaction that was not over then, so at least that snapshot's own
    xmin. It holds for tables and partition trees whose files are still the same.
 5. A version column has the hole that `late` closes for times: a number is given before its row is
    committed. It is for tables that are written by one transaction at a time.
 6. A checksum of each row, which the source maintains, takes the place of its values: keys and
    checksums of all rows are compared, and there is nothing to be late. It is published, so that
    the warehouse has the one that belongs to its values. Rows without one are always new.
 7. A row of an inner join is new if the marker of any of its tables is (`config.joins`). Each
    table has a mark of its own.
 8. `row_start` of MariaDB's system-versioned tables is the time at which a statement ran, so it
    needs `late` as other times do. Updates of columns without versioning alone do not set it.
 9. No marker shows that a name means another column now, or that a generated value has another
    expression: no row is written. So a mark carries what the catalogue says of its tables.

Rejected: the start of the oldest open transaction in place of `late` (hidden from other logins),
and the greatest value seen, as most tools do: 5 to 12 % of the changes of busy tables were missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from hashlib import sha256
from typing import Final
from zoneinfo import ZoneInfo

from driftline.errors import OPEN, ConfigurationError
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.settings.declarations import nearest

DATE: Final = "date"
AWARE: Final = "timestamptz"
TIMES: Final = {DATE, "timestamp", AWARE}
INTEGERS: Final = {"int2", "int4", "int8", "oid"}
FLAGS: Final = INTEGERS | {"bool"}
ONLY_THERE: Final = "Only PostgreSQL has xmin"
NOT_VERSIONED: Final = "Only MariaDB has system-versioned tables"
XIDS_MAX: Final = 1 << 30  # since a mark; numbers of 32 bits are compared, half of them are older
CLOCKS_DIFFER_S: Final = 60.0  # a time is in the future if it is later than the clock by more
LEAST_VERSION: Final = str(POSITION_MIN)  # of a relation without rows

Column = tuple[str, bool]  # the kind of its declared type, and True if it may be NULL


class MarkerKind(Enum):
    """Kinds of markers (docs/dba/markers.md)."""

    TIME = "time"
    VERSION = "version"
    XMIN = "xmin"
    VERSIONED = "versioned"
    CHECKSUM = "checksum"
    JOINED = "joined"


class Deletes(Enum):
    """Declarations of a DBA about the deletes of a relation."""

    NEVER = "never"


ORDERED: Final = frozenset({MarkerKind.TIME, MarkerKind.VERSION})  # by a column that has an index


@dataclass(frozen=True, slots=True)
class Marker:
    """Description of what a relation keeps about its own changes, by its DBA.

    `column`: set by every writer; empty: PostgreSQL's `xmin` or, if `versioned`, the row start of a
    system-versioned table takes its place. `late_s`: longer than any transaction; for times alone.
    `zone`: of times that carry none. `deleted`: a flag of rows that count as deleted. `checksum`:
    the column has a checksum of each row. `joined`: the markers of the tables of a query, each with
    its table's name there; then nothing else is set. `is_kept`: no row is ever deleted.
    """

    column: str
    late_s: float | None = None
    zone: str | None = None
    deleted: str | None = None
    versioned: bool = False
    checksum: bool = False
    joined: tuple[tuple[str, Marker], ...] = ()
    is_kept: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the relation that it names."""
        names = [self.column, self.deleted, *(one.column for _, one in self.joined)]
        return tuple(name for name in names if name)


@dataclass(frozen=True, slots=True)
class MarkedBy:
    """The marker of a relation as the database describes it.

    `type`: the kind of the column's declared type; `nullable`: rows with NULL are always new.
    `marker` has the column that is read, also of a system-versioned table. `joined`: of each table
    of a query.
    """

    marker: Marker
    kind: MarkerKind
    type: str
    nullable: bool
    joined: tuple[MarkedBy, ...] = ()

    @property
    def each(self) -> tuple[MarkedBy, ...]:
        """The markers of which any shows that a row is new."""
        return self.joined or (self,)

    @property
    def versions(self) -> list[str]:
        """The columns of versions, whose greatest values are marks."""
        return [one.marker.column for one in self.each if one.kind is MarkerKind.VERSION]

    @property
    def identity(self) -> list[object]:
        """All that decides which rows are behind a mark, as JSON."""
        if self.joined:
            return [self.kind.value, [one.identity for one in self.joined]]
        return [self.kind.value, self.marker.column, self.marker.zone, self.marker.late_s]

    @property
    def unclaimable(self) -> str:
        """Return why its rows cannot be read without comparing keys, as text; empty: they can."""
        marker = self.marker
        if self.kind in {MarkerKind.CHECKSUM, MarkerKind.JOINED}:
            return f"its marker is {self}, by which the keys of all rows are read"
        if marker.deleted is None and not marker.is_kept:
            return "its marker says neither which rows are deleted nor that none is"
        return ""

    @property
    def is_time(self) -> bool:
        """True if marks are times."""
        return self.kind in {MarkerKind.TIME, MarkerKind.VERSIONED}

    def __str__(self) -> str:
        """Return it for people."""
        if self.kind is MarkerKind.XMIN:
            return "xmin"
        if self.kind is MarkerKind.VERSIONED:
            return f"system versioning ({self.marker.column})"
        if self.joined:
            return " or ".join(map(str, self.joined))
        return f"the {self.kind.value} column {self.marker.column}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the changes of a relation: rows behind it may have changed since.

    `source`: what tells this database from a copy or a restored one. `at`: the least value of the
    marker that is behind it, in a form that the engine takes back; of joined markers, a JSON array
    of each one's. `definition`: tells the tables and columns from others of the same names, and
    from themselves with other expressions.
    """

    source: str
    at: str
    definition: str = ""

    def each(self, marked: MarkedBy) -> list[str]:
        """Return the value of each of `marked.each`. Raises ValueError: the mark has others."""
        if not marked.joined:
            return [self.at]
        values = json.loads(self.at)
        if not isinstance(values, list) or [type(one) for one in values] != [str] * len(
            marked.joined
        ):
            raise ValueError("the mark has not a value of each marker")
        return values


@dataclass(frozen=True, slots=True)
class RunningTransactions:
    """Numbers of transactions in a snapshot: all before `oldest` were over, and it was open.

    None is known to be open if `oldest` is `next`, the number behind the last one that was over.
    Numbers never come again.
    """

    oldest: int
    next: int

    def open_since(self, as_of: str, before: EarlierSnapshot | None) -> str:
        """Return the earliest time at which the oldest transaction is known to have been open.

        Args:
            as_of: of this snapshot.
            before: an earlier one of the same server; None: none is known.
        """
        if before is None or self.oldest >= min(self.next, before.running.next):
            return as_of
        return before.since if self.oldest == before.running.oldest else before.as_of


@dataclass(frozen=True, slots=True)
class EarlierSnapshot:
    """An earlier snapshot: its time, and since when its oldest transaction was open."""

    running: RunningTransactions
    as_of: str
    since: str


def marked_by(
    relation: str,
    marker: Marker | None,
    columns: Mapping[str, Column],
    *,
    no_xmin: str = ONLY_THERE,
    row_start: str = "",
    not_versioned: str = NOT_VERSIONED,
) -> MarkedBy | None:
    """Return the marker of a relation, by the columns that the catalogue has; None: it has none.

    Args:
        no_xmin: why the relation has no `xmin`; empty: it has.
        row_start: the column with the time at which a row version of the relation began.
        not_versioned: why there is none; empty: there is.

    Raises:
        ConfigurationError: no such column, or one that cannot be used as the DBA says.
    """
    if marker is None:
        return None
    if marker.joined:
        return _joined(relation, marker, columns)
    known = list(columns)
    named = "checksum" if marker.checksum else "column"
    for setting, name in ((named, marker.column), ("deleted", marker.deleted)):
        if name and name not in columns:
            raise _refused(relation, setting, f"There is no column {name!r}.", nearest(name, known))
    if marker.deleted is not None and (flag := columns[marker.deleted][0]) not in FLAGS:
        raise _refused(
            relation,
            "deleted",
            f"The column {marker.deleted!r} is {flag}, and a flag is a truth value or a number.",
            "Remove it, and say in `where` which rows count.",
        )
    if marker.versioned:
        if not_versioned:
            remedy = "Name a `column`, or remove `marker`."
            raise _refused(relation, "versioned", f"{not_versioned}.", remedy)
        versioned = replace(marker, column=row_start)
        _check_time(relation, versioned, AWARE)
        return MarkedBy(versioned, MarkerKind.VERSIONED, AWARE, nullable=False)
    if not marker.column:
        if no_xmin:
            raise _refused(relation, "xmin", f"{no_xmin}.", "Name a `column`, or remove `marker`.")
        return MarkedBy(marker, MarkerKind.XMIN, "xid", nullable=False)
    type, nullable = columns[marker.column]
    if marker.checksum:
        return MarkedBy(marker, MarkerKind.CHECKSUM, type, nullable)
    if type in TIMES:
        _check_time(relation, marker, type)
        return MarkedBy(marker, MarkerKind.TIME, type, nullable)
    if type not in INTEGERS:
        raise _refused(
            relation,
            "column",
            f"The column {marker.column!r} is {type}, which has no order that a mark needs.",
            "Name a column of dates, times or integers, or remove `marker`.",
        )
    for setting, value in (("late", marker.late_s), ("zone", marker.zone)):
        if value is not None:
            raise _refused(
                relation,
                setting,
                f"The column {marker.column!r} holds integers, and this is for times.",
                "Remove it.",
            )
    return MarkedBy(marker, MarkerKind.VERSION, type, nullable)


def _joined(relation: str, marker: Marker, columns: Mapping[str, Column]) -> MarkedBy:
    """Return the markers of a query's tables. Raises ConfigurationError as `marked_by`."""
    markers = []
    for name, one in marker.joined:
        try:
            made = marked_by(relation, one, columns)
        except ConfigurationError as error:
            error.where = (error.where or "").replace(": marker", f": markers.{name}", 1)
            raise
        assert made is not None, "each table has a marker"
        markers.append(made)
    late_s = max((one.marker.late_s or 0.0 for one in markers), default=0.0)
    named = replace(marker, column=", ".join(one.marker.column for one in markers), late_s=late_s)
    return MarkedBy(named, MarkerKind.JOINED, "", nullable=False, joined=tuple(markers))


def _check_time(relation: str, marker: Marker, type: str) -> None:
    """Raise ConfigurationError if `late` or `zone` is missing, or `zone` is too much."""
    if marker.late_s is None:
        raise _refused(
            relation,
            "late",
            f"The column {marker.column!r} holds times, and a transaction shows its rows after it"
            " has taken the time.",
            'Write how long a transaction may last at most, such as late = "15m".',
        )
    if (marker.zone is None) is (type == AWARE):
        return
    if marker.zone is None:
        raise _refused(
            relation,
            "zone",
            f"The times in {marker.column!r} have no time zone.",
            'Write the zone of those who set them, such as zone = "UTC".',
        )
    raise _refused(
        relation, "zone", f"The times in {marker.column!r} have a time zone.", "Remove it."
    )


def _refused(relation: str, setting: str, what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what, remedy=remedy, where=f"{relation}: marker.{setting}")


def refuse_unusable(
    relation: str, marker: Marker | None, marked: MarkedBy | None, values: Sequence[str]
) -> None:
    """Raise ConfigurationError for a marker that the engine did not describe, or for a checksum
    that is not among the published columns behind the key, `values`."""
    if marker is None:
        return
    if marked is None:
        raise ConfigurationError(
            "This engine has no markers.",
            remedy="Remove it: all rows are compared.",
            where=f"{relation}: {'markers' if marker.joined else 'marker'}",
            abroad=OPEN,
        )
    if marked.kind is MarkerKind.CHECKSUM and marked.marker.column not in values:
        raise _refused(
            relation,
            "checksum",
            f"The column {marked.marker.column!r} is in the key, or is not published, and the"
            " warehouse needs the checksum that belongs to its values.",
            "Add it to `columns`, or remove `marker`.",
        )


def definition_of(rows: Iterable[Iterable[object]]) -> str:
    """Return `Mark.definition` of what a catalogue says, in its order."""
    text = json.dumps([list(row) for row in rows], ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def mark_of(
    source: str,
    marked: MarkedBy,
    as_of: str,
    greatest: Callable[[str], str | None],
    *,
    definition: str,
    zone: str = "+00",
) -> Mark:
    """Return the mark of a snapshot.

    Args:
        source, definition, as_of: see `Mark` and `time_mark`.
        greatest: reads the greatest version in a column; None: there is none.
        zone: what follows a time with a zone.
    """
    values = []
    for one in marked.each:
        if one.kind is MarkerKind.CHECKSUM:
            values.append("")
        elif one.is_time:
            at = time_mark(one, as_of)
            values.append(at.removesuffix("+00") + zone if one.type == AWARE else at)
        else:
            values.append(greatest(one.marker.column) or LEAST_VERSION)
    return Mark(source, json.dumps(values) if marked.joined else values[0], definition)


def bounds(marked: MarkedBy, mark: Mark) -> tuple[object, ...]:
    """Return the values of the condition of `behind_any`, in its order."""
    pairs = zip(marked.each, mark.each(marked), strict=True)
    return tuple(
        at if one.is_time else int(at) for one, at in pairs if one.kind is not MarkerKind.CHECKSUM
    )


def time_mark(marked: MarkedBy, as_of: str) -> str:
    """Return the mark of a snapshot that was taken at `as_of` or later, in the column's own form.

    as_of: ISO 8601, UTC, by the database's clock. Returns `YYYY-MM-DD HH:MM:SS`, with `+00` behind
    it for times with a zone, or a date.
    """
    at = datetime.fromisoformat(as_of) - timedelta(seconds=marked.marker.late_s or 0.0)
    return _written(marked, at, min(offsets(marked.marker.zone or "UTC", at)))


def latest(marked: MarkedBy, as_of: str) -> str:
    """Return a mark that no row, or hardly any, is behind, to plan a read of the newest ones."""
    if not marked.is_time:
        return str(POSITION_MAX)
    return time_mark(replace(marked, marker=replace(marked.marker, late_s=0.0)), as_of)


def future(marked: MarkedBy, as_of: str) -> str:
    """Return a time that is yet to come for every writer, in the column's own form.

    Clocks of writers may be CLOCKS_DIFFER_S ahead of the database's.
    """
    at = datetime.fromisoformat(as_of) + timedelta(seconds=CLOCKS_DIFFER_S)
    return _written(marked, at, max(offsets(marked.marker.zone or "UTC", at)))


def _written(marked: MarkedBy, at: datetime, offset: timedelta) -> str:
    """Return a time as the column has it; `offset` is that of its zone from UTC."""
    if marked.type == AWARE:
        return at.strftime("%Y-%m-%d %H:%M:%S+00")
    return (at + offset).strftime("%Y-%m-%d" if marked.type == DATE else "%Y-%m-%d %H:%M:%S")


def offsets(zone: str, at: datetime) -> list[timedelta]:
    """Return the offsets from UTC that a zone has within a year before or after, some of them."""
    clock, day = ZoneInfo(zone), timedelta(days=1)
    sampled = ((at + n * day).astimezone(clock).utcoffset() for n in range(-366, 367, 7))
    return [offset for offset in sampled if offset is not None]


def check_claimable(shape_name: str, marked: MarkedBy, *, vouched: bool) -> None:
    """Raise ConfigurationError if a relation cannot be read by its marker alone.

    vouched: a NOT NULL unique constraint covers its key. Without one, a deleted row may have the
    key of another one that is still there.
    """
    why = marked.unclaimable
    if not why and not vouched:
        why = "no unique constraint covers its key, so that a deleted row may share it"
    if why:
        raise ConfigurationError(
            f'The relation cannot be refreshed with `proof = "claimed"`: {why}.',
            remedy='Ask the DBA for `deleted = "FLAG"` or `deletes = "never"` in the marker of a'
            ' table with a unique key, or write `proof = "keys"` in the fragment.',
            where=shape_name,
            abroad=OPEN,
        )


def behind(column: str, bound: str, marked: MarkedBy, greater: str = ">=") -> str:
    """Return the condition of rows behind a mark; column and bound are SQL. Behind a mark of
    checksums are only rows that have none."""
    if marked.kind is MarkerKind.CHECKSUM:
        return f"({column} IS NULL)"
    sql = f"{column} {greater} {bound}"
    return f"({sql} OR {column} IS NULL)" if marked.nullable else f"({sql})"


def behind_any(marked: MarkedBy, one: Callable[[MarkedBy, int], str]) -> str:
    """Return the condition of rows behind a mark, from that of each marker and its place."""
    conditions = [one(each, place) for place, each in enumerate(marked.each)]
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"
