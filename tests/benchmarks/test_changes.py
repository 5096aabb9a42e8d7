"""benchmarks.peers.changes: what a change set says is what happens to the table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers.changes import LINEITEM, ORDERS, ORDERS_UUID, TABLES, Pattern, draw

ROWS = 1000
RATES = [0.0, 0.001, 0.01, 0.5, 1.0]


def lines_of(table):
    """A table with gaps between its keys, as TPC-H's has."""
    lines = []
    for at in range(ROWS):
        fields = [f"{at % 7}".encode()] * table.columns
        fields[table.price_index] = b"%d.%02d" % divmod(at * 37, 100)
        fields[0] = b"%d" % (at // 4 * 32 + (at % 4 if table is not LINEITEM else 0))
        if table is ORDERS_UUID:
            fields[0] = b"%08d-0000-4000-8000-000000000000" % at
        if table is LINEITEM:
            fields[3] = b"%d" % (at % 4 + 1)
        fields[-1] = b'"words, %d"' % at
        lines.append(b",".join(fields) + b"\n")
    return lines


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_applying_a_change_set_gives_the_table_after_it(table, pattern, rate):
    before = lines_of(table)
    changes, after = draw(table, before, rate=rate, pattern=pattern, seed=5)
    expected = {table.key_of(line): line for line in before}
    for key in changes.deleted_keys:
        del expected[key]
    for line in changes.updated:
        assert expected[table.key_of(line)] != line
        expected[table.key_of(line)] = line
    for line in changes.inserted:
        assert table.key_of(line) not in expected
        expected[table.key_of(line)] = line
    assert sorted(expected.values()) == sorted(after)
    assert changes.changed == round(ROWS * rate)
    assert changes.rows_after == len(after)
    assert changes.rows_of_both == len({*map(table.key_of, before), *map(table.key_of, after)})


@pytest.mark.parametrize("pattern", Pattern)
def test_a_seed_replays(pattern):
    before = lines_of(ORDERS)
    once = draw(ORDERS, before, rate=0.1, pattern=pattern, seed=5)
    assert draw(ORDERS, before, rate=0.1, pattern=pattern, seed=5) == once
    assert draw(ORDERS, before, rate=0.1, pattern=pattern, seed=6) != once


def test_the_mix_is_that_of_the_other_benchmarks():
    changes, _ = draw(ORDERS, lines_of(ORDERS), rate=0.2, pattern=Pattern.SCATTERED, seed=5)
    counts = len(changes.updated), len(changes.inserted), len(changes.deleted_keys)
    assert counts == (160, 30, 10)


def test_clustered_changes_are_of_the_newest_rows_and_past_the_largest_key():
    before = lines_of(ORDERS)
    places = {ORDERS.key_of(line): at for at, line in enumerate(before)}
    changes, _ = draw(ORDERS, before, rate=0.05, pattern=Pattern.CLUSTERED, seed=5)
    touched = [places[ORDERS.key_of(line)] for line in changes.updated]
    touched += [places[key] for key in changes.deleted_keys]
    assert np.median(touched) > ROWS * 0.9
    assert min(touched) < ROWS * 0.9  # one in ten is anywhere
    largest = max(int(key) for key in places)
    assert all(int(ORDERS.key_of(line)) > largest for line in changes.inserted)
