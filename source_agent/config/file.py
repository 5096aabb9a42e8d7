"""The DBA's file, source.toml: what is published, to whom, and at what cost to the database.

It has every identifier and every SELECT that can reach the database; the network only names a
relation in it. Reading the file contacts nothing.

Invariants: plain text is served on loopback only; a relation is a table or a query, never both; no
`repr` shows a password. Relative paths start from the file's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from driftline.errors import OPEN, ConfigurationError, DerivationRefused
from driftline.limits import NAME_BYTES_MAX
from driftline.metrics_server import check_package
from driftline.relations.derivations import DerivablePart, Derivation
from driftline.settings.declarations import is_loopback, nearest, password, read, resolve
from driftline.settings.hours import DAY, Hours, overlapping
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from source_agent.config.declarations import (
    ACTIVITY_S,
    LOGIN,
    MEMORY_AT_MOST,
    READERS,
    SCANS_AT_ONCE,
    DatabaseTable,
    LimitsTable,
    RelationTable,
    ServerTable,
    SourceFile,
    SourceMetricsTable,
)
from source_agent.config.markers import marker_of
from source_agent.config.scan_hours import ScanHours
from source_agent.engines.interface import Limits
from source_agent.engines.registry import has_files, is_file
from source_agent.engines.relations.shapes import Files, Fingerprint, Relation, Shape


@dataclass(frozen=True, slots=True)
class Database:
    """The URL and password of the database, and the time limits of a session.

    `password` is the one that was read with the file; `password_now` reads it again. `pooler`: the
    URL leads to a connection pooler of PostgreSQL, as the DBA declares.
    """

    url: str
    password: str | None = field(repr=False, compare=False)
    limits: Limits
    password_file: Path | None
    password_now: Callable[[], str | None] = field(repr=False, compare=False)
    pooler: bool = False


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of mutual TLS; read again whenever they change."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address to listen on. Without certificates: loopback, in plain text."""

    host: str
    port: int
    certificates: Certificates | None
    audit_file: Path | None = None

    @property
    def address(self) -> str:
        """`host:port`, with brackets around IPv6."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of all exchanges together; None is no limit.

    `scans_at_once`: relations answered at the same time. `readers`: processes that read one scan,
    each over its own connection; all scans share the `readers` - 1 worker processes.
    `rows_per_second`: read. `bytes_per_second`: sent. `snapshot_s`: the longest exchange.
    `activity_s`: the shortest time between two questions of a client about activity; None: the
    counters are never read. `feedback`: a read is held back while the database answers slowly.
    `memory_at_most`: bytes in which scans keep where their rows lie, to read some again.
    """

    scans_at_once: int = SCANS_AT_ONCE
    readers: int = READERS
    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    pause_file: Path | None = None
    quiet_hours: tuple[Hours, ...] = ()
    snapshot_s: float | None = None
    activity_s: float | None = ACTIVITY_S
    feedback: bool = True
    memory_at_most: int = MEMORY_AT_MOST


