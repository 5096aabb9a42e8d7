"""The two halves of the conversation against each other, without network or Spark.

Whatever was edited at the source, ours − removed + shipped is theirs as a multiset of rows. Then
each half alone against a peer that breaks the protocol: a typed error, at once, in little memory.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import struct
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from driftline import wire_pb2 as pb
from driftline.errors import (
    DatabaseRefused,
    DriftlineError,
    FrameDamaged,
    MalformedMessage,
    NullKey,
    RecipeChanged,
    SnapshotLost,
    VersionMismatch,
)
from driftline.limits import CELLS_TAKEN_MAX, SEGMENTS_MAX, STRATUM_CELLS, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import Partition, from_quantiles, strata_of, uniform
from driftline.reconciliation.sketches import HASHES, PRIME, Embedding, Grid, pack
from driftline.rows import frames
from driftline.rows.digests import Digest
from driftline.wire.negotiation import Agreement
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.interface import Session
from source_agent.engines.relations.shapes import Shape
from source_agent.methods import ranges as source_refine
from source_agent.methods import row_hashes
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.scan import batches, reader
from tests.harness import exchange_pair
from tests.harness.examples import examples
from tests.harness.exchange_pair import (
    AGREED,
    BRIEFLY,
    COMPOSITE,
    INTEGER,
    LOOSE,
    SALT,
    TEXT,
    Ours,
    Pair,
    Result,
    Schema,
    Table,
    encode,
    fill,
    open_session,
)
from tests.samples.rows import block, recipe
from warehouse_agent.methods import ranges, registry
from warehouse_agent.methods import sketch as sketch_method
from warehouse_agent.methods.ranges import multiset_difference
from warehouse_agent.methods.registry import compare
from warehouse_agent.planning.choice import Choice, Method, choose
from warehouse_agent.planning.sketch_size import Sketch, embedding_for
from warehouse_agent.tasks.difference import AllRows, BelowKeys, ListedRows

INTS = st.integers(-40, 40) | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
CELLS = st.tuples(st.none() | TEXTS, st.none() | st.binary(max_size=30))
KEYS = {INTEGER: st.tuples(INTS), LOOSE: st.tuples(INTS), COMPOSITE: st.tuples(TEXTS, INTS)}
IDS = ["integer", "loose", "composite"]
SCHEMAS = pytest.mark.parametrize("schema", KEYS, ids=IDS)

# What decides how rows are found and sent, at its extremes.
FORCINGS: dict[str, dict[tuple[Any, str], object]] = {
    "as it is": {},
    "by scan": {(reader, "INDEX_SHARE"): -1},
    "read again": {(batches, "ROWS_HELD_BYTES"): 0},
    "read again by scan": {(batches, "ROWS_HELD_BYTES"): 0, (reader, "INDEX_SHARE"): -1},
    "read again by index": {(batches, "ROWS_HELD_BYTES"): 0, (reader, "INDEX_SHARE"): 1},
    "hold some": {(batches, "ROWS_HELD_BYTES"): 200},
    "small pieces": {
        (row_hashes, "DIGESTS_PER_MESSAGE"): 3,
        (ranges, "DIGESTS_PER_MESSAGE"): 3,
        (ranges, "MESSAGE_BYTES_MAX"): 2,
        (sketch_method, "CELLS_PER_MESSAGE"): 2,
    },
    "too many hashes": {(source_refine, "ROW_HASHES_MAX"): 2},
}


@contextmanager
def patched(forcing: str, coarsen: int | None = None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in FORCINGS[forcing].items():
            patch.setattr(module, name, value)
        if coarsen is not None:
            choice = Choice(Method.RANGE, 0, rows_read=0, coarsen=coarsen)
            patch.setattr(registry, "choose", lambda *_: choice)
        yield


@st.composite
def edited(draw: st.DrawFn, schema: Schema) -> tuple[Table, Table]:
    """Our rows and theirs: nothing, everything, or some inserted, updated, deleted."""
    tables = st.dictionaries(KEYS[schema], CELLS, max_size=25)
    ours = draw(tables)
    kind = draw(st.sampled_from(["nothing", "everything", "gone", "some", "some", "one", "insert"]))
    if kind == "nothing":
        theirs = dict(ours)
    elif kind == "everything":
        theirs = draw(tables)
    elif kind == "gone":
        theirs = {}
    else:
        theirs = dict(ours)
        for key in ours if kind == "some" else list(ours)[:1]:
            action = draw(st.sampled_from(["keep", "keep", "update", "delete"]))
            if action == "delete":
                del theirs[key]
            elif action == "update":
                theirs[key] = draw(CELLS)
        if kind != "one":
            theirs |= draw(st.dictionaries(KEYS[schema], CELLS, max_size=4))
    both = [[key + cells for key, cells in table.items()] for table in (ours, theirs)]
    if schema is COMPOSITE:  # its tuple order is code, day, b, a
        both = [[(code, day, b, a) for code, day, a, b in table] for table in both]
    return both[0], both[1]


@st.composite
def sketches(draw: st.DrawFn, schema: Schema, ours: Table) -> Sketch:
    """Any sketch of our rows: also such as never decode, or whose keys mostly collide."""
    third = draw(st.sampled_from([1, 5, 12, 60, 360, 2520]))
    fold = draw(st.sampled_from([0, *(f for f in range(1, third + 1) if third % f == 0)]))
    keys = [row[0] for row in ours if isinstance(row[0], int)]
    bounds = None if schema is COMPOSITE or draw(st.booleans()) else (min(keys), max(keys))
    embedding = embedding_for(len(ours), bounds)
    if embedding.base is None and draw(st.booleans()):
        embedding = Embedding(draw(st.sampled_from([1, 7, 1 << 31])))
    return Sketch(embedding, third, fold, draw(st.booleans()))


def run(schema: Schema, ours: Table, theirs: Table, *, wal: bool = False, **options: Any) -> Result:
    """An exchange over a new database, checked as every exchange is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, schema, theirs, wal=wal)
        with closing(open_session(path)) as session:
            result = exchange_pair.exchange(session, schema.relation, ours, **options)
            assert result.pair.is_done
    check(result, theirs)
    return result


