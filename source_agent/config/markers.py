"""The markers of a relation in source.toml: `marker` of a table, `markers` of a query's tables.

Only the file is read: whether the columns exist and can be markers, the database tells
(`engines.relations.markers`). A query with `markers` is read as far as needed to tell that it joins
tables and does nothing else (`joins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from driftline.settings.declarations import nearest

from source_agent.config.declarations import JoinedMarkerTable, RelationTable
from source_agent.config.joins import InnerJoin, NotAnInnerJoin, inner_join
from source_agent.engines.relations.markers import Marker

# What stands in the place of `column`, and the settings that it excludes.
_EXCLUDED = {
    "xmin": ("column", "late", "zone", "versioned", "checksum"),
    "versioned": ("column", "zone", "checksum"),
    "checksum": ("column", "late", "zone", "deletes"),
}


def marker_of(table: RelationTable) -> Marker | None:
    """Return the marker of a relation's table in the file; None: it has none.

    Raises ConfigurationError with the key and what to do.
    """
    if (named := table.markers) is not None:
        return _markers(table, named)
    if (inner := table.marker) is None:
        return None
    if table.has("files"):
        raise table.error("marker", "Files are read whole.", "Remove it.")
    deleted, checksum = inner.deleted, inner.checksum
    given = {"xmin": inner.xmin, "versioned": inner.versioned, "checksum": checksum is not None}
    for kind, excluded in _EXCLUDED.items():
        if given[kind] and (both := [key for key in excluded if inner.has(key)]):
            raise inner.error(both[0], f"It has no meaning beside `{kind}`.", "Remove one.")
    if deleted is not None and inner.deletes is not None:
        raise inner.error("deletes", "It has no meaning beside `deleted`.", "Remove one.")
    is_kept = inner.deletes is not None
    if inner.xmin or inner.versioned:
        return Marker("", inner.late, None, deleted, versioned=inner.versioned, is_kept=is_kept)
    if checksum is not None:
        return Marker(checksum, deleted=deleted, checksum=True)
    return replace(_marker_of_column(inner), deleted=deleted, is_kept=is_kept)


def _marker_of_column(inner: JoinedMarkerTable) -> Marker:
    """Return the marker of a column, of times or of versions."""
    return Marker(inner.column, inner.late, inner.zone)


def _markers(table: RelationTable, named: Mapping[str, JoinedMarkerTable]) -> Marker:
    """Return the markers of a query's tables. Raises ConfigurationError: it is no inner join."""
    if (query := table.query) is None or table.has("marker"):
        what = "Beside `marker` it" if table.has("marker") else "It"
        raise table.error("markers", f"{what} is for the tables of a `query`.", "Remove one.")
    try:
        join = inner_join(query)
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


def _of_table(join: InnerJoin, name: str, inner: JoinedMarkerTable) -> Marker:
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