@dataclass(frozen=True, slots=True)
class ServedRelation:
    """A relation, and the clients that may read it: names of their certificates; None: all.

    `derive`: what a warehouse may choose of it. `scan`: when scans may begin; None: always.
    `activity`: its counters may be read.
    """

    relation: Relation
    allow: frozenset[str] | None = None
    derive: frozenset[DerivablePart] = frozenset()
    scan: ScanHours | None = None
    activity: bool = True

    def admits(self, names: frozenset[str]) -> bool:
        """Return True if a client with these names may read it."""
        return self.allow is None or bool(self.allow & names)

    def refuse(self, derivation: Derivation) -> None:
        """Raise DerivationRefused if it chooses what the DBA does not let a warehouse choose."""
        refused = sorted(part.value for part in derivation.parts - self.derive)
        if refused:
            raise DerivationRefused(
                f"The DBA of the source does not let a warehouse choose {' or '.join(refused)} of"
                " this relation.",
                where=self.relation.name,
                details={"derive": ", ".join(sorted(part.value for part in self.derive)) or "none"},
            )

    def check_key(self, shape: Shape) -> None:
        """Raise ConfigurationError if the file wants it read by key, and it cannot be."""
        is_never = self.scan is not None and not self.scan.spans
        without = shape.not_by_key or ("" if shape.vouched else "no constraint makes it unique")
        if not without or not (is_never or self.relation.rows_by_key):
            return
        setting, why = ("scan", 'scan = "never"') if is_never else ("rows_by_key", "`rows_by_key`")
        key = ", ".join(column.name for column in shape.recipe.key)
        raise ConfigurationError(
            f"{why} needs rows that can be read by a unique index of the key ({key}), and they"
            f" cannot: {without}.",
            where=f"relations.{self.relation.name}.{setting}",
            remedy="Remove the setting, or choose a key with a unique index"
            " (docs/dba/scans.md#in-tiles).",
            abroad=OPEN,
        )


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """The whole file. `relations`: by published name, in the order of the file.

    `metrics`: host and port of the page for Prometheus; None: there is none.
    """

    path: Path
    database: Database
    server: Endpoint
    budget: Budget
    relations: Mapping[str, ServedRelation]
    metrics: tuple[str, int] | None = None


def load(path: Path | str) -> SourceConfig:
    """Read source.toml. Raises ConfigurationError with the file, the key and what to do."""
    top = read(Path(path), SourceFile)
    published = top.relations
    relations = {name: _served_relation(name, table) for name, table in published.items()}
    database = _database(top.database)
    for table in published.values():
        _check_kind(table, make_url(database.url))
    return SourceConfig(
        path=top.file,
        database=database,
        server=_endpoint(top.server),
        budget=_budget(top.limits),
        relations=MappingProxyType(relations),
        metrics=_metrics(top.metrics),
    )


def _database(table: DatabaseTable) -> Database:
    try:
        parsed = make_url(table.url)
    except (ArgumentError, ValueError):
        raise table.error(
            "url",
            "It is not a database URL.",
            "Write one such as postgresql+psycopg://reader@host/database.",
        ) from None
    file = parsed.database
    if is_file(parsed) and file and not file.startswith((":", "file:")):
        parsed = parsed.set(database=str(resolve(table.file, file)))
    limits = Limits(
        statement_s=table.statement_timeout_s,
        lock_s=table.lock_timeout_s,
        idle_s=table.idle_timeout_s,
        connect_s=table.connect_timeout_s,
        silence_s=table.silence_timeout_s,
    )
    if table.pooler and parsed.get_backend_name() != "postgresql":
        raise table.error("pooler", "It is for PostgreSQL only.", "Name the server itself.")
    url, file_of = parsed.render_as_string(hide_password=False), table.password_file
    password_now = partial(password, file_of, LOGIN, table.place("password_file"))
    return Database(url, password_now(), limits, file_of, password_now, table.pooler)


def _endpoint(table: ServerTable) -> Endpoint:
    host, port, _ = table.listen
    if not table.insecure:
        files = Certificates(table.certificate, table.key, table.client_ca)
        return Endpoint(host, port, files, table.audit_file)
    if not is_loopback(host):
        raise table.error(
            "insecure",
            f"Plain text is for loopback only, and {host} is not.",
            "Remove `insecure` and make certificates with `driftline-source enroll`, "
            "or listen on 127.0.0.1.",
        )
    for key in ("certificate", "key", "client_ca"):
        if table.has(key):
            raise table.error(key, "It has no effect with `insecure = true`.", "Remove one.")
    return Endpoint(host, port, None, table.audit_file)


def _metrics(table: SourceMetricsTable | None) -> tuple[str, int] | None:
    if table is None:
        return None
    check_package(table.place())
    return table.listen.host, table.listen.port


