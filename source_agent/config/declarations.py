"""The settings of source.toml, each declared once: its values, its meaning, its default.

The reference docs/reference/source.md and the schema for editors are made of it (`docs/generate`).
`file` and `markers` read a file by it, and check what one setting says of another.
"""

from __future__ import annotations

from typing import Final

from driftline.limits import DATABASE_SILENCE_S_MAX
from driftline.relations.derivations import DerivablePart
from driftline.settings.declarations import SettingsTable
from driftline.settings.hours import Hours
from driftline.settings.kinds import (
    ADDRESS,
    COLUMN_TYPE,
    FLAG,
    PATH,
    TEXT,
    ZONE,
    choice,
    duration,
    integer,
    list_of,
    map_of,
    number,
    or_word,
    table_of,
    url,
    written,
)

from source_agent.engines.interface import Limits
from source_agent.engines.relations.markers import Deletes
from source_agent.engines.relations.shapes import Fingerprint

LOGIN: Final = "DATABASE"  # environment variable DRIFTLINE_PASSWORD_DATABASE
BY_KEY_LEAST: Final = 1000  # rows: the least that a warehouse can be told to read (`read_at_most`)
SCANS_AT_ONCE: Final = 2
READERS: Final = 1
MEMORY_AT_MOST: Final = 64 << 20  # bytes; 8 million rows of some 8 bytes
ACTIVITY_S: Final = 60.0  # between two questions of a client about activity
_NEVER: Final = "never"
_SPAN: Final = written(
    "a time span",
    Hours.parse,
    lack="is not a time span.",
    wrong="8-18",
    pattern=r"^[0-9]{2}:[0-9]{2}\s*-\s*[0-9]{2}:[0-9]{2}$",
    remedy='Write "08:00-18:00", or "22:00-06:00" over midnight; local time.',
)
_HOURS: Final = 'hours such as `["22:00-06:00"]`'
_NAMES: Final = list_of(TEXT, "a list of names", least=1)
_TLS: Final = "without `insecure`"
_SECONDS: Final = number("seconds")


class DatabaseTable(SettingsTable):
    """The database and the limits of a session."""

    url = url(LOGIN).required(
        "`postgresql://user@host/db` (also `postgresql+psycopg`), `mariadb://user@host/db`,"
        " `mysql://…` (also `+pymysql`), `sqlite:///file` (relative) or `sqlite:////file`"
        " (absolute), `dump:///folder` or `dump:////folder` likewise; without a password."
        " Parameters after `?`: for PostgreSQL those of libpq; for MariaDB `unix_socket`,"
        " `bind_address`, `ssl_ca`, `ssl_cert`, `ssl_key` (no passphrase), `ssl_disabled`,"
        " `ssl_verify_cert`, `ssl_verify_identity`; for SQLite none. Other schemes may come from"
        " [packages with an engine](developing/engines.md#an-engine-of-ones-own), which run with"
        " everything that the agent may do"
    )
    password_file = PATH.optional(
        "a file with the password alone; readable by its owner alone (or by its group if root owns"
        " it), read at each session",
        f"the environment variable `DRIFTLINE_PASSWORD_{LOGIN}`, else the driver's own ways",
    )
    statement_timeout_s = _SECONDS.optional(
        "the longest time of a statement; no statement runs longer. This and the next two never"
        " extend a limit of the server or the role"
    )
    lock_timeout_s = _SECONDS.by_default(
        Limits().lock_s, "the longest wait for a lock; then the agent gives up"
    )
    idle_timeout_s = _SECONDS.by_default(
        Limits().idle_s,
        "the longest time in which a client may send or take nothing; then it loses its snapshot."
        " Also set in the session, so that the database ends it",
    )
    silence_timeout_s = number(
        "seconds",
        most=DATABASE_SILENCE_S_MAX,
        why=f"A warehouse gives up after {DATABASE_SILENCE_S_MAX:g} s.",
    ).by_default(
        Limits().silence_s,
        "the longest time in which a database may deliver nothing; no row, no byte, no end of a"
        " statement. Then the statement is cancelled: see"
        " [dead or busy](dba/budgets.md#dead-or-busy)",
    )
    connect_timeout_s = _SECONDS.by_default(
        Limits().connect_s, "the longest time of a connection attempt; 2 or more for PostgreSQL"
    )
    pooler = FLAG.by_default(
        False,
        "the URL leads to a [connection pooler](dba/pooler.md#behind-a-connection-pooler) of"
        " PostgreSQL; without it a pooler is recognised at the first connection",
    )


class ServerTable(SettingsTable):
    """The address to listen on, and the files of mutual TLS."""

    listen = ADDRESS.required(
        "the address to listen on; port 0 picks a free one (`serve --port-file` writes it)"
    )
    certificate = PATH.required(
        "PEM file: the certificate of this agent (`driftline-source enroll`)", _TLS
    )
    key = PATH.required("PEM file: its key; as private as a password", _TLS)
    client_ca = PATH.required("PEM file: the authorities that issue clients' certificates", _TLS)
    insecure = FLAG.by_default(False, "plain text; loopback only, without the three settings above")
    audit_file = PATH.optional("a line for each request; the [audit](dba/audit.md#audit)", "stderr")


