"""Group selection: the paper's numbers and flaws, the optimum against slow answers, groups."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.arrays import Floats
from driftline.reconciliation.sketches import Embedding
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import group_selection as reference
from tests.reference.group_selection import Entry, Phi, Synchronization
from tests.reference.selected_groups import UNGROUPED, cost_bytes, is_full, n_g, select_groups
from warehouse_agent.columns.layout import CHANGED, FIRST, HI, LO, RATE, UPDATES, lay_out
from warehouse_agent.methods.groups.assignment import (
    AssignmentRule,
    PartRows,
    RowsInPositions,
    assign,
    histogram,
    window_end,
)
from warehouse_agent.methods.groups.exchange import GroupedRows
from warehouse_agent.planning.choice import CHANGE_SHARE
from warehouse_agent.planning.group_selection import (
    A_MAX,
    CLASS_EDGES,
    GROUP_ROWS_MAX,
    REFINED_BYTES,
    ByteSizes,
    GroupPlan,
    Histogram,
    PartBudget,
    caught,
    class_of,
    expected_benefit,
    exponents,
    group_rows,
    grouping,
    lambert_w,
    most_likely,
    n_star,
    plan_groups,
)
from warehouse_agent.planning.update_probability import (
    DAY_S,
    ChangeOutlook,
    VersionClock,
    probability,
)
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.steps import Steps

PAPER = ByteSizes(100, 10, 20)
NO_DELETION = [Synchronization(tno=1000, dno=0)]
SIZES = st.builds(
    ByteSizes,
    st.sampled_from([25.0, 33.0, 100.0, 300.0]),
    st.sampled_from([0.0, 0.3, 1.0, 10.0]),
    st.sampled_from([8.0, 9.5, 20.0]),
)
PROBABILITIES = st.one_of(
    st.sampled_from([0.0, 1e-9, 1e-3, 0.5, 1.0]), st.floats(0, 1), st.floats(0, 0.05)
)


def phi(sizes: ByteSizes) -> Phi:
    return Phi(sizes.phi_t, sizes.phi_k, sizes.phi_h)


def least(a: np.ndarray, sizes: ByteSizes) -> float:
    return reference.optimum(np.sort(a).tolist(), phi(sizes))


def per_row(n: np.ndarray, a: np.ndarray, sizes: ByteSizes) -> np.ndarray:
    """Bytes sent for a row of a group of n like rows."""
    return sizes.phi_t - expected_benefit(n, n * a, sizes) / n


# The paper.
def test_the_worked_example() -> None:
    """Section V.A: 20 tuples of 100 bytes, keys of 10, a hash of 20, and nothing changed."""
    saved_bits = 8 * float(expected_benefit(20, 0.0, PAPER))
    assert saved_bits == 14_240
    assert saved_bits / (8 * 100 * 20) == 0.89
    assert 8 * reference.mu(reference.Eta(0, 20, 1.0), phi(PAPER)) == 14_240
    a = np.zeros(20)
    assert select_groups(a, PAPER).tolist() == [0] * 20
    assert cost_bytes(select_groups(a, PAPER), a, PAPER) == 2000 - 1780


@given(st.integers(1, 500), st.floats(1e-9, 1), SIZES)
def test_benefit_is_that_of_the_paper(n: int, p: float, sizes: ByteSizes) -> None:
    expected = reference.eb(reference.Eta(0, n, p), phi(sizes))
    assert float(expected_benefit(n, -np.log(p), sizes)) == pytest.approx(expected, abs=1e-6)


@given(st.floats(0, 0.999), st.floats(0, 0.999))
def test_a_row_stays_if_neither_updated_nor_deleted(p_update: float, p_delete: float) -> None:
    (a,) = exponents(np.array([p_update]), p_delete)
    assert np.exp(-a) == pytest.approx((1 - p_update) * (1 - p_delete))


def entries(counts: dict[tuple[int, int], int]) -> list[Entry]:
    """So many tuples that were updated uno of tno times."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    return [Entry(tid, tno, uno) for tid, (uno, tno) in enumerate(kinds)]


def printed(omega: list[Entry], sizes: ByteSizes) -> list[int]:
    """Sizes of the groups that Algorithm 1 puts out."""
    return [len(g) for g in reference.group_selection(omega, NO_DELETION, phi(sizes))]


