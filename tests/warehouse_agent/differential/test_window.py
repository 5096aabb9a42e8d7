"""The window algorithm against the definition of the problem, and what it refuses."""

import random
from functools import partial

import pytest
from driftline.errors import NullKey
from driftline.rows.fingerprints import position_seed
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.snapshot_differentials import (
    Record,
    differential,
    distance,
    useless_pairs,
)
from tests.reference.snapshot_differentials import (
    window as printed,
)
from tests.warehouse_agent.differential.collision import colliding_keys
from tests.warehouse_agent.differential.files import BY_INTEGER, BY_TEXT, Found, snapshot
from warehouse_agent.differential.matching import Collision, RepeatedPosition, WindowExhausted
from warehouse_agent.differential.records import ChangeForm, FileSnapshot
from warehouse_agent.differential.window import WindowBuffers, window

SECRET = bytes(range(32))
SMALL = WindowBuffers(block_records=8, aging_records=16)


def run(old, new, *, recipe=BY_INTEGER, buffers=SMALL, batch=7):
    found = Found(recipe)
    files = [snapshot(name, f, recipe, batch) for name, f in (("old", old), ("new", new))]
    counts = window(files[0], files[1], found.put, secret=SECRET, buffers=buffers)
    return counts, found.changes


def displaced(records, by, seed):
    """The records in another order, each at most `by` places away."""
    dice = random.Random(seed)
    places = [i + dice.uniform(0, by) for i in range(len(records))]
    return [r for _, r in sorted(zip(places, records, strict=True))]


@st.composite
def pairs(draw):
    """Two files: the second has updates, inserts and deletes, and moved records."""
    dice = draw(st.randoms(use_true_random=False))
    count = draw(st.integers(0, 300))
    keys = dice.sample(range(-500, 500), count)
    if draw(st.booleans()):
        keys.sort()
    old = [Record(k, "x") for k in keys]
    rates = [draw(st.sampled_from([0, 0.02, 0.3, 1])) for _ in range(3)]
    new = [Record(r.K, "y" if dice.random() < rates[0] else r.B) for r in old]
    new = [r for r in new if dice.random() >= rates[1]]
    for _ in range(int(rates[2] * 100)):
        new.insert(dice.randint(0, len(new)), Record(1000 + len(new), "z" * dice.randint(0, 90)))
    by = draw(st.sampled_from([0, 3, 30, 1000]))
    return old, displaced(new, by, draw(st.integers(0, 9)))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    pairs(),
    st.integers(1, 40),
    st.integers(0, 80),
    st.integers(0, 8000),
    st.integers(1, 50),
    st.sampled_from([BY_INTEGER, BY_TEXT]),
)
def test_it_finds_the_least_set_of_changes(files, n, aging, aging_bytes, batch, recipe):
    old, new = files
    buffers = WindowBuffers(block_records=n, aging_records=aging, aging_bytes=aging_bytes)
    counts, changes = run(old, new, recipe=recipe, buffers=buffers, batch=batch)
    true = differential(old, new)
    assert len(changes) == len(set(changes))
    assert set(changes) == true
    assert not useless_pairs(changes)
    of = {form: sum(c.form == form.capitalize() for c in true) for form in ChangeForm}
    assert (counts.updates, counts.deletes, counts.inserts) == tuple(of.values())
    assert (counts.old, counts.new) == (len(old), len(new))
    assert counts.same + counts.updates + counts.deletes == len(old)
    if old or new:
        assert counts.distance == distance(old, new)


def test_pairs_that_the_printed_window_reports_are_mended():
    old = [Record(k, "x") for k in range(400)]
    new = [Record(r.K, "y") if r.K == 7 else r for r in old[200:] + old[:200]]
    assert useless_pairs(printed(old, new, n=8, aging=16))
    counts, changes = run(old, new)
    assert counts.mended > 100
    assert set(changes) == differential(old, new)


