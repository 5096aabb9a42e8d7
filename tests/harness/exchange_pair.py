"""Both halves of an exchange in one thread: a warehouse made of numpy, a source made of SQLite.

The wire is a pair of queues without a network: the source's generator runs exactly as far as the
warehouse receives. Each message is serialised on its way, as gRPC would.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError
from driftline.reconciliation.groups import GroupSums, SizedGroups
from driftline.reconciliation.named_keys import KeyMap
from driftline.reconciliation.ranges import Partition, RangeSums, uniform
from driftline.reconciliation.sketches import Cells, Embedding
from driftline.rows import frames
from driftline.rows.columns import gather
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix
from driftline.rows.fingerprints import fingerprints, position_seed
from driftline.rows.keys import positions
from driftline.values.types import Recipe
from driftline.wire.negotiation import BRIEF, Agreement

from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.scan.locators import LocatorMemory
from source_agent.server.handlers import refusal
from tests.reference.rows import row_bytes
from tests.samples.prices import flat
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.groups.exchange import GroupedRows, GroupPiece, GroupSide, PartLimits
from warehouse_agent.methods.interface import OurSide, WorkingCopy
from warehouse_agent.methods.ranges import RangeSide
from warehouse_agent.methods.registry import compare, comparison
from warehouse_agent.methods.sketch import LaterSide, SketchPlan, SketchSide
from warehouse_agent.planning.choice import Costs, Method
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.planning.tiling import Bounds
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.difference import AllRows, BelowKeys, ListedRows, Outcome
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.frame_admission import FrameAdmission, StagingRoom
from warehouse_agent.transport.waiting import Waiting, Wire

KEY = bytes(range(32))
SALT = Salt(0x1234, 0x5678)
PRICES, LINE, AGREED = flat(20.0), Line(rtt_s=0.0), Agreement()
BRIEFLY = Agreement(features=(BRIEF,))

Cell = int | str | bytes | None
Table = list[tuple[Cell, ...]]  # in tuple order


@dataclass(frozen=True)
class Schema:
    """A table of SQLite; `columns` in tuple order, `key` where the table itself names none."""

    ddl: str
    columns: tuple[str, ...]
    key_columns: int = 1
    key: tuple[str, ...] | None = None

    @property
    def relation(self) -> Relation:
        return Relation("orders", table="t", key=self.key)


# Tables whose key is one integer and found by index; one integer without an index or a promise; a
# composite key that is the storage order; a text without a promise.
INTEGER = Schema("CREATE TABLE t (a TEXT, id INTEGER PRIMARY KEY, b BLOB)", ("id", "a", "b"))
LOOSE = Schema("CREATE TABLE t (a TEXT, id BIGINT, b BLOB)", ("id", "a", "b"), key=("id",))
COMPOSITE = Schema(
    "CREATE TABLE t (b BLOB, day INTEGER NOT NULL, a TEXT, code TEXT NOT NULL, "
    "PRIMARY KEY (code, day)) WITHOUT ROWID",
    ("code", "day", "b", "a"),
    key_columns=2,
)
TEXT = Schema("CREATE TABLE t (a INTEGER, code TEXT, b BLOB)", ("code", "a", "b"), key=("code",))


@lru_cache(maxsize=1 << 16)
def encode(row: tuple[Cell, ...]) -> bytes:
    """Row bytes: integers are int8, text is UTF-8, blobs are themselves."""
    cells = [
        struct.pack(">q", v) if isinstance(v, int) else v.encode() if isinstance(v, str) else v
        for v in row
    ]
    return row_bytes(cells)


def fill(path: Path, schema: Schema, rows: Table, *, wal: bool = False) -> None:
    """A new database of these rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        connection.execute(schema.ddl)
        insert(connection, schema, rows)


def insert(connection: sqlite3.Connection, schema: Schema, rows: Table) -> None:
    marks = ", ".join("?" * len(schema.columns))
    statement = f"INSERT INTO t ({', '.join(schema.columns)}) VALUES ({marks})"
    connection.executemany(statement, rows)


def open_session(path: Path) -> Session:
    return connect(f"sqlite:///{path}", None, Limits()).open()


@dataclass(frozen=True)
class _Reduced(SketchPlan):
    """A plan whose rows are added up already."""

    side: SketchSide

    def reduced(self, copy: WorkingCopy) -> SketchSide:
        return self.side


