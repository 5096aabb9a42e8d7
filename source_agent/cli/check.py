"""`check`: report to the DBA what the agent would do, before it runs.

Whether it can listen, which database it reaches and as whom, what each relation is and what a scan
costs, and which privileges the login has beyond SELECT on what is published. It reads catalogues
and plans; it scans no table and never tries to write. A relation that cannot be described does not
hide the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from driftline.errors import ConfigurationError, DatabaseRefused, DriftlineError
from driftline.limits import NO_PROGRESS_S
from driftline.relations.derivations import Comparable, DerivablePart
from sqlalchemy.engine import URL, make_url

from source_agent.budgets.audit import recent_snapshots
from source_agent.budgets.budget import local_now
from source_agent.cli import marker_advice
from source_agent.cli.check_endpoint import EndpointReport, examine
from source_agent.cli.marker_advice import MarkerReport
from source_agent.config.file import ServedRelation, SourceConfig
from source_agent.engines import plug_ins
from source_agent.engines.interface import Engine, Privilege, Session, TimeLimit
from source_agent.engines.registry import KINDS, has_files, is_file, untested
from source_agent.engines.relations.shapes import Fingerprint, Relation, Shape
from source_agent.printable import counted

_TILES = "by the index of its key"
READ_ONLY = "every session is opened read-only and its driver sends no other statement"
OF_FILES = "files are opened for reading alone, and links are not followed"
BY_LOGIN = "sessions are not opened read-only: only the login keeps them from writing"


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


@dataclass(frozen=True, slots=True)
class LimitReport:
    """A time limit of the agent's sessions, with a note if it endangers a refresh."""

    name: str
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The work of the database that an exchange's snapshot holds back, and for how long.

    `longest_s`: of the last `exchanges` in the audit file; None: it has none. `most_s`: the DBA's
    limit; None: no limit.
    """

    holds_back: str
    longest_s: float | None
    exchanges: int
    most_s: float | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that `check` prints.

    `identity`: what tells the database from a copy of it, by names for people.
    """

    database: str
    login: str
    as_of: str
    consistency: str
    read_only: str
    relations: list[RelationReport]
    privileges: list[Privilege]
    limits: list[LimitReport]
    snapshot: SnapshotReport
    server: list[EndpointReport]
    plug_ins: list[str] = field(default_factory=list)  # that are not used, and why
    identity: dict[str, str] = field(default_factory=dict)
    release: str = ""  # of the server
    notes: tuple[str, ...] = ()  # on the server

    @property
    def failed(self) -> bool:
        """True if a relation cannot be served or the agent cannot listen; not for privileges."""
        return self.served < len(self.relations) or any(entry.problem for entry in self.server)

    @property
    def served(self) -> int:
        """Number of relations that can be served."""
        return sum(relation.error is None for relation in self.relations)


def check(config: SourceConfig, engine: Engine) -> CheckReport:
    """Examine [server] and the catalogues.

    Raises DatabaseUnavailable or DatabaseRefused, with the problems of [server] as details.
    """
    server = examine(config)
    try:
        return _check(config, engine, server)
    except DriftlineError as error:
        error.details |= {f"server.{entry.what}": entry.text for entry in server if entry.problem}
        raise


def _check(config: SourceConfig, engine: Engine, server: list[EndpointReport]) -> CheckReport:
    relations = [published.relation for published in config.relations.values()]
    session = engine.open()
    try:
        as_of, consistency = session.snapshot.as_of, session.snapshot.consistency.value
        identity = _identity(session)
        limits = [_limit(limit) for limit in session.time_limits]
        snapshot = _snapshot(config, session)
        release, pooler = session.server.release, session.server.pooler
        reports = []
        for name in config.relations:
            reports.append(_relation(config, engine, session, name))
            if reports[-1].error is not None:  # the failed statement may have ended the transaction
                session.close()
                session = engine.open()
    finally:
        session.close()
    privileges = _privileges(engine, relations)
    url = make_url(config.database.url)
    read_only = OF_FILES if has_files(url) else READ_ONLY
    return CheckReport(
        database=engine.name,
        login=url.username or ("the account of this process" if is_file(url) else ""),
        as_of=as_of,
        consistency=consistency,
        read_only=BY_LOGIN if any(p.is_unknown for p in privileges) else read_only,
        relations=reports,
        privileges=privileges,
        limits=limits,
        snapshot=snapshot,
        server=server,
        plug_ins=plug_ins.refused(KINDS),
        identity=identity,
        release=release,
        notes=tuple(filter(None, (pooler, untested(release), _renamed(url, engine)))),
    )


