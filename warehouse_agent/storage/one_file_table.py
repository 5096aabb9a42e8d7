"""Small Delta tables whose every commit replaces all rows by those of one Parquet file.

The file is written first, under the number of the version that it is for; the commit names it, and
fails if somebody else has committed that version. So commands need no lock: one that was overtaken
reads the newer rows and commits again. A checkpoint is made as for other logs. A file of a commit
that was overtaken, or whose writer died, has the number of a version that names another one: `gc`
knows it by that.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns import parquet
from warehouse_agent.storage.log_entry import ENTRY_ALONE, META, checkpoint
from warehouse_agent.storage.log_trial import LOG
from warehouse_agent.storage.opened_table import OpenedTable, opened, with_keys_of_now
from warehouse_agent.storage.store import Store, StoredFile, not_logged, one_line

_ROWS: Final = ".parquet"


@dataclass(frozen=True, slots=True)
class OneFileTable:
    """A table of this kind.

    Attributes:
        place: its folder, below the warehouse's.
        name: in its own metadata.
        schema: its columns.
        not_committed: what is said of a commit that failed, without a dot.
        remedy: of a commit that failed for another reason than the store's.
    """

    place: tuple[str, ...]
    name: str
    schema: pa.Schema
    not_committed: str
    remedy: str

    @property
    def folder(self) -> str:
        """Return its folder, relative to the warehouse, with `/`."""
        return "/".join(self.place)

    def exists(self, store: Store) -> bool:
        """Return True if it has a log."""
        return bool(store.files(*self.place, LOG))

    def opened(self, store: Store, number: int | None = None) -> OpenedTable | None:
        """Return the handle of a version, None for the newest; None if there is no table.

        Raises:
            WarehouseUnavailable: the object store refuses, or does not answer.
            DeltaError, OSError: any other that delta-rs raises.
        """
        try:
            return opened(store, self.folder, number)
        except TableNotFoundError:
            return None

    def read(self, store: Store, file: str) -> pa.Table | None:
        """Return the rows of a file, with the metadata that its writer noted; None: it is gone.

        They are read in this thread alone. `read_table` lets threads of Arrow read, of which one
        may be the last to drop the data; if that is while the process ends, it aborts.

        Raises:
            WarehouseUnavailable: it cannot be read.
            pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError: it is damaged.
        """
        if (data := store.read(*self.place, file)) is None:
            return None
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)

    def commit(
        self,
        store: Store,
        base: OpenedTable | None,
        rows: pa.Table,
        noted: Mapping[str, str | int],
        written: Callable[[], None] = lambda: None,
    ) -> bool:
        """Commit rows as the version after `base`; return False if somebody else was faster.

        Args:
            rows: in the columns of `schema`.
            noted: as JSON in the metadata of the file and of the commit.
            written: called between the file and its commit.

        Raises:
            WarehouseUnavailable: it cannot be written.
        """
        number = 0 if base is None else base.version() + 1
        sink, about = pa.BufferOutputStream(), json.dumps(noted)
        rows = rows.replace_schema_metadata({META: about.encode()})
        with parquet.writer(sink, rows.schema) as file:
            file.write_table(rows)
        data, name = sink.getvalue().to_pybytes(), f"{number:010d}-{uuid.uuid4().hex[:12]}{_ROWS}"
        store.write(data, *self.place, name)
        written()
        now, statistics = int(time.time() * 1000), json.dumps({"numRecords": rows.num_rows})
        add = AddAction(name, len(data), {}, now, True, statistics)
        properties = CommitProperties(custom_metadata={META: about}, max_commit_retries=0)
        try:
            self._write(store, base, add, properties)
        except CommitFailedError:
            return self._is_ours(store, number, name)
        except (DeltaError, OSError) as error:
            with contextlib.suppress(WarehouseUnavailable):
                if self.is_logged(store, number):
                    return self._is_ours(store, number, name)
            raise not_logged(
                store,
                error,
                self.not_committed,
                store.table(self.folder),
                len(data),
                where=self.folder,
                remedy=self.remedy,
            ) from error
        return True

    def _write(
        self, store: Store, base: OpenedTable | None, add: AddAction, properties: CommitProperties
    ) -> None:
        schema = Schema.from_arrow(self.schema)
        if base is None:
            create_table_with_add_actions(
                store.table(self.folder),
                schema,
                [add],
                mode="error",
                name=self.name,
                storage_options=store.delta_options,
                commit_properties=properties,
                post_commithook_properties=ENTRY_ALONE,
            )
            return
        now = int(time.time() * 1000)
        gone = [RemoveAction(file, True, now, 0, {}) for file in files_of(base)]
        with_keys_of_now(store, self.folder, base).create_write_transaction(
            [add, *gone],
            "append",
            schema,
            commit_properties=properties,
            post_commithook_properties=ENTRY_ALONE,
        )
        checkpoint(store, self.folder, base.version())

    def _is_ours(self, store: Store, number: int, name: str) -> bool:
        """Return True if a version is the one of this file; else remove the file.

        A commit may be answered with an error although it was made: a store that repeats a write
        after a lost answer finds its own, and takes it for somebody else's.

        Raises:
            WarehouseUnavailable: the version cannot be read.
        """
        try:
            table = self.opened(store, number)
        except (DeltaError, OSError) as error:
            if self.is_logged(store, number):  # perhaps by us: the file stays
                raise WarehouseUnavailable(
                    f"{self.not_committed}: {one_line(error)}.",
                    where=self.folder,
                    remedy=self.remedy,
                ) from error
            table = None
        if table is not None and files_of(table) == [name]:
            return True
        store.remove_file(*self.place, name)
        return False

    def is_logged(self, store: Store, number: int) -> bool:
        """Return True if the log has a checkpoint and what follows, up to a version.

        Raises:
            WarehouseUnavailable: the log cannot be listed.
        """
        names = {name for name, _ in store.files(*self.place, LOG)}
        begins = [int(n[:20]) for n in names if ".checkpoint." in n and n[:20].isdecimal()]
        first = max((at for at in begins if at <= number), default=-1) + 1
        return all(f"{version:020d}.json" in names for version in range(first, number + 1))

    def garbage(self, store: Store, kept: Collection[str], newest: int) -> list[StoredFile]:
        """Return the files of versions up to `newest` but for those `kept`, by name.

        The file of a commit that is being made has a higher number, and stays.
        """
        files = store.walk(*self.place)
        data = [f for f in files if len(f.place) == len(self.place) + 1]
        rows = [f for f in data if f.place[-1].endswith(_ROWS) and f.place[-1] not in kept]
        return [f for f in rows if number_of(f) <= newest]


def files_of(table: DeltaTable) -> list[str]:
    """Return the names of the files of a version; not one: another program wrote it."""
    return [uri.rsplit("/", 1)[-1] for uri in table.file_uris()]


def number_of(file: StoredFile) -> int:
    """Return the number of the version that a file was written for; -1: it is not one of ours."""
    number = file.place[-1].partition("-")[0]
    return int(number) if number.isdecimal() else -1