def repaired(omega: list[Entry], sizes: ByteSizes) -> list[int]:
    a = exponents(np.array([reference.p_update(t) for t in omega]), 0.0)
    labels = select_groups(a, sizes)
    return np.bincount(labels[labels != UNGROUPED]).tolist()


def test_flaw_1_the_hottest_row_comes_first_and_ends_everything() -> None:
    cold = entries({(1, 1000): 900})
    assert sum(printed(cold, PAPER)) > 700
    hot = Entry(900, tno=10, uno=8)
    assert reference.p_update(hot) > 1 - (PAPER.phi_k + PAPER.phi_h) / PAPER.phi_t
    assert printed([*cold, hot], PAPER) == []
    assert sum(repaired([*cold, hot], PAPER)) == 900


def test_flaw_2_a_group_of_one_is_judged() -> None:
    sizes = ByteSizes(25, 10, 20)
    assert expected_benefit(1, 0.0, sizes) == -5
    assert expected_benefit(100, 0.0, sizes) == 1480
    # The last of 101 has to be hotter, or no group would be put out (flaw 4).
    omega = entries({(0, 1000): 100, (1, 2): 1})
    ascending = sorted(omega, key=reference.p_update)
    assert printed(omega, sizes) == []
    groups = reference.greedy([1 - reference.p_update(t) for t in ascending], phi(sizes))
    assert groups[0].size == 100
    assert repaired(omega, sizes) == [100]


def test_flaw_3_a_new_tuple_is_sure_to_change() -> None:
    first = [reference.included(tid) for tid in range(300)]
    assert {reference.p_update(t) for t in first} == {1.0}
    assert printed(first, PAPER) == []
    entry = first[0]
    for _ in range(999):
        assert reference.p_update(entry) > 0.001
        entry = reference.maintained(entry, updated=False)
    assert reference.p_update(entry) == 0.001
    # What the statistics must give instead, a prior below 1, is enough for the selection.
    a = exponents(np.full(300, 0.01), 0.0)
    assert (select_groups(a, PAPER) != UNGROUPED).all()


def test_flaw_4_the_last_tuple_and_the_open_group_are_lost() -> None:
    static = entries({(0, 1000): 300})
    assert printed(static, PAPER) == []
    assert printed(static[:1], PAPER) == []
    assert repaired(static, PAPER) == [300]
    assert repaired(static[:1], PAPER) == [1]
    alike = entries({(1, 100): 100})
    assert printed(alike, PAPER) == [78]
    assert sum(repaired(alike, PAPER)) == 100


def test_flaw_of_section_v_b_no_deletion_ratio_before_the_first_synchronization() -> None:
    with pytest.raises(ZeroDivisionError):
        reference.group_selection(entries({(1, 10): 5}), [], phi(PAPER))


# The published numbers: two tables of homogeneous rows, and the heterogeneous example.
P_UPDATE = np.array([1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1])


def test_the_paper_s_criterion_sends_several_times_the_optimum() -> None:
    a = exponents(P_UPDATE, 0.0)
    by_group, by_row = np.round(n_g(a, PAPER)), group_rows(a, PAPER)
    assert by_group.tolist() == [78152, 7815, 781, 78, 26, 7]
    assert by_row.tolist() == [142, 45, 14, 5, 3, 2]
    assert np.exp(-a * by_group) == pytest.approx([0.458] * 3 + [0.457, 0.453, 0.478], abs=6e-4)
    ours = [0.9986, 0.9955, 0.986, 0.951, 0.913, 0.81]
    assert np.exp(-a * by_row) == pytest.approx(ours, abs=1e-3)
    greedy, best = per_row(by_group, a, PAPER), per_row(by_row, a, PAPER)
    assert greedy == pytest.approx([64.2, 64.2, 64.25, 64.6, 65.5, 65.0], abs=0.05)
    # At 0.1 groups of two cost 39.0; n* = 1.49 rounded down would cost 40.0.
    assert best == pytest.approx([10.28, 10.89, 12.82, 18.90, 25.40, 39.0], abs=0.005)
    assert greedy / best == pytest.approx([6.25, 5.90, 5.01, 3.42, 2.58, 1.67], abs=0.006)


