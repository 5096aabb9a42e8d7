"""Groups against the reference, and the price of refining them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from driftline.errors import MalformedMessage
from driftline.limits import GROUP_KEYS_PER_MESSAGE
from driftline.reconciliation import groups
from driftline.reconciliation.groups import GroupSums, SizedGroups, refines
from driftline.reconciliation.sketches import unpack
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import units as reference

HASHES = st.integers(0, 2**64 - 1)
KS = st.integers(0, 2**31 - 1) | st.integers(0, 50)


@st.composite
def groups_and_rows(draw: st.DrawFn) -> tuple[list[reference.Sized], list[reference.Row]]:
    """Runs that share no key, and rows below some of their keys and others."""
    keys = draw(st.lists(KS, unique=True, max_size=40))
    turns = draw(st.lists(st.sampled_from([1, 2, 3, 7, 4096]), min_size=1, max_size=4))
    shares = [(size, sorted(keys[at :: len(turns)])) for at, size in enumerate(turns)]
    ks = st.sampled_from(keys) | KS if keys else KS
    rows = draw(st.lists(st.tuples(ks, HASHES), max_size=60))
    return [(size, share) for size, share in shares if share], rows


def made(sized: list[reference.Sized]) -> list[SizedGroups]:
    return [SizedGroups(size, np.array(ks, np.uint64)) for size, ks in sized]


def arrays(rows: list[reference.Row]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([k for k, _ in rows], np.uint64), np.array([h for _, h in rows], np.uint64)


@given(groups_and_rows(), st.integers(0, 60))
def test_sums_are_those_of_the_reference(
    drawn: tuple[list[reference.Sized], list[reference.Row]], cut: int
) -> None:
    sized, rows = drawn
    sums = GroupSums(made(sized))
    named = {k for _, ks in sized for k in ks}
    found = [sums.add(*arrays(part)) for part in (rows[:cut], rows[cut:])]
    assert np.concatenate(found).tolist() == [k in named for k, _ in rows]
    assert sums.short_digests().tolist() == reference.digests(sized, rows)
    assert sums.gone().tolist() == reference.gone(sized, rows)
    assert sums.all_ks().tolist() == sorted(named)
    group_of = {k: at for at, ks in enumerate(reference.groups(sized)) for k in ks}
    assert sums.find(arrays(rows)[0]).tolist() == [group_of.get(k, -1) for k, _ in rows]
    odd = np.arange(len(sums)) % 2 == 1
    chosen = sorted(k for k, at in group_of.items() if at % 2)
    assert sums.ks_of(odd).tolist() == chosen
    present = {k for k, _ in rows}
    assert sums.ks_of(odd, seen=True).tolist() == [k for k in chosen if k in present]


@given(groups_and_rows())
def test_pieces_are_the_groups(drawn: tuple[list[reference.Sized], list[reference.Row]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "GROUP_KEYS_PER_MESSAGE", 8)
        for one in made([one for one in drawn[0] if one[0] <= 8]):
            digests = np.arange(one.count, dtype=np.uint64)
            pieces = list(one.pieces(digests))
            unpacked = [unpack(ks, span=1 << 31, count_max=8) for ks, _ in pieces]
            assert np.concatenate(unpacked).tolist() == one.ks.tolist()
            assert all(len(ks) % one.size == 0 for ks in unpacked[:-1])
            assert b"".join(d for _, d in pieces) == digests.tobytes()
            for ks, (_, digest) in zip(unpacked, pieces, strict=True):
                assert SizedGroups(one.size, ks).count * 8 == len(digest)


def test_a_large_list_fits_its_messages() -> None:
    one = SizedGroups(1, np.arange(0, 1 << 31, 1 << 14, dtype=np.uint64))
    pieces = list(one.pieces(np.zeros(one.count, np.uint64)))
    assert len(pieces) == len(one.ks) // GROUP_KEYS_PER_MESSAGE
    assert max(len(ks) + len(digests) for ks, digests in pieces) < 1 << 20


def test_a_key_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [SizedGroups(2, np.array([1, 5], np.uint64)), SizedGroups(3, np.array([5, 9], np.uint64))]
    with pytest.raises(MalformedMessage):
        GroupSums(two)
    monkeypatch.setattr(groups, "GROUPED_KEYS_MAX", 1)
    with pytest.raises(MalformedMessage):
        GroupSums(two[:1])


@pytest.mark.slow
def test_keys_named_one_by_one_take_no_more_memory() -> None:
    tracemalloc.start()
    try:
        sums = GroupSums(SizedGroups(1, np.array([k], np.uint64)) for k in range(20_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sums) == 20_000
    assert peak < 64 * 20_000


def test_when_row_hashes_pay() -> None:
    case = {"rows": 1000, "hashes": 1000, "differing": 100, "lost": 0, "groups": 10_000}
    case |= {"row_bytes": 300, "wait_bytes": 0}
    assert refines(**case)
    assert not refines(**case | {"row_bytes": 8})
    assert not refines(**case | {"wait_bytes": 300_000})
    # Nearly all differ: nearly all rows changed, and their hashes tell nothing.
    nearly = {"rows": 100, "hashes": 100, "differing": 100, "groups": 100, "row_bytes": 100}
    assert not refines(**case | nearly)
    # A group that lost a key is hashed again without it: one hash, whatever is in it.
    lost = {"rows": 99_000, "hashes": 1000, "differing": 0, "lost": 1000, "groups": 1000}
    assert refines(**case | lost | {"row_bytes": 8})
    assert not refines(**case | lost | {"row_bytes": 8, "hashes": 99_000})
    nothing = dict.fromkeys(case, 0)
    assert not refines(**nothing | {"row_bytes": 10})