class Ours:
    """The warehouse's copy: rows, and what Spark would reduce them to."""

    def __init__(
        self,
        rows: Sequence[bytes],
        recipe: Recipe,
        partition: Partition,
        sketch: Sketch | None = None,
        groups: Groups | None = None,
    ) -> None:
        self.rows, self.recipe, self.partition = list(rows), recipe, partition
        self.sketch = sketch
        self.fingerprints = fingerprints(KEY, recipe)
        self._where = positions(gather(self.rows), recipe, position_seed(KEY))
        self._mixed = mix(SALT, *self.fingerprints(self.rows))
        self.sums = RangeSums(partition.ranges)
        self.sums.add(partition.indices(self._where), self._mixed)
        self.cells: Cells | None = None
        if sketch is not None:
            self.cells = Cells(sketch.third)
            ks, inside = sketch.embedding.embed(self._where, SALT)
            assert inside.all()
            self.cells.add(ks, self._mixed.m0, SALT)
        self.listed = 0
        self.grouped, self.rest = None, Digest()
        if groups is not None:
            self.grouped, self.rest = groups.grouped(self._where, self._mixed)

    def digest(self, rows: Sequence[bytes]) -> Digest:
        return mix(SALT, *self.fingerprints(rows)).digest()

    def side(
        self,
        forced: Method | None = None,
        line: Line = LINE,
        prices: Prices = PRICES,
        *,
        later: bool = False,
    ) -> OurSide:
        """Return our half of the exchange, as an opening would reduce it; `later`: the rows of a
        sketch are added up while the source scans."""
        if self.grouped is not None:
            return GroupSide(self.grouped, self.sums.total, self, self.rest)
        costs = Costs(prices, line, self.recipe.integer_key, forced)
        ranges = RangeSide(self.partition, self.sums, self, costs)
        if self.sketch is None or self.cells is None:
            return ranges
        side = SketchSide(ranges, self.sketch, self.cells)
        if not later:
            return side
        nowhere: Any = None
        files = (DataFile("f", "file:///f", 1, len(self.rows)),)
        phase = contextlib.nullcontext
        copy = WorkingCopy(nowhere, "orders", nowhere, files, SALT, lambda _: phase())
        return LaterSide(_Reduced(self.partition, costs, self.sketch, side), copy)

    def terms(
        self, agreed: Agreement = AGREED, line: Line = LINE, within: Bounds | None = None
    ) -> ExchangeTerms:
        level = line.level(self.sums.total.count)
        return ExchangeTerms("orders", self.recipe, KEY, SALT, level, agreed, within=within)

    def opening(self) -> pb.Open:
        """Return what our half sends first."""
        request = next(comparison(self.side(), self.terms()))
        assert isinstance(request, pb.Request)
        return request.open

    def talk(
        self,
        wire: Wire,
        keep: Callable[[bytes], None] = lambda _: None,
        *,
        line: Line = LINE,
        room: StagingRoom | None = None,
        within: Bounds | None = None,
    ) -> tuple[ExchangeTerms, Waiting]:
        """Return the terms of an exchange about our rows, and who waits for it."""
        terms = self.terms(wire.agreed, line, within)
        admission = FrameAdmission(self.recipe, SALT, room=room)
        return terms, Waiting(
            wire, admission, keep=lambda frame, _: keep(frame), progress=lambda _: None
        )

    def below(self, replaced: BelowKeys) -> list[bytes]:
        """Our rows below these k."""
        ks, inside = replaced.embedding.embed(self._where, SALT)
        return [self.rows[i] for i in np.flatnonzero(inside & np.isin(ks, replaced.ks))]

    def list_rows(self, partition: Partition, by: int, chosen: np.ndarray) -> Listing:
        """`file` is the number of the row."""
        self.listed += 1
        at = partition.indices(self._where) >> by
        keep = np.flatnonzero(chosen[at])
        return Listing(at[keep], self._where[keep], self._mixed.m0[keep], keep.astype(np.int32))

    def list_keys(self, embedding: KeyMap, ks: np.ndarray) -> Listing:
        self.listed += 1
        k, inside = embedding.embed(self._where, SALT)
        keep = np.flatnonzero(inside & np.isin(k, ks))
        where, hashes = self._where[keep], self._mixed.m0[keep]
        return Listing(k[keep].astype(np.int64), where, hashes, keep.astype(np.int32))


