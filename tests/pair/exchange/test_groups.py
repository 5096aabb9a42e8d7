"""Groups, both halves: whatever was edited, what was compared is theirs afterwards.

Of everything, by any groups; of a part, what it names and what lies in its ranges, while the rest
stays as it was. Then what a broken or hostile peer sends.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, DriftlineError, LimitExceeded, MalformedMessage
from driftline.limits import GROUPED_KEYS_MAX, KEYS_PER_GROUP_MAX, PART_RANGES_MAX
from driftline.reconciliation.groups import SizedGroups
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN, Partition
from driftline.reconciliation.sketches import Embedding, pack
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.encoding import rows
from source_agent.methods import groups, row_hashes
from source_agent.methods.comparison import Comparison, ReadCounts
from tests.harness.examples import examples
from tests.harness.exchange_pair import (
    COMPOSITE,
    INTEGER,
    LOOSE,
    Groups,
    Ours,
    Schema,
    Table,
    encode,
    fill,
    open_session,
)
from tests.harness.exchange_pair import exchange as exchanged
from tests.pair.exchange.test_both_halves import (
    END,
    FINISHED,
    FORCINGS,
    PACKED,
    SCHEMAS,
    Script,
    bomb,
    converse,
    counts,
    edit,
    edited,
    hashes,
    large,
    mismatch,
    patched,
    refused,
    table_of,
    verdict,
)
from warehouse_agent.methods.groups.exchange import PartLimits
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.sketch_size import embedding_for
from warehouse_agent.tasks.difference import ListedRows

SIZES = st.lists(st.sampled_from([0, 1, 1, 2, 3, 7, KEYS_PER_GROUP_MAX]), min_size=1, max_size=5)


@st.composite
def groupings(draw: st.DrawFn, schema: Schema, ours: Table) -> Groups:
    """Any groups of our rows: also of rows whose keys mostly collide."""
    keys = [row[0] for row in ours if isinstance(row[0], int)]
    bounds = None if schema is COMPOSITE or draw(st.booleans()) else (min(keys), max(keys))
    embedding = embedding_for(len(ours), bounds)
    if embedding.base is None and draw(st.booleans()):
        embedding = Embedding(draw(st.sampled_from([1, 7, 1 << 31])))
    return Groups(
        embedding,
        tuple(draw(SIZES)),
        row_bytes=draw(st.sampled_from([0, 9, 1000])),
        wait_bytes=draw(st.sampled_from([0, 0, 500])),
    )


@SCHEMAS
@given(data=st.data())
@examples(90)
def test_any_edit_is_found(schema: Schema, data: st.DataObject) -> None:
    ours, theirs = data.draw(edited(schema).filter(lambda tables: tables[0]))
    groups = data.draw(groupings(schema, ours))
    with (
        patched(data.draw(st.sampled_from(list(FORCINGS)))),
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / "erp.db"
        fill(path, schema, theirs, wal=data.draw(st.booleans()))
        with closing(open_session(path)) as session:
            result = exchanged(session, schema.relation, ours, groups=groups)
            assert result.pair.is_done
    out, expected = result.outcome, [encode(row) for row in theirs]
    assert out.theirs == result.ours.digest(expected)
    assert out.is_equal == (Counter(result.ours.rows) == Counter(expected))
    if not out.is_equal:
        assert result.state() == Counter(expected)
    assert out.round_trips == result.pair.round_trips <= 2
    assert out.method is Method.GROUP
    assert out.consistency == "exact"


@SCHEMAS
@pytest.mark.parametrize("row_bytes", [1, 1000], ids=["whole", "refined"])
@pytest.mark.parametrize("changes", [0, 1, 50])
def test_a_table_of_five_thousand_rows(schema: Schema, row_bytes: int, changes: int) -> None:
    rows = large(5000, seed=1)
    ours, theirs = table_of(schema, rows), table_of(schema, edit(rows, changes, seed=changes))
    bounds = None if schema is COMPOSITE else (min(rows), max(rows))
    groups = Groups(embedding_for(len(rows), bounds), (10,), row_bytes=row_bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, schema, theirs)
        with closing(open_session(path)) as session:
            result = exchanged(session, schema.relation, ours, groups=groups)
    kinds = result.pair.kinds()
    if not changes:
        assert kinds == ["finished"]
        return
    assert result.state() == Counter(encode(row) for row in theirs)
    assert ("row_hashes" in kinds) == (row_bytes == 1000 and changes == 50)
    if "row_hashes" in kinds:
        assert len(result.shipped()) <= 2 * changes
    else:
        assert len(result.shipped()) <= 20 * changes
    assert result.outcome.scans <= (1 if schema is INTEGER else 2)


def test_a_unit_that_lost_a_key_is_regrouped() -> None:
    """Nothing but its hash comes, and nothing is shipped."""
    ours: Any = [(key, f"row {key}", b"") for key in range(300)]
    theirs: Any = [row for row in ours if row[0] != 137]
    groups = Groups(Embedding(300, 0), (100,), row_bytes=1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs)
        with closing(open_session(path)) as session:
            result = exchanged(session, INTEGER.relation, ours, groups=groups)
    hashes = [r.row_hashes.hashes for r in result.pair.received if r.HasField("row_hashes")]
    assert [len(h) for h in hashes] == [8]
    assert result.shipped() == []
    assert result.state() == Counter(encode(row) for row in theirs)


# Parts.
@st.composite
def parts(draw: st.DrawFn) -> tuple[Any, Any, Groups]:
    ours: Any
    ours, theirs = draw(edited(INTEGER).filter(lambda tables: tables[0]))
    keys = [row[0] for row in ours]
    span = max(keys) - min(keys) + 1
    if span >= 1 << 31:
        ours = [row for row in ours if abs(row[0]) <= 40] or [(0, None, None)]
        keys = [row[0] for row in ours]
        span = max(keys) - min(keys) + 1
    ends = draw(
        st.lists(st.integers(-45, 45) | st.sampled_from([POSITION_MIN, POSITION_MAX]), max_size=4)
    )
    pairs = sorted(zip(*[iter(sorted(set(ends)))] * 2, strict=False))
    part = PartLimits(
        np.array([first for first, _ in pairs], np.int64),
        np.array([last for _, last in pairs], np.int64),
        rows_max=10_000,
    )
    # All of ours in a range must be named: here, all of ours, or none in any range.
    sizes = tuple(draw(SIZES))
    if pairs:
        sizes = tuple(max(size, 1) for size in sizes)
    row_bytes = draw(st.sampled_from([0, 9, 1000]))
    return ours, theirs, Groups(Embedding(span, min(keys)), sizes, row_bytes, 0, part)


@given(parts(), st.sampled_from(list(FORCINGS)))
@examples(120)
def test_a_part_is_theirs_and_the_rest_is_ours(
    drawn: tuple[Any, Any, Groups], forcing: str
) -> None:
    ours, theirs, groups = drawn
    with patched(forcing), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs)
        with closing(open_session(path)) as session:
            result = exchanged(session, INTEGER.relation, ours, groups=groups)
            assert result.pair.is_done
    grouped = result.ours.grouped
    assert grouped is not None
    assert groups.part is not None
    base = groups.embedding.base
    assert base is not None
    named = {base + int(k) for k in grouped.sums().all_ks()}
    ranges = list(zip(groups.part.first.tolist(), groups.part.last.tolist(), strict=True))

    def is_compared(row: tuple) -> bool:
        return row[0] in named or any(a <= row[0] <= b for a, b in ranges)

    expected = [encode(r) for r in theirs if is_compared(r)]
    left = [encode(r) for r in ours if not is_compared(r)]
    out = result.outcome
    if not out.is_equal:
        assert result.state() == Counter(expected + left)
    assert out.theirs == result.ours.digest(expected + left)
    assert out.consistency == "fuzzy"
    # Once to compare; what differs may be read once more.
    assert out.rows_read <= 3 * len(expected)
    assert out.scans == 0


def part_of(ours: Any, *, rows_max: int) -> Groups:
    keys = [row[0] for row in ours]
    none = np.zeros(0, np.int64)
    above = PartLimits(np.array([max(keys) + 1]), np.array([POSITION_MAX]), rows_max)
    span = max(keys) - min(keys) + 1
    return Groups(
        Embedding(span, min(keys)), (5,), part=above if rows_max else PartLimits(none, none, 1)
    )


@pytest.mark.parametrize("wal", [True, False], ids=["wal", "spooled"])
def test_a_part_keeps_to_its_budget(wal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all is read before the first row is handed out."""
    ours: Any = [(key, "a", b"") for key in range(50)]
    theirs: Any = ours + [(key, "new", b"") for key in range(50, 20_000)]
    read: list[int] = []

    def counting(source: Any, *arguments: Any, **named: Any) -> Any:
        for batch in batches(source, *arguments, **named):
            read.append(len(batch))
            yield batch

    batches = rows.batches
    monkeypatch.setattr(rows, "batches", counting)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs, wal=wal)
        with closing(open_session(path)) as session, pytest.raises(LimitExceeded) as caught:
            exchanged(session, INTEGER.relation, ours, groups=part_of(ours, rows_max=100))
    assert "more than 100 rows" in caught.value.message
    assert sum(read) == 101


