"""Both sides of a replay without Spark or network: a SQLite file, and a copy made of numpy arrays.

`Source` is edited by SQL as its owner would; the product's source agent reads the file. `Copy` does
with the contract's own functions what `reduce`, `apply` and `prove` do in Spark: sums and cells,
ours − removed + shipped, the proof by the total. `Recorded` is the independent oracle: what the
curators wrote down (`tests.harness.histories`) as row bytes of the slow reference. `Wire` counts.

Nothing here decides anything: what is opened with and what follows is `commits.py`'s, which asks
the product.
"""

from __future__ import annotations

import csv
import sqlite3
import struct
from io import StringIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import Cells
from driftline.rows import frames
from driftline.rows.columns import gather
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import hasher, position_seed, row_key
from driftline.rows.keys import key_spans, positions
from driftline.values.types import Recipe

from benchmarks.floor import floor_bytes
from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.scan.batches import Batch
from source_agent.scan.frame_builder import FrameBuilder
from tests.harness.exchange_pair import BRIEFLY, Pair
from tests.harness.histories import Commit, History, Row, apply
from tests.reference.rows import row_bytes
from warehouse_agent.planning.choice import QUANTILES
from warehouse_agent.planning.network import LOAD_LEVEL
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.tasks.difference import AllRows, BelowKeys, ListedRows, Outcome
from warehouse_agent.tasks.digests import ComparisonSums, Listing

KEY = bytes(range(32))
FRAMING_BYTES = 5  # gRPC's own prefix of a message, as `link.Stream` counts
SQL_TYPES = {"INTEGER": "INTEGER", "DOUBLE": "REAL", "VARCHAR": "TEXT"}


class Recorded:
    """Recorded rows of one commit: as values, as row bytes, as lines of CSV."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._order = [history.columns.index(c) for c in history.key]
        self._order += [i for i in range(len(history.columns)) if i not in self._order]
        self.values = history.rows_at(0)
        self.rows = {key: self._encoded(row) for key, row in self.values.items()}
        self._lines = {key: len(line_of(row)) for key, row in self.values.items()}
        self.csv_bytes = sum(self._lines.values())

    def advance(self, commit: Commit) -> None:
        apply(commit, self.values, self._history)
        for row in (*commit.inserts, *commit.updates):
            key, line_bytes = self._history.key_of(row), len(line_of(row))
            self.rows[key] = self._encoded(row)
            self.csv_bytes += line_bytes - self._lines.get(key, 0)
            self._lines[key] = line_bytes
        for key in commit.deletes:
            del self.rows[key]
            self.csv_bytes -= self._lines.pop(key)

    def floor_bytes(self, commit: Commit) -> int:
        changed = sorted((*commit.inserts, *commit.updates), key=self._history.key_of)
        rows = len(self.rows) + len(commit.deletes)
        return floor_bytes(map(line_of, changed), rows=rows, changed=len(commit))

    def _encoded(self, row: Row) -> bytes:
        return row_bytes([_cell(row[i]) for i in self._order])


def line_of(row: Row) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue().encode()


def _cell(value: object) -> bytes | None:
    """A value of SQLite as the protocol's bytes: int8, float8, text."""
    if isinstance(value, int):
        return struct.pack(">q", value)
    if isinstance(value, float):
        return struct.pack(">d", value + 0.0)  # SQLite stores no -0.0
    return None if value is None else str(value).encode()


class Source:
    """The table `t` in a SQLite file, edited as its owner would."""

    relation = Relation("t", table="t")

    def __init__(self, path: Path, history: History, rows: list[Row]) -> None:
        self._path, self._history = path, history
        self._connection = sqlite3.connect(path)
        self._connection.execute("PRAGMA synchronous = OFF")
        columns = [
            f'"{name}" {SQL_TYPES[kind]}{" NOT NULL" if name in history.key else ""}'
            for name, kind in zip(history.columns, history.types, strict=True)
        ]
        key = ", ".join(f'"{name}"' for name in history.key)
        self._connection.execute(f"CREATE TABLE t ({', '.join(columns)}, PRIMARY KEY ({key}))")
        self._where = " AND ".join(f'"{name}" = ?' for name in history.key)
        self.edit(Commit(0, inserts=rows))

    def edit(self, commit: Commit) -> None:
        history, run = self._history, self._connection.executemany
        settings = ", ".join(f'"{name}" = ?' for name in history.columns)
        with self._connection:
            run(f"DELETE FROM t WHERE {self._where}", commit.deletes)
            run(
                f"UPDATE t SET {settings} WHERE {self._where}",
                [(*row, *history.key_of(row)) for row in commit.updates],
            )
            run(f"INSERT INTO t VALUES ({', '.join('?' * len(history.columns))})", commit.inserts)

    def open(self) -> Session:
        return connect(f"sqlite:///{self._path}", None, Limits()).open()

    def close(self) -> None:
        self._connection.close()