@dataclass(frozen=True)
class Groups:
    """How our rows are put into groups: by turns of these sizes, 0 being none, by key;
    with a part, the rest of them are not compared."""

    embedding: Embedding
    sizes: tuple[int, ...]
    row_bytes: int = 20
    wait_bytes: int = 0
    part: PartLimits | None = None

    def grouped(self, where: np.ndarray, mixed: MixedFingerprints) -> tuple[GroupedRows, Digest]:
        ks, inside = self.embedding.embed(where, SALT)
        assert inside.all()
        distinct = np.unique(ks)
        turns = np.array_split(distinct, len(self.sizes))
        sized = [SizedGroups(s, k) for s, k in zip(self.sizes, turns, strict=True) if s and len(k)]
        sums = GroupSums(sized)
        named = sums.add(ks, mixed.m0)
        pieces, at = [], 0
        for one in sized:
            digests = sums.short_digests()[at : at + one.count]
            pieces += [GroupPiece(one.size, *piece) for piece in one.pieces(digests)]
            at += one.count
        none = np.zeros(0, np.uint64)
        rest = MixedFingerprints(mixed.m0[~named], mixed.m1[~named]).digest()
        ungrouped = np.setdiff1d(distinct, sums.all_ks()) if self.part is None else none
        costs = (self.row_bytes, self.wait_bytes)
        grouped = GroupedRows(self.embedding, tuple(pieces), ungrouped, *costs, self.part)
        return grouped, rest if self.part else Digest()


class Pair:
    """The wire, with the source at its other end. `round_trips` are counted independently, and
    `bytes` of the messages, both ways. `memory`: in which the source keeps where rows lie."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        memory: LocatorMemory | None = None,
        agreed: Agreement = AGREED,
    ) -> None:
        self.agreed = agreed
        self.tally, self._memory = ReadCounts(), memory
        self.received: list[pb.Reply] = []
        self.round_trips = self.bytes = 0
        self._session, self._shape = session, shape
        self._held: deque[pb.Request] = deque()
        self._replies: Iterator[pb.Reply] | None = None
        self._has_sent = False

    def send(self, request: pb.Request) -> None:
        data = request.SerializeToString()
        self.bytes += len(data)
        self._held.append(pb.Request.FromString(data))
        self._has_sent = True

    def receive(self) -> pb.Reply:
        self.round_trips += self._has_sent
        self._has_sent = False
        try:
            if self._replies is None:
                opening = self._held.popleft().open
                given = self._session, self._shape, opening, self.tally
                comparison = Comparison(*given, memory=self._memory)
                self._replies = comparison.answer(iter(self._hear, None))
            reply = next(self._replies)
        except StopIteration:
            raise AssertionError("the warehouse waits, and the source has said all") from None
        except DriftlineError as error:
            reply = pb.Reply(refused=refusal(error))
        self.received.append(reply)
        data = reply.SerializeToString()
        self.bytes += len(data)
        return pb.Reply.FromString(data)

    def _hear(self) -> pb.Request:
        assert self._held, "both wait"
        return self._held.popleft()

    def kinds(self) -> list[str | None]:
        return [reply.WhichOneof("message") for reply in self.received]

    @property
    def is_done(self) -> bool:
        """Whether both sides have said everything."""
        return not self._held and next(self._replies or iter(()), None) is None


@dataclass
class Result:
    pair: Pair
    ours: Ours
    frames: list[bytes] = field(default_factory=list)
    outcome: Outcome = field(init=False)  # once the exchange has ended

    def shipped(self) -> list[bytes]:
        found = []
        for data in self.frames:
            found += frames.verify(frames.decode(data), self.ours.fingerprints)[0].rows()
        return found

    def state(self) -> Counter[bytes]:
        """ours − removed + shipped."""
        rows = Counter(self.ours.rows)
        match self.outcome.difference:
            case AllRows():
                rows = Counter()
            case ListedRows(listed):
                removed = Counter(self.ours.rows[i] for i in listed.file.tolist())
                assert removed <= rows
                rows -= removed
            case BelowKeys() as replaced:
                rows -= Counter(self.ours.below(replaced))
        return rows + Counter(self.shipped())


def exchange(
    session: Session,
    relation: Relation,
    ours: Table,
    *,
    partition: Partition | None = None,
    forced: Method | None = None,
    sketch: Sketch | None = None,
    groups: Groups | None = None,
    line: Line = LINE,
    prices: Prices = PRICES,
    within: Bounds | None = None,
    later: bool = False,
    memory: LocatorMemory | None = None,
    agreed: Agreement = AGREED,
) -> Result:
    """One relation compared, from the opening to the end; `ours` are those in the tile alone."""
    shape = session.describe(relation)
    encoded = [encode(row) for row in ours]
    mine = Ours(encoded, shape.recipe, partition or uniform(64), sketch, groups)
    result = Result(Pair(session, shape, memory, agreed), mine)
    talk = mine.talk(result.pair, result.frames.append, line=line, within=within)
    result.outcome = found = compare(mine.side(forced, line, prices, later=later), *talk)
    if groups is not None and groups.part is None and isinstance(found.difference, BelowKeys):
        # However many rows are new, the driver keeps no more than there are of ours.
        named, _ = found.difference.embedding.embed(mine._where, SALT)
        assert np.isin(found.difference.ks, named).all()
    return result