def test_a_part_of_keys_that_are_not_unique_is_compared() -> None:
    """The warehouse finds the duplicates; a part that grew by them is not refused for it."""
    schema = Schema("CREATE TABLE t (a TEXT, id INTEGER, b BLOB)", ("id", "a", "b"), key=("id",))
    ours: Any = [(key, "a", b"") for key in range(50)]
    theirs: Any = [row for row in ours for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, schema, theirs)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE INDEX by_id ON t (id)")
        with closing(open_session(path)) as session:
            result = exchanged(session, schema.relation, ours, groups=part_of(ours, rows_max=1000))
    assert result.state() == Counter(encode(row) for row in theirs)


@pytest.mark.parametrize("forcing", FORCINGS)
def test_a_part_is_never_scanned_for(forcing: str) -> None:
    """Nor when rows were not held and most of what was compared is wanted."""
    ours: Any = [(key, "a", b"") for key in range(200)]
    theirs: Any = [(k, "changed" if k % 20 < 8 else a, b) for k, a, b in ours]
    groups = replace(part_of(ours, rows_max=1000), sizes=(10,), row_bytes=10**6)
    with patched(forcing), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs)
        with closing(open_session(path)) as session:
            result = exchanged(session, INTEGER.relation, ours, groups=groups)
    assert "row_hashes" in result.pair.kinds()
    assert result.state() == Counter(encode(row) for row in theirs)
    assert result.outcome.scans == 0