def test_groups_refined_by_row_hashes() -> None:
    """A row hash of 8 bytes and 0.29 of its key; a group's digest 9.5 with its bounds; no keys."""
    refined = ByteSizes(8.29, 0.0, 9.5)
    p = P_UPDATE[[0, 1, 2, 3, 5]]
    a = exponents(p, 0.0)
    n = group_rows(a, refined)
    assert n.tolist() == [339, 108, 34, 11, 4]
    per_change = per_row(n, a, refined) / p
    assert per_change == pytest.approx([5600, 1770, 557, 173, 52], rel=0.006)
    assert per_change[0] == pytest.approx(2 * np.sqrt(9.5 * 8.29 / a[0]), rel=2e-3)


def test_ranges_without_keys() -> None:
    ranges = ByteSizes(33, 0.0, 9.5)
    a = exponents(np.array([1e-3, 1e-2]), 0.0)
    n = group_rows(a, ranges)
    assert n.tolist() == [17, 6]  # 5.5 before rounding; five cost 0.3 % more
    assert per_row(n, a, ranges) == pytest.approx([1.12, 3.5], abs=0.015)
    assert per_row(n, a, ranges) == pytest.approx(2 * np.sqrt(a * 9.5 * 33), rel=0.015)


def test_closed_forms() -> None:
    a = np.array([1e-6, 1e-4, 0.01])
    for ratio, identical in ((0.1, 0.458), (0.0, 1 / np.e)):
        sizes = ByteSizes(100, 100 * ratio, 20)
        assert np.exp(-a * n_g(a, sizes)) == pytest.approx([identical] * 3, abs=5e-4)
    assert n_star(a, PAPER) == pytest.approx(np.sqrt(0.2 / a), rel=0.03)
    assert (n_star(a, PAPER) == n_star(a, ByteSizes(100, 1, 20))).all()
    last = 4 * 100 / (np.e**2 * 20)
    found = n_star(np.array([0.0, last * 0.999, last * 1.001]), PAPER)
    assert found[0] == np.inf
    assert found[1] == pytest.approx(2 / last, rel=0.05)
    assert np.isnan(found[2])
    assert 4 * 8.29 / (np.e**2 * 9.5) == pytest.approx(0.45, abs=0.03)


def heterogeneous() -> np.ndarray:
    """a of 20,000 tuples in random order: 95 % P({±t}) about 0.001, 5 % about 0.5.

    The published instance is not known. These spreads give its figures to three decimals, except
    what scatters: the printed algorithm without exit (0.64 to 0.78 over like instances; published
    0.683) and unsorted rows (0.29 to 0.32; published 0.301).
    """
    draw = np.random.default_rng(1)
    p = np.concatenate([draw.uniform(0.0003, 0.0017, 19_000), draw.uniform(0.1, 0.9, 1_000)])
    return exponents(draw.permutation(p), 0.0)


@pytest.mark.slow
def test_the_heterogeneous_example() -> None:
    a = heterogeneous()
    full = 100 * len(a)
    ascending = np.exp(-np.sort(a)).tolist()
    omega = [Entry(i, 10**6, round(10**6 * (1 - p))) for i, p in enumerate(ascending)]
    assert reference.group_selection(omega, NO_DELETION, phi(PAPER)) == []
    without_exit = reference.greedy(ascending[::-1], phi(PAPER))
    assert 0.64 < reference.cost(len(a), without_exit, phi(PAPER)) / full < 0.78
    by_group = reference.greedy(ascending, phi(PAPER))
    assert reference.cost(len(a), by_group, phi(PAPER)) / full == pytest.approx(0.640, abs=5e-4)
    best = least(a, PAPER)
    assert best / full == pytest.approx(0.1601, abs=1e-4)
    ours = cost_bytes(select_groups(a, PAPER), a, PAPER)
    assert best <= ours * (1 + 1e-9) < best * 1.0006
    assert bare_rule(np.sort(a), PAPER) / full == pytest.approx(0.1602, abs=3e-4)
    assert bare_rule(a, PAPER) / full == pytest.approx(0.301, abs=0.015)
    assert 0.1 + (1 - np.exp(-a)).mean() == pytest.approx(0.126, abs=5e-4)