def _privileges(engine: Engine, relations: list[Relation]) -> list[Privilege]:
    """Return what the login may do; a note why it is not known, where catalogues are closed."""
    try:
        return engine.privileges(relations)
    except DatabaseRefused as error:
        what = f"the rights of the login cannot be read: {error.message}"
        return [Privilege(what, excess=False, is_note=True)]


def _identity(session: Session) -> dict[str, str]:
    """Return what a mark carries of the database; nothing if the login may not ask for it."""
    markers = session.capabilities.markers
    try:
        return {} if markers is None else dict(markers.identity())
    except DatabaseRefused:
        return {}


def _snapshot(config: SourceConfig, session: Session) -> SnapshotReport:
    held = recent_snapshots(config.server.audit_file)
    longest_s = max(held, default=None)
    return SnapshotReport(session.server.holds_back, longest_s, len(held), config.budget.snapshot_s)


def _snapshot_lines(report: SnapshotReport) -> list[str]:
    """Return what waits for the end of a refresh, if anything does, and for how long."""
    if not report.holds_back:
        return []
    most = "no limit" if report.most_s is None else f"at most {report.most_s:g} s"
    held = "the audit file has no refresh yet"
    if report.longest_s is not None:
        exchanges = counted(report.exchanges, "exchange")
        held = f"{report.longest_s:,.1f} s at most in the last {exchanges} of the audit"
    return [
        f"  snapshot holds back {report.holds_back}",
        f"           for as long as a refresh lasts: {held}; {most} (limits.snapshot_seconds)",
    ]


def _weight(privilege: Privilege) -> str:
    if privilege.is_unknown:
        return "unknown"
    if privilege.is_note:
        return "note"
    return "EXCESS" if privilege.excess else "needed"


def _limit(limit: TimeLimit) -> LimitReport:
    is_short = limit.is_idle and limit.seconds < NO_PROGRESS_S
    note = (
        f"shorter than the {NO_PROGRESS_S:g} s for which the two agents wait for each other: if"
        " the warehouse answers slowly, the snapshot is lost (SNAPSHOT_LOST)"
    )
    return LimitReport(limit.name, limit.seconds, note if is_short else "")


def _relation(config: SourceConfig, engine: Engine, session: Session, name: str) -> RelationReport:
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
    )


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


def _renamed(url: URL, engine: Engine) -> str:
    """Return the difference between what a URL calls a server and what it is; empty: none."""
    named = url.get_backend_name()
    if named == engine.name or named not in KINDS:
        return ""
    return (
        f"database.url says {named}, and the server is {engine.name}: it is read as {engine.name}"
    )


def as_json(report: CheckReport) -> dict[str, object]:
    """Return the report for `--json`, with `ok` and the number of relations that are served."""
    return {"ok": not report.failed, "served": report.served, **asdict(report)}


def as_text(report: CheckReport) -> str:
    """Return the report for people."""
    lines = ["server"]
    lines += [
        f"  {'FAILED  ' if entry.problem else 'ok      '} {entry.what:<12} {entry.text}"
        for entry in report.server
    ]
    lines += [
        "",
        "database",
        f"  engine   {report.database}, reached at {report.as_of}",
        *([f"  server   {report.release}"] if report.release else []),
        *_identity_lines(report.identity),
        f"  login    {report.login or 'the default of the driver'}",
        f"  reads    {report.consistency}; {report.read_only}",
        f"  limits   {', '.join(f'{x.name} {x.seconds:g} s' for x in report.limits) or 'none'}",
        *_snapshot_lines(report.snapshot),
        *(f"  note     {x.name} is {x.note}" for x in report.limits if x.note),
        *(f"  note     {text}" for text in report.notes),
        *(f"  note     {text}" for text in report.plug_ins),
    ]
    for relation in report.relations:
        lines += ["", *_relation_lines(relation)]
    excess = sum(p.excess for p in report.privileges)
    lines += ["", "privileges"]
    lines += [f"  {_weight(p):<8} {p.what}" for p in report.privileges]
    if excess:
        lines.append(
            f"  The login may do more than it needs ({excess}). "
            "`driftline-source grants` prints the least that is enough."
        )
    elif not report.privileges:
        lines += ["  none known to this database"]
    lines += ["", *_verdict(report)]
    return "\n".join(lines)