@pytest.mark.parametrize("least", [POSITION_MIN, POSITION_MAX - 29])
def test_a_part_at_the_ends_of_all_keys(least: int) -> None:
    ours: Any = [(least + key, "a", b"") for key in range(0, 30, 2)] + [(least + 29, "a", b"")]
    theirs: Any = [(k, "changed" if k % 3 else a, b) for k, a, b in ours[1:]]
    theirs += [(least + key, "new", b"") for key in (5, 15)]
    part = PartLimits(np.array([POSITION_MIN]), np.array([POSITION_MAX]), rows_max=(1 << 64) - 1)
    for row_bytes in (0, 10**6):
        groups = Groups(Embedding(30, least), (2,), row_bytes, part=part)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "erp.db"
            fill(path, INTEGER, theirs)
            with closing(open_session(path)) as session:
                result = exchanged(session, INTEGER.relation, ours, groups=groups)
        assert result.state() == Counter(encode(row) for row in theirs)


def test_a_part_needs_an_index() -> None:
    ours: Any = [(key, "a", b"") for key in range(50)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, LOOSE, ours)
        with closing(open_session(path)) as session, pytest.raises(ConfigurationError):
            exchanged(session, LOOSE.relation, ours, groups=part_of(ours, rows_max=100))


# A peer that breaks the protocol.
OURS: Any = [(key, f"row {key}", b"") for key in range(40)]


