"""Messages that come in pieces: what is put together, and what is refused at which bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import zstandard
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, MalformedMessage, RecipeChanged, VersionMismatch
from driftline.limits import BITMAP_SLACK_BYTES, STRATUM_CELLS
from driftline.reconciliation.ranges import coarse_ranges, from_quantiles, strata_of, uniform
from driftline.reconciliation.sketches import Cells, Embedding, pack
from hypothesis import given
from hypothesis import strategies as st

from source_agent.methods import request_validation as validation
from tests.harness.asked_source import AskedSource, asked_source
from tests.harness.exchange_pair import LOOSE, Table

ROWS: Table = [(key, "a", None) for key in range(20)]
T = TypeVar("T")
pieces = st.lists(st.integers(1, 40), max_size=4)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Data in pieces of at most these sizes, and the rest."""
    found = []
    for size in sizes:
        if len(data) > size:
            found.append(data[:size])
            data = data[size:]
    return [*found, data]


def heard(requests: Sequence[pb.Request]) -> tuple[pb.Request, Callable[[], pb.Request]]:
    following = iter(requests[1:])
    return requests[0], lambda: next(following, pb.Request())


def received(function: validation.Received[T], recv: Callable[[], pb.Request]) -> T:
    """What a function returns that receives requests."""
    try:
        next(function)
        while True:
            function.send(recv())
    except StopIteration as end:
        found: T = end.value
        return found


# Openings


@pytest.mark.parametrize("quantiles", [[0, 5, 9], [-(2**63), 0, 2**63 - 1], [7] * 5])
def test_a_partition_arrives_as_it_was_sent(source: AskedSource, quantiles: list[int]) -> None:
    partition = from_quantiles(quantiles, 32)
    opening = validation.parse_opening(source.opening(ROWS, partition), source.shape)
    assert opening.partition == partition
    assert opening.ours == source.total(ROWS)


def test_another_recipe_or_release_is_named_as_such(source: AskedSource) -> None:
    said = source.opening(ROWS)
    said.recipe = bytes(16)
    with pytest.raises(RecipeChanged):
        validation.parse_opening(said, source.shape)
    said.protocol = 99
    with pytest.raises(VersionMismatch):
        validation.parse_opening(said, source.shape)
    with pytest.raises(VersionMismatch):
        validation.check_release(pb.Request(open=said))
    said.protocol = 1
    said.features.append("a feature of later")
    with pytest.raises(VersionMismatch):
        validation.check_release(pb.Request(open=said))


def test_a_request_outside_of_an_exchange_is_malformed_or_newer() -> None:
    known = validation.out_of_place(pb.Request(whole=pb.Whole()))
    assert isinstance(known, MalformedMessage)
    newer = pb.Request.FromString(bytes([0xFA, 0x7F, 1, 0]))  # a field of a later release
    assert isinstance(validation.out_of_place(newer), VersionMismatch)


def test_strata_are_as_many_as_their_slots_need(source: AskedSource) -> None:
    said = source.opening(ROWS)
    found = validation.strata_in(said, 16)
    assert found is not None
    assert found.shape == (strata_of(16), STRATUM_CELLS)
    with pytest.raises(MalformedMessage):
        validation.strata_in(said, 1 << 12)


def test_a_part_needs_an_index(tmp_path: Path) -> None:
    with asked_source(tmp_path, ROWS, LOOSE) as source:
        said = pb.Open(count=1, grouping=pb.Grouping(span=4))
        assert validation.grouping_of(said, source.shape) is not None
        said.grouping.rows_max = 5
        with pytest.raises(ConfigurationError):
            validation.grouping_of(said, source.shape)


# Cells


def cells_in(parts: Sequence[bytes], fold: int = 2) -> list[pb.Request]:
    last = len(parts) - 1
    return [
        pb.Request(cells=pb.Cells(fold=fold, cells=part, last=number == last))
        for number, part in enumerate(parts)
    ]


@given(pieces)
def test_cells_are_put_together(sizes: list[int]) -> None:
    data = np.arange(2 * 15, dtype="<u4").tobytes()
    first, recv = heard(cells_in(cut(data, sizes)))
    grid, found = received(validation.cells(first, 10, len), recv)
    assert (grid.third, grid.fold) == (10, 2)
    assert found.to_bytes() == Cells.from_bytes(data).to_bytes() == data


