"""Compare what is published with the history of the source, without the product's own readers.

1. A version that says `exact` and `total` is the source at its `as_of`, row for row.
2. Any other version says so, its fragment allows it, and no row of it is older than `as_of`.
3. Versions only move forward: none shows an older state than the one before it.
4. A version that was published stays as it is.
5. Counts and change feed of a version are its difference from the one before it.
6. Each version can be opened.
7. The latest comparison that is noted for a version is true of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.simulation.database import History, Row, Table
from warehouse_agent.config import Fragment, Proof, Require
from warehouse_agent.history.notes import Notes
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store

Rows = dict[tuple[int | str, ...], Row]


class Violation(AssertionError):
    """What is published is not what was promised."""


class Published(Protocol):
    """The versions of a table as their files have them, read without the product."""

    def newest(self, name: str) -> int | None:
        """Return the number of the newest version; None: there is none."""

    def version(self, name: str, number: int) -> tuple[Mapping[str, Any], list[str]]:
        """Return the record of a version, and the paths of its files below the warehouse."""

    def read(self, path: str) -> bytes:
        """Return a file below the warehouse."""


@dataclass(frozen=True)
class Seen:
    """A version that was checked; `state` is None if no single state is known to be it."""

    record: Mapping[str, Any]
    files: tuple[str, ...]
    rows: Rows
    state: int | None


@dataclass
class Checker:
    """Checks each version once, when it is seen first, and what is noted about the newest."""

    history: History
    fragments: Mapping[str, Fragment]
    published: Published
    store: Store
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    versions: int = 0
    lost: set[str] = field(default_factory=set)  # tables one of whose files is lost
    _read: dict[str, tuple[bytes, list[Row]]] = field(default_factory=dict)

    def look(self) -> None:
        """Check what is published now. Raises Violation."""
        for name in self.fragments:
            newest = self.published.newest(name)
            if newest is None:
                if self.seen.get(name):
                    raise Violation(f"{name}: the table is gone")
                continue
            known = self.seen.setdefault(name, [])
            if newest + 1 < len(known):
                raise Violation(f"{name}: version {len(known) - 1} is gone; {newest} is the newest")
            if known and newest + 1 == len(known):
                self._same(name, newest, known[-1])
            while len(known) <= newest:
                known.append(self._version(name, len(known)))
                self.versions += 1
                self.lost.discard(name)
            self._noted(name, newest, known[-1])

    def check_newest(self, name: str) -> None:
        """Raise Violation if the newest version is not the newest state of the source."""
        known = self.seen.get(name)
        if not known:
            raise Violation(f"{name}: nothing is published")
        if known[-1].rows != self.history.newest[name]:
            raise Violation(f"{name}: {self._differs(known[-1].rows, self.history.newest[name])}")

    def _same(self, name: str, number: int, before: Seen) -> None:
        record, files = self.published.version(name, number)
        if record != before.record or tuple(files) != before.files:
            raise Violation(f"{name}: version {number} was changed after it was published")

    def _version(self, name: str, number: int) -> Seen:
        record, files = self.published.version(name, number)
        fragment, where = self.fragments[name], f"{name}, version {number}"
        if record["version"] != number:
            raise Violation(f"{where}: its record is of version {record['version']}")
        rows = self._rows(name, files, where)
        if record["rows"] != len(rows):
            raise Violation(f"{where}: it says {record['rows']} rows and has {len(rows)}")
        before = self.seen[name][-1] if number else None
        is_total, is_exact = record["proof"] == "total", record["consistency"] == "exact"
        if not is_total and fragment.proof is not Proof.PART:
            raise Violation(f"{where}: it is proven in part, which its fragment does not allow")
        if not is_exact and fragment.require is not Require.FUZZY:
            raise Violation(f"{where}: it is fuzzy, which its fragment does not allow")
        state = None
        if is_total and is_exact:
            state = self._state(name, record["as_of"], rows, before, where)
        else:
            self._loose(name, record["as_of"], rows, where)
        if before is not None:
            self._changes(name, record, before.rows, rows, where)
        return Seen(record, tuple(files), rows, state)

    def _state(self, name: str, as_of: str, rows: Rows, before: Seen | None, where: str) -> int:
        """Return the state that an exact version is; raise Violation if it is none."""
        states = sorted(self.history.instants.get(as_of, ()))
        if not states:
            raise Violation(f"{where}: the source was never read as of {as_of}")
        equal = [s for s in states if self.history.states[s][name] == rows]
        if not equal:
            why = self._differs(rows, self.history.states[states[-1]][name])
            raise Violation(f"{where}: not the source as of {as_of}: {why}")
        least = before.state if before is not None and before.state is not None else 0
        forward = [s for s in equal if s >= least]
        if not forward:
            raise Violation(f"{where}: state {equal[-1]} of the source, after state {least}")
        return forward[0]

    def _loose(self, name: str, as_of: str, rows: Rows, where: str) -> None:
        """Check rows of several instants, none before `as_of`: each was there then or later, and
        none is missing that was there all the time."""
        first = min(self.history.instants.get(as_of, ()), default=None)
        if first is None:
            raise Violation(f"{where}: the source was never read as of {as_of}")
        window = [state[name] for state in self.history.states[first:]]
        for key, row in rows.items():
            if all(state.get(key) != row for state in window):
                raise Violation(f"{where}: since {as_of} the source never had {row}")
        for key, row in window[0].items():
            if key not in rows and all(state.get(key) == row for state in window):
                raise Violation(f"{where}: {row} is missing")

    def _changes(
        self, name: str, record: Mapping[str, Any], before: Rows, after: Rows, where: str
    ) -> None:
        """Compare counts and feed of a version with its difference from the one before it."""
        inserted = {k for k in after if k not in before}
        deleted = {k for k in before if k not in after}
        updated = {k for k in after if k in before and after[k] != before[k]}
        if record["repaired_files"]:
            return  # which rows had changed among the lost ones nobody knows
        said = tuple(record[f"rows_{what}"] for what in ("inserted", "updated", "deleted"))
        found = (len(inserted), len(updated), len(deleted))
        if said != found:
            raise Violation(f"{where}: it says {said} changed rows, and {found} changed")
        if record.get("changes") is None:
            if any(found):
                raise Violation(f"{where}: it has no change feed")
            return
        feed: dict[str, Rows] = {}
        for file in record["changes_files"]:
            path = f"{PRIVATE}/changes/{name}/{record['changes']}/{file}"
            for op, *values in self._table(path, ["_op", *self.history.schemas[name].columns]):
                row = tuple(values)
                feed.setdefault(str(op), {})[self.history.schemas[name].key(row)] = row
        expected = {
            "insert": {k: after[k] for k in inserted},
            "delete": {k: before[k] for k in deleted},
            "update_before": {k: before[k] for k in updated},
            "update_after": {k: after[k] for k in updated},
        }
        if {op: rows for op, rows in expected.items() if rows} != feed:
            raise Violation(f"{where}: the change feed is {feed}, not {expected}")

    def _noted(self, name: str, number: int, newest: Seen) -> None:
        """Check the claim that the newest version was equal to the source at a later time."""
        head = formats.head(self.store, name)
        assert head is not None
        if head.version != number:
            raise Violation(f"{name}: version {number} is the newest, and {head.version} is read")
        claim = Notes.read(self.store, name).comparison(head)
        if claim.consistency != "exact" or newest.record["proof"] != "total":
            self._loose(name, claim.as_of, newest.rows, f"{name}, the note of version {number}")
            return
        states = self.history.instants.get(claim.as_of, set())
        if all(self.history.states[s][name] != newest.rows for s in states):
            why = "equal to the source as of"
            raise Violation(f"{name}: version {number} is noted as {why} {claim.as_of}")

    def _rows(self, name: str, files: list[str], where: str) -> Rows:
        schema, rows = self.history.schemas[name], Rows()
        if len(set(files)) != len(files):
            raise Violation(f"{where}: it names a file twice")
        for file in files:
            for row in self._table(file, list(schema.columns)):
                if rows.setdefault(schema.key(row), row) is not row:
                    raise Violation(f"{where}: two rows with the key {schema.key(row)}")
        return rows

    def _table(self, path: str, columns: list[str]) -> list[Row]:
        """Return the rows of a Parquet file, which must not change once it was seen."""
        data = self.published.read(path)
        known = self._read.get(path)
        if known is None or known[0] is not data:
            if known is not None and known[0] != data:
                raise Violation(f"{path} was written again")
            source = pa.BufferReader(data)  # Arrow would call a file of Python for each page
            table = pq.ParquetFile(source).read(columns, use_threads=False)
            lists = [column.to_pylist() for column in table.columns]
            known = self._read[path] = (data, list(zip(*lists, strict=True)))
        return known[1]

    @staticmethod
    def _differs(ours: Table, theirs: Table) -> str:
        missing = [theirs[k] for k in theirs if k not in ours]
        extra = [ours[k] for k in ours if k not in theirs]
        other = [(ours[k], theirs[k]) for k in ours if k in theirs and ours[k] != theirs[k]]
        return f"missing {missing[:3]}, too many {extra[:3]}, different {other[:3]}"


@dataclass(frozen=True)
class InMemory:
    """`Published` of tables whose format is `MemoryLog`."""

    files: Mapping[str, tuple[bytes, float]]
    root: str

    def newest(self, name: str) -> int | None:
        folder = f"{self.root}/{name}/_delta_log/"
        numbers = [int(f[len(folder) : -5]) for f in self.files if f.startswith(folder)]
        return max(numbers, default=None)

    def version(self, name: str, number: int) -> tuple[Mapping[str, Any], list[str]]:
        body = json.loads(self.files[f"{self.root}/{name}/_delta_log/{number:020d}.json"][0])
        return body["record"], [f"{name}/{path}" for path, *_ in body["files"]]

    def read(self, path: str) -> bytes:
        if f"{self.root}/{path}" not in self.files:
            raise Violation(f"{path} is missing")
        return self.files[f"{self.root}/{path}"][0]


@dataclass(frozen=True)
class InDelta:
    """`Published` of Delta tables in a folder, read by the library alone."""

    root: str
    _files: dict[str, bytes] = field(default_factory=dict)

    def newest(self, name: str) -> int | None:
        commits = Path(self.root, name, "_delta_log").glob("*.json")
        return max((int(commit.stem) for commit in commits), default=None)

    def version(self, name: str, number: int) -> tuple[Mapping[str, Any], list[str]]:
        table = Path(self.root, name)
        lines = (table / "_delta_log" / f"{number:020d}.json").read_text().splitlines()
        infos = [body["commitInfo"] for line in lines if "commitInfo" in (body := json.loads(line))]
        try:
            paths = DeltaTable(str(table), version=number).file_uris()
        except (DeltaError, OSError) as error:
            raise Violation(f"{name}: version {number} cannot be opened: {error}") from error
        found = sorted(path.removeprefix("file://").split(f"{name}/", 1)[1] for path in paths)
        return json.loads(infos[0]["driftline"]), [f"{name}/{path}" for path in found]

    def read(self, path: str) -> bytes:
        try:
            data = Path(self.root, path).read_bytes()
        except FileNotFoundError:
            raise Violation(f"{path} is missing") from None
        known = self._files.setdefault(path, data)
        return known if known == data else data