def answered(groups: Groups, *requests: pb.Request, opening: dict | None = None) -> list[pb.Reply]:
    """What the source answers to our opening, changed, and to these requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, OURS[:-1])
        with closing(open_session(path)) as session:
            shape = session.describe(INTEGER.relation)
            mine = Ours(
                [encode(r) for r in OURS],
                shape.recipe,
                Partition((POSITION_MIN,), (63,)),
                None,
                groups,
            )
            tally = ReadCounts()
            said = mine.opening()
            for name, value in (opening or {}).items():
                if name in {"firsts", "lasts"}:
                    getattr(said.grouping, name).extend(value)
                elif name in {"sketch", "within"}:
                    getattr(said, name).CopyFrom(value)
                else:
                    setattr(said.grouping, name, value)
            try:
                comparison = Comparison(session, shape, said, tally)
                return list(comparison.answer(iter(requests)))
            except DriftlineError:
                assert tally.rows_read == 0, "something was read for a malformed request"
                raise


def piece(size: int = 4, ks: range | list = range(40), digests: int | None = None, last=True):
    found = np.array(list(ks), np.uint64)
    count = -(-len(found) // max(size, 1)) if digests is None else digests
    data = pack(found) if len(found) else b""
    return pb.Request(units=pb.Units(size=size, ks=data, digests=bytes(8 * count), last=last))


TOO_MANY = PART_RANGES_MAX + 1
WHOLE = Groups(Embedding(40, 0), (4,))


def test_what_is_well_formed_is_answered() -> None:
    assert answered(WHOLE, piece())[-1].HasField("finished")
    parts_of_it = piece(ks=range(20), last=False), piece(ks=range(20, 40))
    assert answered(WHOLE, *parts_of_it)[-1].HasField("finished")
    # Groups of nothing: every row is shipped.
    assert answered(WHOLE, pb.Request(units=pb.Units(last=True)))[-1].HasField("finished")


@pytest.mark.parametrize(
    "requests",
    [
        (),
        (pb.Request(whole=pb.Whole()),),
        (piece(size=0),),
        (piece(size=KEYS_PER_GROUP_MAX + 1),),
        (piece(digests=3),),
        (piece(digests=11),),
        (piece(ks=[0, 1, 41]),),
        (piece(ks=[1, 1]),),
        (piece(ks=[5, 4]),),
        (piece(ks=range(20), last=False), piece(ks=range(19, 40))),
        (piece(last=False),),
        (piece(last=False), pb.Request(units=pb.Units(size=3))),
        (pb.Request(units=pb.Units(size=4, ks=b"no zstd", digests=bytes(8), last=True)),),
    ],
)
def test_malformed_units_are_refused_before_anything_is_read(requests: tuple) -> None:
    with pytest.raises(MalformedMessage):
        answered(WHOLE, *requests)


@pytest.mark.parametrize(
    "opening",
    [
        {"span": 0},
        {"span": 1 << 32},
        {"base": POSITION_MAX},
        {"sketch": pb.Sketch(span=40, third=60)},
        {"within": pb.Within(first=1, last=2)},
        {"firsts": [1], "lasts": [2]},  # ranges of no part
        {"rows_max": 5, "firsts": [1]},
        {"rows_max": 5, "firsts": [2], "lasts": [1]},
        {
            "rows_max": 5,
            "firsts": [1] * (PART_RANGES_MAX + 1),
            "lasts": [1] * (PART_RANGES_MAX + 1),
        },
    ],
)
def test_a_malformed_grouping_is_refused(opening: dict) -> None:
    with pytest.raises(MalformedMessage):
        answered(WHOLE, piece(), opening=opening)


def test_a_hashed_part_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        answered(WHOLE, piece(), opening={"hashed": True, "rows_max": 5})


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from source_agent.methods import request_validation

    monkeypatch.setattr(request_validation, "GROUPED_KEYS_MAX", 30)
    with pytest.raises(MalformedMessage):
        answered(WHOLE, piece(ks=range(20), last=False), piece(ks=range(20, 40)))
    assert GROUPED_KEYS_MAX < 1 << 31
    with pytest.raises(MalformedMessage):
        SizedGroups(0, np.zeros(1, np.uint64))


def test_a_source_without_room_for_hashes_ships_groups_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "GROUP_HASHES_MAX", 3)
    monkeypatch.setattr(row_hashes, "DIGESTS_PER_MESSAGE", 1)
    theirs: Any = [(k, "changed" if k % 9 == 0 else a, b) for k, a, b in OURS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, theirs)
        with closing(open_session(path)) as session:
            four = Groups(Embedding(40, 0), (4,), row_bytes=10**6)
            result = exchanged(session, INTEGER.relation, OURS, groups=four)
    assert "row_hashes" not in result.pair.kinds()
    assert result.state() == Counter(encode(row) for row in theirs)


# A hostile source. Of forty rows the last twenty are in five groups of four; the others in none.


def gone(*ks: int) -> pb.Reply:
    return pb.Reply(deleted=pb.Deleted(ks=pack(np.array(ks, np.uint64))))


DIFFERS = mismatch(PACKED(b"\x01"), counts(4))  # the first group, four rows at the source
TOO_MANY_HASHES = pb.Reply(hashes_end=pb.HashesEnd(too_many=True))
REPLIES: dict[str, list[pb.Reply]] = {
    "nothing": [pb.Reply()],
    "a message from later": [END],
    "a verdict": [verdict()],
    "an end that is not equal": [FINISHED],
    "a bitmap that is not zstd": [mismatch(b"??", PACKED(b""))],
    "a bitmap of more groups": [mismatch(PACKED(bytes(2)), PACKED(b""))],
    "a bomb as bitmap": [mismatch(bomb(1 << 40), PACKED(b""))],
    "no counts": [mismatch(PACKED(b"\x01"), PACKED(b""))],
    "bombs as counts": [mismatch(PACKED(b"\x01"), bomb(1 << 40))],
    "pieces of nothing": [mismatch(b"", b"", last=False)],
    "hashes instead of what is gone": [DIFFERS, hashes(4)],
    "what is gone is not zstd": [DIFFERS, pb.Reply(deleted=pb.Deleted(ks=b"??"))],
    "what is gone lies about its size": [DIFFERS, pb.Reply(deleted=pb.Deleted(ks=bomb(1 << 40)))],
    "what is gone is beyond the span": [DIFFERS, gone(40)],
    "a key is gone twice": [
        DIFFERS,
        pb.Reply(deleted=pb.Deleted(ks=PACKED(b"\x14\0" + bytes(6)))),
    ],
    "a key is gone that is in no group": [DIFFERS, gone(3), hashes(4), END],
    "a key is gone from a group that does not differ": [DIFFERS, gone(37), hashes(4), END],
    "no end of the hashes": [DIFFERS, gone(), hashes(4), FINISHED],
    "half a hash": [DIFFERS, gone(), pb.Reply(row_hashes=pb.RowHashes(hashes=bytes(15)))],
    "no hashes in a piece": [DIFFERS, gone(), hashes(0)],
    "a hash too few": [DIFFERS, gone(), hashes(3), END],
    "a hash too many": [DIFFERS, gone(), hashes(5), END],
    "a hash for each row of a group that lost one": [DIFFERS, gone(20), hashes(4), END],
    "too many hashes after all": [DIFFERS, gone(), TOO_MANY_HASHES],
    "more hashes than any": [DIFFERS, gone(), *[hashes(1 << 16)] * 70],
    "billions of rows": [mismatch(PACKED(b"\x01"), counts(2**32 - 1)), gone(), END],
    "only what is gone, in no zstd": [pb.Reply(deleted=pb.Deleted(ks=b"??"))],
    "only what is gone, beyond the span": [gone(40)],
}


def ours_in_groups(folder: Path, sizes: tuple[int, ...] = (0, 4)) -> Ours:
    fill(folder / "erp.db", INTEGER, OURS)
    with closing(open_session(folder / "erp.db")) as session:
        recipe = session.describe(INTEGER.relation).recipe
    groups = Groups(Embedding(40, 0), sizes)
    return Ours([encode(r) for r in OURS], recipe, Partition((POSITION_MIN,), (63,)), None, groups)


@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_source(tmp_path: Path, name: str) -> None:
    ours = ours_in_groups(tmp_path)
    refused(REPLIES[name], ours)
    assert ours.listed == 0, "Spark was asked before the source was believed"


def test_another_answer_to_units_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MalformedMessage) as error:
        converse(Script(REPLIES["too many hashes after all"]), ours_in_groups(tmp_path))
    assert error.value.remedy == "Install the same release on both sides."


def test_units_that_differ_where_there_are_none(tmp_path: Path) -> None:
    """All rows of ours are too likely to have changed to be compared."""
    ours = ours_in_groups(tmp_path, sizes=(0,))
    nothing = mismatch(PACKED(b""), PACKED(b""))
    refused([nothing, gone(), END, FINISHED], ours)
    assert ours.listed == 0


def test_a_sound_source_on_the_same_bench(tmp_path: Path) -> None:
    """Four rows that are all others: ours of that group give way, and those of no group."""
    ours = ours_in_groups(tmp_path)
    result = converse(Script([DIFFERS, gone(), hashes(4), END, FINISHED]), ours)
    assert result.outcome.method is Method.GROUP
    assert ours.listed == 1
    assert isinstance(result.outcome.difference, ListedRows)
    assert sorted(result.outcome.difference.rows.positions) == list(range(24))