def _budget(table: LimitsTable) -> Budget:
    return Budget(
        scans_at_once=table.scans_at_once,
        readers=table.readers,
        rows_per_second=table.rows_per_second,
        bytes_per_second=table.bytes_per_second,
        pause_file=table.pause_file,
        quiet_hours=table.quiet_hours,
        snapshot_s=table.snapshot_seconds,
        activity_s=table.activity_seconds,
        feedback=table.feedback,
        memory_at_most=table.memory_at_most,
    )


def _served_relation(name: str, table: RelationTable) -> ServedRelation:
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise table.error("", f"A name is 1 to {NAME_BYTES_MAX} bytes of printable text.")
    given = [setting for setting in ("table", "query", "files") if table.has(setting)]
    if len(given) != 1:
        fault = " and ".join(given) + " are given" if given else "none is given"
        raise table.error("", f"A relation is a `table`, a `query` or `files`; {fault}.")
    if table.has("query") and table.has("where"):
        raise table.error("where", "It is for `table` only.", "Put the condition into the query.")
    columns, key = table.columns, table.key
    for column in key or ():
        if columns is not None and column not in columns:
            raise table.error("key", f"{column!r} is not in `columns`.", nearest(column, columns))
    relation = Relation(
        name=name,
        table=table.table,
        query=table.query,
        key=key,
        columns=columns,
        where=table.where,
        as_text=table.as_text,
        types=tuple((column, str(declared)) for column, declared in table.types.items()),
        fingerprint=table.fingerprint,
        rows_by_key=table.rows_by_key,
        files=_files(table),
        marker=marker_of(table),
    )
    allow = table.allow
    return ServedRelation(
        relation,
        None if allow is None else frozenset(allow),
        _derive(table),
        _scan(table),
        table.activity,
    )


def _files(table: RelationTable) -> Files | None:
    names = table.files
    if names is None:
        for setting in ("format", "complete", "settle_s"):
            if table.has(setting):
                raise table.error(setting, "It is for `files` only.", "Remove it.")
        return None
    if table.has("complete") == table.has("settle_s"):
        fault = "both are given" if table.has("complete") else "none is given"
        raise table.error(
            "complete",
            f"A file is complete by its marker (`complete`) or after a time (`settle_s`); {fault}.",
            'Write complete = "{file}.done", or settle_s = 300.',
        )
    return Files(names, table.format, table.complete, table.settle_s)


def _check_kind(table: RelationTable, url: URL) -> None:
    """Raise ConfigurationError for a table of a folder, or for files of a database."""
    if table.has("files") != has_files(url):
        what = "files" if table.has("files") else "table" if table.has("table") else "query"
        has = "files" if has_files(url) else "tables and queries"
        raise table.error(what, f"{url.get_backend_name()} has {has}.", "Correct database.url.")


def _scan(table: RelationTable) -> ScanHours | None:
    if (spans := table.scan) is None:
        return None
    if two := overlapping(spans):
        raise table.error("scan", f"{two[0]} and {two[1]} overlap.", "Write one span for both.")
    if sum(span.end - span.start for span in spans) == DAY:
        raise table.error("scan", "The hours are the whole day.", "Remove the setting.")
    return ScanHours(spans)


def _derive(table: RelationTable) -> frozenset[DerivablePart]:
    if DerivablePart.COLUMNS in table.derive and table.fingerprint is Fingerprint.DATABASE:
        raise table.error(
            "derive",
            'The database makes fingerprints over all columns (fingerprint = "database").',
            'Write derive = ["rows"], or remove `fingerprint`.',
        )
    if DerivablePart.JOINS in table.derive and DerivablePart.ROWS not in table.derive:
        raise table.error(
            "derive",
            "Joins choose rows, and the rows may not be chosen.",
            'Write derive = ["rows", "joins"].',
        )
    return frozenset(table.derive)