def test_inserts_do_not_let_the_files_drift_apart():
    """Blocks in step would be 300 records apart at the end, and the window holds 24."""
    old = [Record(2 * k, "x") for k in range(1000)]
    new = sorted([*old, *(Record(6 * k + 1, "z") for k in range(300))])
    for files in ((old, new), (new, old)):
        counts, changes = run(*files)
        assert counts.mended == 0
        assert set(changes) == differential(*files)


@pytest.mark.parametrize(("count", "by", "aging"), [(6000, 1600, 300), (20_000, 4000, 1000)])
def test_records_that_moved_far_do_not_let_the_window_wander(count, by, aging):
    """An eighth of the greatest displacement has no partner yet, far less than the buffer holds.

    A block of the new file matches only records that moved back, one of the old file those that
    moved on: either alone is taken for a drift of the files.
    """
    old = [Record(k, "x") for k in range(count)]
    new = displaced(old, by, 3)
    counts, changes = run(old, new, buffers=WindowBuffers(64, aging), batch=64)
    assert (counts.mended, counts.same, changes) == (0, count, [])


def test_past_its_memory_it_gives_up():
    old = [Record(k, "x") for k in range(400)]
    with pytest.raises(
        WindowExhausted, match="without a partner in the window take more than 0 MiB"
    ):
        run(old, old[::-1], buffers=WindowBuffers(8, 16, left_bytes=2000))


@pytest.mark.parametrize("recipe", [BY_INTEGER, BY_TEXT])
@settings(max_examples=40)
@given(
    st.integers(2, 60), st.data(), st.sampled_from([0, 1]), st.integers(1, 20), st.integers(0, 20)
)
def test_a_key_that_comes_twice_is_refused(recipe, count, data, side, n, aging):
    files = [[Record(k, "x") for k in range(count)] for _ in range(2)]
    key = data.draw(st.integers(0, count - 1))
    files[side].insert(data.draw(st.integers(0, count)), Record(key, "y"))
    with pytest.raises(RepeatedPosition) as error:
        run(*files, recipe=recipe, buffers=WindowBuffers(n, aging))
    assert error.value.side == side
    assert [files[side][i].K for i in error.value.numbers] == [key, key]


def test_a_key_that_comes_twice_in_both_files_is_refused():
    file = [Record(k % 100, "x") for k in range(200)]
    with pytest.raises(RepeatedPosition):
        run(file, file)


def test_a_large_file_must_be_in_order_so_that_duplicates_are_found():
    few = WindowBuffers(8, 16, keys_bytes=8 * 50)
    old = [Record(k, "x") for k in range(200)]
    assert run(old, old[:-1], buffers=few)[0].deletes == 1
    with pytest.raises(
        WindowExhausted, match="the new file is not sorted by its key, and more than 50 key"
    ):
        run(old, [*old[1:], old[0]], buffers=few)
    with pytest.raises(WindowExhausted):  # the keys that would show it are not kept any more
        run(old, [*old, Record(7, "y")], buffers=few)


def test_different_keys_with_one_position_are_a_collision():
    a, b = colliding_keys(position_seed(SECRET))
    assert a != b
    rows = [b"\0\2" + len(k).to_bytes(4, "big") + k + b"\0\0\0\1x" for k in (a, b)]
    old, new = (FileSnapshot("file", BY_TEXT, partial(iter, [[r]])) for r in rows)
    with pytest.raises(Collision):
        window(old, new, Found(BY_TEXT).put, secret=SECRET)
    counts = window(old, new, lambda *_: None, secret=bytes(32))
    assert (counts.deletes, counts.inserts, counts.updates) == (1, 1, 0)


def test_a_null_key_is_refused_by_its_number():
    rows = [b"\0\2\0\0\0\1k\0\0\0\1x", b"\0\2\xff\xff\xff\xff\0\0\0\1x"]
    file = FileSnapshot("new.csv", BY_TEXT, lambda: iter([rows]))
    with pytest.raises(NullKey, match=r"new.csv: The key of record 2 is NULL"):
        window(file, file, Found(BY_TEXT).put, secret=SECRET)