def bare_rule(a: np.ndarray, sizes: ByteSizes) -> float:
    """Bytes of groups closed where the rule says so, without looking back, in the order given."""
    saved, n, big_a = 0.0, 0, 0.0
    for j, a_j in enumerate(a.tolist()):
        n, big_a = n + 1, big_a + a_j
        if is_full(n, big_a, sizes) or j + 1 == len(a):
            saved += max(float(expected_benefit(n, big_a, sizes)), 0.0)
            n, big_a = 0, 0.0
    return sizes.phi_t * len(a) - saved


# The optimum.
@given(st.lists(PROBABILITIES, min_size=1, max_size=7), SIZES)
def test_the_optimum_is_the_least_of_all_groupings(p: list[float], sizes: ByteSizes) -> None:
    a = exponents(np.array(p), 0.0)
    expected = reference.least_of_all_groupings(a.tolist(), phi(sizes))
    assert least(a, sizes) == pytest.approx(expected, abs=1e-6)


@given(st.lists(PROBABILITIES, max_size=60), st.sampled_from([0.0, 0.01]), SIZES)
def test_a_selection(p: list[float], p_delete: float, sizes: ByteSizes) -> None:
    a = exponents(np.array(p), p_delete)
    labels = select_groups(a, sizes)
    assert len(labels) == len(a)
    numbers = np.unique(labels[labels != UNGROUPED])
    assert numbers.tolist() == list(range(len(numbers)))
    for number in numbers:
        inside = a[labels == number]
        assert expected_benefit(len(inside), inside.sum(), sizes) > -1e-9
        between = (a > inside.min()) & (a < inside.max())
        assert (labels[between] == number).all()
    cost = cost_bytes(labels, a, sizes)
    assert least(a, sizes) - 1e-6 <= cost <= sizes.phi_t * len(a) + 1e-6


FAMILIES = {
    "skewed": lambda draw, n: draw.beta(0.3, 3, n),
    "uniform": lambda draw, n: draw.uniform(0, 1, n),
    "log-uniform": lambda draw, n: 10 ** draw.uniform(-6, 0, n),
    "hot and cold": lambda draw, n: np.where(
        draw.random(n) < 0.95, draw.beta(1, 999, n), draw.beta(2, 2, n)
    ),
    "alike": lambda draw, n: np.full(n, 10 ** draw.uniform(-5, -0.3)),
    "few kinds": lambda draw, n: draw.choice(10 ** draw.uniform(-5, 0, 5), n),
}


def drawn(family: str, seed: int, n: int) -> tuple[np.ndarray, float, ByteSizes]:
    """P({±t}) of n rows, P({−t}), sizes."""
    draw = np.random.default_rng([seed, list(FAMILIES).index(family)])
    p = np.minimum(FAMILIES[family](draw, n), 1.0)
    sizes = ByteSizes(
        float(draw.choice([25, 33, 100, 300])),
        float(draw.choice([0.3, 1, 8, 10])),
        float(draw.choice([8, 9.5, 20])),
    )
    return p, float(draw.choice([0, 1e-4, 1e-2])), sizes


@pytest.mark.parametrize("family", FAMILIES)
def test_the_selection_is_within_one_percent_of_the_optimum(family: str) -> None:
    for seed in range(12):
        n = 400 + 90 * seed
        p, p_delete, sizes = drawn(family, seed, n)
        a = exponents(p, p_delete)
        cost = cost_bytes(select_groups(a, sizes), a, sizes)
        assert cost < least(a, sizes) * (1.01 if n < 1000 else 1.002), (seed, n)


def test_hot_rows_do_not_spoil_the_open_group() -> None:
    a = exponents(np.array([0.95] * 50 + [0.001] * 3), 0.0)
    assert select_groups(a, PAPER).tolist() == [UNGROUPED] * 50 + [0] * 3


def test_a_selection_from_few_rows_is_close_on_average() -> None:
    excess = []
    for seed in range(60):
        p, p_delete, sizes = drawn(list(FAMILIES)[seed % len(FAMILIES)], seed, 10 + seed)
        a = exponents(p, p_delete)
        excess.append(cost_bytes(select_groups(a, sizes), a, sizes) / least(a, sizes) - 1)
    assert np.mean(excess) < 0.01