class LimitsTable(SettingsTable):
    """The limits of all exchanges together."""

    scans_at_once = integer("relations", least=1).by_default(
        SCANS_AT_ONCE,
        "relations that are answered at the same time; others wait 10 s, then are refused. While"
        " another waits, a client keeps a place until the agent has waited for it for 120 s in all,"
        " and a second place for 30 s; then it [leaves its place](errors.md#not_now), and its"
        " refresh goes on later. Only these waits count: a scan that advances keeps its place. No"
        " client has more sessions than this, idle ones included",
    )
    readers = integer("processes", least=1).by_default(
        READERS,
        "processes that read one scan; if the database can share a snapshot: plain tables of"
        " PostgreSQL 14 or later, from 16 MiB. All scans share the additional ones: see"
        " [several readers](dba/scans.md#several-readers)",
    )
    rows_per_second = number("rows a second").optional(
        "rows read from the database; the scan waits between batches"
    )
    bytes_per_second = number("bytes a second").optional("bytes sent; replies wait")
    pause_file = PATH.optional("while this file exists, the agent reads nothing")
    quiet_hours = list_of(_SPAN, _HOURS).by_default(
        [],
        "hours in which nothing is read; local time, end exclusive. A refusal says when they end,"
        " and scheduled refreshes wait for that",
    )
    snapshot_seconds = _SECONDS.optional(
        "the longest life of a snapshot; no exchange lives longer, and what arrived is not lost"
    )
    activity_seconds = or_word(_SECONDS, _NEVER, None, "a number of seconds").by_default(
        ACTIVITY_S,
        'the shortest time between two questions of a client about activity; `"never"` switches'
        " them off: see [activity](dba/offers.md#activity)",
    )
    feedback = FLAG.by_default(
        True,
        "hold reads back while the database answers slowly; more slowly than in its own recent"
        " past, or while others need the processors of its machine"
        " ([feedback](dba/feedback.md#feedback))",
    )
    memory_at_most = integer("bytes", least=0).by_default(
        MEMORY_AT_MOST,
        "the memory in which all scans together keep where their rows lie, some 8 bytes a row, or"
        " their keys; changed rows with a key that is no integer are then read by these, not by a"
        " second scan ([what a scan costs](dba/scans.md#what-a-scan-costs)). `0`: always by one",
    )


class SourceMetricsTable(SettingsTable):
    """Numbers for Prometheus, with the extra `metrics`."""

    listen = ADDRESS.required(
        "where `serve` serves them at `/metrics`, such as `127.0.0.1:9465`; plain HTTP without a"
        " login, so name another address only on a network that you trust. Port 0 picks a free one"
    )


class JoinedMarkerTable(SettingsTable):
    """The marker of a table that a query joins."""

    column = TEXT.required(
        "a column of times, dates or integers, published or not, that every writer sets;"
        " application or trigger. Text is refused",
        "without one of the others that take its place",
    )
    late = duration().optional(
        'longer than any transaction, such as `"15m"`; a transaction takes the time and shows its'
        " rows when it commits: meanwhile the agent, which sees no other session, would pass them"
        " by. Rows of the last `late` are read again each time",
        "required for times",
    )
    zone = ZONE.optional(
        'the time zone of the writers, such as `"UTC"`; where clocks are set back in autumn, an'
        " hour or more is read again",
        "required for times without a time zone",
    )


class MarkerTable(JoinedMarkerTable):
    """The marker of a relation: what it keeps about its own changes."""

    column = JoinedMarkerTable.column  # first in the reference
    late, zone = JoinedMarkerTable.late, JoinedMarkerTable.zone
    xmin = FLAG.by_default(
        False,
        "instead of `column`, on PostgreSQL; the number of the transaction that wrote each row. It"
        " needs no promise, no column and no index",
    )
    versioned = FLAG.by_default(
        False,
        "instead of `column`, on MariaDB; the time at which the current version of each row began,"
        " of a table `WITH SYSTEM VERSIONING`. `late` is required",
    )
    checksum = TEXT.optional(
        "instead of `column`, a column with a checksum of each row that the source maintains; of"
        " any type. It must be published, and not be in the key"
    )
    deleted = TEXT.optional(
        "a flag, a truth value or an integer; flagged rows are rows that are gone, however they are"
        " read. NULL deletes nothing"
    )
    deletes = choice(Deletes).optional(
        '`"never"`: no row is ever deleted. It, or `deleted`, allows a warehouse to read the rows'
        " behind its mark alone ([claims](dba/markers.md#claims))"
    )