class Copy:
    """The working copy: row bytes, and what the warehouse stores beside them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.rows = recipe, np.zeros(0, object)
        self._hash, self._seed = hasher(row_key(KEY, recipe)), position_seed(KEY)
        self._where = np.zeros(0, np.int64)
        self._hi = self._lo = np.zeros(0, np.uint64)

    def bounds(self) -> tuple[int, int] | None:
        """Return the bounds that the files' own statistics give."""
        return (int(self._where.min()), int(self._where.max())) if self.recipe.integer_key else None

    def quantiles(self) -> list[int]:
        shares = np.arange(QUANTILES + 1) / QUANTILES
        quantiles = np.quantile(self._where, shares, method="inverted_cdf")
        return [int(value) for value in quantiles]

    def reduced(self, partition: Partition, salt: Salt, sketch: Sketch | None) -> ComparisonSums:
        mixed = mix(salt, self._hi, self._lo)
        sums = ComparisonSums(RangeSums(partition.ranges), Cells(sketch.third if sketch else 0))
        sums.ranges.add(partition.indices(self._where), mixed)
        if sketch is not None:
            ks, inside = sketch.embedding.embed(self._where, salt)
            assert inside.all()
            sums.cells.add(ks, mixed.m0, salt)
        return sums

    def listing(
        self, partition: Partition, salt: Salt, by: int, chosen: npt.NDArray[np.bool_]
    ) -> Listing:
        """`file` is the number of the row."""
        at = partition.indices(self._where) >> by
        keep = np.flatnonzero(chosen[at])
        hashes = mix(salt, self._hi[keep], self._lo[keep]).m0
        return Listing(at[keep], self._where[keep], hashes, keep.astype(np.int32))

    def take(self, out: Outcome, salt: Salt, came: list[bytes]) -> tuple[int, int, int]:
        """Ours − removed + shipped, proven by the source's digest; rows inserted, updated,
        deleted."""
        kept = np.full(len(self.rows), not isinstance(out.difference, AllRows))
        match out.difference:
            case ListedRows(rows):
                kept[rows.file] = False
            case BelowKeys(ks, embedding):
                kept &= ~np.isin(embedding.embed(self._where, salt)[0], ks)
        gone = set(self.rows[~kept])
        self.rows = self.rows[kept]
        self._where, self._hi, self._lo = self._where[kept], self._hi[kept], self._lo[kept]
        shipped: set[bytes] = set()
        for data in came:
            block, hi, lo = frames.verify(frames.decode(data), self._hash)
            shipped.update(block.rows())
            self.rows = np.append(self.rows, np.array(block.rows(), object))
            self._where = np.append(self._where, positions(block, self.recipe, self._seed))
            self._hi, self._lo = np.append(self._hi, hi), np.append(self._lo, lo)
        assert mix(salt, self._hi, self._lo).digest() == out.theirs
        before, after = self._keys(gone - shipped), self._keys(shipped - gone)
        return len(after - before), len(after & before), len(before - after)

    def load_bytes(self, salt: Salt) -> int:
        """Return the bytes of the messages of a load of all rows, in the order of their keys."""
        builder = FrameBuilder(self.recipe, salt, level=LOAD_LEVEL)
        order = np.argsort(self._where if self.recipe.integer_key else self.rows)
        mixed = mix(salt, self._hi[order], self._lo[order])
        everything = Batch(gather(list(self.rows[order])), self._where[order], mixed)
        messages = [*builder.add(everything), *builder.flush()]
        return sum(reply.ByteSize() + FRAMING_BYTES for reply in messages)

    def _keys(self, rows: set[bytes]) -> set[bytes]:
        listed = list(rows)
        starts, lengths = key_spans(block := gather(listed), self.recipe)
        starts = starts - block.starts[:-1]
        spans = zip(listed, starts.tolist(), lengths.tolist(), strict=True)
        return {row[start : start + length] for row, start, length in spans}


class Wire(Pair):
    """Counts what passes. `opening_bytes` went up before anything was heard."""

    def __init__(self, session: Session, shape: Shape) -> None:
        super().__init__(session, shape, agreed=BRIEFLY)
        self.sent: list[int] = []
        self.opening_bytes = 0

    def send(self, request: pb.Request) -> None:
        self.sent.append(request.ByteSize() + FRAMING_BYTES)
        if not self.received:
            self.opening_bytes += self.sent[-1]
        super().send(request)

    @property
    def received_bytes(self) -> int:
        return sum(reply.ByteSize() + FRAMING_BYTES for reply in self.received)

    def end_bytes(self) -> int:
        """Return the bytes of the reply that nothing changed."""
        finished = pb.Finished()
        finished.CopyFrom(self.received[-1].finished)
        finished.equal, finished.scans, finished.rows_read = True, 1, finished.count
        return pb.Reply(finished=finished).ByteSize() + FRAMING_BYTES
