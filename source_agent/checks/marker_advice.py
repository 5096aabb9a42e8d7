"""Find what a relation seems to keep about its own changes, for `check` to suggest as a marker.

Names and types of columns suggest; the catalogue and EXPLAIN say what is possible and what it would
cost. No row is read, and nothing is used that the DBA does not write: only she knows whether every
writer sets a column.

Rejected: reading the newest times to see whether they are recent. Without an index that is a scan,
and a recent time does not show that no update left the column alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from driftline.errors import DriftlineError

from source_agent.engines.interface import MarkedRead, Session
from source_agent.engines.relations.markers import (
    AWARE,
    FLAGS,
    INTEGERS,
    TIMES,
    Deletes,
    Marker,
    MarkerKind,
)
from source_agent.engines.relations.shapes import Shape

COLUMNS_MAX: Final = 4  # that are suggested, of a table with many likely ones
LATE_S: Final = 900.0  # an example: the DBA knows how long a transaction lasts
_TIMED: Final = re.compile(r"(?i)updat|modif|chang|last|touch|mtime|ge(ae|ä)ndert")
_COUNTED: Final = re.compile(r"(?i)version|revision|rowver|sequence|scn|lsn")
_SUMMED: Final = re.compile(r"(?i)checksum|row_?hash|hash_?diff|(^|_)(md5|sha\d*|crc\d*)(_|$)")
_DELETED: Final = re.compile(r"(?i)delet|remov|tombstone|gel(oe|ö)scht")

_PROMISES: Final = {
    MarkerKind.TIME: "if every writer sets it, and no transaction lasts longer than `late`",
    MarkerKind.VERSION: "if every writer raises it, and transactions write one after the other",
    MarkerKind.XMIN: "needs no promise",
    MarkerKind.CHECKSUM: "if it changes whenever a published value of its row does",
    MarkerKind.JOINED: "if what each of them promises is true",
    MarkerKind.VERSIONED: "if no transaction lasts longer than `late`",
}
_SCANNED: Final = {MarkerKind.XMIN, MarkerKind.CHECKSUM, MarkerKind.VERSIONED}  # by no index
_CHEAPER: Final = {
    MarkedRead.SCAN: "an index that begins with it would make it cheap",
    MarkedRead.INDEX: "an index with all published columns behind it would do alone",
}


@dataclass(frozen=True, slots=True)
class MarkerReport:
    """A marker that a relation has, or might have.

    Attributes:
        line: of source.toml.
        read: how the rows behind a mark would be found, a value of `MarkedRead`.
        promise: what has to be true.
        note: what would make it cheaper, or why it cannot be read; empty: nothing.
        keys: how the keys of all rows would be read, a value of `MarkedRead`; empty: not told.
        keys_note: what would have an index do that alone; empty: one does.
    """

    line: str
    read: str
    promise: str
    note: str = ""
    keys: str = ""
    keys_note: str = ""


def line(marker: Marker) -> str:
    """Return the line of source.toml that names a marker."""
    if marker.joined:
        each = [f"{table} = {line(one).removeprefix('marker = ')}" for table, one in marker.joined]
        return f"markers = {{ {', '.join(each)} }}"
    is_named = marker.column and not marker.versioned
    name = "checksum" if marker.checksum else "column"
    given = {name: marker.column} if is_named else {}
    if marker.late_s is not None:
        given["late"] = f"{marker.late_s / 60:g}m"
    if marker.zone is not None:
        given["zone"] = marker.zone
    if marker.deleted is not None:
        given["deleted"] = marker.deleted
    if marker.is_kept:
        given["deletes"] = Deletes.NEVER.value
    parts = [] if is_named else ["versioned = true" if marker.versioned else "xmin = true"]
    parts += [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in given.items()]
    return f"marker = {{ {', '.join(parts)} }}"


def candidates(shape: Shape) -> list[Marker]:
    """Return the markers that a relation might have, the likeliest first; none is tried yet.

    A time without a zone gets UTC as an example.
    """
    if not shape.marking:
        return []
    named = shape.relation.marker
    taken = None if named is None else (named.column, named.versioned)
    unnamed = Marker(""), Marker("", LATE_S, versioned=True)
    markers = [
        *(
            Marker(name, LATE_S, None if type == AWARE else "UTC")
            for name, (type, _) in shape.marking
            if type in TIMES and _TIMED.search(name)
        ),
        *(
            Marker(name)
            for name, (type, _) in shape.marking
            if type in INTEGERS and _COUNTED.search(name)
        ),
        *(Marker(name, checksum=True) for name, _ in shape.marking if _SUMMED.search(name)),
    ]
    return [m for m in (*unnamed, *markers[:COLUMNS_MAX]) if (m.column, m.versioned) != taken]


def flags(shape: Shape) -> list[str]:
    """Return the columns that look like flags of deleted rows."""
    named = shape.relation.marker
    if named is not None and named.deleted is not None:
        return []
    return [n for n, (type, _) in shape.marking if type in FLAGS and _DELETED.search(n)]


def marked_shape(session: Session, shape: Shape, marker: Marker) -> Shape | None:
    """Return a relation with a marker; None: the engine refuses it."""
    if (markers := session.capabilities.markers) is None:
        return None
    try:
        marked = session.describe(replace(shape.relation, marker=marker))
        if not marker.column:
            markers.mark(marked)  # from the catalogue alone
    except DriftlineError as error:
        if error.is_retryable:
            raise
        return None
    return marked


def advice(session: Session, shape: Shape) -> list[MarkerReport]:
    """Return the markers that a described relation might have, and how they would be read."""
    tried = (marked_shape(session, shape, marker) for marker in candidates(shape))
    return [report for marked in tried if marked is not None and (report := read(session, marked))]


def read(session: Session, shape: Shape) -> MarkerReport | None:
    """Return how the marker of a relation is read; None: it has none."""
    if (marked := shape.marker) is None:
        return None
    text, promise = line(marked.marker), _PROMISES[marked.kind]
    markers = session.capabilities.markers
    assert markers is not None, "an engine that describes a marker reads by it"
    try:
        is_scan = marked.kind in _SCANNED
        way = MarkedRead.SCAN if is_scan else markers.marked_read(shape)
        keys = markers.keys_read(shape)
    except DriftlineError as error:
        if error.is_retryable:
            raise
        return MarkerReport(text, "not by this login", promise, error.message)
    if way is None:
        return MarkerReport(text, "in a way that this engine does not tell", promise)
    note = "" if is_scan else _CHEAPER.get(way, "")
    if way is MarkedRead.INDEX and marked.nullable:
        note += ", and the column has to be NOT NULL"
    report = MarkerReport(text, way.value, promise, note)
    if keys is None:
        return report
    remedy = f"`{keys.remedy}` would have an index do alone" if keys.remedy else ""
    return replace(report, keys=keys.way.value, keys_note=remedy)
