"""One attempt at one fragment: what all steps of a refresh use.

A job owns the data files that its attempt writes, in folders of their own, so that an attempt that
is not published leaves nothing behind. It also has the fragment's notes: as they were read when the
attempt began, with what it learnt since, which is written once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from driftline import wire_pb2 as pb

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment
from warehouse_agent.events import Listener, RowsRead
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import Histories
from warehouse_agent.planning.attempts import Reached
from warehouse_agent.report import Report
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.elapsed import Moment
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import NewVersion, Snapshot
from warehouse_agent.tasks import staged_rows
from warehouse_agent.tasks.rewrites.replaced_rows import BEFORE_FOLDER
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staging import ExchangeIdentity, Staging
from warehouse_agent.tasks.steps import Phases, StepLog, Steps
from warehouse_agent.transport.waiting import SHIP


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a refresh command.

    Attributes:
        accept_schema: go on after columns or row security changed.
        allow_shrink: publish a source with less than half of the rows.
        repair: pull lost files again, also if most files of a version are missing.
        accept_restored: go on from a table that is older than what was published.
        deadline_s: start nothing that is expected to end later, in seconds from the beginning.
        suspects: fragment names and paths of data files to be read again before they are used.
        trust_marker: use a marker again that audits found wrong.
        anew: views to be computed whatever is published, because their rows are wrong.
        is_scheduled: start nothing of a source outside of its `refresh_hours`.
        is_ending: tells, at any time, whether nothing more is to be started.
        gains: by fragment name, what a second of a refresh is expected to save, in row-hours; those
            without one come first (`runs.order`).
    """

    accept_schema: bool = False
    allow_shrink: bool = False
    repair: bool = False
    accept_restored: bool = False
    deadline_s: float | None = None
    suspects: frozenset[tuple[str, str]] = frozenset()
    trust_marker: bool = False
    anew: frozenset[str] = frozenset()
    is_scheduled: bool = False
    is_ending: Callable[[], bool] = lambda: False
    gains: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Job:
    """A fragment, its warehouse and its report, in one attempt."""

    steps: Steps
    store: Store
    fragment: Fragment
    options: Options
    report: Report
    notes: Notes
    emit: Listener = lambda _event: None
    histories: Histories = field(default_factory=Histories)
    _folder: str = field(default_factory=lambda: f"data-{uuid.uuid4().hex[:12]}")
    _written: list[str] = field(default_factory=list)
    _begun: Moment = field(default_factory=Moment.now)
    _committing: int | None = None  # the version of the last commit, whatever came of it
    _noted: Notes = field(init=False)  # as they are in the store
    examined: set[str] = field(default_factory=set)  # paths of data files that were read again
    fragment_key: bytes | None = field(default=None, repr=False)  # once it is read
    reached: Reached | None = None  # of an exchange that failed; None: none did
    base: int | None = None  # the version that is compared, -1: none is published; None: not read

    def __post_init__(self) -> None:
        self.steps = replace(self.steps, log=StepLog.of(self.report))
        self._noted = self.notes

    @property
    def name(self) -> str:
        """Return the name of the fragment."""
        return self.fragment.name

    @property
    def key_file(self) -> KeyFile:
        """Return the file of the fragment key."""
        return KeyFile(self.store.uri(PRIVATE, "keys", f"{self.name}.key"), self.fragment_key)

    @property
    def staging(self) -> Staging:
        """Return the staging folder of the fragment."""
        return Staging(self.store, self.name)

    @property
    def phase(self) -> Phases:
        """Return the phases of the attempt; called with a name, one begins."""
        return Phases(self.report, self.steps.log, self.emit)

    def rows_read(self, rows_before: int, progress: pb.Progress) -> None:
        """Emit the progress that the source reports; `rows_before` of the rows that came were
        staged by earlier attempts."""
        rows, expected, held_s = progress.rows, progress.rows_expected, progress.held_back_s
        before = rows_before if progress.phase == SHIP else 0
        self.emit(RowsRead(self.name, progress.phase, rows, expected, held_s, before))

    def exchange(self, base: Snapshot | None, layout: Layout) -> ExchangeIdentity:
        """Return the exchange that compares `base` in the columns of `layout`."""
        version = None if base is None else base.version
        return ExchangeIdentity.of(self.fragment, version, layout.recipe)

    def folder(self, part: str) -> DataFolder:
        """Name a new folder of the table for data files; `discard` removes it."""
        folder = f"{self._folder}-{part}"
        self._written.append(folder)
        return DataFolder(self.store, self.name, folder)

    def write_staged(
        self,
        part: str,
        staged: Sequence[str],
        layout: Layout,
        stamp: StatisticsStamp,
        before: Sequence[DataFile] = (),
        updated: int | None = 0,
    ) -> list[DataFile]:
        """Write staged rows as data files in a folder of their own (`staged_rows.write_staged`)."""
        folder, replaced = self.folder(part), staged_rows.RowsBefore(before, updated)
        return staged_rows.write_staged(
            self.steps, folder, staged, layout, self.key_file, stamp, replaced
        )

    def commit(self, new: NewVersion) -> None:
        """Publish the files of this attempt. Raises as `formats.commit`."""
        self._committing = 0 if new.base is None else new.base.version + 1
        formats.commit(self.store, self.name, replace(new, begun=self._begun))

    def discard(self) -> None:
        """Remove the data files of an attempt that failed, except those that are published."""
        needed = formats.needed_after_failure(self.store, self.name, self._committing)
        if needed is not None:
            self.tidy(needed)

    def tidy(self, needed: Collection[str]) -> None:
        """Remove what this attempt wrote, except files of these paths."""
        for folder in self._written:
            if any(path.startswith(f"{folder}/") for path in needed):
                self.store.remove(self.name, folder, BEFORE_FOLDER)
            else:
                self.store.remove(self.name, folder)

    def write_notes(self) -> None:
        """Write the notes if they changed. Raises WarehouseUnavailable."""
        self.notes = self._noted = self.notes.write(self.store, self.name, self._noted)
