"""The tables [fragments.NAME]: which relation of which source to copy, and how."""

from __future__ import annotations

from collections.abc import Mapping

from driftline.limits import MESSAGE_BYTES_MAX, NAME_BYTES_MAX
from driftline.settings import TomlTable, duration_s, nearest

from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.config import schedule
from warehouse_agent.config.choices import choice
from warehouse_agent.config.names import check_name
from warehouse_agent.config.settings import (
    AUDIT_S,
    EventKind,
    EventTime,
    Fragment,
    Proof,
    Require,
    Source,
)
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import Incremental

SETTINGS = (
    "source", "relation", "carriers", "method", "require", "proof", "audit", "read_at_most",
    "incremental", "staging_at_most", "priority", "event_time", "event_kind", *schedule.SETTINGS,
)  # fmt: skip
READ_AT_LEAST = 1000  # rows: with fewer, partial refreshes would never cover a table
_INCREMENTAL = ("rows", "pause_s")


def parse(name: str, table: TomlTable, sources: Mapping[str, Source]) -> Fragment:
    """Return the fragment of one table. Raises ConfigurationError, with the key."""
    check_name(name, table, "fragment")
    source = table.text("source")
    if source not in sources:
        raise table.error(
            "source", f"There is no [sources.{source}].", nearest(source, tuple(sources))
        )
    relation = table.text("relation", default=name)
    if len(relation.encode()) > NAME_BYTES_MAX:
        raise table.error("relation", f"It has more than {NAME_BYTES_MAX} bytes.")
    carriers = {
        column: choice(table, f"carriers.{column}", text, Carrier)
        for column, text in table.text_map("carriers").items()
    }
    method, read_at_most = table.optional_text("method"), _read_at_most(table)
    weakest = Proof.TOTAL if read_at_most is None else Proof.PART
    fragment = Fragment(
        name=name,
        source=sources[source],
        relation=relation,
        carriers=carriers,
        method=None if method is None else choice(table, "method", method, Method),
        require=choice(table, "require", table.text("require", default="exact"), Require),
        proof=choice(table, "proof", table.text("proof", default=weakest.value), Proof),
        audit_s=_audit(table),
        read_at_most=read_at_most,
        incremental=_incremental(table),
        staging_at_most=_staging_at_most(table),
        priority=table.integer("priority", default=0, least=None),
        timing=schedule.parse(
            name, table, sources[source].time_zone, sources[source].refresh_hours
        ),
        event_time=_event_time(table),
    )
    _check_part(table, fragment)
    _check_proof(table, fragment)
    _check_incremental(table, fragment)
    _check_keys(table, fragment)
    return fragment


def _audit(table: TomlTable) -> int:
    text = table.text("audit", default=f"{AUDIT_S}s")
    if not (found := duration_s(text)):
        raise table.error("audit", f"{text!r} is no time.", 'Write "7d", or "12h".')
    return found


def _event_time(table: TomlTable) -> EventTime | None:
    """Return the column that claims times of events; what they are times of must be said."""
    for one, other in (("event_time", "event_kind"), ("event_kind", "event_time")):
        if table.has(one) and not table.has(other):
            raise table.error(
                one,
                f"It stands without `{other}`.",
                'Write both: the column, and "creation" or "update", the event it is the time of.',
            )
    if not table.has("event_time"):
        return None
    kind = choice(table, "event_kind", table.text("event_kind"), EventKind)
    return EventTime(table.text("event_time"), kind)


def _read_at_most(table: TomlTable) -> int | None:
    if not table.has("read_at_most"):
        return None
    return table.integer("read_at_most", default=READ_AT_LEAST, least=READ_AT_LEAST)


def _staging_at_most(table: TomlTable) -> int | None:
    if not table.has("staging_at_most"):
        return None
    # One frame has up to MESSAGE_BYTES_MAX.
    return table.integer("staging_at_most", default=MESSAGE_BYTES_MAX, least=MESSAGE_BYTES_MAX)


def _check_part(table: TomlTable, fragment: Fragment) -> None:
    """Refuse `read_at_most` with other methods than groups, or where consistency must be exact."""
    if fragment.read_at_most is None:
        return
    is_grouped = fragment.method in {None, Method.GROUP}
    if fragment.require is not Require.FUZZY or not is_grouped:
        raise table.error(
            "read_at_most",
            "A partial refresh keeps rows of earlier times, and only groups can compare a part of "
            "the rows.",
            'Add `require = "fuzzy"`, and leave out `method`.',
        )
    if fragment.incremental is not None:
        raise table.error(
            "incremental",
            "A refresh in tiles compares every row.",
            "Remove `read_at_most`, or `incremental`.",
        )


def _check_proof(table: TomlTable, fragment: Fragment) -> None:
    """Refuse `proof = "part"` where consistency must be exact, and a budget that it forbids."""
    if fragment.read_at_most is not None and fragment.proof is not Proof.PART:
        raise table.error(
            "proof",
            "A refresh of at most `read_at_most` rows proves only the rows that it compared.",
            'Write `proof = "part"` or nothing, or remove `read_at_most`.',
        )
    if fragment.proof is Proof.PART and fragment.require is not Require.FUZZY:
        raise table.error(
            "proof",
            "A version that is proven in part holds rows of different instants.",
            'If that is good enough: `require = "fuzzy"` in the fragment.',
        )


def _check_keys(table: TomlTable, fragment: Fragment) -> None:
    """Refuse settings of a marker where all rows are proven, or compared in another way."""
    if fragment.proof is not Proof.KEYS:
        for key in ("audit",) if fragment.method is not Method.SINCE else ("audit", "method"):
            if table.has(key):
                raise table.error(
                    key,
                    "All rows are proven, whatever a marker of the relation claims.",
                    'If the claims are good enough for updates: `proof = "keys"` in the fragment.',
                )
    elif fragment.incremental is not None:
        raise table.error(
            "proof", "A refresh in tiles compares every row.", "Remove `proof`, or `incremental`."
        )
    elif fragment.method is Method.GROUP:
        raise table.error("proof", "Groups compare every row.", "Remove `proof`, or `method`.")


def _incremental(table: TomlTable) -> Incremental | None:
    if not table.has("incremental"):
        return None
    inner, default = table.table("incremental", _INCREMENTAL), Incremental()
    rows = inner.integer("rows", default=default.rows, least=1)
    pause_s = inner.number_or("pause_s", "auto", default=default.pause_s)
    return Incremental(rows, pause_s or default.pause_s, adapts=pause_s is None)


def _check_incremental(table: TomlTable, fragment: Fragment) -> None:
    """Refuse `incremental` with other methods than ranges, or where consistency must be exact."""
    if fragment.incremental is None:
        return
    if fragment.require is not Require.FUZZY:
        raise table.error(
            "incremental",
            "A refresh in tiles publishes rows of different instants.",
            'If that is good enough: `require = "fuzzy"` in the fragment.',
        )
    if fragment.method not in (None, Method.RANGE):
        raise table.error(
            "method", "Tiles are compared by ranges.", "Remove `method`, or `incremental`."
        )