@given(st.lists(st.floats(0, 4), min_size=1, max_size=20), SIZES)
def test_the_best_size_is_the_best_of_all_sizes(found: list[float], sizes: ByteSizes) -> None:
    a = np.array(found)
    n = np.arange(1, GROUP_ROWS_MAX + 1)
    for a_i, rows in zip(a, group_rows(a, sizes), strict=True):
        every = expected_benefit(n, n * a_i, sizes) / n
        ours = every[rows - 1] if rows else 0.0
        assert ours == pytest.approx(max(every.max(), 0.0), abs=1e-9)


@given(st.floats(-1 / np.e, 1e6))
def test_lambert_w(x: float) -> None:
    w = lambert_w(np.array([x]))[0]
    assert w >= -1
    assert w * np.exp(w) == pytest.approx(x, rel=1e-12, abs=1e-15)


def test_lambert_w_where_it_is_known() -> None:
    found = lambert_w(np.array([0, 1, np.e, -1 / np.e, -np.log(2) / 2]))
    assert found == pytest.approx([0, 0.5671432904097838, 1, -1, -np.log(2)], abs=1e-7)


def test_extremes() -> None:
    assert exponents(np.array([0.0, 1.0]), 0.0).tolist() == [0.0, A_MAX]
    assert select_groups(np.empty(0), PAPER).tolist() == []
    assert select_groups(np.full(5, A_MAX), PAPER).tolist() == [UNGROUPED] * 5
    assert group_rows(np.array([0.0, A_MAX]), PAPER).tolist() == [GROUP_ROWS_MAX, 0]
    # Keys as wide as rows: nothing can be saved.
    assert group_rows(np.array([0.0, 0.01]), ByteSizes(10, 10, 20)).tolist() == [0, 0]