def _verdict(report: CheckReport) -> list[str]:
    problems = sum(entry.problem for entry in report.server)
    served = f"{report.served} of {counted(len(report.relations), 'relation')} can be served"
    if not problems:
        return [served]
    return [f"[server] has {counted(problems, 'problem')}: the agent cannot serve.", served]


def _allowance_lines(relation: RelationReport) -> list[str]:
    """Return when a scan may begin, and how many rows are read by key, where the DBA says so."""
    lines = []
    if relation.scan is not None:
        hours = f"at {', '.join(relation.scan)} (local time): " if relation.scan else ""
        lines.append(f"  scanned  {hours}{relation.scan_now}")
    if relation.rows_by_key is not None:
        lines.append(f"  by key   at most {relation.rows_by_key:,} rows in an exchange")
    return lines


def _identity_lines(identity: dict[str, str]) -> list[str]:
    """Return what tells the database from a copy: a mark of another one is not used."""
    told = ", ".join(f"{name} {value}" for name, value in identity.items())
    return [f"  identity {told}"] if told else []


def _marker_lines(relation: RelationReport) -> list[str]:
    """Return by what changes are found without comparing all rows, and what else might do."""
    lines = []
    if relation.marker is not None and (named := relation.marker_read) is not None:
        lines.append(f"  changes  by {relation.marker}, where a warehouse accepts it")
        lines.append(f"           read {named.read}; {named.promise}")
        lines += [f"           {named.note}"] if named.note else []
    for marker in relation.markers:
        lines.append(f"  possible {marker.line}")
        lines.append(f"           read {marker.read}; {marker.promise}")
        lines += [f"           {marker.note}"] if marker.note else []
    if relation.flags:
        lines.append(f"  flags    {', '.join(relation.flags)}: `deleted` of a marker names one, if")
        lines.append("           rows so flagged count as gone")
    return lines


def _derive_lines(relation: RelationReport) -> list[str]:
    """Return what a warehouse may choose of a relation, and by which columns."""
    if not relation.derive:
        return []
    lines = [f"  derive   a warehouse may choose {' and '.join(relation.derive)}"]
    if DerivablePart.ROWS.value in relation.derive:
        named = [
            c.name + (" (= and <> only)" if c.comparable == Comparable.EQUALITY.value else "")
            for c in relation.columns
            if c.comparable
        ]
        lines.append(f"           rows by {', '.join(named) or 'no column: none can be compared'}")
    return lines


def _relation_lines(relation: RelationReport) -> list[str]:
    if relation.error is not None:
        return [f"relation     {relation.name}", f"  FAILED   {relation.error}"]
    to = "every certificate" if relation.allow is None else ", ".join(relation.allow) or "nobody"
    key = ", ".join(c.name for c in relation.columns if c.key)
    vouched = "ensured by a constraint" if relation.vouched else "checked at every refresh"
    rows = f"about {relation.rows_expected:,}" if relation.rows_expected > 0 else "unknown"
    width = max(len(c.name) for c in relation.columns)
    return [
        f"relation     {relation.name}, for {to}",
        f"  key      {key} ({vouched})",
        f"  rows     {rows}",
        f"  a scan   {relation.scan_cost}",
        *_allowance_lines(relation),
        f"  compared by fingerprints {relation.fingerprint}",
        f"  in tiles {f'no: {relation.no_tiles}' if relation.no_tiles else _TILES}",
        *_marker_lines(relation),
        *_derive_lines(relation),
        *(f"  note     {note}" for note in relation.notes),
        *(
            f"  column   {c.name:<{width}}  {c.type}{'' if c.nullable else ' not null'}"
            for c in relation.columns
        ),
    ]
