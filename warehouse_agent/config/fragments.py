"""The tables [fragments.NAME]: which relation of which source to copy, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from driftline.limits import MESSAGE_BYTES_MAX, NAME_BYTES_MAX
from driftline.settings.declarations import SettingsTable, in_units, nearest
from driftline.settings.kinds import (
    TEXT,
    choice,
    duration,
    integer,
    map_of,
    number,
    or_word,
    table_of,
)

from warehouse_agent.change_models.memory import Distance
from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.config import timing
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
from warehouse_agent.config.timing import DistanceTable, TimingTable
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings

READ_AT_LEAST = 1000  # rows: with fewer, partial refreshes would never cover a table


class IncrementalTable(SettingsTable):
    """A refresh in tiles."""

    rows = integer("rows", least=1).by_default(
        PassSettings().rows, "about how many rows a tile has"
    )
    pause_s = or_word(number("seconds"), "auto", None, "a number of seconds").by_default(
        PassSettings().pause_s,
        'the time between two tiles; `"auto"`: the default, and longer while the database answers'
        " slowly: a tile that takes more than 1.5 times as long per row as the median of the last"
        " 32 tiles doubles the pause, up to 60 s, any other halves it, so the pass always ends",
    )


class FragmentTable(TimingTable):
    """A copy to keep of a relation of a source."""

    source = TEXT.required("a NAME of `sources`")
    relation = TEXT.optional("the name that the DBA gave it", "NAME")
    carriers = map_of(choice(Carrier), called="COLUMN").by_default(
        {}, "types of columns in the table; see [types.md](types.md#carriers)"
    )
    method = choice(Method).optional(
        'how differences are found; with `proof = "keys"` or `"claimed"` not `"group"`, and'
        ' `"since"` with them alone. If too much changed for sketches or ranges, the refresh uses'
        " another; a first load is `full`",
        "the cheapest of sketch, range, group and full",
    )
    require = choice(Require).by_default(
        Require.EXACT.value, "the weakest consistency that may be published"
    )
    proof = choice(Proof).optional(
        'the weakest [proof](guarantees.md#what-a-proof-covers) that may be published; `"total"`:'
        ' all rows, `"keys"`: all keys and the rows that were read, `"part"`: the rows that were'
        ' compared, `"claimed"`: none between audits. `"part"` needs `require = "fuzzy"`',
        '`"total"`; `"part"` with `read_at_most`',
    )
    audit = duration().by_default(
        in_units(AUDIT_S),
        'the longest time between two comparisons of all rows; with `proof = "keys"` or'
        ' `"claimed"` ([By a marker](operating/partial.md#by-a-marker))',
    )
    read_at_most = integer("rows", least=READ_AT_LEAST).optional(
        "rows of the source that a refresh reads at most, by key; see"
        " [Parts](operating/partial.md#parts)",
        "all rows",
    )
    incremental = table_of(IncrementalTable).optional(
        'refresh in tiles; `{}` uses the defaults of its settings. Needs `require = "fuzzy"` and an'
        " indexed key that both sides sort alike: see"
        " [tiles](operating/partial.md#refreshing-in-tiles)",
        "off",
    )
    staging_at_most = integer("bytes", least=MESSAGE_BYTES_MAX).optional(
        "bytes of compressed rows that may wait in staging; a source that sends more is refused"
        " (`LIMIT`), and its rows are removed",
        "half of the disk's free space when an exchange begins, at least 64 MiB; no limit on object"
        " stores",
    )
    priority = integer("rank").by_default(
        0, "fragments of a source with a higher one are refreshed first"
    )
    distance = table_of(DistanceTable).optional(
        "an updated row weighs by how far a numeric column moved, times its weight in"
        " `weights_by_change`; see [scheduling](operating/scheduling.md#what-you-ask-for)",
        "each updated row counts as one",
    )
    event_time = TEXT.optional(
        "a column of type timestamp or timestamptz that says when something happened to the row;"
        " `fit` and decisions [learn from it](operating/scheduling.md#claimed-times)"
    )
    event_kind = choice(EventKind).required(
        "the event of `event_time`; the creation of the row, or its last update",
        "beside `event_time`",
    )


def parse(name: str, table: FragmentTable, sources: Mapping[str, Source]) -> Fragment:
    """Return the fragment of one table. Raises ConfigurationError, with the key."""
    check_name(name, table, "fragment")
    source, relation = table.source, table.relation or name
    if source not in sources:
        raise table.error(
            "source", f"There is no [sources.{source}].", nearest(source, tuple(sources))
        )
    if len(relation.encode()) > NAME_BYTES_MAX:
        raise table.error("relation", f"It has more than {NAME_BYTES_MAX} bytes.")
    distance = None
    if (said := table.distance) is not None:
        distance = Distance(said.column, said.scale)
    timed = timing.parse(name, table, sources[source].time_zone, sources[source].refresh_hours)
    weakest = Proof.TOTAL if table.read_at_most is None else Proof.PART
    fragment = Fragment(
        name=name,
        source=sources[source],
        relation=relation,
        carriers=table.carriers,
        method=table.method,
        require=table.require,
        proof=table.proof or weakest,
        audit_s=table.audit,
        read_at_most=table.read_at_most,
        incremental=_incremental(table.incremental),
        staging_at_most=table.staging_at_most,
        priority=table.priority,
        timing=None if timed is None else replace(timed, distance=distance),
        distance=distance,
        event_time=_event_time(table),
    )
    _check_part(table, fragment)
    _check_proof(table, fragment)
    _check_incremental(table, fragment)
    _check_keys(table, fragment)
    return fragment


def _event_time(table: FragmentTable) -> EventTime | None:
    """Return the column that claims times of events; what they are times of must be said."""
    for one, other in (("event_time", "event_kind"), ("event_kind", "event_time")):
        if table.has(one) and not table.has(other):
            raise table.error(
                one,
                f"It stands without `{other}`.",
                'Write both: the column, and "creation" or "update", the event it is the time of.',
            )
    column = table.event_time
    return None if column is None else EventTime(column, table.event_kind)


def _check_part(table: FragmentTable, fragment: Fragment) -> None:
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


def _check_proof(table: FragmentTable, fragment: Fragment) -> None:
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


def _check_keys(table: FragmentTable, fragment: Fragment) -> None:
    """Refuse settings of a marker where all rows are proven, or compared in another way."""
    if not fragment.proof.accepts_marker:
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


def _incremental(table: IncrementalTable | None) -> PassSettings | None:
    if table is None:
        return None
    pause_s = table.pause_s
    return PassSettings(table.rows, pause_s or PassSettings().pause_s, adapts=pause_s is None)


def _check_incremental(table: FragmentTable, fragment: Fragment) -> None:
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