def check(result: Result, theirs: Table) -> None:
    out, expected = result.outcome, [encode(row) for row in theirs]
    assert result.state() == Counter(expected)
    assert out.theirs == result.ours.digest(expected)
    assert out.is_equal == (Counter(result.ours.rows) == Counter(expected))
    assert out.consistency == "exact"
    assert out.as_of
    assert (out.scans, out.rows_read) == (result.pair.tally.scans, result.pair.tally.rows_read)
    assert out.frame_bytes == sum(map(len, result.frames))
    assert out.came == sum((frames.decode(frame).digest for frame in result.frames), Digest())
    kinds = result.pair.kinds()
    assert (
        out.round_trips
        == result.pair.round_trips
        == 1 + kinds.count("verdict") + ("row_hashes" in kinds)
    )
    if out.is_equal and expected:
        assert kinds == ["finished"]
        assert (out.round_trips, out.scans) == (1, 1)
        assert result.ours.listed == 0
    if not result.ours.rows:
        assert (out.round_trips, out.scans, out.method) == (1, 1, Method.FULL)


@SCHEMAS
@given(data=st.data())
@examples(80)
def test_any_edit_is_found(schema: Schema, data: st.DataObject) -> None:
    ours, theirs = data.draw(edited(schema))
    bits = data.draw(st.integers(1, 12))
    partition = uniform(1 << bits)
    if schema is not COMPOSITE and ours and data.draw(st.booleans()):
        knots = [row[0] for row in ours if isinstance(row[0], int)]
        partition = from_quantiles(knots, 1 << bits)
    forcing = data.draw(st.sampled_from(list(FORCINGS)))
    method = data.draw(st.sampled_from([None, *Method]))
    sketch = data.draw(st.none() | sketches(schema, ours)) if ours else None
    coarsen = data.draw(st.none() | st.integers(0, partition.ranges.bit_length() - 1))
    with patched(forcing, coarsen):
        run(
            schema,
            ours,
            theirs,
            wal=data.draw(st.booleans()),
            partition=partition,
            forced=method,
            sketch=sketch,
            later=data.draw(st.booleans()) if sketch else False,
            agreed=data.draw(st.sampled_from([AGREED, BRIEFLY])),
        )


def large(rows: int, seed: int) -> dict[int, tuple[str, bytes]]:
    source = random.Random(seed)
    return {
        key * 7 - rows: (f"row {source.randrange(10**9)}", source.randbytes(source.randrange(60)))
        for key in range(rows)
    }


