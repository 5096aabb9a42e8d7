"""Parts named by keys, both halves: what was compared is theirs afterwards, the rest stays ours.

The key is a text and a number, and the oracle is Python's order of them. Then what a hostile peer
sends.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, LimitExceeded, MalformedMessage
from driftline.reconciliation import named_keys
from driftline.reconciliation.named_keys import Ranks
from driftline.reconciliation.ranges import POSITION_MIN, Partition, short_digests
from driftline.rows.digests import Digest, MixedFingerprints
from driftline.rows.key_order import Key, KeyRange, key_bytes
from driftline.values.types import Recipe
from hypothesis import given
from hypothesis import strategies as st

from source_agent.methods import request_validation
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.scan import tile
from tests.harness.examples import examples
from tests.harness.exchange_pair import (
    COMPOSITE,
    SALT,
    TEXT,
    Ours,
    Schema,
    encode,
    fill,
    open_session,
)
from tests.harness.exchange_pair import exchange as exchanged
from tests.pair.exchange.test_both_halves import FORCINGS, edited, patched
from warehouse_agent.methods.groups.exchange import (
    GroupedRows,
    GroupSide,
    KeyPartLimits,
    NamedPiece,
)
from warehouse_agent.methods.interface import OurSide

Row = tuple[Any, ...]


def key_of(row: Row) -> tuple[str, str]:
    return row[0], str(row[1])


def order_of(key: Key) -> tuple[bytes, int]:
    return key[0].encode(), int(key[1])


@dataclass(frozen=True)
class NamedGroups:
    """Some of our rows in groups of `size`, named by their keys; the rest are not compared."""

    ours: list[Row]
    chosen: list[bool]
    part: KeyPartLimits
    recipe: Recipe
    size: int = 2
    row_bytes: int = 20
    pieces: int = 1

    def grouped(self, where: np.ndarray, mixed: MixedFingerprints) -> tuple[GroupedRows, Digest]:
        named, pieces = np.flatnonzero(self.chosen), []
        for some in np.array_split(named, self.pieces):
            if not len(some):
                continue
            group = np.arange(len(some)) // self.size
            sums = np.zeros(group[-1] + 1, np.uint64)
            np.add.at(sums, group, mixed.m0[some])
            digests = short_digests(sums, np.bincount(group)).astype("<u8").tobytes()
            keys = [key_bytes(key_of(self.ours[i]), self.recipe) for i in some]
            frame = named_keys.pack(keys, self.recipe, SALT)
            pieces.append(NamedPiece(self.size, where[some], digests, frame))
        left = np.logical_not(np.array(self.chosen, np.bool_))
        none = np.zeros(0, np.uint64)
        costs = self.row_bytes, 0
        grouped = GroupedRows(Ranks.of(where[named]), tuple(pieces), none, *costs, self.part)
        return grouped, MixedFingerprints(mixed.m0[left], mixed.m1[left]).digest()


class NamedOurs(Ours):
    """Only the named rows are compared."""

    def side(self, *_: Any, **__: Any) -> OurSide:
        assert self.grouped is not None
        rest, total = self.rest, self.sums.total
        compared = Digest(total.count - rest.count, (total.sum - rest.sum) % (1 << 128))
        return GroupSide(self.grouped, compared, self, rest)


def recipe_of(schema: Schema = COMPOSITE) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "erp.db", schema, [])
        with closing(open_session(Path(folder) / "erp.db")) as session:
            return session.describe(schema.relation).recipe


RECIPE = recipe_of()


def within(key: tuple[str, str], ranges: tuple[KeyRange, ...]) -> bool:
    at = order_of(key)
    return any(
        (r.lower is None or order_of(r.lower) <= at) and (r.upper is None or at < order_of(r.upper))
        for r in ranges
    )


@st.composite
def parts(draw: st.DrawFn) -> tuple[Any, Any, NamedGroups]:
    ours, theirs = draw(edited(COMPOSITE).filter(lambda tables: tables[0]))
    keys = sorted({key_of(row) for row in [*ours, *theirs]}, key=order_of)
    some = draw(st.lists(st.sampled_from(keys), max_size=4, unique=True))
    bounds: list[Any] = sorted(some, key=order_of)
    bounds = [*([None] if draw(st.booleans()) else []), *bounds]
    bounds += [None] if len(bounds) % 2 else []
    pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
    ranges = tuple(KeyRange(lower, upper) for lower, upper in pairs)
    chosen = [within(key_of(row), ranges) or draw(st.booleans()) for row in ours]
    chosen[0] |= not any(chosen)
    groups = NamedGroups(
        ours,
        chosen,
        KeyPartLimits(ranges, rows_max=1000),
        RECIPE,
        size=draw(st.sampled_from([1, 2, 3, 4096])),
        row_bytes=draw(st.sampled_from([0, 9, 1000])),
        pieces=draw(st.integers(1, 3)),
    )
    return ours, theirs, groups


@given(parts(), st.sampled_from(list(FORCINGS)), st.booleans(), st.booleans())
@examples(120)
def test_a_part_is_theirs_and_the_rest_is_ours(
    drawn: tuple[Any, Any, NamedGroups], forcing: str, wal: bool, is_held: bool
) -> None:
    ours, theirs, groups = drawn
    with (
        patched(forcing),
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("tests.harness.exchange_pair.Ours", NamedOurs)
        if not is_held:
            patch.setattr(tile, "TILE_HELD_BYTES", 0)
        path = Path(folder) / "erp.db"
        fill(path, COMPOSITE, theirs, wal=wal)
        with closing(open_session(path)) as session:
            result = exchanged(session, COMPOSITE.relation, ours, groups=groups)  # type: ignore[arg-type]
            assert result.pair.is_done
    named = {key_of(row) for row, is_named in zip(ours, groups.chosen, strict=True) if is_named}

    def is_compared(row: Row) -> bool:
        return key_of(row) in named or within(key_of(row), groups.part.ranges)

    expected = [encode(r) for r in theirs if is_compared(r)]
    left = [encode(r) for r in ours if not is_compared(r)]
    out = result.outcome
    if not out.is_equal:
        assert result.state() == Counter(expected + left)
    assert out.theirs == result.ours.digest(expected + left)
    assert (out.consistency, out.scans) == ("fuzzy", 0)
    assert out.rows_read <= (1 if is_held else 3) * len(expected)


OURS: list[Row] = [(f"k{n:03d}", n, b"x", None) for n in range(60)]


def groups_of(rows_max: int = 1000, *, ranges: tuple[KeyRange, ...] = ()) -> NamedGroups:
    return NamedGroups(OURS, [True] * len(OURS), KeyPartLimits(ranges, rows_max), RECIPE)


def test_a_part_keeps_to_its_budget() -> None:
    theirs = OURS + [(f"z{n}", n, None, "new") for n in range(5000)]
    behind = (KeyRange(("k059", "59"), None),)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, COMPOSITE, theirs)
        with closing(open_session(path)) as session, pytest.raises(LimitExceeded) as caught:
            exchanged(session, COMPOSITE.relation, OURS, groups=groups_of(100, ranges=behind))  # type: ignore[arg-type]
    assert "more than 100 rows" in caught.value.message


def test_a_key_without_a_unique_index_is_refused_by_name() -> None:
    rows: Any = [(f"k{n}", n, None) for n in range(9)]
    groups = NamedGroups(rows, [True] * 9, KeyPartLimits((), 100), recipe_of(TEXT))
    groups = NamedGroups(rows, [True] * 9, groups.part, groups.recipe)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.pair.exchange.test_keys.key_of", lambda row: (row[0],))
        path = Path(folder) / "erp.db"
        fill(path, TEXT, rows)
        with closing(open_session(path)) as session, pytest.raises(ConfigurationError) as caught:
            exchanged(session, TEXT.relation, rows, groups=groups)  # type: ignore[arg-type]
    assert "its key (code)" in caught.value.message


# A peer that breaks the protocol.
def answered(*requests: pb.Request, **grouping: Any) -> list[pb.Reply]:
    """What the source answers to an opening with these fields, and to these requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, COMPOSITE, OURS[:-1])
        with closing(open_session(path)) as session:
            shape = session.describe(COMPOSITE.relation)
            mine = Ours([encode(r) for r in OURS], shape.recipe, Partition((POSITION_MIN,), (63,)))
            said = pb.Open(
                protocol=1,
                relation="orders",
                recipe=shape.recipe.id,
                fragment_key=bytes(range(32)),
                salt=SALT.to_bytes(),
                count=len(OURS),
                sum=mine.sums.total.sum_bytes(),
                start_steps=[-(1 << 63)],
                shifts=bytes([63]),
                features=["keys"],
                grouping=pb.Grouping(**{"rows_max": 1000, "keys": pb.NamedKeys(), **grouping}),
            )
            comparison = Comparison(session, shape, said, ReadCounts())
            return list(comparison.answer(iter(requests)))