_PARTS: Final = ", ".join(f'`"{part.value}"`' for part in DerivablePart)
_ONE_OF_THREE: Final = "one of `table`, `query` and `files` is required"
_ONE_OF_TWO: Final = "one of `complete` and `settle_s` is required with `files`"


class RelationTable(SettingsTable):
    """A relation that is served: a `table`, a `query` or `files`."""

    table = TEXT.optional(
        "a table, `schema.table`; quote a part that contains a dot as the database does",
        _ONE_OF_THREE,
    )
    query = TEXT.optional(
        "a SELECT; the agent runs it as it is written. It needs `key`", _ONE_OF_THREE
    )
    files = TEXT.optional(
        "names of [dump files](dba/dump-files.md#dump-files), in place of `table`; `*`, `?` and"
        " `[…]` as in a shell, no folders. With a time, such as `accounts-{%Y%m%d}.csv`"
        " (`%Y %m %d %H %M %S %j`, UTC), the newest file is the one with the latest, else with the"
        " latest mtime. Endings `.gz` and `.zst` are unpacked",
        _ONE_OF_THREE,
    )
    format = PATH.required("the file that describes the columns of `files`", "with `files`")
    complete = TEXT.optional(
        'the name of the marker of a complete file, such as `"{file}.done"`; whoever delivers'
        " writes it last. Of a delivery in parts one for all; of a dump of a whole database one for"
        ' all tables, with the time that is in `files` (`"dump-{%Y%m%d}.done"`), or any name if the'
        " file is called the same each time. It must not be older than the file",
        _ONE_OF_TWO,
    )
    settle_s = _SECONDS.optional(
        "the time without a change after which a file is complete, in place of `complete`; its"
        " content, name, owner and mode have not changed for this time (mtime and ctime). A"
        " delivery that pauses for longer is taken for complete; a marker is safer",
        _ONE_OF_TWO,
    )
    key = _NAMES.optional(
        "columns that identify a row; required for a query and for files", "the primary key"
    )
    columns = _NAMES.optional("columns to serve", "all")
    where = TEXT.optional("an SQL condition, with `table`; the agent runs it as it is written")
    as_text = list_of(TEXT, "a list of names").by_default(
        [], "columns to read as text ([types.md](types.md))"
    )
    types = map_of(COLUMN_TYPE, called="COLUMN").by_default(
        {}, "declared types of columns; SQLite only"
    )
    fingerprint = choice(Fingerprint).by_default(
        Fingerprint.AGENT.value,
        'who makes fingerprints; the agent (128 bits), or, with `"database"`, PostgreSQL (64 bits,'
        " less reading): see"
        " [hashes made by the database](dba/scans.md#hashes-made-by-the-database)",
    )
    allow = list_of(TEXT, "a list of names").optional(
        "URIs and DNS names of the client certificates that may have it, letter for letter",
        "every certificate",
    )
    derive = list_of(choice(DerivablePart), f"a list of {_PARTS}").by_default(
        [],
        "what a warehouse may choose of it"
        " ([choosing columns and rows](dba/offers.md#let-a-warehouse-choose-columns-and-rows))",
    )
    scan = or_word(
        list_of(_SPAN, _HOURS, least=1),
        _NEVER,
        (),
        "a list of hours",
        remedy='Write "never", or hours such as ["22:00-05:00"]; local time.',
    ).optional(
        "when a scan of the relation may begin; local time, end exclusive; spans may touch, but not"
        ' overlap; `"never"`: no scan may begin, so allow hours for the first load once'
        " ([hours for scans](dba/budgets.md#hours-for-scans))",
        "at any time",
    )
    rows_by_key = integer("rows", least=BY_KEY_LEAST).optional(
        "rows that an exchange may read by key; all that a part or a tile compares", "no limit"
    )
    activity = FLAG.by_default(
        True,
        "tell clients of its [activity](dba/offers.md#activity); `false`: nothing is said of it",
    )
    marker = table_of(MarkerTable).optional(
        "what the relation keeps about its own changes; such as"
        ' `{ column = "updated_at", late = "15m" }` ([markers](dba/markers.md#markers))'
    )
    markers = map_of(table_of(JoinedMarkerTable), called="TABLE").optional(
        "the same of each table that a query joins; `column`, `late` and `zone` alone, such as"
        ' `{ o = { column = "o_changed", late = "15m" }, … }`'
    )


class SourceFile(SettingsTable):
    """A source.toml: what is published, to whom, and at what cost to the database."""

    database = table_of(DatabaseTable).required("the database and the limits of a session")
    server = table_of(ServerTable).required("the address to listen on")
    limits = table_of(LimitsTable).by_default({}, "the limits of all exchanges together")
    metrics = table_of(SourceMetricsTable).optional(
        "where numbers for Prometheus are served; see [monitoring](operating/monitoring.md)",
        unset="nowhere",
    )
    relations = map_of(table_of(RelationTable)).by_default({}, "what is served, by name")