# Classes instead of an order.
def numbered(plan: GroupPlan, p: np.ndarray, tasks: int) -> np.ndarray:
    """Groups as tasks make them: of each class, every so many rows in order."""
    labels = np.full(len(p), UNGROUPED, np.int64)
    number = 0
    for task in np.array_split(np.arange(len(p)), tasks):
        classes = class_of(p[task])
        for at in np.unique(classes):
            rows = task[classes == at]
            if size := int(plan.rows[at]):
                labels[rows] = number + np.arange(len(rows)) // size
                number += -(-len(rows) // size)
    return labels


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_is_within_one_percent_of_the_selection(family: str) -> None:
    for seed in range(4):
        p, p_delete, sizes = drawn(family, seed, 20_000)
        p = np.random.default_rng(seed).permutation(p)
        a = exponents(p, p_delete)
        plan = plan_groups(Histogram.of(p), sizes, p_delete)
        selected = cost_bytes(select_groups(a, sizes), a, sizes)
        cost = cost_bytes(numbered(plan, p, 1), a, sizes)
        assert cost < selected * 1.005, seed
        assert plan.bytes_expected == pytest.approx(cost, rel=0.002), seed
        # Every task leaves one group of each class unfinished.
        spread = cost_bytes(numbered(plan, p, 4), a, sizes)
        assert spread < selected * 1.01, seed
        assert spread <= cost + 3 * np.count_nonzero(plan.rows) * sizes.phi_h + 0.001 * cost, seed


def test_a_plan_for_the_heterogeneous_example() -> None:
    a = heterogeneous()
    p = 1 - np.exp(-a)
    plan = plan_groups(Histogram.of(p), PAPER, 0.0)
    found = cost_bytes(numbered(plan, p, 2), a, PAPER) / (100 * len(a))
    assert found == pytest.approx(0.1601, rel=0.01)


def test_buckets_by_hash_cost_more() -> None:
    """The rejected way, at its own best size; `plan_groups` counts exactly."""
    draw = np.random.default_rng(3)
    p = np.full(50_000, 0.01)
    a = exponents(p, 0.0)
    ours = plan_groups(Histogram.of(p), PAPER, 0.0).bytes_expected
    hashed = [
        cost_bytes(draw.integers(0, len(p) // rows, len(p)), a, PAPER) for rows in range(3, 8)
    ]
    assert 1.03 < min(hashed) / ours < 1.06


@given(
    st.lists(PROBABILITIES, min_size=1, max_size=60),
    st.sampled_from([9.0, 25.0, 300.0]),
    st.sampled_from([0.0, 1e3, 1e9]),
)
def test_the_cheaper_of_whole_and_refined(p: list[float], row_bytes: float, wait: float) -> None:
    counted = Histogram.of(np.array(p))
    plan = grouping(counted, row_bytes=row_bytes, key_bytes=0.3, wait_bytes=wait)
    whole = plan_groups(counted, ByteSizes(row_bytes, 0.3, 8), 0.0)
    assert plan.bytes_expected <= whole.bytes_expected
    if wait == 1e9:
        assert plan.rows.tolist() == whole.rows.tolist()
    # Never worse than shipping what is in no group, nor than to refine every row alone.
    mean = counted.updates / np.maximum(counted.counts, 1)
    alone = 0.3 + 8 + mean * (REFINED_BYTES + row_bytes)
    ship = np.minimum(alone, row_bytes) * counted.counts
    assert plan.bytes_expected <= ship.sum() + wait + 1e-6


def test_refining_makes_groups_larger() -> None:
    counted = Histogram.of(np.full(750_000, 0.01))
    near, far = (
        grouping(counted, row_bytes=300.0, key_bytes=0.2, wait_bytes=wait) for wait in (0.0, 1e9)
    )
    assert near.rows.max() > 2 * far.rows.max()
    assert near.bytes_expected < far.bytes_expected


@pytest.mark.parametrize("p_delete", [0.0, 0.002, 0.02, 0.2])
@pytest.mark.parametrize("p_update", [0.001, 0.03])
@pytest.mark.parametrize("wait", [0.0, 1e9], ids=["refined", "whole"])
def test_deletions_and_regrouping_cost_what_they_are_priced(
    p_delete: float, p_update: float, wait: float
) -> None:
    """Against bytes counted group by group: a deleted row costs its key; a group that lost rows one
    hash, where groups are refined, and its other rows, where they are shipped whole."""
    rows, row_bytes, key = 100_000, 200.0, 1.2
    counted = Histogram.of(np.full(rows, p_update))
    plan = grouping(counted, row_bytes=row_bytes, key_bytes=key, wait_bytes=wait, p_delete=p_delete)
    assert plan.is_refined == (wait == 0)
    size = int(plan.rows.max())
    draw = np.random.default_rng(5)
    groups = np.arange(rows) // size
    gone, updated = draw.random(rows) < p_delete, draw.random(rows) < p_update
    gone_of, updated_of = (np.bincount(groups, some) for some in (gone, updated & ~gone))
    left_of = np.bincount(groups) - gone_of
    spent = key * (rows + gone.sum()) + 8 * len(left_of)
    if plan.is_refined:
        spent += 8 * np.count_nonzero(gone_of)
        spent += REFINED_BYTES * left_of[updated_of > 0].sum() + row_bytes * updated.sum()
    else:
        spent += row_bytes * left_of[(updated_of > 0) | (gone_of > 0)].sum()
    assert plan.bytes_expected == pytest.approx(spent, rel=0.08)


@given(st.lists(PROBABILITIES, min_size=1, max_size=80), st.integers(0, 100))
def test_the_most_likely_rows(p: list[float], budget: int) -> None:
    counted = Histogram.of(np.array(p))
    found = most_likely(counted, budget)
    sure = int(counted.counts[found.least :].sum())
    below = counted.counts[found.least - 1] if found.least else 0
    assert 0 <= found.share < 1
    assert sure + found.share * below == pytest.approx(min(budget, len(p)))


@given(st.lists(PROBABILITIES, max_size=50), st.lists(PROBABILITIES, max_size=50))
def test_histograms_add(some: list[float], others: list[float]) -> None:
    whole = Histogram.of(np.array(some + others))
    both = Histogram.of(np.array(some)) + Histogram.of(np.array(others))
    assert both.counts.tolist() == whole.counts.tolist()
    assert both.updates == pytest.approx(whole.updates)
    assert whole.counts.sum() == len(some) + len(others)


# Spark.
ROWS = 20_000
SALT = Salt(0x1234, 0x5678)
RECIPE = Recipe(
    (Column("id", parse_type("int8"), False, 0), Column("s", parse_type("text"), True, 1)), 1
)
LAYOUT = lay_out(RECIPE, {}, where="t")
# Versions 0 to 63, a day each; some 2 % of the rows change between two of them.
CLOCK = VersionClock(tuple(range(64)), tuple(1e9 + DAY_S * i for i in range(64)))
OUTLOOK = ChangeOutlook(CLOCK, 0.02, CLOCK.seconds[-1] + DAY_S, DAY_S)


def named_rows(folder: Path, files: int) -> tuple[list[DataFile], pa.Table]:
    """Write ROWS rows with an integer key, any two lanes and statistics; return files and rows."""
    rng = np.random.default_rng(11)
    first = rng.integers(0, 40, ROWS)
    rows = {
        "id": np.arange(7, 7 + ROWS),
        "s": [str(i) for i in range(ROWS)],
        HI: rng.integers(-(1 << 63), 1 << 63, ROWS),
        LO: rng.integers(-(1 << 63), 1 << 63, ROWS),
        FIRST: pa.array(first, pa.int32(), mask=rng.random(ROWS) < 0.05),
        UPDATES: np.zeros(ROWS, np.int32),
        CHANGED: first + rng.integers(0, 24, ROWS),
        RATE: np.where(rng.random(ROWS) < 0.05, 400.0, rng.exponential(0.5, ROWS)),
    }
    table = pa.table(rows).cast(LAYOUT.file_schema)
    found = []
    for i in range(files):
        some = table.slice(ROWS * i // files, ROWS * (i + 1) // files - ROWS * i // files)
        path = folder / f"t/data/{i}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(some, path)
        ids = some["id"]
        ends = (ids[0].as_py(), ids[-1].as_py())
        size = path.stat().st_size
        found.append(DataFile(f"data/{i}.parquet", f"file://{path}", size, len(some), ends))
    return found, table


def probabilities(table: pa.Table) -> Floats:
    columns = (table[name].to_numpy().astype(np.float64) for name in (FIRST, CHANGED, RATE))
    return probability(OUTLOOK, *columns)


@pytest.mark.parametrize("hashed", [False, True], ids=["integer", "hashed"])
def test_rows_in_groups(steps: Steps, tmp_path: Path, hashed: bool) -> None:
    files, table = named_rows(tmp_path, 3)
    embedding = Embedding(ROWS * 16) if hashed else Embedding(ROWS, 7)
    p, ids = probabilities(table), table["id"].to_numpy()
    counted = histogram(steps, files, LAYOUT, OUTLOOK)
    assert counted.counts.tolist() == Histogram.of(p).counts.tolist()
    assert counted.updates == pytest.approx(Histogram.of(p).updates)

    plan = plan_groups(counted, PAPER, 0.0)
    found = assign(steps, files, LAYOUT, OUTLOOK, AssignmentRule(plan, embedding, SALT))
    mixed = mix(SALT, *(table[name].to_numpy().view(np.uint64) for name in (HI, LO)))
    assert found.compared == mixed.digest()
    assert found.rest == Digest()

    # Every k once, in a group or in none; the digests are of the rows below it.
    ks, _ = embedding.embed(ids, SALT)
    sums = GroupedRows(embedding, found.pieces, found.ungrouped, 1, 1).sums()
    assert sorted([*sums.all_ks(), *found.ungrouped]) == np.unique(ks).tolist()
    sums.add(ks, mixed.m0)
    sent = np.concatenate([np.frombuffer(piece.digests, "<u8") for piece in found.pieces])
    assert sums.short_digests().tolist() == sent.tolist()
    assert {piece.size for piece in found.pieces} <= set(plan.rows.tolist())
    assert ROWS // 50 <= len(found.ungrouped) < ROWS // 8  # those that are likely to change
    if not hashed:
        a = exponents(p, 0.0)
        selected = cost_bytes(select_groups(a, PAPER), a, PAPER)
        assert cost_bytes(sums.find(ks), a, PAPER) < selected * 1.01


def test_a_part_of_the_rows(steps: Steps, tmp_path: Path) -> None:
    files, table = named_rows(tmp_path, 2)
    embedding = Embedding(ROWS, 7)
    counted = histogram(steps, files, LAYOUT, OUTLOOK)
    plan = plan_groups(counted, PAPER, 0.0)
    plan = replace(plan, rows=np.maximum(plan.rows, 1))
    part = PartRows(most_likely(counted, 3000), RowsInPositions(100, 399))
    found = assign(steps, files, LAYOUT, OUTLOOK, AssignmentRule(plan, embedding, SALT, part))
    p, ids = probabilities(table), table["id"].to_numpy()
    mixed = mix(SALT, *(table[name].to_numpy().view(np.uint64) for name in (HI, LO)))
    keys = GroupedRows(embedding, found.pieces, found.ungrouped, 1, 1).sums().all_ks() + np.uint64(
        7
    )
    assert set(range(100, 400)) <= set(keys.tolist())
    assert 2900 < len(keys) < 3500
    chosen = np.isin(ids, keys.astype(np.int64))
    inside = (ids >= 100) & (ids < 400)
    # None that was left is likelier than one that was chosen, but for a class's breadth.
    assert p[~chosen].max() <= 2**0.5 * p[chosen & ~inside].min()
    assert len(found.ungrouped) == 0
    assert found.compared + found.rest == mixed.digest()
    assert found.compared == MixedFingerprints(mixed.m0[chosen], mixed.m1[chosen]).digest()


def test_rows_of_which_nothing_is_known_are_alike(steps: Steps, tmp_path: Path) -> None:
    files, _ = named_rows(tmp_path, 2)
    counted = histogram(steps, files, LAYOUT, None)
    assert counted.counts.tolist() == Histogram.of(np.full(ROWS, CHANGE_SHARE)).counts.tolist()


def test_where_a_window_of_positions_ends(steps: Steps, tmp_path: Path) -> None:
    files, table = named_rows(tmp_path, 3)
    ids = np.sort(table["id"].to_numpy())
    for start, count in ((7, 1), (7, ROWS), (500, 9000), (ids[-1], 1), (-5, 3)):
        expected = ids[ids >= start][count - 1]
        assert window_end(steps, files, LAYOUT, int(start), count) == expected
    assert window_end(steps, files, LAYOUT, 7, ROWS + 1) is None
    assert window_end(steps, files, LAYOUT, int(ids[-1]) + 1, 1) is None


# What a part finds.
@given(
    p=st.lists(st.floats(0, 0.5), min_size=20, max_size=60),
    share=st.floats(0.1, 1.5),
    deleted=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_a_part_finds_the_likeliest_rows(p: list[float], share: float, deleted: float) -> None:
    """Between what an even draw finds and all; the same as counted row by row."""
    probabilities, rows = np.array(p), len(p)
    budget = PartBudget.of(int(share * rows) + 1)
    assert budget.likeliest + budget.in_turn + budget.new == int(share * rows) + 1
    found = caught(Histogram.of(probabilities), budget, deleted)
    assert found.changed == pytest.approx(probabilities.sum() + deleted * rows)
    compared = min((budget.likeliest + budget.in_turn) / rows, 1.0)
    assert compared * found.changed - 1e-6 <= found.found <= found.changed + 1e-6
    likeliest = np.sort(probabilities)[::-1]
    left = 1.0 - min(budget.in_turn / max(rows - budget.likeliest, 1), 1.0)
    missed = left * (likeliest[budget.likeliest :] + deleted).sum()
    # Within a class a row is as likely as another.
    width = (CLASS_EDGES[1:] / CLASS_EDGES[:-1]).max()
    assert found.changed - found.found <= width * missed + deleted + 1e-6
    assert math.exp(-3 * (found.changed - found.found)) <= found.finds_all * (1 + 1e-9) <= 1 + 1e-6


def test_keys_that_travel_themselves_bound_the_rows_in_turn() -> None:
    assert PartBudget.of(1000) == PartBudget(600, 250, 150)
    assert PartBudget.of(1000, in_turn_max=100) == PartBudget(750, 100, 150)
