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

from driftline.derivations import Derivation, Part
from driftline.errors import OPEN, ConfigurationError, DerivationRefused, MalformedMessage
from driftline.hours import DAY, Hours, overlapping
from driftline.limits import DATABASE_SILENCE_S_MAX, NAME_BYTES_MAX
from driftline.settings import (
    TomlTable,
    is_loopback,
    nearest,
    read,
    resolve,
    split_address,
)
from driftline.types import parse_type
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from source_agent.engines.interface import Limits
from source_agent.engines.registry import has_files, is_file
from source_agent.engines.shapes import Files, Fingerprint, Relation, Shape
from source_agent.hours import ScanHours
from source_agent.marker_settings import marker_of

_LOGIN = "DATABASE"  # environment variable DRIFTLINE_PASSWORD_DATABASE

_TOP = ("database", "server", "limits", "relations")
_DATABASE = (
    "url", "password_file", "statement_timeout_s", "lock_timeout_s", "idle_timeout_s",
    "connect_timeout_s", "silence_timeout_s", "pooler",
)  # fmt: skip
_SERVER = ("listen", "certificate", "key", "client_ca", "insecure", "audit_file")
_LIMITS = (
    "scans_at_once", "readers", "rows_per_second", "bytes_per_second", "pause_file", "quiet_hours",
    "snapshot_seconds", "activity_seconds", "feedback",
)  # fmt: skip
_RELATION = (
    "table", "query", "key", "columns", "where", "as_text", "types", "fingerprint", "allow",
    "derive", "scan", "rows_by_key", "activity", "files", "format", "complete", "settle_s",
    "marker", "markers",
)  # fmt: skip
BY_KEY_LEAST = 1000  # rows: the least that a warehouse can be told to read (`read_at_most`)
ACTIVITY_S = 60.0  # between two questions of a client about activity
_NEVER = "never"


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
    """

    scans_at_once: int = 2
    readers: int = 1
    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    pause_file: Path | None = None
    quiet_hours: tuple[Hours, ...] = ()
    snapshot_s: float | None = None
    activity_s: float | None = ACTIVITY_S
    feedback: bool = True


@dataclass(frozen=True, slots=True)
class ServedRelation:
    """A relation, and the clients that may read it: names of their certificates; None: all.

    `derive`: what a warehouse may choose of it. `scan`: when scans may begin; None: always.
    `activity`: its counters may be read.
    """

    relation: Relation
    allow: frozenset[str] | None = None
    derive: frozenset[Part] = frozenset()
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
            remedy="Remove the setting, or choose a key with a unique index (docs/dba-guide.md,"
            " In tiles).",
            abroad=OPEN,
        )


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """The whole file. `relations`: by published name, in the order of the file."""

    path: Path
    database: Database
    server: Endpoint
    budget: Budget
    relations: Mapping[str, ServedRelation]


def load(path: Path | str) -> SourceConfig:
    """Read source.toml. Raises ConfigurationError with the file, the key and what to do."""
    top = read(Path(path), _TOP)
    published = top.tables("relations", _RELATION)
    relations = {name: _served_relation(name, table) for name, table in published.items()}
    database = _database(top.table("database", _DATABASE))
    for table in published.values():
        _check_kind(table, make_url(database.url))
    return SourceConfig(
        path=top.file,
        database=database,
        server=_endpoint(top.table("server", _SERVER)),
        budget=_budget(top.table("limits", _LIMITS, required=False)),
        relations=MappingProxyType(relations),
    )


def _database(table: TomlTable) -> Database:
    url = table.url("url", _LOGIN)
    try:
        parsed = make_url(url)
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
        statement_s=table.optional_number("statement_timeout_s"),
        lock_s=table.number("lock_timeout_s", default=Limits().lock_s),
        idle_s=table.number("idle_timeout_s", default=Limits().idle_s),
        connect_s=table.number("connect_timeout_s", default=Limits().connect_s),
        silence_s=_silence(table),
    )
    pooler = table.flag("pooler")
    if pooler and parsed.get_backend_name() != "postgresql":
        raise table.error("pooler", "It is for PostgreSQL only.", "Name the server itself.")
    url = parsed.render_as_string(hide_password=False)
    password_now = partial(table.password, "password_file", _LOGIN)
    file_of = table.optional_path("password_file")
    return Database(url, password_now(), limits, file_of, password_now, pooler)


def _silence(table: TomlTable) -> float:
    seconds = table.number("silence_timeout_s", default=Limits().silence_s)
    if seconds > DATABASE_SILENCE_S_MAX:
        raise table.error(
            "silence_timeout_s",
            f"A warehouse gives up after {DATABASE_SILENCE_S_MAX:g} s.",
            f"Write at most {DATABASE_SILENCE_S_MAX:g}.",
        )
    return seconds


def _endpoint(table: TomlTable) -> Endpoint:
    host, port = split_address(table, "listen")
    audit = table.optional_path("audit_file")
    if not table.flag("insecure"):
        files = Certificates(table.path("certificate"), table.path("key"), table.path("client_ca"))
        return Endpoint(host, port, files, audit)
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
    return Endpoint(host, port, None, audit)


def _budget(table: TomlTable) -> Budget:
    return Budget(
        scans_at_once=table.integer("scans_at_once", default=2, least=1),
        readers=table.integer("readers", default=1, least=1),
        rows_per_second=table.optional_number("rows_per_second"),
        bytes_per_second=table.optional_number("bytes_per_second"),
        pause_file=table.optional_path("pause_file"),
        quiet_hours=_hours(table, "quiet_hours"),
        snapshot_s=table.optional_number("snapshot_seconds"),
        activity_s=table.number_or("activity_seconds", _NEVER, default=ACTIVITY_S),
        feedback=table.flag("feedback") or not table.has("feedback"),
    )


def _hours(table: TomlTable, key: str) -> tuple[Hours, ...]:
    found = []
    for text in table.texts(key) or ():
        hours = Hours.parse(text)
        if hours is None:
            raise table.error(
                key,
                f"{text!r} is not a time span.",
                'Write "08:00-18:00", or "22:00-06:00" over midnight; local time.',
            )
        found.append(hours)
    return tuple(found)


def _served_relation(name: str, table: TomlTable) -> ServedRelation:
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise table.error("", f"A name is 1 to {NAME_BYTES_MAX} bytes of printable text.")
    given = [setting for setting in ("table", "query", "files") if table.has(setting)]
    if len(given) != 1:
        found = " and ".join(given) + " are given" if given else "none is given"
        raise table.error("", f"A relation is a `table`, a `query` or `files`; {found}.")
    if table.has("query") and table.has("where"):
        raise table.error("where", "It is for `table` only.", "Put the condition into the query.")
    columns = table.texts("columns")
    key = table.texts("key")
    for setting, names in (("key", key), ("columns", columns)):
        if names == ():
            raise table.error(setting, "It is an empty list.", "Remove it or name columns.")
    for column in key or ():
        if columns is not None and column not in columns:
            raise table.error("key", f"{column!r} is not in `columns`.", nearest(column, columns))
    relation = Relation(
        name=name,
        table=table.optional_text("table"),
        query=table.optional_text("query"),
        key=key,
        columns=columns,
        where=table.optional_text("where"),
        as_text=table.texts("as_text") or (),
        types=_types(table),
        fingerprint=_fingerprint(table),
        rows_by_key=table.integer("rows_by_key", default=0, least=BY_KEY_LEAST) or None,
        files=_files(table),
        marker=marker_of(table),
    )
    allow = table.texts("allow")
    return ServedRelation(
        relation,
        None if allow is None else frozenset(allow),
        _derive(table, relation.fingerprint),
        _scan(table),
        table.flag("activity") or not table.has("activity"),
    )


def _files(table: TomlTable) -> Files | None:
    if not table.has("files"):
        for setting in ("format", "complete", "settle_s"):
            if table.has(setting):
                raise table.error(setting, "It is for `files` only.", "Remove it.")
        return None
    if table.has("complete") == table.has("settle_s"):
        found = "both are given" if table.has("complete") else "none is given"
        raise table.error(
            "complete",
            f"A file is complete by its marker (`complete`) or after a time (`settle_s`); {found}.",
            'Write complete = "{file}.done", or settle_s = 300.',
        )
    return Files(
        table.text("files"),
        table.path("format"),
        table.optional_text("complete"),
        table.optional_number("settle_s"),
    )


def _check_kind(table: TomlTable, url: URL) -> None:
    """Raise ConfigurationError for a table of a folder, or for files of a database."""
    if table.has("files") != has_files(url):
        what = "files" if table.has("files") else "table" if table.has("table") else "query"
        has = "files" if has_files(url) else "tables and queries"
        raise table.error(what, f"{url.get_backend_name()} has {has}.", "Correct database.url.")


def _scan(table: TomlTable) -> ScanHours | None:
    remedy = 'Write "never", or hours such as ["22:00-05:00"]; local time.'
    if isinstance(table.values.get("scan"), str):
        if (word := table.text("scan")) != _NEVER:
            raise table.error(
                "scan", f'{word!r} is neither "{_NEVER}" nor a list of hours.', remedy
            )
        return ScanHours(())
    if not table.has("scan"):
        return None
    spans = _hours(table, "scan")
    if not spans:
        raise table.error("scan", "It is an empty list.", remedy)
    if two := overlapping(spans):
        raise table.error("scan", f"{two[0]} and {two[1]} overlap.", "Write one span for both.")
    if sum(span.end - span.start for span in spans) == DAY:
        raise table.error("scan", "The hours are the whole day.", "Remove the setting.")
    return ScanHours(spans)


def _derive(table: TomlTable, fingerprint: Fingerprint) -> frozenset[Part]:
    found = set()
    known = tuple(part.value for part in Part)
    for text in table.texts("derive") or ():
        if text not in known:
            raise table.error(
                "derive",
                f"{text!r} is nothing that a warehouse can choose.",
                nearest(text, known),
            )
        found.add(Part(text))
    if Part.COLUMNS in found and fingerprint is Fingerprint.DATABASE:
        raise table.error(
            "derive",
            'The database makes fingerprints over all columns (fingerprint = "database").',
            'Write derive = ["rows"], or remove `fingerprint`.',
        )
    return frozenset(found)


def _fingerprint(table: TomlTable) -> Fingerprint:
    text = table.text("fingerprint", default=Fingerprint.AGENT.value)
    try:
        return Fingerprint(text)
    except ValueError:
        raise table.error(
            "fingerprint",
            f"{text!r} cannot make fingerprints.",
            nearest(text, tuple(f.value for f in Fingerprint)),
        ) from None


def _types(table: TomlTable) -> tuple[tuple[str, str], ...]:
    declared = table.text_map("types")
    for column, text in declared.items():
        try:
            parse_type(text)
        except MalformedMessage as error:
            raise table.error(f"types.{column}", error.message, "See docs/types.md.") from None
    return tuple(declared.items())
