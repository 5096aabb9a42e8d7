"""A tile at the source: only its rows exist, they are read once, and no lock outlives the read."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import (
    ConfigurationError,
    LimitExceeded,
    MalformedMessage,
    SnapshotLost,
    VersionMismatch,
)
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN, Partition, from_quantiles
from driftline.rows.digests import Digest
from driftline.rows.key_order import KeyRange
from driftline.wire.negotiation import check_features
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.interface import Capabilities
from source_agent.engines.relations.shapes import Relation
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.scan import batches, tile
from source_agent.server.service import start
from tests.harness import exchange_pair
from tests.harness.agents import Peer, channel, configuration, make_orders, opening
from tests.harness.examples import examples
from tests.harness.exchange_pair import (
    COMPOSITE,
    INTEGER,
    LOOSE,
    TEXT,
    Schema,
    encode,
    fill,
    open_session,
)
from tests.pair.exchange.test_both_halves import edited, sketches
from warehouse_agent.planning.choice import Method

LIMITS: dict[str, dict[tuple[Any, str], object]] = {
    "as it is": {},
    "read again": {(tile, "TILE_HELD_BYTES"): 0},
    "nothing held": {(tile, "TILE_HELD_BYTES"): 0, (batches, "ROWS_HELD_BYTES"): 0},
}
POSITIONS = st.integers(-45, 45) | st.integers(POSITION_MIN, POSITION_MAX)


@given(data=st.data())
@examples(120)
def test_any_edit_within_a_tile_is_found(data: st.DataObject) -> None:
    """Whatever the method; what lies outside is as if it were not there."""
    ours, theirs = data.draw(edited(INTEGER))
    first, last = sorted((data.draw(POSITIONS), data.draw(POSITIONS)))
    inside = [[row for row in rows if first <= row[0] <= last] for rows in (ours, theirs)]  # type: ignore[operator]
    sketch = data.draw(st.none() | sketches(INTEGER, inside[0])) if inside[0] else None
    knots = [row[0] for row in ours if isinstance(row[0], int)]
    partition = from_quantiles(knots, 64) if knots else None
    limits = data.draw(st.sampled_from(list(LIMITS)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for (module, name), value in LIMITS[limits].items():
            patch.setattr(module, name, value)
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs, wal=data.draw(st.booleans()))
        with closing(open_session(path)) as session:
            result = exchange_pair.exchange(
                session,
                INTEGER.relation,
                inside[0],
                partition=partition,
                forced=data.draw(st.sampled_from([None, *Method])),
                sketch=sketch,
                within=(first, last),
            )
    expected = [encode(row) for row in inside[1]]
    assert result.state() == Counter(expected)
    out = result.outcome
    assert out.theirs == result.ours.digest(expected)
    assert (out.scans, out.consistency, out.changed) == (0, "exact", False)
    if limits == "as it is":
        assert out.rows_read == len(expected)


def open_within(
    first: int,
    last: int,
    recipe: bytes = b"",
    *,
    count: int = 0,
    partition: Partition | None = None,
) -> pb.Open:
    ours = Digest(count, 1 if count else 0)
    message = opening(recipe, ours=ours, partition=partition).open
    message.within.first, message.within.last = first, last
    return message


@pytest.mark.parametrize("bounds", [(1, 0), (POSITION_MAX, POSITION_MIN), (5, 4)])
def test_bounds_that_do_not_ascend(bounds: tuple[int, int], tmp_path: Path) -> None:
    fill(tmp_path / "erp.db", INTEGER, [(1, "a", b"b")])
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(INTEGER.relation)
        tally = ReadCounts()
        with pytest.raises(MalformedMessage):
            Comparison(session, shape, open_within(*bounds, shape.recipe.id), tally)
        assert (tally.scans, tally.rows_read) == (0, 0)


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        (LOOSE, (1, "a", b"b")),
        (COMPOSITE, ("k", 1, b"b", "a")),
        (TEXT, ("k", 1, b"b")),
    ],
    ids=["no index", "composite", "text"],
)
def test_what_cannot_be_read_by_index(schema: Schema, row: tuple, tmp_path: Path) -> None:
    fill(tmp_path / "erp.db", schema, [row])
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(schema.relation)
        tally = ReadCounts()
        with pytest.raises(ConfigurationError, match="index") as refused:
            Comparison(session, shape, open_within(0, 9, shape.recipe.id), tally)
        assert "incremental" in refused.value.remedy
        assert (tally.scans, tally.rows_read) == (0, 0)


@pytest.mark.starts
def test_over_the_wire(tmp_path: Path) -> None:
    """The ends of the domain are bounds like others; a bad tile ends the relation, not the
    stream."""
    make_orders(tmp_path / "erp.db", [(i, f"c{i}") for i in range(100)])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    try:
        with closing(open_session(tmp_path / "erp.db")) as session:
            recipe = session.describe(Relation("orders", table="orders")).recipe.id
        with channel(server.port, None) as over, Peer(over) as peer:
            peer.send(pb.Request(open=open_within(3, 2, recipe)))
            assert peer.reply().refused.code == "MALFORMED"
            for bounds, rows in (
                ((POSITION_MIN, POSITION_MAX), 100),
                ((10, 19), 10),
                ((POSITION_MIN, 0), 1),
                ((99, 99), 1),
                ((100, POSITION_MAX), 0),
            ):
                peer.send(pb.Request(open=open_within(*bounds, recipe)))
                done = peer.until("finished")[-1].finished
                assert (done.count, done.rows_read, done.scans) == (rows, rows, 0)
    finally:
        server.stop()


def answers(path: Path, bounds: tuple[int, int], *, count: int) -> Any:
    """A session, the rest of an exchange about a tile, and its tally."""
    session = open_session(path)
    shape = session.describe(INTEGER.relation)
    tally = ReadCounts()
    whole = Partition((POSITION_MIN,), (56,))
    message = open_within(*bounds, shape.recipe.id, count=count, partition=whole)
    requests = iter([pb.Request(whole=pb.Whole())])
    return session, Comparison(session, shape, message, tally).answer(requests), tally


@pytest.mark.parametrize("count", [0, 7])
def test_a_writer_gets_in_while_a_tile_is_answered(count: int, tmp_path: Path) -> None:
    """A rollback journal: the reader's lock is gone when the first reply comes, whether rows are
    shipped or a verdict is answered; and what is shipped is the tile as it was read."""
    path = tmp_path / "erp.db"
    fill(path, INTEGER, [(i, "x" * 100, None) for i in range(50_000)])
    session, replies, tally = answers(path, (10_000, 29_999), count=count)
    with closing(session), closing(sqlite3.connect(path, timeout=0)) as writer:
        kinds = [next(replies).WhichOneof("message")]
        writer.execute("UPDATE t SET a = 'new' WHERE id = 15000")
        writer.commit()
        kinds += [reply.WhichOneof("message") for reply in replies]
        assert kinds[0] == ("verdict" if count else "rows")
        assert kinds[-1] == "finished"
        assert (tally.rows_read, tally.scans) == (20_000, 0)
        assert session.snapshot.generation == 0


def test_a_tile_that_is_not_remembered_must_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile, "TILE_HELD_BYTES", 1000)
    path = tmp_path / "erp.db"
    fill(path, INTEGER, [(i, "x", None) for i in range(1000)])
    session, replies, _ = answers(path, (0, 499), count=7)
    with closing(session), closing(sqlite3.connect(path, timeout=0)) as writer:
        assert next(replies).WhichOneof("message") == "verdict"
        writer.execute("UPDATE t SET a = 'new' WHERE id = 15")
        writer.commit()
        with pytest.raises(SnapshotLost):
            list(replies)


@pytest.mark.slow
def test_reading_a_tile_takes_the_time_of_a_tile(tmp_path: Path) -> None:
    """By index: a hundredth of the rows in far less than the time of all."""
    path = tmp_path / "erp.db"
    fill(path, INTEGER, [(i, "x" * 50, None) for i in range(200_000)])
    spent = []
    for bounds in ((POSITION_MIN, POSITION_MAX), (1000, 2999)):
        session, replies, _ = answers(path, bounds, count=7)
        with closing(session):
            began = time.monotonic()
            next(replies)
            spent.append(time.monotonic() - began)
    assert spent[1] < spent[0] / 5


@pytest.mark.parametrize("wal", [True, False])
@pytest.mark.parametrize("kind", ["positions", "keys"])
@pytest.mark.parametrize("rows_by_key", [9, 10])
def test_a_tile_has_as_many_rows_as_the_dba_allows(
    kind: str, wal: bool, rows_by_key: int, tmp_path: Path
) -> None:
    """One row more is read at most, also where a tile is copied before it is used."""
    integer = kind == "positions"
    schema = INTEGER if integer else COMPOSITE
    rows: Any = [(i, "a", None) if integer else ("k", i, None, None) for i in range(30)]
    fill(tmp_path / "erp.db", schema, rows, wal=wal)
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(replace(schema.relation, rows_by_key=rows_by_key))
        tally, recipe = ReadCounts(), shape.recipe.id
        tiled = open_between(recipe, ["k", "10"], ["k", "20"])
        message = open_within(10, 19, recipe) if integer else tiled
        replies = Comparison(session, shape, message, tally).answer(iter(()))
        if rows_by_key == 10:
            assert [r.finished.count for r in replies if r.HasField("finished")] == [10]
        else:
            with pytest.raises(LimitExceeded, match=r"more than 9 rows.*rows_by_key"):
                list(replies)
        assert (tally.rows_read, tally.scans) == (10, 0)


# Between keys.


CODES = st.text(st.sampled_from("ab~é"), max_size=2)


@given(data=st.data())
@examples(120)
def test_any_edit_between_two_keys_is_found(data: st.DataObject) -> None:
    """Whatever the method; what lies outside is as if it were not there."""
    ours, theirs = data.draw(edited(COMPOSITE))
    keys = [row[:2] for row in (*ours, *theirs)]
    some = st.tuples(CODES, st.integers(-45, 45))
    bound = st.none() | (st.sampled_from(keys) | some if keys else some)
    lower, upper = data.draw(st.tuples(bound, bound))
    if lower is not None and upper is not None:
        lower, upper = sorted((lower, upper))
        upper = None if lower == upper else upper

    def inside(row: Any) -> bool:
        return (lower is None or row[:2] >= lower) and (upper is None or row[:2] < upper)

    mine, expected = (list(filter(inside, rows)) for rows in (ours, theirs))
    sketch = data.draw(st.none() | sketches(COMPOSITE, mine)) if mine else None
    limits = data.draw(st.sampled_from(list(LIMITS)))
    texts = [None if key is None else (str(key[0]), str(key[1])) for key in (lower, upper)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for (module, name), value in LIMITS[limits].items():
            patch.setattr(module, name, value)
        path = Path(folder) / "erp.db"
        fill(path, COMPOSITE, theirs, wal=data.draw(st.booleans()))
        with closing(open_session(path)) as session:
            result = exchange_pair.exchange(
                session,
                COMPOSITE.relation,
                mine,
                forced=data.draw(st.sampled_from([None, *Method])),
                sketch=sketch,
                within=KeyRange(*texts),
            )
    encoded = [encode(row) for row in expected]
    assert result.state() == Counter(encoded)
    out = result.outcome
    assert out.theirs == result.ours.digest(encoded)
    assert (out.scans, out.consistency, out.changed) == (0, "exact", False)
    if limits == "as it is":
        assert out.rows_read == len(encoded)


def open_between(
    recipe: bytes, lower: Sequence[str] = (), upper: Sequence[str] = (), *, within: bool = False
) -> pb.Open:
    message = opening(recipe, ours=Digest()).open
    message.between.lower.extend(lower)
    message.between.upper.extend(upper)
    if within:
        message.within.first = message.within.last = 1
    message.between.SetInParent()
    return message


@pytest.mark.parametrize(
    ("lower", "upper", "within"),
    [
        (["b", "1"], ["a", "9"], False),
        (["a", "1"], ["a", "1"], False),
        (["a", "10"], ["a", "9"], False),
        (["a"], [], False),
        ([], ["a", "1", "x"], False),
        (["a", "one"], [], False),
        ([], ["a", "9223372036854775808"], False),
        (["x" * 9000, "1"], [], False),
        (["a", "1"], [], True),
        ([], [], True),
    ],
)
def test_malformed_bounds_between_keys(
    lower: list[str], upper: list[str], within: bool, tmp_path: Path
) -> None:
    """Refused before anything is read."""
    fill(tmp_path / "erp.db", COMPOSITE, [("k", 1, b"b", "a")])
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(COMPOSITE.relation)
        tally = ReadCounts()
        with pytest.raises(MalformedMessage):
            Comparison(
                session, shape, open_between(shape.recipe.id, lower, upper, within=within), tally
            )
        assert (tally.scans, tally.rows_read) == (0, 0)


def test_no_ranges_of_keys_without_an_index(tmp_path: Path) -> None:
    """What can be read so, the source decides: the refusal names the key and says what to do."""
    fill(tmp_path / "erp.db", TEXT, [("k", 1, b"b")])
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(TEXT.relation)
        with pytest.raises(ConfigurationError, match=r"key \(code\).*no index") as refused:
            Comparison(session, shape, open_between(shape.recipe.id), ReadCounts())
        assert "incremental" in refused.value.remedy


def test_a_database_that_sorts_otherwise_is_noticed(tmp_path: Path) -> None:
    """A row that lies outside of the tile by the protocol's order is refused, not sent."""
    fill(tmp_path / "erp.db", COMPOSITE, [(code, 1, b"b", "a") for code in "aBc"])
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(COMPOSITE.relation)
        message = open_between(shape.recipe.id, ["a", "1"], ["b", "2"])
        replies = Comparison(session, shape, message, ReadCounts()).answer(iter(()))
        assert [r.finished.count for r in replies if r.HasField("finished")] == [1]
        folding: Any = Returning(session, [encode(("B", 1, b"b", "a"))])
        with pytest.raises(ConfigurationError, match="sorted by the database otherwise"):
            list(Comparison(folding, shape, message, ReadCounts()).answer(iter(())))


class Returning:
    """A session whose database returns these rows for every range of keys."""

    def __init__(self, session: Any, rows: list[bytes]) -> None:
        self._session, self._rows = session, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(read_between=lambda *_, **__: iter([self._rows]))


def test_only_a_tile_between_keys_asks_for_the_feature(tmp_path: Path) -> None:
    """An older source refuses it by name; it cannot take the opening for the whole relation."""
    fill(tmp_path / "erp.db", COMPOSITE, [("k", 1, b"b", "a")])
    asked = []
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(COMPOSITE.relation)
        for within in (None, (0, 9), KeyRange(("a", "1"))):
            ours = exchange_pair.Ours([], shape.recipe, from_quantiles([1], 2))
            terms = ours.terms(within=within)
            asked.append(list(terms.opening(Digest(), ours.partition).open.features))
    assert asked == [[], [], ["between"]]
    with pytest.raises(VersionMismatch, match="asks for between"):
        check_features(asked[-1], known=["derive"])
