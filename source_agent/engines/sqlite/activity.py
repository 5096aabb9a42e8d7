"""SQLite: the change counter of a file, as a flag of all its tables.

The counter (bytes 24 to 27 of the header, https://sqlite.org/fileformat2.html#file_change_counter)
is written by every transaction in the rollback-journal modes. In WAL mode it is not, so nothing is
said. The time of the file belongs to the flag, for a file that was written by other programs, and
its inode to the identity, for one that was replaced.

Invariant: the file is read while a session holds its lock, so no writer is at work, and the
descriptor is never closed. POSIX releases *all* locks of a process on a file when the process
closes *any* descriptor of it: a session that reads would go on without its lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from driftline.relations.activity import Activity, FlaggedActivity, UnknownActivity

from source_agent.engines.interface import Ask
from source_agent.engines.probes import NO_TABLE, VIEW, never_probed, opaque
from source_agent.engines.relations.select import split_name
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.sqlite.sql import TABLES, named

_COUNTER_AT, _COUNTER_BYTES = 24, 4
_VERSION_AT, _VERSION_WAL = 19, b"\x02"  # which readers need
WAL: Final = UnknownActivity("the file is in WAL mode, which counts no changes")
_VIRTUAL: Final = UnknownActivity("it is a virtual table, which may read anything")


class DatabaseHeader:
    """The header of a database file, through descriptors that stay open. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._files: dict[tuple[int, int], int] = {}  # of each file that had this path

    def read(self) -> FlaggedActivity:
        """Return the flag of the whole file. Hold a lock of SQLite. Raises OSError."""
        with self._lock:
            file = self._file()
            counter, now = os.pread(file, _COUNTER_BYTES, _COUNTER_AT), os.fstat(file)
            return FlaggedActivity(opaque(_inode(now)), opaque([counter.hex(), now.st_mtime_ns]))

    def is_wal(self) -> bool:
        """Return True if the file is in WAL mode, for a reader that may not open it with SQLite.
        Raises OSError."""
        with self._lock:
            return os.pread(self._file(), 1, _VERSION_AT) == _VERSION_WAL

    def _file(self) -> int:
        """Return the descriptor of the file that has the path now."""
        if (file := self._files.get(_inode(self._path.stat()))) is None:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._files[_inode(os.fstat(file))] = file
        return file


def _inode(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def activities(
    ask: Ask, relations: Sequence[Relation], flag: Activity, encoding: str
) -> dict[str, Activity]:
    """Return the activity of relations by their names; `flag` is that of the whole file, whose text
    has this `encoding`.

    Raises:
        sqlite3.Error: the schema cannot be read.
    """
    by_name: dict[str, Activity] = {r.name: never_probed(r) or NO_TABLE for r in relations}
    tables = (named(row, encoding) for row in ask(TABLES))
    kinds = {name.lower(): (kind, sql) for name, kind, sql, _ in tables}
    for relation in relations:
        name = split_name(relation.table or "")[-1].lower()
        if never_probed(relation) is None and name in kinds:
            kind, sql = kinds[name]
            is_virtual = sql.upper().lstrip().startswith("CREATE VIRTUAL")
            by_name[relation.name] = VIEW if kind == "view" else _VIRTUAL if is_virtual else flag
    return by_name
