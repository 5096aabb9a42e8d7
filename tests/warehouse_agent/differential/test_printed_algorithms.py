"""The printed algorithms of Labio and Garcia-Molina: what they find, and what they do not."""

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.reference.snapshot_differentials import (
    Change,
    Compressed,
    Record,
    differential,
    distance,
    partitioned_hash,
    sort_merge,
    sort_merge_kb,
    sort_merge_kbp,
    useless_pairs,
    window,
)

files = st.dictionaries(st.integers(0, 30), st.sampled_from("xyz"), max_size=20).flatmap(
    lambda rows: st.permutations([Record(k, b) for k, b in rows.items()])
)


def numbered(first, end, b="x"):
    return [Record(k, b) for k in range(first, end)]


@given(files, files)
def test_sort_merge_misses_only_what_lies_behind_the_greatest_key_of_the_other_file(old, new):
    found, in_order = sort_merge(sorted(old), new)
    end = min(max((r.K for r in file), default=-1) for file in (old, new))
    assert set(found) == {c for c in differential(old, new) if end >= c.K}
    assert in_order == sorted(new)[: len(in_order)]


def test_sort_merge_stops_when_one_file_ends():
    old, new = numbered(0, 3), numbered(0, 6)
    found, in_order = sort_merge(old, new)
    assert found == []  # three inserts are missed
    assert len(in_order) == 4  # nor is the sorted file complete, which the next run would read
    assert sort_merge(new, old)[0] == []  # three deletes
    assert len(differential(old, new)) == len(differential(new, old)) == 3


@given(files, files, st.sampled_from([ord, lambda _: 0]))
def test_compression_misses_updates_with_an_equal_b_and_nothing_else(old, new, compress):
    """What 3.2 and 3.3 find is what 3.1 does, less updates to a B of the same b (section 3.2)."""
    plain, in_order = sort_merge(sorted(old), new)
    before = dict(old)
    expected = [c for c in plain if c.form != "Update" or compress(before[c.K]) != compress(c.B)]
    f_1 = [Compressed(r.K, compress(r.B)) for r in sorted(old)]
    by_b, sorted_b = sort_merge_kb(f_1, new, compress)
    by_p, sorted_p = sort_merge_kbp(f_1, new, compress)
    assert by_b == by_p == expected
    assert sorted_b == [Compressed(r.K, compress(r.B)) for r in in_order]
    assert [r[:2] for r in sorted_p] == [r[:2] for r in sorted_b]
    assert [new[r.p].K for r in sorted_p] == [r.K for r in sorted_p]


@given(files, files, st.integers(1, 4), st.integers(1, 4))
def test_partitioned_hash_is_complete(old, new, buckets, portion):
    found = partitioned_hash(old, new, buckets=buckets, portion=portion)
    assert len(found) == len(set(found))
    assert set(found) == differential(old, new)


@given(files, files, st.integers(1, 5), st.integers(1, 8))
def test_what_the_window_reports_is_true_except_of_keys_in_both_files(old, new, n, aging):
    found = window(old, new, n=n, aging=aging)
    both = dict(old).keys() & dict(new).keys()
    wrong = set(found) - differential(old, new)
    assert {c.form for c in wrong} <= {"Insert", "Delete"}
    assert {c.K for c in wrong} <= both


def test_the_window_inserts_a_record_whose_other_half_it_keeps():
    old, new = [Record(0, "x")], [Record(1, "x"), Record(0, "x")]
    assert window(old, new, n=1, aging=1) == [Change("Insert", 0, "x")]  # line 12, without line 6
    assert differential(old, new) == {Change("Insert", 1, "x")}


def test_the_window_never_reports_its_aging_buffers():
    old, new = numbered(0, 4), [*numbered(0, 3), Record(9, "x")]
    assert window(old, new, n=2, aging=4) == []
    assert differential(old, new) == {Change("Delete", 3), Change("Insert", 9, "x")}


def test_the_window_drops_what_follows_the_first_block_behind_the_shorter_file():
    found = window(numbered(0, 2), numbered(0, 8), n=2, aging=4)
    assert [c.K for c in found] == [2, 3]  # and not 4 to 7


def test_the_window_reports_useless_pairs_where_records_moved_farther_than_it_is_long():
    old = numbered(0, 40)
    new = old[20:] + old[:20]
    assert useless_pairs(window(old, new, n=2, aging=4))
    assert not useless_pairs(window(old, new, n=2, aging=20))


@given(files, files)
def test_the_distance_is_symmetric_and_at_most_one(old, new):
    assume(old or new)
    assert distance(old, new) == distance(new, old)
    assert 0 <= distance(old, new) <= 1


def test_files_in_opposite_order_have_the_greatest_distance():
    assert distance(numbered(0, 10), numbered(0, 10)[::-1]) == 1
