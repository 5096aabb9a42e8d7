"""The markers of a relation in source.toml: `marker` of a table, `markers` of a query's tables.

Only the file is read: whether the columns exist and can be markers, the database tells
(`engines.markers`). A query with `markers` is read as far as needed to tell that it joins tables
and does nothing else (`joins`).
"""

from __future__ import annotations

from dataclasses import replace

from driftline.settings import TomlTable, duration_s, nearest

from source_agent.engines.markers import Marker, is_known_zone
from source_agent.joins import InnerJoin, NotAnInnerJoin, inner_join

_MARKER = ("column", "late", "zone", "deleted", "xmin", "versioned", "checksum")
# Markers that no column names, with the keys that they exclude.
_WITHOUT_COLUMN = {
    "xmin": ("column", "late", "zone", "versioned", "checksum"),
    "versioned": ("column", "zone", "checksum"),
}
_MARKER_OF_TABLE = ("column", "late", "zone")


def marker_of(table: TomlTable) -> Marker | None:
    """Return the marker of a relation's table in the file; None: it has none.

    Raises ConfigurationError with the key and what to do.
    """
    if table.has("markers"):
        return _markers(table)
    if not table.has("marker"):
        return None
    if table.has("files"):
        raise table.error("marker", "Files are read whole.", "Remove it.")
    inner = table.table("marker", _MARKER)
    deleted = inner.optional_text("deleted")
    for kind, others in _WITHOUT_COLUMN.items():
        if inner.flag(kind):
            for key in others:
                if inner.has(key):
                    raise inner.error(key, f"It has no meaning beside `{kind}`.", "Remove one.")
            return Marker("", _late_s(inner), None, deleted, versioned=kind == "versioned")
    if not inner.has("checksum"):
        return replace(_marker_of_column(inner), deleted=deleted)
    for key in ("column", "late", "zone"):
        if inner.has(key):
            raise inner.error(key, "It has no meaning beside `checksum`.", "Remove one.")
    return Marker(inner.text("checksum"), deleted=deleted, checksum=True)


def _marker_of_column(inner: TomlTable) -> Marker:
    """Return the marker of a column, of times or of versions."""
    late_s, zone = _late_s(inner), inner.optional_text("zone")
    if zone is not None and not is_known_zone(zone):
        raise inner.error("zone", f"{zone!r} is no time zone.", 'Write "UTC", or "Europe/Vienna".')
    return Marker(inner.text("column"), late_s, zone)


def _late_s(inner: TomlTable) -> float | None:
    if (late := inner.optional_text("late")) is None:
        return None
    if not (late_s := duration_s(late)):
        raise inner.error("late", f"{late!r} is no time.", 'Write "15m", or "1h30m".')
    return late_s


def _markers(table: TomlTable) -> Marker:
    """Return the markers of a query's tables. Raises ConfigurationError: it is no inner join."""
    if not table.has("query") or table.has("marker"):
        what = "Beside `marker` it" if table.has("marker") else "It"
        raise table.error("markers", f"{what} is for the tables of a `query`.", "Remove one.")
    named = table.tables("markers", _MARKER_OF_TABLE)
    try:
        join = inner_join(table.text("query"))
    except NotAnInnerJoin as error:
        raise table.error(
            "markers",
            f"The query cannot have markers, which are for inner joins of tables: {error}",
            "Publish a simpler query, or remove `markers`.",
        ) from None
    known = {name.lower(): name for name in join.tables}
    for name in named:
        if name.lower() not in known:
            raise table.error(
                f"markers.{name}", "The query has no such table.", nearest(name, join.tables)
            )
    for name in join.tables:
        if name.lower() not in {one.lower() for one in named}:
            raise table.error(
                "markers",
                f"The query also reads {name!r}, and a change there would be missed.",
                "Name its marker, or remove `markers`.",
            )
    return Marker(
        "", joined=tuple((name, _of_table(join, name, inner)) for name, inner in named.items())
    )


def _of_table(join: InnerJoin, name: str, inner: TomlTable) -> Marker:
    """Return the marker of a table of a query. Raises ConfigurationError."""
    marker = _marker_of_column(inner)
    selected = {of.lower(): plain for of, plain in join.selected.items()}
    plain = selected.get(marker.column.lower())
    if plain is None or plain[0].lower() != name.lower():
        raise inner.error(
            "column",
            f"The query does not select {marker.column!r} as a plain column of {name}.",
            f"Write `{name}.… AS {marker.column}` into it; `columns` may leave it unpublished.",
        )
    return marker
