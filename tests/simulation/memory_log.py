"""Table formats of the simulated disks: a manifest per version in memory, and Delta in a folder.

`MemoryLog` keeps what `table.TableFormat` promises with one operation that an object store has: put
a file there unless there is one. It costs nothing; a smaller share of the worlds runs on Delta.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from driftline.errors import Locked, NotFound, WarehouseUnavailable

from tests.simulation import clock
from tests.simulation.disk import Disk
from warehouse_agent.columns.layout import Layout, from_json, to_json
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.delta_log import DeltaLog
from warehouse_agent.storage.store import Store, file_errors
from warehouse_agent.storage.table import (
    LogEntry,
    NewVersion,
    NewViewVersion,
    Snapshot,
    VersionHeader,
    VersionRecord,
    ViewSnapshot,
)


@dataclass
class MemoryLog:
    """Table format of tables on a simulated disk."""

    disk: Disk
    log: str = "_delta_log"  # the name that messages to users have
    temporary: ClassVar = re.compile(r"[0-9a-f]{32}\.tmp")

    def head(self, store: Store, name: str, version: int | None) -> Snapshot | None:
        numbers = self._numbers(store, name)
        if not numbers:
            return None
        if version is not None and version > numbers[-1]:
            raise NotFound(f"There is no version {version}.", where=name)
        number = numbers[-1] if version is None else version
        body = self._manifest(store, name, number)
        record = VersionRecord.from_json(body["record"])
        layout = from_json(body["record"]["layout"])
        known = layout.not_null
        files = tuple(
            DataFile(path, store.uri(name, path), size, rows, ends and (ends[0], ends[1]), known)
            for path, size, rows, ends in body["files"]
        )
        return Snapshot(number, body["table"], files, layout, record, pin=number)

    def header(self, store: Store, name: str) -> VersionHeader | None:
        return (
            None if (newest := self.head(store, name, None)) is None else VersionHeader.of(newest)
        )

    def entries(
        self,
        store: Store,
        name: str,
        newest: Snapshot | ViewSnapshot | None,
        after: int | None = None,
    ) -> list[LogEntry]:
        found = []
        for number in reversed(self._numbers(store, name)):
            body = self._manifest(store, name, number)
            committed = datetime.fromisoformat(body["committed"])
            if after is None or number > after:
                found.append(LogEntry(number, committed, VersionRecord.from_json(body["record"])))
        return found

    def oldest(self, store: Store, name: str) -> tuple[int, VersionRecord] | None:
        entries = self.entries(store, name, None)
        record = entries[-1].record if entries else None
        return None if record is None else (entries[-1].version, record)

    def added(self, store: Store, name: str, version: int) -> set[str]:
        return set(self._manifest(store, name, version)["added"])

    def shorten(self, store: Store, name: str, oldest: int) -> None:
        """Keep all: nothing in the simulation is so old."""

    def view_head(self, store: Store, name: str, version: int | None) -> ViewSnapshot | None:
        return None

    def is_view(self, store: Store, name: str) -> bool:
        return False

    def mend(self, store: Store, name: str) -> None:
        """Do nothing: each entry is read back as it was written."""

    def commit(self, store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        assert isinstance(new, NewVersion)
        base, layout = new.base, new.layout
        version = 0 if base is None else int(str(base.pin)) + 1
        gone = [f.path for f in new.removed]
        there = [f.path for f in base.files] if base else []
        for path in gone:
            there.remove(path)  # ValueError: it is not there, or removed twice
        kept = [f for f in (base.files if base else ()) if f.path in set(there)]
        if base is not None and to_json(layout) != to_json(base.layout):
            assert _without_statistics(layout) == _without_statistics(base.layout) or not kept
        files = sorted((*kept, *new.added), key=lambda f: f.path)
        body = {
            "table": base.table if base else str(clock.current().uuid4()),
            "committed": datetime.fromtimestamp(clock.current().now_s, UTC).isoformat(),
            "record": {**new.record.to_json(), "version": version, "layout": to_json(layout)},
            "files": [[f.path, f.size, f.rows, f.bounds] for f in files],
            "added": [f.path for f in new.added],
        }
        path = f"{store.table(name).removeprefix('sim://')}/{self.log}/{version:020d}.json"
        with file_errors("written", path):
            if not self.disk.put_new(path, json.dumps(body).encode()):
                raise Locked("Another agent published a version meanwhile.", where=name)
        return version

    def _numbers(self, store: Store, name: str) -> list[int]:
        names = (file for file, _ in store.files(name, self.log))
        return [int(file.removesuffix(".json")) for file in names if file.endswith(".json")]

    def _manifest(self, store: Store, name: str, version: int) -> dict[str, Any]:
        data = store.read(name, self.log, f"{version:020d}.json")
        if data is None:
            raise WarehouseUnavailable(f"Version {version} is missing.", where=name)
        body: dict[str, Any] = json.loads(data)
        return body


@dataclass
class SteppedDelta(DeltaLog):
    """The product's own Delta log, whose commits are steps of a process."""

    disk: Disk

    def commit(self, store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        path = f"{store.table(name)}/{self.log}"
        with file_errors("written", path):
            self.disk.step("commit", path)
        version = super().commit(store, name, new)
        with file_errors("written", path):
            self.disk.step("committed", path)
        return version


def _without_statistics(layout: Layout) -> dict[str, Any]:
    return {k: v for k, v in to_json(layout).items() if "statistics" not in k}
