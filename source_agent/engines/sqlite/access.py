"""SQLite: what the process may do to the file, what a scan costs, what to grant, what errors mean.

SQLite has no logins: least privilege is the file's owner and mode, and the agent's own account.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    LimitExceeded,
    SnapshotLost,
)
from driftline.limits import ROW_BYTES_MAX

from source_agent.engines.interface import Ask, MarkedRead, Privilege
from source_agent.engines.relations.markers import ORDERED
from source_agent.engines.relations.predicates import COLUMNS
from source_agent.engines.relations.select import PRESENCE, null_key_sql, plan_of, quote, scan_sql
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sqlite import sql, types
from source_agent.engines.sqlite.sql import (
    EXPLAIN_PLAN,
    between_sql,
    greatest_sql,
    key_sql,
    later_sql,
    marked_sql,
    null_in_key_sql,
    page_sql,
    range_sql,
    view_sql,
)
from source_agent.engines.sqlite.values import MARK
from source_agent.printable import counted

_JOURNALS: Final[Mapping[str, tuple[str, str]]] = {
    "SQLITE_READONLY_ROLLBACK": (
        (
            "A writer ended in the middle of a transaction, and its journal must be rolled back "
            "before anyone reads"
        ),
        (
            "Start the application, or open the file with the sqlite3 shell as its owner and read "
            "a table: that rolls back. The agent's account may not write and cannot."
        ),
    ),
    "SQLITE_READONLY_RECOVERY": (
        (
            "A writer ended without closing the file, and its -wal must be recovered before anyone "
            "reads"
        ),
        (
            "Start the application, or open the file with the sqlite3 shell as its owner and read "
            "a table: that recovers it. The agent's account may not write and cannot."
        ),
    ),
}  # by the error's name: what needs an account that may write, and what to do
_WAL: Final = (
    (
        "The file is in WAL mode, and a reader needs -wal and -shm beside it: they are missing or "
        "not readable, as when no application has it open, and this account may not make them"
    ),
    (
        "Keep the application running while the agent reads, or let the agent's account write to "
        "the folder, or leave WAL mode (PRAGMA journal_mode = DELETE), or publish a finished copy "
        "of the file, made with VACUUM INTO."
    ),
)
_WAL_ERRORS: Final = (
    "SQLITE_READONLY_DIRECTORY",
    "SQLITE_READONLY_CANTINIT",
    "SQLITE_READONLY_CANTLOCK",
)

_ERRORS: Final[tuple[tuple[tuple[str, ...], type[DriftlineError], str], ...]] = (
    (("SQLITE_BUSY_SNAPSHOT",), SnapshotLost, ""),
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED"),
        DatabaseUnavailable,
        "A writer holds it; try again, or raise lock_timeout_s.",
    ),
    (
        ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PROTOCOL", "SQLITE_NOMEM"),
        DatabaseUnavailable,
        "The agent must be able to read the file and, in WAL mode, -wal and -shm.",
    ),
    (
        ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT"),
        DatabaseRefused,
        "Run PRAGMA integrity_check on it.",
    ),
    (
        ("SQLITE_AUTH", "SQLITE_PERM", "SQLITE_READONLY"),
        DatabaseRefused,
        "A relation may only read tables of the file itself.",
    ),
    (("",), ConfigurationError, "Correct the table or the query in the file."),
)  # by how the error's name begins


def missing(path: Path) -> DatabaseUnavailable:
    """Return the error for a file that does not exist."""
    return DatabaseUnavailable(
        f"The file {str(path)!r} does not exist.",
        remedy="Check database.url: an absolute path has four slashes, sqlite:////path/to/file.",
        abroad="The file of the database does not exist.",
    )


def translate(error: sqlite3.Error, path: Path, relation: Relation | None = None) -> DriftlineError:
    """Return the error that a user sees for one of sqlite3's."""
    name = getattr(error, "sqlite_errorname", "") or ""
    where = relation.name if relation else ""
    if name == "SQLITE_INTERRUPT":
        return DatabaseRefused(
            f"Reading {str(path)!r} took longer than the file allows.",
            where=where,
            remedy="Raise `statement_timeout_s`, or publish less of the table.",
            abroad="Reading took longer than the DBA allows (statement_timeout_s).",
        )
    if name == "SQLITE_TOOBIG":
        return LimitExceeded(
            f"A row has more than {ROW_BYTES_MAX:,} bytes.",
            where=where,
            remedy="Leave its largest column out with `columns`, or the row with `where`.",
        )
    if name in _JOURNALS or name in _WAL_ERRORS:
        why, what = _JOURNALS.get(name, _WAL)
        return DatabaseRefused(
            f"{why}: {str(path)!r} ({error}).",
            where=where,
            remedy=what,
            abroad=f"{why}.",
        )
    kind, remedy = next((k, r) for names, k, r in _ERRORS if name.startswith(names))
    return kind(
        f"SQLite says of {str(path)!r}: {error}.",
        where=where,
        remedy=remedy,
        abroad=f"SQLite refuses it ({name or type(error).__name__}).",
    )