def edit(table: dict[int, tuple[str, bytes]], changes: int, seed: int) -> dict:
    source = random.Random(seed)
    theirs = dict(table)
    for key in source.sample(sorted(table), changes):
        action = source.choice(["update", "delete", "insert"])
        if action == "delete":
            del theirs[key]
        else:
            theirs[key + (action == "insert")] = ("changed", source.randbytes(9))
    for key in range(changes // 3):
        theirs[10**6 + key] = ("appended", b"")
    return theirs


def table_of(schema: Schema, rows: dict[int, tuple[str, bytes]]) -> Table:
    if schema is COMPOSITE:
        return [(f"k{key % 90}", key, b, a) for key, (a, b) in rows.items()]
    if schema is TEXT:
        return [(f"{key:08d}", key, b) for key, (_, b) in rows.items()]
    return [(key, a, b) for key, (a, b) in rows.items()]


@pytest.mark.parametrize("schema", [INTEGER, LOOSE, COMPOSITE, TEXT], ids=[*IDS, "text"])
@pytest.mark.parametrize("changes", [0, 1, 50, 3000])
@pytest.mark.parametrize("method", [None, Method.RANGE, Method.FULL])
def test_a_table_of_five_thousand_rows(schema: Schema, changes: int, method: Method | None) -> None:
    rows = large(5000, seed=1)
    ours, theirs = table_of(schema, rows), table_of(schema, edit(rows, changes, seed=changes))
    knots = sorted(rows)[::100]
    partition = from_quantiles(knots, 1250) if schema in {INTEGER, LOOSE} else uniform(1250)
    result = run(schema, ours, theirs, partition=partition, forced=method, wal=changes == 50)
    out = result.outcome
    if changes == 0:
        return
    assert method is None or out.method is method
    if method is None:
        assert out.method is (Method.FULL if changes == 3000 else Method.RANGE)
    if changes == 1 and out.method is Method.RANGE:
        assert len(result.shipped()) <= 2
        assert out.scans == (1 if schema is INTEGER else 2)
    if changes == 50 and out.method is Method.RANGE:
        assert len(result.shipped()) <= 3 * changes
        assert isinstance(out.difference, ListedRows)
        assert len(out.difference.rows.file) <= changes


def sketch_of(schema: Schema, rows: dict[int, tuple[str, bytes]], third: int, fold: int) -> Sketch:
    bounds = (min(rows), max(rows)) if schema in {INTEGER, LOOSE} else None
    return Sketch(embedding_for(len(rows), bounds), third, fold)


@pytest.mark.parametrize("schema", [INTEGER, LOOSE, COMPOSITE, TEXT], ids=[*IDS, "text"])
@pytest.mark.parametrize("changes", [0, 1, 50, 800])
@pytest.mark.parametrize("sent", ["enough", "too few", "far too few", "none"])
def test_a_sketch_of_five_thousand_rows(schema: Schema, changes: int, sent: str) -> None:
    rows = large(5000, seed=1)
    ours, theirs = table_of(schema, rows), table_of(schema, edit(rows, changes, seed=changes))
    fold = {"enough": 4, "too few": 60, "far too few": 2520, "none": 0}[sent]
    result = run(schema, ours, theirs, sketch=sketch_of(schema, rows, 2520, fold))
    out = result.outcome
    if changes == 0:
        return
    assert out.method is Method.SKETCH
    assert isinstance(out.difference, BelowKeys)
    if sent == "enough":
        assert out.round_trips == 1
    if sent == "none":
        assert out.round_trips <= 3
    assert out.scans == (1 if schema is INTEGER else 2)
    assert result.ours.listed == 0
    # Exact but for keys that share a k: one in ROWS_PER_BUCKET where k are hashed.
    shipped, changed = Counter(result.shipped()), Counter(encode(row) for row in theirs)
    idle = sum((shipped & Counter(result.ours.rows)).values())
    assert idle <= (0 if schema in {INTEGER, LOOSE} else 3 + changes // 50)
    assert shipped <= changed


@pytest.mark.parametrize("fold", [0, 2520], ids=["none", "far too few"])
def test_half_of_a_table_by_sketch(fold: int) -> None:
    """A sample of the source's cells tells how many there are: strata would not be trusted."""
    rows = large(20_000, seed=1)
    theirs = edit(rows, 10_000, seed=2)
    ours, others = table_of(INTEGER, rows), table_of(INTEGER, theirs)
    sketch = sketch_of(INTEGER, rows, 20_160, fold)
    result = run(INTEGER, ours, others, sketch=sketch)
    said = [reply.verdict for reply in result.pair.received if reply.HasField("verdict")]
    assert len(said[0].sample) >= 1000
    assert result.outcome.method is Method.SKETCH
    assert result.outcome.round_trips <= 3


def test_a_table_is_sampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what follows tells no more than what came before: 96 cells of 10,000 changes."""
    rows = large(20_000, seed=1)
    ours, others = table_of(INTEGER, rows), table_of(INTEGER, edit(rows, 10_000, seed=2))
    answers = [Choice(Method.SKETCH, 0, rows_read=0, grid=Grid(20_160, 630))]
    monkeypatch.setattr(registry, "choose", lambda *at: (answers or [choose(*at)]).pop())
    result = run(INTEGER, ours, others, sketch=sketch_of(INTEGER, rows, 20_160, 2520))
    said = [reply.verdict for reply in result.pair.received if reply.HasField("verdict")]
    assert [bool(verdict.sample) for verdict in said][:2] == [True, False]


def test_a_sketch_that_never_decodes_falls_back() -> None:
    rows = large(5000, seed=1)
    theirs = table_of(INTEGER, edit(rows, 50, seed=6))
    for method in (None, Method.SKETCH):
        sketch = sketch_of(INTEGER, rows, 6, 6)
        ours = table_of(INTEGER, rows)
        result = run(INTEGER, ours, theirs, sketch=sketch, partition=uniform(64), forced=method)
        assert result.outcome.method is not Method.SKETCH


def test_keys_that_share_a_k_are_shipped_together() -> None:
    rows = large(800, seed=2)
    theirs = edit(rows, 20, seed=3)
    ours, others = (table_of(COMPOSITE, each) for each in (rows, theirs))
    sketch = Sketch(Embedding(64), 360, 2)
    out = run(COMPOSITE, ours, others, sketch=sketch, forced=Method.SKETCH).outcome
    assert out.method is Method.SKETCH
    assert isinstance(out.difference, BelowKeys)
    assert len(out.difference.ks) <= 64


@pytest.mark.parametrize("forcing", FORCINGS)
@SCHEMAS
def test_every_way_to_fetch_what_is_wanted(schema: Schema, forcing: str) -> None:
    rows = large(800, seed=2)
    ours, theirs = table_of(schema, rows), table_of(schema, edit(rows, 60, seed=3))
    with patched(forcing, coarsen=2):
        result = run(schema, ours, theirs, partition=uniform(256), forced=Method.RANGE)
    is_copied = isinstance(result.outcome.difference, AllRows)
    assert is_copied == (forcing == "too many hashes")


def test_a_first_load_and_an_empty_source() -> None:
    rows = table_of(INTEGER, large(300, seed=4))
    assert run(INTEGER, [], rows).pair.kinds()[-1] == "finished"
    assert run(INTEGER, [], []).outcome.is_equal
    gone = run(INTEGER, rows, [], forced=Method.RANGE)
    assert isinstance(gone.outcome.difference, ListedRows)
    assert gone.outcome.scans == 1  # where nothing is left, nothing is read again
    assert gone.outcome.round_trips == 2


def test_only_inserts_into_empty_ranges_need_no_hashes() -> None:
    rows = table_of(INTEGER, large(100, seed=5))
    theirs: Table = [*rows, (10**12, "new", None)]
    partition = from_quantiles([int(str(row[0])) for row in rows], 50)
    with patched("as it is", coarsen=0):
        result = run(INTEGER, rows, theirs, partition=partition)
    assert result.outcome.round_trips == 2
    assert result.shipped() == [encode(theirs[-1])]


# Duplicates


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.none()), max_size=30))
@examples(60)
def test_a_working_copy_with_duplicates_loses_them(ours: Table) -> None:
    theirs = list(dict.fromkeys(ours))[::2]
    with patched("as it is", coarsen=1):
        run(LOOSE, ours, theirs, partition=uniform(8))


@pytest.mark.parametrize("forcing", ["as it is", "read again", "hold some"])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.none()), max_size=20),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.none()), max_size=20),
)
def test_multisets_of_rows(forcing: str, ours: Table, theirs: Table) -> None:
    """As many of each as the source has: two rows with one key are then seen as `DuplicateKey`."""
    with patched(forcing, coarsen=0):
        run(LOOSE, ours, theirs, partition=uniform(4))


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40)


@given(PAIRS, PAIRS)
def test_multiset_difference_is_that_of_counters(ours: list, theirs: list) -> None:
    sides: list[Any] = []
    for pairs in (ours, theirs):
        lanes = np.array(pairs, np.int64).reshape(-1, 2)
        sides += [lanes[:, 0], (lanes[:, 1] << 62).view(np.uint64)]
    removed, wanted = multiset_difference(*sides)
    found = [
        Counter(itertools.compress(pairs, chosen.tolist()))
        for pairs, chosen in ((ours, removed), (theirs, wanted))
    ]
    assert found == [Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)]


# The data changes


SMALL: Table = [(i, "x" * i, None) for i in range(12)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "erp.db"
    fill(path, INTEGER, SMALL)
    return path


class Meddler(Pair):
    """Changes the database while the source waits for a message, when its snapshot is given up."""

    def __init__(self, session: Session, shape: Shape, path: Path, before: str) -> None:
        super().__init__(session, shape)
        self._path, self._before = path, before

    def _hear(self) -> pb.Request:
        request = super()._hear()
        if request.WhichOneof("message") == self._before:
            with closing(sqlite3.connect(self._path)) as connection, connection:
                connection.execute("UPDATE t SET a = 'later' WHERE id = 3")
        return request


def converse(pair: Any, ours: Ours, forced: Method | None = None) -> Result:
    result = Result(pair, ours)
    result.outcome = compare(ours.side(forced), *ours.talk(pair, result.frames.append))
    return result


@pytest.mark.parametrize("before", ["digests", "wanted", "whole"])
def test_a_change_between_two_reads_is_a_lost_snapshot(database: Path, before: str) -> None:
    with closing(open_session(database)) as session:
        shape = session.describe(INTEGER.relation)
        ours = Ours([encode((i, "old", None)) for i in range(12)], shape.recipe, uniform(4))
        pair = Meddler(session, shape, database, before)
        method = Method.FULL if before == "whole" else Method.RANGE
        with patched("read again"), pytest.raises(SnapshotLost):
            converse(pair, ours, method)


class Forgetful:
    """A session whose later reads are of other rows, and that does not know it."""

    def __init__(self, session: Any, lost: int) -> None:
        self._session, self._lost, self._scans = session, lost, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def scan(self, shape: Any, *, ordered: bool = False) -> Iterator[list[bytes]]:
        self._scans += 1
        rows = [encode(row) for row in SMALL]
        if self._scans == self._lost:
            rows[3] = encode((3, "later", None))
        yield rows


@pytest.mark.parametrize(
    ("lost", "forcing", "method"),
    [
        (2, "by scan", Method.RANGE),
        (3, "read again by scan", Method.RANGE),
        (2, "as it is", Method.FULL),
    ],
)
def test_an_engine_without_snapshots_is_not_believed(
    database: Path, lost: int, forcing: str, method: Method
) -> None:
    with closing(open_session(database)) as session:
        shape = session.describe(INTEGER.relation)
        ours = Ours([encode((i, "old", None)) for i in range(12)], shape.recipe, uniform(4))
        with patched(forcing), pytest.raises(DatabaseRefused):
            converse(Pair(Forgetful(session, lost), shape), ours, method)


@pytest.mark.parametrize(("schema", "changes"), [(COMPOSITE, 9), (INTEGER, 45)])
def test_a_second_scan_of_fewer_rows_is_not_believed(
    tmp_path: Path, schema: Schema, changes: int
) -> None:
    """Where keys are hashed, or many rows changed, all of them come by again."""
    rows = large(60, seed=4)
    fill(tmp_path / "erp.db", schema, table_of(schema, edit(rows, changes, seed=5)))
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(schema.relation)
        forgetful = Shortened(session)
        ours = Ours(
            [encode(row) for row in table_of(schema, rows)],
            shape.recipe,
            uniform(4),
            sketch=sketch_of(schema, rows, 360, 1),
        )
        with pytest.raises(DatabaseRefused):
            converse(Pair(forgetful, shape), ours, Method.SKETCH)
        assert forgetful.scans == 2


class Shortened:
    """A session whose second scan ends before its last row, and that does not know it."""

    def __init__(self, session: Any) -> None:
        self._session, self.scans = session, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def scan(self, shape: Any, *, ordered: bool = False) -> Iterator[list[bytes]]:
        self.scans += 1
        rows = [row for some in self._session.scan(shape, ordered=ordered) for row in some]
        yield rows[:-1] if self.scans == 2 else rows


def test_null_keys_are_refused_with_samples(tmp_path: Path) -> None:
    path = tmp_path / "erp.db"
    fill(path, TEXT, [("a", 1, None), (None, 2, b"")])
    with closing(open_session(path)) as session, pytest.raises(NullKey) as caught:
        exchange_pair.exchange(session, TEXT.relation, [])
    assert caught.value.details == {"sample 1": "code=NULL"}


# A hostile warehouse


class Bench:
    """A source with a session, and an opening to spoil."""

    def __init__(self, path: Path) -> None:
        self.session = open_session(path)
        self.shape = self.session.describe(INTEGER.relation)
        ends = [*range(-(2**63), -(2**63) + 6), *range(2**63 - 6, 2**63)]
        rows = [encode((key, "old", None)) for key in ends]
        self.ours = Ours(rows, self.shape.recipe, uniform(16))
        self.tally = ReadCounts()
        self.opening = self.ours.opening()

    def say(self, *requests: pb.Request, opening: pb.Open | None = None) -> list[pb.Reply]:
        """Every reply to an opening and these requests."""
        comparison = Comparison(self.session, self.shape, opening or self.opening, self.tally)
        return list(comparison.answer(iter(requests)))


@pytest.fixture
def bench(database: Path) -> Iterator[Bench]:
    made = Bench(database)
    with closing(made.session):
        yield made


def opening_with(opening: pb.Open, **fields: Any) -> pb.Open:
    spoilt = pb.Open.FromString(opening.SerializeToString())
    for name, value in fields.items():
        if name == "start_steps":
            del spoilt.start_steps[:]
            spoilt.start_steps.extend(value)
        else:
            setattr(spoilt, name, value)
    return spoilt


def sketched(opening: pb.Open, **said: Any) -> pb.Open:
    """With a sketch of these parameters, and strata of as many slots."""
    sketch = pb.Sketch(**(SPANS | said))
    strata = bytes(strata_of(HASHES * sketch.third) * STRATUM_CELLS)
    found = opening_with(opening, strata=strata)
    found.sketch.CopyFrom(sketch)
    return found


MANY = SEGMENTS_MAX + 1
OPENINGS: list[tuple[dict[str, Any], type[DriftlineError] | None]] = [
    ({"protocol": 0}, VersionMismatch),
    ({"protocol": 2, "salt": b""}, VersionMismatch),
    ({"fragment_key": b""}, MalformedMessage),
    ({"fragment_key": bytes(33)}, MalformedMessage),
    ({"salt": bytes(15)}, MalformedMessage),
    ({"salt": bytes(17)}, MalformedMessage),
    ({"sum": b""}, MalformedMessage),
    ({"strata": bytes(STRATUM_CELLS - 1)}, MalformedMessage),
    ({"strata": bytes(14 * STRATUM_CELLS)}, MalformedMessage),
    ({"strata": bytes(1 << 20)}, MalformedMessage),
    ({"recipe": b""}, RecipeChanged),
    ({"recipe": bytes(16)}, RecipeChanged),
    ({"start_steps": [], "shifts": b""}, MalformedMessage),
    ({"start_steps": [0], "shifts": b"\x3f"}, MalformedMessage),
    ({"shifts": b"\x40"}, MalformedMessage),
    ({"shifts": b"\xff"}, MalformedMessage),
    ({"shifts": b"\x2d"}, MalformedMessage),
    ({"shifts": b"\0"}, MalformedMessage),
    ({"shifts": b"??"}, MalformedMessage),
    ({"start_steps": [-(2**63), 0], "shifts": b"??"}, MalformedMessage),
    ({"start_steps": [-(2**63), -1], "shifts": b"??"}, None),
    ({"start_steps": [-(2**63), 5, -1], "shifts": b"???"}, MalformedMessage),
    ({"start_steps": [-(2**63)] + [1] * MANY, "shifts": b"?" * (MANY + 1)}, MalformedMessage),
    ({"start_steps": [1] * 500_000, "shifts": b"?"}, MalformedMessage),
]


@pytest.mark.parametrize("number", range(len(OPENINGS)))
def test_a_bad_opening_is_refused_before_anything_is_read(bench: Bench, number: int) -> None:
    fields, error = OPENINGS[number]
    spoilt = opening_with(bench.opening, **fields)
    if error is None:  # one step back is 2^64 − 1 on: the last position
        assert bench.say(pb.Request(whole=pb.Whole()), opening=spoilt)
        return
    with pytest.raises(error):
        bench.say(opening=spoilt)
    assert bench.tally.scans == 0


SPANS: dict[str, Any] = {"span": 40, "base": 0, "third": 60, "fold": 4}
SKETCHES: list[dict[str, Any]] = [
    {"span": 0},
    {"span": (1 << 31) + 1},
    {"span": 2**64 - 1},
    {"base": 2**63 - 39},
    {"base": -(2**63), "span": 1 << 32},
    {"third": 0},
    {"third": THIRD_CELLS_MAX + 1},
    {"third": 2**32 - 1},
    {"fold": 7},
    {"fold": 61},
    {"fold": 2**32 - 1},
    {"hashed": True, "span": 0},
    {"check": PRIME},
]


@pytest.mark.parametrize("number", range(len(SKETCHES)))
def test_a_bad_sketch_is_refused_before_anything_is_read(bench: Bench, number: int) -> None:
    spoilt = sketched(bench.opening, **SKETCHES[number])
    with pytest.raises(MalformedMessage):
        bench.say(opening=spoilt)
    assert bench.tally.scans == 0


def cells(count: int, *, cell: bytes = bytes(8), **said: Any) -> pb.Request:
    return pb.Request(cells=pb.Cells(**({"fold": 4, "last": True} | said), cells=cell * count))


BAD_CELLS: dict[str, list[pb.Request]] = {
    "no cells": [],
    "something else": [pb.Request(whole=pb.Whole())],
    "too few": [cells(44)],
    "too many": [cells(46)],
    "many too many": [cells(1 << 17)],
    "half a cell": [cells(45, cell=bytes(7))],
    "an empty piece": [cells(0, last=False), cells(45)],
    "pieces of nothing": [cells(9, last=False), cells(0, last=False)],
    "folded differently": [cells(9, last=False), cells(36, fold=5)],
    "folded by nothing": [cells(180, fold=0)],
    "folded by no divisor": [cells(25, fold=7)],
    "folded by 2^32 − 1": [cells(0, fold=2**32 - 1)],
    "a cut without a fold": [cells(45, cut=1)],
    "a finer fold without a cut": [cells(45, finer=2)],
    "a cut by the same fold": [cells(45, cut=1, finer=4)],
    "a cut by no divisor": [cells(45, cut=1, finer=3)],
    "a cut behind the end": [cells(90, cut=45, finer=2)],
    "a cut beyond 2^31": [cells(0, cut=2**32 - 1, finer=1)],
    "cut differently": [cells(9, last=False, cut=3, finer=2), cells(39, cut=4, finer=2)],
    "no elements of the field": [cells(45, cell=b"\xff" * 8)],
    "the modulus itself": [cells(45, cell=struct.pack("<2I", PRIME, 0))],
}


@pytest.mark.parametrize("name", BAD_CELLS)
def test_bad_cells_are_refused_before_anything_is_read(bench: Bench, name: str) -> None:
    opening = sketched(bench.opening)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            bench.say(*BAD_CELLS[name], opening=opening)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert bench.tally.scans == 0


NOISE = [pb.Cells(fold=60, cells=struct.pack("<6I", *range(1, 7)), last=True)]
REFINED: dict[str, list[pb.Request]] = {
    "the same fold": [cells(3, fold=60)],
    "a coarser fold": [cells(3, fold=120)],
    "no divisor of the fold": [cells(3, fold=7)],
    "all instead of the children": [cells(9, fold=20)],
    "no stuck cell's children": [cells(0, fold=20)],
    "a cut through a cell": [cells(3, fold=30, cut=1, finer=15)],
    "cut, as many as if it were not": [cells(9, fold=60, cut=1, finer=15)],
}


@pytest.mark.parametrize("name", REFINED)
def test_bad_children_of_stuck_cells(bench: Bench, name: str) -> None:
    opening = sketched(bench.opening, fold=60)
    with pytest.raises(MalformedMessage):
        bench.say(pb.Request(cells=NOISE[0]), *REFINED[name], opening=opening)
    assert bench.tally.scans == 1


def test_cells_of_noise_are_a_verdict_not_an_answer(bench: Bench) -> None:
    dice = random.Random(3)
    noise = b"".join(struct.pack("<2I", *dice.choices(range(PRIME), k=2)) for _ in range(45))
    opening = sketched(bench.opening)
    said = [
        pb.Request(cells=pb.Cells(fold=4, cells=noise, last=True)),
        pb.Request(whole=pb.Whole()),
    ]
    replies = bench.say(*said, opening=opening)
    assert replies[0].WhichOneof("message") == "verdict"
    assert replies[0].verdict.stuck
    assert replies[-1].finished.count == len(SMALL)


def test_cells_without_end(bench: Bench) -> None:
    """Each refinement costs the source a decoding, and the next may always be one cell finer."""
    dice = random.Random(3)
    noise = [struct.pack("<2I", *dice.choices(range(PRIME), k=2)) for _ in range(300)]
    first = pb.Request(cells=pb.Cells(fold=2, cells=b"".join(noise[:180]), last=True))
    more = [cells(1, cell=noise[180 + cut], fold=2, cut=cut, finer=1) for cut in range(1, 120)]
    with pytest.raises(MalformedMessage, match=f"more than {CELLS_TAKEN_MAX} times"):
        bench.say(first, *more, opening=sketched(bench.opening, third=120, fold=2))
    assert bench.tally.scans == 1


def test_a_hashed_key_is_not_embedded_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "erp.db"
    fill(path, TEXT, [("a", 1, None)])
    with closing(open_session(path)) as session:
        shape = session.describe(TEXT.relation)
        ours = Ours([encode(("b", 1, None))], shape.recipe, uniform(4), Sketch(Embedding(9), 6, 1))
        pair = Pair(session, shape)
        send = pair.send

        def claim(request: pb.Request) -> None:
            if request.WhichOneof("message") == "open":
                request.open.sketch.hashed = False
            send(request)

        pair.send = claim  # type: ignore[method-assign]
        with pytest.raises(MalformedMessage, match="integer key"):
            converse(pair, ours)


def digests(data: bytes, *, coarsen: int = 0, last: bool = True) -> pb.Request:
    return pb.Request(digests=pb.Digests(coarsen=coarsen, digests=data, last=last))


def wanted(bitmap: bytes, *, last: bool = True) -> pb.Request:
    return pb.Request(wanted=pb.Wanted(bitmap=bitmap, last=last))


def bomb(declared: int) -> bytes:
    """A zstd frame that says it is larger than any memory, and holds nothing."""
    return bytes.fromhex("28b52ffde0") + struct.pack("<Q", declared) + bytes.fromhex("010000")


ALL = bytes(range(1, 17)) * 8  # sixteen digests that are nobody's
PACKED = zstandard.compress
CONVERSATIONS: dict[str, list[pb.Request]] = {
    "the stream ends after the verdict": [],
    "an opening in the middle": [pb.Request(open=pb.Open())],
    "wanted before digests": [wanted(PACKED(b"\0"))],
    "nothing": [pb.Request()],
    "too few digests": [digests(ALL[8:])],
    "too many digests": [digests(ALL + bytes(8))],
    "too many digests in pieces": [digests(ALL, last=False), digests(bytes(8))],
    "half a digest": [digests(ALL[:-1])],
    "digests that never end": [digests(ALL, last=False)] + [digests(b"", last=False)] * 5,
    "an empty piece": [digests(b"", last=False), digests(ALL)],
    "a digest too many for the coarsening": [digests(ALL, coarsen=1)],
    "coarsened to less than one": [digests(bytes(8), coarsen=5)],
    "coarsened by 2^32 − 1": [digests(bytes(8), coarsen=2**32 - 1)],
    "coarsened differently": [digests(ALL[:8], last=False), digests(ALL[:56], coarsen=1)],
    "something else between digests": [digests(ALL[:8], last=False), pb.Request(whole=pb.Whole())],
    "the stream ends before wanted": [digests(ALL)],
    "whole instead of wanted": [digests(ALL), pb.Request(whole=pb.Whole())],
    "wanted that is not zstd": [digests(ALL), wanted(b"\1\1")],
    "wanted that is empty": [digests(ALL), wanted(b"")],
    "wanted too short": [digests(ALL), wanted(PACKED(b"\1"))],
    "wanted too long": [digests(ALL), wanted(PACKED(b"\1\1\1"))],
    "a bomb": [digests(ALL), wanted(PACKED(bytes(1 << 26)))],
    "a bomb that lies": [digests(ALL), wanted(bomb(1 << 40))],
    "a bitmap of unknown length": [
        digests(ALL),
        wanted(zstandard.ZstdCompressor(write_content_size=False).compress(b"\1\1")),
    ],
    "a bitmap larger than any": [digests(ALL), *[wanted(bytes(4000), last=False)] * 3],
    "empty pieces of wanted": [digests(ALL), *[wanted(b"", last=False)] * 5],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_hostile_warehouse(bench: Bench, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            bench.say(*CONVERSATIONS[name])
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    is_compared = CONVERSATIONS[name][:1] == [digests(ALL)]
    assert bench.tally.scans == (2 if is_compared else 1), "what is refused is not read for"


def test_a_sound_warehouse_on_the_same_bench(bench: Bench) -> None:
    replies = bench.say(digests(ALL), wanted(PACKED(b"\xff\xff")))
    assert replies[-1].finished.count == len(SMALL)
    assert sum(int.from_bytes(r.rows.frame[4:8], "little") for r in replies) == len(SMALL)


def test_a_level_beyond_zstds_is_brought_back(bench: Bench) -> None:
    for level in (0, 2**32 - 1):
        spoilt = opening_with(bench.opening, level=level, count=0)
        assert bench.say(opening=spoilt)[-1].finished.count == len(SMALL)


# A hostile source


class EndOfScript(Exception):
    """The warehouse waits, and the script has nothing more."""


class Script:
    """A source that says what it was told to."""

    agreed = Agreement()

    def __init__(self, replies: list[pb.Reply]) -> None:
        self._replies = iter(replies)

    def send(self, request: pb.Request) -> None:
        assert request.WhichOneof("message")

    def receive(self) -> pb.Reply:
        for reply in self._replies:
            return reply
        raise EndOfScript


def verdict(**fields: Any) -> pb.Reply:
    said: dict[str, Any] = {"count": 12, "sum": bytes(16), "differing": 3} | fields
    return pb.Reply(verdict=pb.Verdict(**said))


def mismatch(bitmap: bytes, counts: bytes, *, last: bool = True) -> pb.Reply:
    return pb.Reply(mismatch=pb.Mismatch(bitmap=bitmap, counts=counts, last=last))


def hashes(count: int) -> pb.Reply:
    return pb.Reply(row_hashes=pb.RowHashes(hashes=bytes(8 * count)))


def counts(*numbers: int) -> bytes:
    return PACKED(struct.pack(f"<{len(numbers)}I", *numbers))


FINISHED = pb.Reply(finished=pb.Finished(count=12, sum=bytes(16)))
END = pb.Reply(hashes_end=pb.HashesEnd())
NONE = mismatch(PACKED(bytes(2)), PACKED(b""))
FIRST = PACKED(b"\x01\x80")  # the first and the last of sixteen ranges: all our rows
REPLIES: dict[str, list[pb.Reply]] = {
    "a message from later": [END],
    "nothing": [pb.Reply()],
    "an end that is not equal": [FINISHED],
    "two verdicts": [verdict(), verdict()],
    "an end instead of the ranges": [verdict(), FINISHED],
    "a bitmap that is not zstd": [verdict(), mismatch(b"??", PACKED(b""))],
    "an empty bitmap": [verdict(), mismatch(b"", PACKED(b""))],
    "a short bitmap": [verdict(), mismatch(PACKED(b"\0"), PACKED(b""))],
    "a long bitmap": [verdict(), mismatch(PACKED(bytes(3)), PACKED(b""))],
    "a bomb as bitmap": [verdict(), mismatch(PACKED(bytes(1 << 26)), PACKED(b""))],
    "a bomb that lies": [verdict(), mismatch(bomb(1 << 40), PACKED(b""))],
    "bombs as counts": [verdict(), mismatch(FIRST, bomb(1 << 40))],
    "no counts": [verdict(), mismatch(FIRST, PACKED(b""))],
    "a count too few": [verdict(), mismatch(FIRST, counts(1))],
    "a count too many": [verdict(), mismatch(FIRST, counts(1, 1, 1))],
    "half a count": [verdict(), mismatch(FIRST, PACKED(bytes(7)))],
    "pieces of nothing": [verdict(), mismatch(b"", b"", last=False)],
    "no hashes in a piece": [verdict(), mismatch(FIRST, counts(1, 1)), hashes(0)],
    "pieces without an end": [verdict()]
    + [mismatch(bytes(1 << 20), bytes(1 << 20), last=False)] * 4,
    "billions of rows": [verdict(), mismatch(FIRST, counts(2**32 - 1, 2**32 - 1)), END],
    "a hash too few": [verdict(), mismatch(FIRST, counts(1, 1)), hashes(1), END],
    "a hash too many": [verdict(), mismatch(FIRST, counts(1, 1)), hashes(3), END],
    "hashes of nothing": [verdict(), NONE, hashes(1), END],
    "half a hash": [
        verdict(),
        mismatch(FIRST, counts(1, 1)),
        pb.Reply(row_hashes=pb.RowHashes(hashes=bytes(15))),
    ],
    "an end instead of hashes": [verdict(), mismatch(FIRST, counts(1, 1)), FINISHED],
    "more hashes than any": [verdict(), mismatch(FIRST, counts(1, 1)), *[hashes(1 << 16)] * 70],
    "no end": [verdict(), NONE, END, END],
}


def refused(replies: list[pb.Reply], ours: Ours, bytes_max: int = 128 << 20) -> None:
    """A source that says so is not believed, and takes little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            converse(Script(replies), ours)
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_source(bench: Bench, name: str) -> None:
    with patched("as it is", coarsen=0):
        refused(REPLIES[name], bench.ours)
    if name not in {"no end"}:
        assert bench.ours.listed == 0, "Spark was asked before the source was believed"


KS = pack(np.array([1, 5], np.uint64))
DELETED: dict[str, list[pb.Reply]] = {
    "deleted without a sketch": [pb.Reply(deleted=pb.Deleted(ks=KS)), FINISHED],
    "a sample without a sketch": [verdict(sample=b"?")],
    "a sample of more cells than there are": [verdict(stuck=PACKED(bytes(6)), sample=bytes(181))],
    "a sample of very many cells": [verdict(stuck=PACKED(bytes(6)), sample=bytes(1 << 20))],
    "no stuck cells": [verdict()],
    "stuck cells of another table": [verdict(stuck=PACKED(bytes(7)))],
    "a bomb as stuck cells": [verdict(stuck=bomb(1 << 40))],
    "keys that are not zstd": [pb.Reply(deleted=pb.Deleted(ks=b"??"))],
    "keys that lie about their size": [pb.Reply(deleted=pb.Deleted(ks=bomb(1 << 40)))],
    "more keys than cells": [
        pb.Reply(deleted=pb.Deleted(ks=pack(np.arange(999, dtype=np.uint64))))
    ],
    "keys beyond the span": [pb.Reply(deleted=pb.Deleted(ks=pack(np.array([1 << 31], np.uint64))))],
    "a key twice": [pb.Reply(deleted=pb.Deleted(ks=PACKED(b"\1\0" + bytes(6))))],
    "an end without keys": [FINISHED],
    "keys and no end": [pb.Reply(deleted=pb.Deleted(ks=KS)), END],
}


@pytest.mark.parametrize("name", DELETED)
def test_a_hostile_source_of_a_sketch(bench: Bench, name: str) -> None:
    sketch = None if "without" in name else Sketch(Embedding(1 << 30), 60, 4)
    ours = Ours(bench.ours.rows, bench.shape.recipe, uniform(16), sketch)
    refused(DELETED[name], ours, bytes_max=32 << 20)


@pytest.mark.parametrize("key", [None, b"", b"\0" * 9], ids=["NULL", "short", "long"])
def test_a_frame_whose_key_is_none_is_not_kept(bench: Bench, key: bytes | None) -> None:
    made = bench.shape.recipe
    row = [key, *[b"x"] * (len(made.columns) - 1)]
    sketch = Sketch(Embedding(1 << 30), 60, 4)
    ours = Ours(bench.ours.rows, made, uniform(16), sketch)
    frame = frames.encode(block([row]), made, SALT, Digest(1, 1), level=1)
    kept: list[bytes] = []
    talk = ours.talk(Script([pb.Reply(rows=pb.Rows(frame=frame))]), kept.append)
    with pytest.raises(FrameDamaged):
        compare(ours.side(), *talk)
    assert kept == []


def test_a_mismatch_in_pieces(bench: Bench) -> None:
    numbers = counts(0, 0)
    said = [
        verdict(count=0),
        mismatch(FIRST[:3], b"", last=False),
        mismatch(FIRST[3:], numbers[:5], last=False),
        mismatch(b"", numbers[5:]),
        END,
        pb.Reply(finished=pb.Finished(count=0, sum=bytes(16))),
    ]
    with patched("as it is", coarsen=0):
        result = converse(Script(said), bench.ours)
    assert result.outcome.theirs == Digest()
    assert result.state() == Counter()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_any_verdict_leads_to_a_choice(count: int, differing: int) -> None:
    said = verdict(count=count, differing=differing, sum=b"")
    made = Ours(
        [encode(row) for row in SMALL],
        recipe(["int8", "text", "bytea"]),
        Partition((-(2**63),), (60,)),
    )
    with pytest.raises(EndOfScript):
        converse(Script([said]), made)


def test_a_refusal_is_raised_as_what_it_is(bench: Bench) -> None:
    refused = pb.Refused(code="SNAPSHOT_LOST", message="It changed.", where="orders")
    for before in ([], [verdict()], [verdict(), NONE]):
        with patched("as it is", coarsen=0), pytest.raises(SnapshotLost, match="It changed"):
            converse(Script([*before, pb.Reply(refused=refused)]), bench.ours)


def test_row_hashes_that_came_are_not_too_many() -> None:
    hashes = ranges.row_hashes()
    next(hashes)
    hashes.send(pb.Reply(row_hashes=pb.RowHashes(hashes=bytes(16))))
    with pytest.raises(MalformedMessage, match="too many to be sent"):
        hashes.send(pb.Reply(hashes_end=pb.HashesEnd(too_many=True)))
