"""Write the rows of a load as data files while others still come.

A load compares nothing: whatever comes is a row of the next version. So a thread of this process
decodes each staged file beside the exchange, whose seconds the line or the source decides, and what
is left at its end is written as ever (`staged_rows.write_staged`). Staged files stay until the
version is published: an attempt that is cut begins with them again (decision 4). Memory is a row
group and a frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from warehouse_agent.columns.layout import Layout
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.scan import FILE_BYTES, memory_errors
from warehouse_agent.tasks.staged_rows import loaded
from warehouse_agent.tasks.write import WRITTEN, Sink, written


@dataclass
class FilesAhead:
    """Data files of staged files, written in a thread of this process; a context manager.

    When it ends, `files` hold the rows of the staged files `done`, of `row_bytes` bytes in Arrow;
    after an error the caller removes the folder.

    Attributes:
        name_folder: names the folder of the data files, which is made when there is one.
        fits: returns True if rows of so many bytes may be written in this process.
    """

    name_folder: Callable[[], DataFolder]
    layout: Layout
    key: KeyFile
    stamp: StatisticsStamp
    fits: Callable[[int], bool]
    files: list[DataFile] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    row_bytes: int = 0
    _folder: DataFolder | None = None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _pool: ThreadPoolExecutor | None = None
    _tasks: list[Future[None]] = field(default_factory=list)
    _is_ending: bool = False
    _sink: Sink | None = None
    _finished_bytes: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the staged file at hand be the last one, and close the data file.

        Raises:
            FrameDamaged, ValueDoesNotFit, WarehouseUnavailable: as `staged_rows.write_staged`; not
                if another error ends it.
        """
        self._is_ending = True
        with self._open:
            if self._pool is not None and self._folder is not None and error is None:
                with memory_errors():
                    for task in (*self._tasks, self._pool.submit(self._finish, self._folder)):
                        task.result()

    def take(self, staged: str) -> None:
        """Write the rows of a staged file, by its URI, if they come before the end."""
        if self._pool is None or self._folder is None:
            if not self.fits(0):
                return
            self._folder = self.name_folder()
            self._folder.make()
            self._open.callback(self._abandon)
            self._pool = self._open.enter_context(ThreadPoolExecutor(1))
        self._tasks.append(self._pool.submit(self._write, staged, self._folder))

    def _write(self, staged: str, folder: DataFolder) -> None:
        if self._is_ending or not self.fits(self.row_bytes):
            return
        if self._sink is None:
            schema, key = self.layout.file_schema, self.layout.integer_key
            self._sink = Sink(folder.uri(), "shipped", schema, key)
        try:
            for rows in loaded([staged], self.layout, self.key, self.stamp):
                self._sink.add(rows)
                self.row_bytes += rows.nbytes
        except BaseException:
            self._is_ending = True
            raise
        self.done.add(staged)
        if self.row_bytes - self._finished_bytes >= FILE_BYTES:
            self._finish(folder)

    def _finish(self, folder: DataFolder) -> None:
        if self._sink is not None:
            rows = pa.Table.from_batches(list(self._sink.finish()), WRITTEN)
            self._sink, self._finished_bytes = None, self.row_bytes
            self.files += written(rows, folder)

    def _abandon(self) -> None:
        if self._sink is not None:
            self._sink.abandon()
