"""One fragment in one command: what every step of its refresh needs at hand.

A job owns the data files that its attempt writes, in folders of their own, so that an attempt that
is not published leaves nothing behind; and it keeps the notes that make the next refresh faster and
that may be lost at any time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from driftline import wire_pb2 as pb
from pyspark.sql import DataFrame, SparkSession

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment
from warehouse_agent.events import Listener, PhaseStarted, RowsRead
from warehouse_agent.report import Report, Spent
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import staging as stage
from warehouse_agent.tasks.rewrite import BEFORE_FOLDER, write_rows
from warehouse_agent.tasks.row_statistics import Stamp


@dataclass(frozen=True, slots=True)
class Options:
    """What a command allows."""

    accept_schema: bool = False
    allow_shrink: bool = False
    repair: bool = False  # files that are missing, be they most of a version's (`mend`)
    accept_restored: bool = False  # a table that is older than what was published (`restored`)
    suspects: frozenset[tuple[str, str]] = frozenset()  # fragments and paths to read again (`mend`)


@dataclass
class Job:
    """A fragment, where it is kept, and what is reported of it."""

    spark: SparkSession
    store: Store
    fragment: Fragment
    options: Options
    report: Report
    emit: Listener = lambda _event: None
    _folder: str = field(default_factory=lambda: f"data-{uuid.uuid4().hex[:12]}")
    _written: list[str] = field(default_factory=list)
    examined: set[str] = field(default_factory=set)  # paths of data files that were read again

    @property
    def name(self) -> str:
        return self.fragment.name

    @property
    def key_file(self) -> KeyFile:
        return KeyFile(self.store.uri(PRIVATE, "keys", f"{self.name}.key"))

    @property
    def staging(self) -> stage.Staging:
        return stage.Staging(self.store, self.name)

    @contextmanager
    def phase(self, name: str) -> Iterator[Spent]:
        """Emit that a phase begins; add the seconds spent inside to the report."""
        self.emit(PhaseStarted(self.name, name))
        with self.report.phase(name) as spent:
            yield spent

    def rows_read(self, progress: pb.Progress) -> None:
        """Emit what the source says of its progress."""
        self.emit(RowsRead(self.name, progress.phase, progress.rows, progress.rows_expected))

    def note(self, base: Snapshot | None, layout: Layout) -> dict[str, object]:
        """Of an exchange from this version, in these columns."""
        version = base.version if base else None
        return self.fragment.note(base_version=version, recipe_id=layout.recipe.id)

    def folder(self, part: str) -> str:
        """A new folder of the table for data files, removed again by `discard`."""
        folder = f"{self._folder}-{part}"
        self._written.append(folder)
        return folder

    def write(self, part: str, rows: DataFrame, layout: Layout) -> list[DataFile]:
        """Rows as data files in a folder of their own; arguments as of `rewrite.write_rows`."""
        return write_rows(self.store, self.name, self.folder(part), rows, layout)

    def write_staged(
        self,
        part: str,
        staged: Sequence[str],
        layout: Layout,
        stamp: Stamp,
        before: Sequence[DataFile] = (),
        updated: int | None = 0,
    ) -> list[DataFile]:
        """Write staged rows as data files in a folder of their own (`staging.write_staged`)."""
        return stage.write_staged(
            self.spark,
            self.store,
            self.name,
            self.folder(part),
            staged,
            layout,
            self.key_file,
            stamp,
            before=before,
            updated=updated,
        )

    def discard(self) -> None:
        """Remove the data files of an attempt that failed.

        A commit may fail after it was made (a checkpoint on a full disk), so the log decides what
        is needed; when it cannot be read nothing is removed, and `gc` finds it later.
        """
        newest = formats.head(self.store, self.name)
        self.tidy(newest.files if newest else ())

    def tidy(self, files: Sequence[DataFile]) -> None:
        """Remove what this attempt wrote and a published version does not need."""
        for folder in self._written:
            if any(f.path.startswith(f"{folder}/") for f in files):
                self.store.remove(self.name, folder, BEFORE_FOLDER)
            else:
                self.store.remove(self.name, folder)

    def remembered(self) -> dict[str, object]:
        """What earlier refreshes noted; empty when it was lost."""
        return self.store.read_json(PRIVATE, "fragments", f"{self.name}.json")

    def remember(self, **facts: Any) -> None:
        """Note facts that speed up the next refresh and may be lost."""
        body = json.dumps({**self.remembered(), **facts}).encode()
        self.store.write(body, PRIVATE, "fragments", f"{self.name}.json")
