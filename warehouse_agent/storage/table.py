"""A published table without its format: a pinned version, an entry of the log, the interface.

A table format keeps the versions of a table as lists of data files. Delta (`delta_log`) is one;
`formats` finds the format of a table. What lies in data files is the same in every format.

What every format promises (tests/warehouse_agent/storage/test_table_formats.py):

 1. A commit is one atomic step on the base that it names: it is published whole, or it raises
    Locked because somebody else committed since the base was read.
 2. No commit changes an earlier version, and each version can be read until its files are removed.
 3. The columns of a table may change in a commit that keeps no file.
 4. A newest version that Driftline did not write is refused, never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from warehouse_agent.columns.layout import Layout
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store


@dataclass(frozen=True)
class Snapshot:
    """One published version, pinned.

    Attributes:
        table: id that tells this table from earlier tables of the same name.
        meta: what the commit says of the version.
        pin: the format's own, for a commit on this version; nobody else looks inside.
        lost: files whose rows are taken as not there, because they are damaged (`repair`).
    """

    version: int
    table: str
    files: tuple[DataFile, ...]
    layout: Layout
    meta: dict[str, Any]
    pin: object = field(repr=False, compare=False)
    lost: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def rows_lost(self) -> int:
        return sum(f.rows for f in self.lost)

    @property
    def sound(self) -> tuple[DataFile, ...]:
        """Return the files that are not lost."""
        lost = set(self.lost)
        return tuple(f for f in self.files if f not in lost)

    def uris(self) -> list[str]:
        return [f.uri for f in self.files]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit in a table's log. `meta` is None if Driftline did not write it."""

    version: int
    committed: datetime
    meta: dict[str, Any] | None


class TableFormat(Protocol):
    """Interface of a table format.

    Every method takes the store, never a path, so that what the storage needs comes with it.

    Attributes:
        log: folder of the log, in the table's folder.
        temporary: names in that folder that a writer leaves behind when it dies.
    """

    @property
    def log(self) -> str: ...
    @property
    def temporary(self) -> re.Pattern[str]: ...

    def head(self, store: Store, name: str, version: int | None) -> Snapshot | None:
        """Return a version, None for the newest; None if the table has no log.

        Raises:
            NotFound: a version newer than the newest was asked for.
            WarehouseUnavailable: the log cannot be read, or somebody else wrote the version.
        """

    def entries(self, store: Store, name: str) -> list[LogEntry]:
        """Return the commits of the log, newest first; none if there is no log."""

    def added(self, store: Store, name: str, version: int) -> set[str]:
        """Return the paths of the files that a version added. Raises WarehouseUnavailable if the
        log does not have the version."""

    def commit(
        self,
        store: Store,
        name: str,
        *,
        base: Snapshot | None,
        layout: Layout,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        meta: dict[str, Any],
    ) -> int:
        """Publish the version after `base`, with files added and removed; return its number.

        Args:
            base: the version that was read; None makes a new table.
            layout: of the new version; may differ from that of `base` if no file is kept.
            meta: what is said of the version; the format adds its number and layout.

        Raises:
            Locked: somebody else committed since `base` was read.
            WarehouseUnavailable: the log cannot be written.
        """
