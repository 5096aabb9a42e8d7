"""What two activities say, against a counter whose every change the test knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from driftline.relations.activity import Activity, CountedActivity, FlaggedActivity, UnknownActivity
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.timetable.activity_change import (
    ALARMS_MAX,
    CONTRADICTIONS_MAX,
    FullRefresh,
    change_since,
    compare,
    contradictions,
    false_alarms,
)
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult

A, B = CountedActivity("aa", 5), CountedActivity("bb", 5)
UNCHANGED = ProbeResult(ProbeAnswer.UNCHANGED)


def test_counts_are_subtracted() -> None:
    assert compare(A, CountedActivity("aa", 345)) == ProbeResult(ProbeAnswer.CHANGED, 340)
    assert compare(A, A) == UNCHANGED


def test_a_flag_says_only_whether() -> None:
    assert compare(FlaggedActivity("aa", "01"), FlaggedActivity("aa", "01")) == UNCHANGED
    assert compare(FlaggedActivity("aa", "01"), FlaggedActivity("aa", "02")) == ProbeResult(
        ProbeAnswer.CHANGED
    )


def test_another_identity_or_a_smaller_count_says_nothing() -> None:
    for later in (B, CountedActivity("aa", 4), FlaggedActivity("aa", "05")):
        assert compare(A, later).answer is ProbeAnswer.UNKNOWN
    assert (
        compare(FlaggedActivity("aa", "01"), FlaggedActivity("bb", "01")).answer
        is ProbeAnswer.UNKNOWN
    )


def test_what_is_not_known_says_why() -> None:
    assert compare(A, UnknownActivity("a view")) == ProbeResult(why="a view")
    assert compare(UnknownActivity("a standby"), A) == ProbeResult(why="a standby")
    assert compare(None, A).answer is ProbeAnswer.UNKNOWN


@dataclass
class Table:
    """A table whose counter is exact, or stuck: it lies as a source would that sees nothing."""

    is_stuck: bool
    truth: int = 0
    counter: int = 0
    versions: list[int] = field(default_factory=list)

    def write(self, rows: int) -> None:
        self.truth += rows
        self.counter += 0 if self.is_stuck else rows

    @property
    def activity(self) -> Activity:
        return CountedActivity("aa", self.counter)

    def refresh(self, between: int) -> FullRefresh:
        """Read the activity, then write what commits before the snapshot, then compare."""
        said = self.activity
        self.write(between)
        found = self.truth - (self.versions[-1] if self.versions else 0)
        self.versions.append(self.truth)
        return FullRefresh(said, found if len(self.versions) > 1 else 0)


WORK = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12)


@given(WORK, st.integers(0, 3))
def test_an_honest_counter_is_never_contradicted(work: list[tuple[int, int]], after: int) -> None:
    """Whatever commits between the reading of the counter and the snapshot."""
    table, history = Table(is_stuck=False), []
    for before, between in work:
        table.write(before)
        history.append(table.refresh(between))
    table.write(after)
    assert contradictions(history, table.activity) == 0
    found = change_since(history[-1].activity, table.activity, history)
    # Never "unchanged" when something changed since the version.
    assert found.is_known
    assert not (found == UNCHANGED and after)
    assert (found.answer is ProbeAnswer.CHANGED) == bool(after + work[-1][1])


@given(WORK)
def test_a_stuck_counter_is_contradicted_by_each_refresh_that_finds_changes(
    work: list[tuple[int, int]],
) -> None:
    table, history = Table(is_stuck=True), []
    for before, between in work:
        table.write(before)
        history.append(table.refresh(between))
    caught = sum(refreshed.changed > 0 for refreshed in history[1:])
    assert contradictions(history, table.activity) == caught
    assert contradictions(history) == sum(r.changed > 0 for r in history[1:-1])
    found = change_since(history[-1].activity, table.activity, history)
    assert (found.answer is ProbeAnswer.CONTRADICTED) == (caught >= CONTRADICTIONS_MAX)


def test_what_the_refresh_itself_read_contradicts_nothing() -> None:
    history = [FullRefresh(A, 0), FullRefresh(A, 7)]
    assert contradictions(history) == 0
    assert contradictions(history, CountedActivity("aa", 12)) == 0
    assert contradictions(history, A) == 1


def test_refreshes_without_an_activity_contradict_nothing() -> None:
    history = [FullRefresh(None, 0), FullRefresh(A, 7), FullRefresh(None, 7), FullRefresh(None, 7)]
    assert contradictions(history, UnknownActivity("gone")) == 0


@given(st.lists(st.integers(0, 1), max_size=8))
def test_a_heartbeat_is_told_from_changes(found: list[int]) -> None:
    """A counter that moves before each refresh, of which the newest ones found nothing."""
    history = [FullRefresh(A, 0)]
    history += [FullRefresh(CountedActivity("aa", 6 + n), c) for n, c in enumerate(found)]
    in_vain = next((n for n, c in enumerate(reversed(found)) if c), len(found))
    assert false_alarms(history) == in_vain
    kept, now = history[-1].activity, CountedActivity("aa", 99)
    is_heartbeat = change_since(kept, now, history).answer is ProbeAnswer.HEARTBEAT
    assert is_heartbeat == (in_vain >= ALARMS_MAX)
    assert change_since(now, now, [*history, FullRefresh(now, 0)]) == UNCHANGED


def test_a_quiet_table_is_no_heartbeat() -> None:
    """Refreshes at the longest interval find nothing, and the counter says so: it is believed."""
    history = [FullRefresh(A, 0)] * 9
    assert false_alarms(history) == 0
    assert change_since(A, CountedActivity("aa", 6), history) == ProbeResult(ProbeAnswer.CHANGED, 1)
