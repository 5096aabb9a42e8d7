"""The smallest table format that keeps what `table.TableFormat` promises: a manifest per version.

`<table>/_manifest/<20 digits>.json` names every file of a version. It is linked into place, which
fails if the name is taken: so a commit is atomic, and only one of two commits on a base succeeds.
For local disks only. It shows what a second format takes, and that no caller knows the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from driftline.errors import Locked, NotFound, WarehouseUnavailable

from warehouse_agent.columns.layout import from_json, to_json
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import (
    LogEntry,
    NewVersion,
    NewViewVersion,
    Snapshot,
    VersionHeader,
    VersionRecord,
    ViewSnapshot,
)


class ManifestLog:
    """Table format of tables with a manifest per version."""

    log: Final = "_manifest"
    temporary: Final = re.compile(r"[0-9a-f]{32}\.tmp")

    def head(self, store: Store, name: str, version: int | None) -> Snapshot | None:
        """Return a version (`TableFormat.head`)."""
        numbers = self._numbers(store, name)
        if not numbers:
            return None
        if version is not None and version > numbers[-1]:
            raise NotFound(f"There is no version {version}.", where=name)
        number = numbers[-1] if version is None else version
        body = self._manifest(store, name, number)
        if "record" not in body:
            raise WarehouseUnavailable(f"Version {number} is not ours.", where=name)
        record = VersionRecord.from_json(body["record"])
        layout = from_json(body["record"]["layout"])
        known = layout.not_null
        files = tuple(
            DataFile(path, store.uri(name, path), size, rows, ends and (ends[0], ends[1]), known)
            for path, size, rows, ends in body["files"]
        )
        return Snapshot(number, body["table"], files, layout, record, pin=None)

    def header(self, store: Store, name: str) -> VersionHeader | None:
        """Return the newest version without its files (`TableFormat.header`)."""
        with contextlib.suppress(WarehouseUnavailable):
            newest = self.head(store, name, None)
            return None if newest is None else VersionHeader.of(newest)
        return None

    def entries(
        self,
        store: Store,
        name: str,
        newest: Snapshot | ViewSnapshot | None,
        after: int | None = None,
    ) -> list[LogEntry]:
        """Return the commits, newest first (`TableFormat.entries`)."""
        found = []
        for number in reversed(self._numbers(store, name)):
            body = self._manifest(store, name, number)
            committed = datetime.fromisoformat(body["committed"])
            record = VersionRecord.from_json(body["record"]) if "record" in body else None
            if after is None or number > after:
                found.append(LogEntry(number, committed, record))
        return found

    def oldest(self, store: Store, name: str) -> tuple[int, VersionRecord] | None:
        """Return the oldest version and its record (`TableFormat.oldest`)."""
        for number in self._numbers(store, name)[:1]:
            body = self._manifest(store, name, number)
            return (number, VersionRecord.from_json(body["record"])) if "record" in body else None
        return None

    def added(self, store: Store, name: str, version: int) -> set[str]:
        """Return the paths that a version added (`TableFormat.added`)."""
        return set(self._manifest(store, name, version)["added"])

    def shorten(self, store: Store, name: str, oldest: int) -> None:
        """Remove entries of earlier versions (`TableFormat.shorten`)."""
        for number in self._numbers(store, name):
            if number < oldest:
                Path(store.table(name), self.log, f"{number:020d}.json").unlink()

    def view_head(self, store: Store, name: str, version: int | None) -> ViewSnapshot | None:
        """Return None: this format has tables of fragments only."""

    def is_view(self, store: Store, name: str) -> bool:
        """Return False: this format has tables of fragments only."""
        return False

    def mend(self, store: Store, name: str) -> None:
        """Do nothing: each entry is read back as it was written."""

    def commit(self, store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        """Publish a version (`TableFormat.commit`)."""
        assert isinstance(new, NewVersion)
        base = new.base
        version = 0 if base is None else base.version + 1
        gone = {f.path for f in new.removed}
        kept = [f for f in (base.files if base else ()) if f.path not in gone]
        files = sorted((*kept, *new.added), key=lambda f: f.path)
        body = {
            "table": base.table if base else str(uuid.uuid4()),
            "committed": datetime.now(UTC).isoformat(),
            "record": {**new.record.to_json(), "version": version, "layout": to_json(new.layout)},
            "files": [[f.path, f.size, f.rows, f.bounds] for f in files],
            "added": [f.path for f in new.added],
        }
        folder = Path(store.table(name), self.log)
        temporary = folder / f"{uuid.uuid4().hex}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(body))
            os.link(temporary, folder / f"{version:020d}.json")
        except FileExistsError as error:
            raise Locked("Another agent published a version.", where=name) from error
        except OSError as error:
            raise WarehouseUnavailable(f"Not committed: {error}.", where=name) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
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
