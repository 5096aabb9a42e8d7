"""Find of each relation what it is, what a scan of it costs, and what it may be asked for.

It reads catalogues and plans; it scans no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from driftline.errors import ConfigurationError, DriftlineError, NotFound
from driftline.settings.declarations import nearest

from source_agent.budgets.budget import local_now
from source_agent.checks import marker_advice
from source_agent.checks.marker_advice import MarkerReport
from source_agent.config.file import ServedRelation, SourceConfig
from source_agent.engines.interface import Engine, Session, Unlocated
from source_agent.engines.relations.shapes import Fingerprint, Shape
from source_agent.scan.reader import finds_keys


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of a relation."""

    name: str
    type: str
    nullable: bool
    key: bool
    comparable: str = ""


@dataclass(frozen=True, slots=True)
class RelationReport:
    """A relation, or the `error` why it cannot be served.

    `no_tiles` says why it cannot be read in tiles; None: it can. `scan` has the hours in which a
    scan may begin, none: never; None: always. `scan_now` says the same of the time of the check.
    `marker` is the one that the file names, None: none, and `marker_read` how it is read;
    `markers` are others that might be named, `flags` columns that look like flags of deleted rows.
    `again` says how rows that changed are read, and `again_note` what would save a second scan.
    """

    name: str
    allow: list[str] | None
    columns: list[ColumnReport]
    vouched: bool
    rows_expected: int
    scan_cost: str
    notes: list[str]
    fingerprint: str = ""
    error: str | None = None
    error_code: str | None = None
    derive: list[str] = field(default_factory=list)
    no_tiles: str | None = None
    scan: list[str] | None = None
    scan_now: str = "now"
    rows_by_key: int | None = None
    marker: str | None = None
    marker_read: MarkerReport | None = None
    markers: list[MarkerReport] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    again: str = ""
    again_note: str = ""


def refuse_unknown(config: SourceConfig, names: Sequence[str]) -> None:
    """Raise NotFound if a name is that of no relation, with the nearest one."""
    for name in names:
        if name not in config.relations:
            raise NotFound(
                f"{config.path.name} does not publish {name!r}.",
                remedy=nearest(name, tuple(config.relations)),
            )


def examine_relation(
    config: SourceConfig, engine: Engine, session: Session, name: str
) -> RelationReport:
    """Describe one relation in a session, or say why it cannot be served."""
    published = config.relations[name]
    allow = None if published.allow is None else sorted(published.allow)
    try:
        shape = session.describe(published.relation)
        published.check_key(shape)
        marker_read = marker_advice.read(session, shape)
        markers = marker_advice.advice(session, shape)
        cost = engine.scan_cost(shape)
        if config.budget.readers > 1:
            split = session.capabilities.split
            is_shared = split is not None and split(shape) is not None
            readers = f"{config.budget.readers} processes read it"
            cost += f"; {readers if is_shared else 'one process reads it'}"
        again, again_note = _again(config, session, shape)
    except DriftlineError as error:
        return RelationReport(name, allow, [], False, 0, "", [], "", str(error), error.code)
    keys = {column.name for column in shape.recipe.key}
    comparable = shape.comparable_by_name
    columns = [
        ColumnReport(c.name, str(c.type), c.nullable, c.name in keys, comparable[c.name].value)
        for c in shape.recipe.published_order
    ]
    return RelationReport(
        name,
        allow,
        columns,
        shape.vouched,
        shape.rows_expected,
        cost,
        [*shape.notes, *shape.notes_local, *engine.warnings(shape)],
        _fingerprint(session, shape),
        derive=sorted(part.value for part in published.derive),
        no_tiles=shape.not_by_key or None,
        scan=None if published.scan is None else [str(span) for span in published.scan.spans],
        scan_now=_scan_now(published, local_now()),
        rows_by_key=published.relation.rows_by_key,
        marker=None if shape.marker is None else str(shape.marker),
        marker_read=marker_read,
        markers=markers,
        flags=marker_advice.flags(shape),
        again=again,
        again_note=again_note,
    )


def _again(config: SourceConfig, session: Session, shape: Shape) -> tuple[str, str]:
    """Return how rows that changed are read, and what the DBA may do to save a second scan."""
    able = session.capabilities.locators
    if shape.indexed:
        return "by the index of the key", ""
    if shape.relation.fingerprint is Fingerprint.DATABASE:
        return "by a second scan", ""
    located = Unlocated("") if able is None else able.locate(shape)
    way, kept = "where they lie", "places"
    if isinstance(located, Unlocated):
        if not finds_keys(session, shape):
            why = f": {located.why}" if located.why else ""
            return f"by a second scan{why}", located.remedy
        way, kept = "by their keys", "keys"
    most = config.budget.memory_at_most
    if not most:
        return "by a second scan", "limits.memory_at_most is 0"
    return f"{way}, if the {kept} of all rows fit in {most:,} bytes", ""


def _scan_now(published: ServedRelation, now: datetime) -> str:
    """Return when a scan may begin, as seen from a local time."""
    if published.scan is None:
        return "now"
    window = published.scan.window(now)
    if window is None:
        return "never"
    if window.is_open(now):
        return f"now, until {window.ends:%Y-%m-%d %H:%M}"
    return f"not before {window.begins:%Y-%m-%d %H:%M}"


def _fingerprint(session: Session, shape: Shape) -> str:
    """Return who makes this relation's fingerprints, and whether the database could."""
    relation = shape.relation
    if relation.fingerprint is Fingerprint.DATABASE:
        return "made by the database: 64 bits, no protection against forged rows"
    try:
        session.describe(replace(relation, fingerprint=Fingerprint.DATABASE))
    except ConfigurationError as error:
        return f"made by the agent. {error.message}"
    return 'made by the agent; fingerprint = "database" is possible'
