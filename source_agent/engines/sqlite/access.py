"""SQLite: what the process may do to the file, what a scan costs, what to grant, what errors mean.

SQLite has no logins. Least privilege is the file's owner and mode, and the account that the agent
runs under.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from pathlib import Path
from typing import Any, Final, Protocol

from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    LimitExceeded,
    SnapshotLost,
)
from driftline.limits import ROW_BYTES_MAX

from source_agent.engines.interface import Privilege, Relation, Shape
from source_agent.engines.relations import null_key_sql, plan_of, quote, scan_sql
from source_agent.engines.sqlite import types
from source_agent.engines.sqlite.types import MARK, page_sql, range_sql, view_sql
from source_agent.printable import counted

_UNAVAILABLE: Final = ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PROTOCOL", "SQLITE_NOMEM")
_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")
_FORBIDDEN: Final = ("SQLITE_AUTH", "SQLITE_PERM", "SQLITE_READONLY")


class SqliteReader(Protocol):
    @property
    def is_wal(self) -> bool: ...

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]: ...


def missing(path: Path) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"The file {str(path)!r} does not exist.",
        remedy="Check database.url: an absolute path has four slashes, sqlite:////path/to/file.",
    )


def translate(error: sqlite3.Error, path: Path, relation: Relation | None = None) -> DriftlineError:
    """The error that a user sees for one of sqlite3's."""
    name = getattr(error, "sqlite_errorname", "") or ""
    where = relation.name if relation else ""
    message = f"SQLite says of {str(path)!r}: {error}."
    if name == "SQLITE_BUSY_SNAPSHOT":
        return SnapshotLost(message, where=where)
    if name.startswith(_LOCKED):
        return DatabaseUnavailable(
            message, where=where, remedy="A writer holds it; try again, or raise lock_timeout_s."
        )
    if name == "SQLITE_INTERRUPT":
        return DatabaseRefused(
            f"Reading {str(path)!r} took longer than the file allows.",
            where=where,
            remedy="Raise `statement_timeout_s`, or publish less of the table.",
        )
    if name == "SQLITE_TOOBIG":
        return LimitExceeded(
            f"A row has more than {ROW_BYTES_MAX:,} bytes.",
            where=where,
            remedy="Leave its largest column out with `columns`, or the row with `where`.",
        )
    if name.startswith(_UNAVAILABLE):
        return DatabaseUnavailable(
            message,
            where=where,
            remedy="The agent must be able to read the file and, in WAL mode, -wal and -shm.",
        )
    if name.startswith(_DAMAGED):
        return DatabaseRefused(message, where=where, remedy="Run PRAGMA integrity_check on it.")
    if name.startswith(_FORBIDDEN):
        return DatabaseRefused(
            message, where=where, remedy="A relation may only read tables of the file itself."
        )
    return ConfigurationError(
        message, where=where, remedy="Correct the table or the query in the file."
    )


def privileges(path: Path) -> list[Privilege]:
    """See `Engine.privileges`. What the operating system would let this process do."""
    if not path.exists():
        raise missing(path)
    found = []
    if os.access(path, os.R_OK):
        found.append(Privilege(f"read {path}", excess=False))
    if os.access(path, os.W_OK):
        found.append(Privilege(f"write {path}", excess=True))
    if os.access(path.parent, os.W_OK):
        # In WAL mode a reader needs it unless -wal and -shm exist already.
        found.append(Privilege(f"create and replace files in {path.parent}", excess=True))
    return found


def plan_sql(shape: Shape) -> str:
    return f"EXPLAIN QUERY PLAN {scan_sql(shape)}"


def scan_cost(session: SqliteReader, shape: Shape, path: Path) -> str:
    """See `Engine.scan_cost`."""
    steps = "; ".join(str(row[3]) for row in session.ask(plan_sql(shape)))
    rows = f"about {counted(shape.rows_expected, 'row')}" if shape.rows_expected else "rows unknown"
    mode = "WAL: blocks nobody" if session.is_wal else "no WAL: writers wait while it reads"
    return f"{rows} in a file of {path.stat().st_size / 2**20:,.1f} MiB; {steps} ({mode})"


def grants(path: Path, login: str) -> str:
    """See `Engine.grants`."""
    file, user = shlex.quote(str(path)), shlex.quote(login)
    folder = shlex.quote(str(path.parent))
    group = shlex.quote(f"{login}-readers")
    return "\n".join(
        (
            "# Least privilege for driftline-source. Run as root. The agent's account may read the",
            "# file and nothing else; the application keeps its own account as the owner.",
            f"groupadd --force {group}",
            f"useradd --system --no-create-home --shell /usr/sbin/nologin --gid {group} {user}",
            f"chgrp {group} {file}",
            f"chmod u=rw,g=r,o= {file}",
            f"setfacl --modify g:{group}:x {folder}",
            "# In WAL mode a reader must also be able to read -wal and to write -shm, which the",
            "# application creates; a default ACL gives them to the agent:",
            f"# setfacl --default --modify g:{group}:rw {folder}",
            "",
        )
    )


def templates(shape: Shape) -> list[str]:
    """The SQL texts about one relation; see `Engine.templates`."""
    plan = plan_of(shape)
    texts = [scan_sql(shape), f"EXPLAIN {scan_sql(shape)}", plan_sql(shape)]
    if shape.relation.query is not None:
        texts += view_sql(shape.relation.query)
    else:
        name = plan.source.removeprefix("main.")
        texts.append(types.XINFO.format(schema="main", name=name))
        texts.append(types.INDEX_LIST.format(name=name))
        texts.append(types.INDEX_XINFO.format(name=quote("…")))
        texts += [f"SELECT {r} FROM {plan.source} LIMIT 0" for r in types.ROWIDS]
    if plan.pages:
        texts += [page_sql(shape, is_first=first) for first in (True, False)]
    if shape.recipe.integer_key:
        texts += [scan_sql(shape, ordered=True), null_key_sql(shape, MARK)]
        texts += [range_sql(shape, is_open=is_open) for is_open in (False, True)]
    return texts
