"""Read files by the reader of dump files: the only code that this agent shares with the source's.

A file is read as the source agent would read it beside a database, with the same description of its
columns, so both find the same row bytes. It is named, not chosen: it counts as complete. It may be
read again, by another process; if it is not the same file then, that is an error.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from driftline.errors import SnapshotLost

from source_agent.engines.dump.engine import DumpEngine
from source_agent.engines.interface import Limits
from source_agent.engines.relations.shapes import Files, Relation
from warehouse_agent.differential.records import FileSnapshot


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file, the description of its columns, and the columns that identify a row.

    `identity`: inode, size and mtime in ns, when it was named.
    """

    path: Path
    format: Path
    key: tuple[str, ...]
    identity: tuple[int, int, int]

    def rows(self) -> Iterator[list[bytes]]:
        """Yield the rows in batches; raise SnapshotLost if the file is another one now."""
        with closing(_engine(self.path).open()) as session:
            shape = session.describe(self._relation)
            if _identity(self.path) != self.identity:
                raise SnapshotLost(
                    "The file was replaced or changed after it was read first.",
                    where=self.path.name,
                    remedy="Run the differential again when nothing writes it.",
                )
            yield from session.scan(shape)

    @property
    def _relation(self) -> Relation:
        files = Files(glob.escape(self.path.name), self.format, settle_s=0.0)
        return Relation(self.path.name, files=files, key=self.key)

    def snapshot(self) -> FileSnapshot:
        """Return the file as a snapshot; raise what describing and reading its first rows raises.

        Raises:
            ConfigurationError: the description, or a key column that it lacks.
            ValueDoesNotFit: the file is not as it is described.
            DatabaseRefused, DatabaseUnavailable: a link, a folder, or not to be read.
        """
        with closing(_engine(self.path).open()) as session:
            recipe = session.describe(self._relation).recipe
        return FileSnapshot(self.path.name, recipe, self.rows)


def named(path: Path, format: Path, key: tuple[str, ...]) -> FileSnapshot:
    """Return a file as a snapshot. Raises as `NamedFile.snapshot`."""
    path = path.absolute()
    return NamedFile(path, format.absolute(), key, _identity(path)).snapshot()


def _engine(path: Path) -> DumpEngine:
    return DumpEngine(str(path.parent), Limits())


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
