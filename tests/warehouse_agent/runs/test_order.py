"""The order of the fragments of a command, and their division into runs."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.config import Fragment, Source
from warehouse_agent.planning.tiling import PassSettings
from warehouse_agent.runs.order import SourceSchedule, expected_s, in_time, schedule

ERP, CRM = Source("erp", "erp:1"), Source("crm", "crm:1")
NOW = datetime(2026, 7, 1, tzinfo=UTC)


def fragment(
    name: str, source: Source = ERP, priority: int = 0, *, tiled: bool = False
) -> Fragment:
    incremental = PassSettings() if tiled else None
    return Fragment(name, source, name, incremental=incremental, priority=priority)


def names(planned: SourceSchedule) -> list[list[str]]:
    return [[f.name for f in run] for run in planned.shared] + [[f.name] for f in planned.tiled]


def test_priority_then_age_then_name() -> None:
    fragments = [
        fragment("yesterday"), fragment("last week"), fragment("b never"), fragment("a never"),
        fragment("urgent", priority=7), fragment("last", priority=-1),
    ]  # fmt: skip
    refreshed_at = {
        "yesterday": NOW - timedelta(days=1),
        "last week": NOW - timedelta(days=7),
        "urgent": NOW,
        "a never": None,
    }
    random.Random(1).shuffle(fragments)
    (planned,) = schedule(fragments, refreshed_at, ahead=4)
    assert names(planned) == [
        ["urgent", "a never", "b never", "last week"],
        ["yesterday", "last"],
    ]
    assert planned.source == ERP


def test_a_pass_is_alone_and_last() -> None:
    fragments = [fragment("a", tiled=True, priority=9), fragment("b"), fragment("c", tiled=True)]
    (planned,) = schedule(fragments, {}, ahead=None)
    assert names(planned) == [["b"], ["a"], ["c"]]
    assert [f.name for f in planned.tiled] == ["a", "c"]


def test_the_source_of_the_first_fragment_is_first() -> None:
    fragments = [fragment("a"), fragment("b", CRM, 1), fragment("c"), fragment("d", CRM)]
    first, second = schedule(fragments, {}, ahead=1)
    assert (first.source, names(first)) == (CRM, [["b"], ["d"]])
    assert (second.source, names(second)) == (ERP, [["a"], ["c"]])


def test_nothing() -> None:
    assert schedule([], {}, ahead=4) == []


@given(
    st.lists(
        st.tuples(st.sampled_from([ERP, CRM]), st.integers(-2, 2), st.booleans()), max_size=30
    ),
    st.none() | st.integers(1, 9),
)
def test_each_fragment_is_in_one_run(
    chosen: list[tuple[Source, int, bool]], ahead: int | None
) -> None:
    fragments = [
        fragment(str(number), source, priority, tiled=tiled)
        for number, (source, priority, tiled) in enumerate(chosen)
    ]
    planned = schedule(fragments, {}, ahead=ahead)
    done = [name for one in planned for run in names(one) for name in run]
    assert sorted(done) == sorted(f.name for f in fragments)
    for one in planned:
        assert all(f.source == one.source for run in one.shared for f in run)
        sizes = [len(run) for run in one.shared]
        assert all(sizes)
        if ahead is None:
            assert len(sizes) <= 1
        else:
            assert all(size == ahead for size in sizes[:-1])
            assert max(sizes, default=0) <= ahead
        shared = [f.priority for run in one.shared for f in run]
        assert shared == sorted(shared, reverse=True)


@pytest.mark.parametrize("ahead", [1, 2, None])
def test_the_order_does_not_depend_on_that_of_the_file(ahead: int | None) -> None:
    fragments = [fragment(f"{i % 3}-{i}", priority=i % 2) for i in range(7)]
    refreshed_at = {f.name: NOW - timedelta(days=i % 3) for i, f in enumerate(fragments)}
    expected = schedule(fragments, refreshed_at, ahead=ahead)
    for seed in range(5):
        random.Random(seed).shuffle(fragments)
        assert schedule(fragments, refreshed_at, ahead=ahead) == expected


@pytest.mark.parametrize(
    ("took", "expected"),
    [([], 0), ([7], 7), ([1, 9], 9), ([9, 1, 2], 2), ([900, 1, 2, 3, 4], 3), ([1, 2, 3, 4], 3)],
)
def test_one_slow_day_does_not_decide(took: list[float], expected: float) -> None:
    assert expected_s(took) == expected


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (-5, []),
        (0, []),  # not even one without history
        (0.1, ["new"]),
        (10, ["new", "minute"]),
        (60, ["hour", "new"]),
        (69, ["hour", "new"]),
        (70, ["hour", "new", "minute"]),
    ],
)
def test_a_run_has_what_ends_in_time(left_s: float, expected: list[str]) -> None:
    run = [fragment(name) for name in ("hour", "new", "minute")]
    takes_s = {"hour": 60.0, "new": 0.0, "minute": 10.0}
    assert [f.name for f in in_time(run, takes_s, left_s)] == expected


@given(st.lists(st.floats(0, 100), max_size=9), st.floats(-10, 300))
def test_no_run_is_expected_to_end_late(takes: list[float], left_s: float) -> None:
    run = [fragment(str(number)) for number in range(len(takes))]
    takes_s = {f.name: takes[int(f.name)] for f in run}
    chosen = in_time(run, takes_s, left_s)
    total = sum(takes_s[f.name] for f in chosen)
    assert total <= max(left_s, 0)
    assert chosen == [f for f in run if f in chosen]
    if left_s > 0:
        assert all(total + takes_s[f.name] > left_s - 1e-9 for f in run if f not in chosen)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.none() | st.integers(0, 3)), max_size=25),
    st.none() | st.integers(1, 6),
)
def test_fragments_that_views_join_share_a_snapshot(
    chosen: list[tuple[int, int | None]], ahead: int | None
) -> None:
    fragments = [fragment(str(i), priority=priority) for i, (priority, _) in enumerate(chosen)]
    together = {str(i): group for i, (_, group) in enumerate(chosen) if group is not None}
    planned = schedule(fragments, {}, ahead=ahead, together=together)
    runs = names(planned[0]) if planned else []
    assert sorted(n for run in runs for n in run) == sorted(f.name for f in fragments)
    for group in set(together.values()):
        held = {n for n, g in together.items() if g == group}
        assert len([run for run in runs if held & {*run}]) == 1
    for run in runs:
        groups = [together.get(n, n) for n in run]
        alone = len(set(map(str, groups))) == 1
        assert ahead is None or len(run) <= ahead or alone or len(set(groups)) < len(run)


def test_what_saves_most_a_second_comes_first() -> None:
    """Of one priority; what has no expectation comes before, by its last refresh."""
    fragments = [*map(fragment, "abde"), fragment("c", priority=-1)]
    at = {name: datetime(2026, 1, day, tzinfo=UTC) for day, name in enumerate("abcde", 1)}
    gains = {"a": 0.5, "b": 7.0, "c": 99.0}
    (found,) = schedule(fragments, at, ahead=None, gains=gains)
    assert names(found) == [["d", "e", "b", "a", "c"]]
