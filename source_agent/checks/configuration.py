"""Find of a configuration what the agent would do, before it runs.

Whether it can listen, which database it reaches and as whom, what each relation is and what a scan
costs, and which privileges the login has beyond SELECT on what is published. It reads catalogues
and plans; it scans no table and never tries to write. A relation that cannot be described does not
hide the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from driftline.errors import DatabaseRefused, DriftlineError
from driftline.limits import NO_PROGRESS_S
from sqlalchemy.engine import URL, make_url

from source_agent.budgets.audit import recent_snapshots
from source_agent.checks.endpoint import EndpointReport, examine
from source_agent.checks.relations import RelationReport, examine_relation, refuse_unknown
from source_agent.config.file import SourceConfig
from source_agent.engines import plug_ins
from source_agent.engines.interface import Engine, Privilege, Session, TimeLimit
from source_agent.engines.registry import KINDS, has_files, is_file, untested
from source_agent.engines.relations.shapes import Relation

READ_ONLY = "every session is opened read-only and its driver sends no other statement"
OF_FILES = "files are opened for reading alone, and links are not followed"
BY_LOGIN = "sessions are not opened read-only: only the login keeps them from writing"


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


def check(config: SourceConfig, engine: Engine, names: Sequence[str] = ()) -> CheckReport:
    """Examine [server] and the catalogues.

    Args:
        names: of the relations to examine; none: all.

    Raises:
        NotFound: no relation has this name.
        DatabaseUnavailable, DatabaseRefused: with the problems of [server] as details.
    """
    refuse_unknown(config, names)
    server = examine(config)
    try:
        return _check(config, engine, server, list(dict.fromkeys(names)) or [*config.relations])
    except DriftlineError as error:
        error.details |= {f"server.{entry.what}": entry.text for entry in server if entry.problem}
        raise


def _check(
    config: SourceConfig, engine: Engine, server: list[EndpointReport], names: Sequence[str]
) -> CheckReport:
    relations = [published.relation for published in config.relations.values()]
    session = engine.open()
    try:
        as_of, consistency = session.snapshot.as_of, session.snapshot.consistency.value
        identity = _identity(session)
        limits = [_limit(limit) for limit in session.time_limits]
        snapshot = _snapshot(config, session)
        release, pooler = session.server.release, session.server.pooler
        reports = []
        for name in names:
            reports.append(examine_relation(config, engine, session, name))
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


def _limit(limit: TimeLimit) -> LimitReport:
    is_short = limit.is_idle and limit.seconds < NO_PROGRESS_S
    note = (
        f"shorter than the {NO_PROGRESS_S:g} s for which the two agents wait for each other: if"
        " the warehouse answers slowly, the snapshot is lost (SNAPSHOT_LOST)"
    )
    return LimitReport(limit.name, limit.seconds, note if is_short else "")


def _renamed(url: URL, engine: Engine) -> str:
    """Return the difference between what a URL calls a server and what it is; empty: none."""
    named = url.get_backend_name()
    if named == engine.name or named not in KINDS:
        return ""
    return (
        f"database.url says {named}, and the server is {engine.name}: it is read as {engine.name}"
    )
