"""When a view phase is due: never too late under regular refreshes, and at once at the chunk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.components.phase_schedule import (
    ExpectedChanges,
    HeldChanges,
    PhaseLimits,
    PhaseReason,
    chunk_rows,
    cut,
    due,
    is_due_within,
    reaches_chunk,
)
from warehouse_agent.components.staleness import PhaseCost, best_phases

costs = st.none() | st.builds(PhaseCost, st.floats(0.01, 100.0), st.floats(0.0, 0.01))
knobs = st.builds(PhaseLimits, st.floats(0.0, 86_400.0), st.none() | st.integers(1, 10_000))


@given(
    knobs,
    costs,
    st.floats(1.0, 7200.0),
    st.lists(st.tuples(st.integers(0, 2000), st.floats(0.2, 1.0)), min_size=1, max_size=60),
)
def test_no_change_waits_longer_than_max_lag(
    knob: PhaseLimits, cost: PhaseCost | None, interval_s: float, refreshes: list[tuple[int, float]]
) -> None:
    """Refreshes that come after at most `interval_s`: changes are shown in time, or at once."""
    now, ahead = 0.0, None
    for rows, share in refreshes:
        now += interval_s * share
        if rows:
            ahead = (
                HeldChanges(rows, now)
                if ahead is None
                else HeldChanges(ahead.rows + rows, ahead.since)
            )
        if ahead is None:
            continue
        stream = ExpectedChanges(3600.0, 1000.0, cost, next_s=interval_s, next_rows=2000)
        phase_s = 0.0 if cost is None else cost.seconds(ahead.rows)
        is_new = ahead.since == now
        if due(ahead, knob, stream, now) is None:
            assert not reaches_chunk(ahead.rows, knob, stream)
            continue
        assert is_new or now + phase_s - ahead.since <= knob.max_lag_s + 1e-6
        ahead = None


@given(knobs, costs, st.integers(1, 20_000), st.floats(0, 1e6))
def test_it_is_due_at_once_when_the_chunk_is_reached(
    knob: PhaseLimits, cost: PhaseCost | None, rows: int, since: float
) -> None:
    stream = ExpectedChanges(3600.0, 9000.0, cost, next_s=1.0)
    if rows >= chunk_rows(knob, stream):
        assert due(HeldChanges(rows, since), knob, stream, since) is not None


@given(knobs, costs, st.integers(1, 20_000))
def test_without_a_history_or_a_lag_every_refresh_has_its_phase(
    knob: PhaseLimits, cost: PhaseCost | None, rows: int
) -> None:
    assert (
        due(HeldChanges(rows, 5.0), knob, ExpectedChanges(3600.0, 9000.0, cost), 5.0)
        is PhaseReason.LAG
    )
    none = PhaseLimits(0.0, knob.chunk_rows)
    assert (
        due(HeldChanges(rows, 5.0), none, ExpectedChanges(0.0, 0.0, cost, next_s=1.0), 5.0)
        is PhaseReason.LAG
    )


def test_the_chunk_is_the_learned_optimum() -> None:
    cost = PhaseCost(4.0, 0.0)
    stream = ExpectedChanges(3600.0, 9000.0, cost, next_s=1.0)
    assert best_phases(3600.0, 9000.0, cost, 1000) == 30
    assert chunk_rows(PhaseLimits(3600.0, None), stream) == 300
    assert chunk_rows(PhaseLimits(3600.0, 77), stream) == 77
    knob = PhaseLimits(3600.0, None)
    assert due(HeldChanges(299, 0.0), knob, stream, 0.0) is None
    assert due(HeldChanges(300, 0.0), knob, stream, 0.0) is PhaseReason.CHUNK
    # Rounded to the nearer refresh, if the next one brings many more.
    many = ExpectedChanges(3600.0, 9000.0, cost, next_s=1.0, next_rows=200)
    assert due(HeldChanges(200, 0.0), knob, many, 0.0) is PhaseReason.CHUNK
    assert due(HeldChanges(199, 0.0), knob, many, 0.0) is None
    assert due(HeldChanges(200, 0.0), PhaseLimits(3600.0, 201), many, 0.0) is None, (
        "a number is a least"
    )


def test_within_a_command() -> None:
    cost = PhaseCost(1.0, 0.0)
    stream = ExpectedChanges(32.0, 1000.0, cost, boundaries_max=4)
    knob = PhaseLimits(0.0, None)

    def is_due(rows: int, left_s: float, left_rows: float, knob: PhaseLimits = knob) -> bool:
        return is_due_within(rows, knob, stream, left_s=left_s, left_rows=left_rows)

    assert is_due(250, 24.0, 750)
    assert not is_due(249, 24.0, 751), "the chunk is not reached"
    assert not is_due(0, 24.0, 1000)
    assert not is_due(250, 0.5, 0), "the others are proven before this phase ends"
    assert not is_due(250, 2.0, 750), "it costs the others more than it gains"
    assert not is_due_within(
        900, knob, ExpectedChanges(32.0, 1000.0, None), left_s=9.0, left_rows=9.0
    )
    assert is_due(1, 0.0, 750, PhaseLimits(0.0, 1))


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from("xyz"), min_size=1),
    st.data(),
    st.frozensets(st.sampled_from("xyz")),
)
def test_no_half_of_a_source_is_shown(
    source_of: dict[str, str], data: st.DataObject, fuzzy: frozenset[str]
) -> None:
    held = data.draw(st.frozensets(st.sampled_from(sorted(source_of))))
    waiting = source_of.keys() - held
    found = cut(waiting, held, source_of, fuzzy)
    assert found <= held
    for name in held:
        whole = all(n in held for n, s in source_of.items() if s == source_of[name])
        assert (name in found) == (whole or source_of[name] in fuzzy)
