"""Decide what a warehouse may read of a relation now: all of it, or rows by key (`scan`).

A scan may begin in the hours that the DBA allows. One that began in them goes on to its end, and so
do further scans of its exchange: cut at the end of the hours, a scan that is longer than they are
would never succeed, and `quiet_hours` cuts where that is wanted. Tiles and parts are read by an
index of the key at any time; `rows_by_key` limits them where they are read (`scan.tile`,
`methods.request_validation`). A tile without bounds is the whole relation, so it counts as a scan
if nothing limits its rows. An opening is looked at before anything is read.
"""

from __future__ import annotations

from datetime import UTC, datetime

from driftline import wire_pb2 as pb
from driftline.errors import NEXT_SCAN, LimitExceeded, NotNow
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN

from source_agent.config.file import ServedRelation

_BY_KEY = "refresh it by key (`read_at_most` or `incremental` of the fragment)"


def needs_scan(opening: pb.Open, *, is_limited: bool) -> bool:
    """Return True if an opening asks for all rows, not for a tile or a part.

    is_limited: reads by key are limited, so that a tile without bounds is not all rows.
    """
    if opening.HasField("within"):
        within = opening.within
        return not is_limited and (within.first, within.last) == (POSITION_MIN, POSITION_MAX)
    if opening.HasField("between"):
        return not (is_limited or opening.between.lower or opening.between.upper)
    return not opening.grouping.rows_max


def check_scan(opening: pb.Open, served: ServedRelation, now: datetime) -> None:
    """Raise an error if an opening needs a scan, and none may begin.

    now: local time, without a zone.

    Raises:
        NotNow: a scan may begin later.
        LimitExceeded: no scan may ever begin.
    """
    hours, name = served.scan, served.relation.name
    is_limited = served.relation.rows_by_key is not None
    if hours is None or not needs_scan(opening, is_limited=is_limited):
        return
    window = hours.window(now)
    if window is None:
        raise LimitExceeded(
            'The source\'s DBA allows no scan of this relation (scan = "never").',
            where=name,
            remedy=f"Please {_BY_KEY}. A first load and a complete refresh need a scan: ask the "
            "DBA for hours in which one may begin.",
        )
    if not window.is_open(now):
        begins = instant(window.begins)
        raise NotNow(
            f"The source's DBA allows a scan of this relation to begin only at {hours} (scan, the "
            f"source's local time): next at {begins}.",
            where=name,
            remedy=f"Run the refresh again then, or {_BY_KEY}.",
            details={NEXT_SCAN: begins},
        )


def check_by_key(opening: pb.Open, served: ServedRelation, read: int) -> None:
    """Raise LimitExceeded if a further part of one comparison would exceed `rows_by_key`.

    read: rows that the parts of the comparison before it had.
    """
    limit = served.relation.rows_by_key
    if limit is not None and read and read + opening.grouping.rows_max > limit:
        raise LimitExceeded(
            f"The source's DBA allows {limit:,} rows of this relation to be read by key "
            f"(rows_by_key); {read:,} were read, and this shard asks for "
            f"{opening.grouping.rows_max:,}.",
            where=served.relation.name,
            remedy=f"Set `read_at_most` of the fragment to at most {limit}.",
        )


def allowance(served: ServedRelation, now: datetime) -> pb.Allowance:
    """Return what may be read of a relation now, as a warehouse gets it.

    now: local time, without a zone.
    """
    limit = served.relation.rows_by_key or 0
    if served.scan is None:
        return pb.Allowance(scan=True, rows_by_key=limit)
    window = served.scan.window(now)
    if window is None:
        return pb.Allowance(rows_by_key=limit)
    is_open = window.is_open(now)
    return pb.Allowance(
        scan=is_open,
        begins="" if is_open else instant(window.begins),
        ends=instant(window.ends),
        rows_by_key=limit,
    )


def instant(local: datetime) -> str:
    """Return a local time without a zone in UTC, as messages and errors have it."""
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