def privileges(path: Path, *, is_wal: bool) -> list[Privilege]:
    """Return what the operating system lets this process do, for `Engine.privileges`.

    In WAL mode a reader writes -shm, and makes -wal and -shm while nobody else has the file open.
    """
    if not path.exists():
        raise missing(path)
    permissions = []
    if os.access(path, os.R_OK):
        permissions.append(Privilege(f"read {path}", excess=False))
    if os.access(path, os.W_OK):
        permissions.append(Privilege(f"write {path}", excess=True))
    if is_wal and os.access(f"{path}-shm", os.W_OK):
        permissions.append(Privilege(f"write {path}-shm", excess=False))
    if is_wal and os.access(f"{path}-wal", os.W_OK):
        what = "a reader needs to write -shm alone, and a default ACL gives it both"
        permissions.append(Privilege(f"write {path}-wal: {what}", excess=False, is_note=True))
    if os.access(path.parent, os.W_OK):
        when = ": a reader needs it in WAL mode while no application has the file open"
        what = f"create and replace files in {path.parent}{when if is_wal else ''}"
        permissions.append(Privilege(what, excess=not is_wal, is_note=is_wal))
    return permissions


def scan_cost(ask: Ask, shape: Shape, path: Path, *, is_wal: bool) -> str:
    """Return what `Engine.scan_cost` returns."""
    steps = "; ".join(str(row[3]) for row in ask(EXPLAIN_PLAN + scan_sql(shape)))
    rows = f"about {counted(shape.rows_expected, 'row')}" if shape.rows_expected else "rows unknown"
    mode = "WAL: blocks nobody" if is_wal else "no WAL: writers wait while it reads"
    return f"{rows} in a file of {path.stat().st_size / 2**20:,.1f} MiB; {steps} ({mode})"


def marked_read(steps: Sequence[str], column: str) -> MarkedRead:
    """Return how the rows behind a mark are found, by the steps of EXPLAIN QUERY PLAN."""
    bound = re.compile(rf"[( ]{re.escape(column)}[<>=]", re.IGNORECASE)
    searches = [step for step in steps if step.startswith("SEARCH")]
    if any(step.startswith("SCAN") for step in steps) or not any(map(bound.search, searches)):
        return MarkedRead.SCAN
    if all("COVERING INDEX" in step for step in searches):
        return MarkedRead.COVERING
    return MarkedRead.INDEX


