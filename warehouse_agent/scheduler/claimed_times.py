"""Times of events that a column of a published table claims, for `fit` and for decisions.

`event_time` of the fragment names the column; without it, the time column that the source's DBA
named as the relation's marker, as the source described it at the first load.
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Floats
from driftline.errors import ConfigurationError, WarehouseUnavailable

from warehouse_agent.change_models.event_times import (
    RECENT_MAX_H,
    EventModel,
    fitted,
    gathered,
)
from warehouse_agent.change_models.week import HOUR_S, Week
from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment
from warehouse_agent.config.settings import EventKind, EventTime
from warehouse_agent.history.notes import Notes
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks.scan import read_batches
from warehouse_agent.timetable.claims import Claims, from_json

READ_AGAIN_S = 86_400.0  # by the source's clock: a day more changes little in 26 weeks
FAR_S = (RECENT_MAX_H + 48) * HOUR_S  # from a snapshot, and from its local time: not looked at
_TYPES = ("timestamp", "timestamptz")


@dataclass(frozen=True, slots=True)
class ClaimedTimesFit:
    """A fit of the claimed times of a fragment.

    Attributes:
        of: the column, and what it is the time of.
        found: the model; None: there are too few events.
        events, future, without: events, rows with a time after the snapshot, rows without a time.
    """

    of: EventTime
    found: EventModel | None
    events: int = 0
    future: int = 0
    without: int = 0


def event_time(store: Store, fragment: Fragment, notes: Notes) -> EventTime | None:
    """Return the column that claims times: the configured one, else a time marker's where it is
    published as a time; None: there is none.

    Args:
        notes: of the fragment.

    Raises:
        WarehouseUnavailable: what is published cannot be read.
    """
    if fragment.event_time is not None:
        return fragment.event_time
    column = notes.marker_time
    snapshot = formats.head(store, fragment.name) if column else None
    if snapshot is None:
        return None
    names = [one.name for one in snapshot.layout.recipe.columns]
    if column not in names or not _is_time(*_field(snapshot.layout, column)):
        return None
    return EventTime(column, EventKind.UPDATE)


def claims_of(store: Store, fragment: Fragment, until: float, notes: Notes) -> Claims | None:
    """Return the claimed times by hour, for decisions; None: there is no such column.

    The table is read once a day at most: what was found is kept in `_driftline/claims/NAME.json`.

    Args:
        until: the source's instant of the published version.
        notes: of the fragment.

    Raises:
        ConfigurationError, WarehouseUnavailable: as `claimed`.
    """
    if (of := event_time(store, fragment, notes)) is None:
        return None
    identity = [of.column, of.kind.value, fragment.time_zone]
    place = (PRIVATE, "claims", f"{fragment.name}.json")
    known = _kept(store.read(*place) or b"", *identity)
    if known is not None and 0 <= until - known.end < READ_AGAIN_S:
        return known
    snapshot = formats.head(store, fragment.name)
    if snapshot is None:
        return None
    times, _ = _times(snapshot, fragment, of, until)
    is_creation = of.kind is EventKind.CREATION
    claims = Claims.of(gathered(times, until), is_creation=is_creation)
    body = json.dumps({"of": identity, **claims.to_json()}).encode()
    with contextlib.suppress(WarehouseUnavailable):  # then it is read again
        store.write(body, *place)
    return _kept(body, *identity)


@functools.lru_cache(maxsize=1024)
def _kept(body: bytes, *identity: str) -> Claims | None:
    """Return the claims that a file has of this column: the same object for the same bytes, so that
    a process that decides for long fits no model twice."""
    with contextlib.suppress(ValueError, RecursionError):
        loaded = json.loads(body)
        if isinstance(loaded, dict) and loaded.get("of") == [*identity]:
            return from_json(loaded)
    return None


def claimed(store: Store, fragment: Fragment, of: EventTime, until: float) -> ClaimedTimesFit:
    """Read the times of the published rows, and fit a model to them.

    Args:
        until: the source's instant of the published version.

    Raises:
        ConfigurationError: the table has no such column, or it is no time.
        WarehouseUnavailable: a file cannot be read.
    """
    snapshot = formats.head(store, fragment.name)
    if snapshot is None:
        return ClaimedTimesFit(of, None)
    times, without = _times(snapshot, fragment, of, until)
    events = gathered(times, until)
    event_model = fitted(events, fragment.time_zone)
    return ClaimedTimesFit(of, event_model, len(events.at), events.future, without)


def _times(
    snapshot: Snapshot, fragment: Fragment, of: EventTime, until: float
) -> tuple[Floats, int]:
    """Return the times of rows, as moments, [n], and the number of rows without one.

    What is far from the hours before `until` is somewhere outside of them: a zone has no offset for
    every time that a database has, such as the end of the year 9999.
    """
    layout = snapshot.layout
    names = [column.name for column in layout.recipe.columns]
    where = f"fragments.{fragment.name}.event_time"
    if of.column not in names:
        raise ConfigurationError(
            f"{fragment.name} has no column {of.column!r}.",
            remedy="Name one of its columns of type timestamp or timestamptz.",
            where=where,
        )
    field, kind = _field(layout, of.column)
    schema = pa.schema([field])
    if not _is_time(field, kind):
        raise ConfigurationError(
            f"{of.column!r} of {fragment.name} is published as {field.type}, no time.",
            remedy="Name a column of type timestamp or timestamptz, without another carrier.",
            where=where,
        )
    parts, without = [np.zeros(0)], 0
    for file in snapshot.sound:
        for batch in read_batches(file.uri, schema):
            column = batch.column(0)
            without += column.null_count
            known = pc.drop_null(column).cast(pa.int64())
            parts.append(known.to_numpy(zero_copy_only=False) / 1e6)
    times = np.concatenate(parts)
    times = np.clip(times, until - FAR_S, until + FAR_S)
    return (times if kind == "timestamptz" else Week(fragment.time_zone).moments(times)), without


def _field(layout: Layout, column: str) -> tuple[pa.Field, str]:
    """Return the field of a published column in its files, and the kind of its type."""
    index = [one.name for one in layout.recipe.columns].index(column)
    return layout.file_schema.field(layout.names[index]), layout.recipe.columns[index].type.kind


def _is_time(field: pa.Field, kind: str) -> bool:
    return kind in _TYPES and pa.types.is_timestamp(field.type)