def piece(
    keys: list[bytes] | None = None, *, size: int = 7, digests: int | None = None, **more: Any
) -> pb.Request:
    named = [key_bytes(key_of(row), RECIPE) for row in OURS] if keys is None else keys
    frame = named_keys.pack(named, RECIPE, SALT)
    count = -(-len(named) // size) if digests is None else digests
    groups = {"size": size, "keys": frame, "digests": bytes(8 * count), "last": True, **more}
    return pb.Request(units=pb.Units(**groups))


def test_what_is_well_formed_is_answered() -> None:
    *_, last = answered(piece())
    assert last.finished.count == len(OURS) - 1
    assert last.finished.scans == 0
    ranges = [pb.Between(upper=["k010", "10"]), pb.Between(lower=["k011", "11"])]
    *_, last = answered(piece(), keys=pb.NamedKeys(ranges=ranges))
    assert last.finished.count == len(OURS) - 1


NULL = (-1).to_bytes(4, "big", signed=True)
BAD_TEXT = (2).to_bytes(4, "big") + b"\xff\xfe" + (8).to_bytes(4, "big") + bytes(8)


@pytest.mark.parametrize(
    "requests",
    [
        [piece(digests=3)],
        [piece(keys=[key_bytes(("a", "1"), RECIPE)] * 2)],
        [piece(last=False), piece()],  # every key twice
        [piece(keys=[NULL + NULL])],
        [piece(keys=[BAD_TEXT])],
        [pb.Request(units=pb.Units(size=1, keys=b"no frame", digests=bytes(8), last=True))],
        [pb.Request(units=pb.Units(size=0, keys=piece().units.keys, digests=b"", last=True))],
        [pb.Request(units=pb.Units(last=False))],
        [
            pb.Request(
                units=pb.Units(size=5000, keys=piece().units.keys, digests=bytes(8), last=True)
            )
        ],
    ],
    ids=["digests", "twice", "again", "null", "text", "frame", "size 0", "empty", "large"],
)
def test_malformed_keys_are_refused(requests: list[pb.Request]) -> None:
    with pytest.raises(MalformedMessage):
        answered(*requests)


def test_two_keys_of_one_position_say_what_to_do() -> None:
    with pytest.raises(MalformedMessage) as error:
        Ranks.of(np.array([7, 5, 7], np.int64))
    assert "read_at_most" in error.value.remedy


@pytest.mark.parametrize(
    "grouping",
    [
        {"rows_max": 0},
        {"firsts": [1], "lasts": [2]},
        {"keys": pb.NamedKeys(ranges=[pb.Between(lower=["a", "1"], upper=["a", "1"])])},
        {"keys": pb.NamedKeys(ranges=[pb.Between(), pb.Between(lower=["a", "1"])])},
        {"keys": pb.NamedKeys(ranges=[pb.Between(lower=["a"])])},
        {"keys": pb.NamedKeys(ranges=[pb.Between(lower=["a", "x"])])},
        {
            "keys": pb.NamedKeys(
                ranges=[
                    pb.Between(lower=[f"k{n:04d}", "1"], upper=[f"k{n:04d}", "2"])
                    for n in range(65)
                ]
            )
        },
    ],
    ids=["whole", "positions", "empty", "overlap", "short", "type", "many"],
)
def test_malformed_ranges_are_refused(grouping: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        answered(piece(), **grouping)


def test_too_many_bytes_of_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_validation, "NAMED_BYTES_MAX", 500)
    with pytest.raises(MalformedMessage, match="500 bytes"):
        answered(piece())
    monkeypatch.setattr(named_keys, "NAMED_BODY_BYTES_MAX", 100)
    with pytest.raises(MalformedMessage):
        answered(piece())