def grants(path: Path, login: str) -> str:
    """Return what `Engine.grants` returns."""
    file, user = shlex.quote(str(path)), shlex.quote(login)
    folder = shlex.quote(str(path.parent))
    group = shlex.quote(f"{login}-readers")
    return "\n".join(
        (
            "# Least privilege for driftline-source. Run as root; it can be run again. The agent's",
            "# account may read the file and nothing else. ACLs let it: owner, group, mode stay,",
            "# so that no other account loses what it has.",
            f"groupadd --force {group}",
            f"id -u {user} >/dev/null 2>&1 ||",
            f"  useradd --system --no-create-home --shell /usr/sbin/nologin --gid {group} {user}",
            f"usermod --append --groups {group} {user}",
            f"setfacl --modify g:{group}:r {file}",
            f"setfacl --modify g:{group}:x {folder}",
            "# To tighten it, which takes reading from every account but its owner and group:",
            f"# chmod o= {file}",
            "# In WAL mode a reader must also be able to read -wal and to write -shm, which the",
            "# application creates; a default ACL gives them to the agent. They exist only while",
            "# the application has the file open: to read it at rest the agent must create them,",
            "# which needs rwx in place of x on the folder above. A default ACL counts for the",
            "# files of all accounts there, in place of their umask.",
            f"# setfacl --default --modify g:{group}:rw {folder}",
            "",
        )
    )


def templates(shape: Shape) -> list[str]:
    """Return the SQL texts about one relation, for `Engine.templates`."""
    plan = plan_of(shape)
    texts = [scan_sql(shape), f"EXPLAIN {scan_sql(shape)}", EXPLAIN_PLAN + scan_sql(shape)]
    if shape.relation.query is not None:
        texts += view_sql(shape.relation.query)
    else:
        name = plan.source.removeprefix("main.")
        texts.append(sql.XINFO.format(schema="main", name=name))
        texts.append(sql.INDEX_LIST.format(name=name))
        texts.append(sql.FOREIGN_KEYS.format(name=name))
        texts.append(sql.XINFO.format(schema="main", name=quote("…")))
        texts.append(sql.INDEX_XINFO.format(name=quote("…")))
        texts += [f"SELECT {r} FROM {plan.source} LIMIT 0" for r in types.ROWIDS]
        texts.append(EXPLAIN_PLAN + between_sql(shape, PRESENCE[-1]))
    if plan.pages:
        texts += _pages(shape)
        texts += _located(shape)
    if shape.recipe.integer_key:
        texts += [scan_sql(shape, ordered=True), null_key_sql(shape, MARK)]
        texts += [range_sql(shape, is_open=is_open) for is_open in (False, True)]
    if not shape.unordered:
        nullable = [i for i, column in enumerate(shape.recipe.key) if column.nullable]
        texts += [key_sql(shape), *(between_sql(shape, within) for within in PRESENCE)]
        texts += [null_in_key_sql(shape, place) for place in nullable]
    if shape.marker is not None:
        narrow = shape.narrow()
        texts += [marked_sql(shape), marked_sql(shape.keys()), scan_sql(narrow)]
        for other in shape.unmarked:
            texts += [marked_sql(other), scan_sql(other), *(_pages(other) if plan.pages else ())]
        texts += [EXPLAIN_PLAN + marked_sql(shape)] if shape.marker.kind in ORDERED else []
        if shape.marker.is_time:
            texts.append(later_sql(shape))
        texts += [*(_pages(narrow) if plan.pages else ())]
        texts += [greatest_sql(shape, name) for name in shape.marker.versions]
    return texts


def _located(shape: Shape) -> list[str]:
    """Return the SQL texts of rows with their rowids, if those of this table may be needed."""
    plan = plan_of(shape)
    if len(plan.pages) != 1 or shape.indexed:
        return []
    located = shape.located(plan.pages)
    return [scan_sql(located), *_pages(located), sql.located_sql(shape, plan.pages[0])]


def _pages(shape: Shape) -> list[str]:
    """Return the SQL texts of pages; for slots also those where a position's columns are chosen."""
    behind = sql.pages_behind(shape)
    fewer = range(len(behind)) if COLUMNS in plan_of(shape).reads else ()
    return [
        page_sql(shape, is_first=is_first, behind=some)
        for count in (*fewer, len(behind))
        for some in combinations(behind, count)
        for is_first in (True, False)
    ]