@given(pieces, st.sampled_from([-8, -1, 1, 8]))
def test_another_number_of_cells_is_refused(sizes: list[int], more: int) -> None:
    first, recv = heard(cells_in(cut(bytes(8 * 15 + more), sizes)))
    with pytest.raises(MalformedMessage):
        received(validation.cells(first, 10, len), recv)


# Digests


def digests_in(parts: Sequence[bytes], coarsen: int) -> list[pb.Request]:
    last = len(parts) - 1
    return [
        pb.Request(digests=pb.Digests(coarsen=coarsen, digests=part, last=number == last))
        for number, part in enumerate(parts)
    ]


@given(pieces, st.integers(0, 4), st.sampled_from([0, -8, -1, 1, 8]))
def test_digests_are_as_many_as_the_coarsening_has(sizes: list[int], by: int, more: int) -> None:
    count = coarse_ranges(uniform(16).ranges, by)
    values = np.arange(count, dtype="<u8") + 1
    data = (values.tobytes() + bytes(8))[: 8 * count + more]
    first, recv = heard(digests_in(cut(data, sizes), by))
    if more:
        with pytest.raises(MalformedMessage):
            received(validation.digests(first, 16), recv)
        return
    coarsen, found = received(validation.digests(first, 16), recv)
    assert (coarsen, found.tolist()) == (by, values.tolist())


# Wanted rows


def wanted_in(parts: Sequence[bytes]) -> list[pb.Request]:
    last = len(parts) - 1
    return [
        pb.Request(wanted=pb.Wanted(bitmap=part, last=number == last))
        for number, part in enumerate(parts)
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=200), pieces)
def test_wanted_rows_are_indices(bits: list[bool], sizes: list[int]) -> None:
    packed = zstandard.compress(np.packbits(bits, bitorder="little").tobytes())
    following = iter(wanted_in(cut(packed, sizes)))
    found = received(validation.wanted(len(bits)), lambda: next(following))
    assert found.tolist() == [at for at, is_wanted in enumerate(bits) if is_wanted]


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [zstandard.compress(bytes(2))],
        [zstandard.compress(bytes(4))],
        [bytes(3 + BITMAP_SLACK_BYTES + 1)],
        [b"x", b"", b"x"],
    ],
)
def test_another_bitmap_is_refused(parts: list[bytes]) -> None:
    following = iter(wanted_in(parts))
    with pytest.raises(MalformedMessage):
        received(validation.wanted(24), lambda: next(following))


# Groups


def groups_in(parts: Sequence[list[int]], size: int, digests: int) -> list[pb.Request]:
    last = len(parts) - 1
    return [
        pb.Request(
            units=pb.Units(
                size=size,
                ks=pack(np.array(part, np.uint64)),
                digests=bytes(8 * digests),
                last=number == last,
            )
        )
        for number, part in enumerate(parts)
    ]


def test_units_are_put_together() -> None:
    first, recv = heard(groups_in([[1, 2, 3, 5, 7], [8, 9, 10, 20, 39]], 4, 2))
    found, digests = received(validation.groups(first, Embedding(40, 0)), recv)
    assert (len(found), len(digests)) == (4, 4)
    assert found.all_ks().tolist() == [1, 2, 3, 5, 7, 8, 9, 10, 20, 39]


@pytest.mark.parametrize(
    ("parts", "size", "digests"),
    [
        ([[1, 2, 3, 4, 5]], 4, 1),
        ([[1, 2, 3, 4, 5]], 4, 3),
        ([[1, 2, 40]], 4, 1),
        ([[5, 6], [6, 7]], 4, 1),
        ([[1, 2, 3]], 0, 1),
    ],
    ids=["a digest too few", "a digest too many", "a k too large", "a k in two groups", "no size"],
)
def test_malformed_units_are_refused(parts: list[list[int]], size: int, digests: int) -> None:
    first, recv = heard(groups_in(parts, size, digests))
    with pytest.raises(MalformedMessage):
        received(validation.groups(first, Embedding(40, 0)), recv)
