"""Decide from two activities of a relation whether it changed between them, without I/O.

A probe is a hint. What it says is compared with what refreshes found: it is *contradicted* by a
refresh that found changed rows although the activity is the same before the version that the
refresh began from, and after the refresh. The activity that the refresh itself read does not count:
it is from before its snapshot, and the change may lie between them. After CONTRADICTIONS_MAX, what
probes of this relation say counts as nothing, until it is loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from driftline.relations.activity import Activity, CountedActivity, FlaggedActivity, UnknownActivity

from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult

CONTRADICTIONS_MAX: Final = 2
ALARMS_MAX: Final = 3  # refreshes in a row for nothing, before a source that says "changed" waits


@dataclass(frozen=True, slots=True)
class FullRefresh:
    """A refresh of all rows: `activity` from before its snapshot, and the rows it found changed."""

    activity: Activity | None
    changed: int


def compare(kept: Activity | None, now: Activity) -> ProbeResult:
    """Return what happened between an earlier activity, as it was kept, and a later one."""
    match kept, now:
        case _, UnknownActivity(why):
            return ProbeResult(why=why)
        case None, _:
            return ProbeResult(why="nothing was kept with this version to compare with")
        case UnknownActivity(why), _:
            return ProbeResult(why=why)
        case CountedActivity(before, had), CountedActivity(after, has) if (
            before == after and had <= has
        ):
            return (
                ProbeResult(ProbeAnswer.CHANGED, has - had)
                if has > had
                else ProbeResult(ProbeAnswer.UNCHANGED)
            )
        case FlaggedActivity(before, had), FlaggedActivity(after, has) if before == after:
            return ProbeResult(ProbeAnswer.UNCHANGED if had == has else ProbeAnswer.CHANGED)
    return ProbeResult(why="the source has begun to count anew since this version")


def contradictions(history: Sequence[FullRefresh], now: Activity | None = None) -> int:
    """Return how often probes were contradicted.

    Args:
        history: refreshes since the load, which comes first; the oldest first.
        now: an activity after the last of them; None: none was read.
    """
    after = [*(refreshed.activity for refreshed in history), now]
    return sum(
        refreshed.changed > 0
        and later is not None
        and compare(before.activity, later).answer is ProbeAnswer.UNCHANGED
        for before, refreshed, later in zip(history, history[1:], after[2:], strict=False)
    )


def false_alarms(history: Sequence[FullRefresh]) -> int:
    """Return how many of the newest refreshes, in a row, found nothing although the activity before
    each of them had moved since the one before: a heartbeat, which writes what is there already.

    Args:
        history: as in `contradictions`.
    """
    count = 0
    for before, refreshed in zip(reversed(history[:-1]), reversed(history[1:]), strict=True):
        has_moved = (
            refreshed.activity is not None
            and compare(before.activity, refreshed.activity).answer is ProbeAnswer.CHANGED
        )
        if refreshed.changed or not has_moved:
            break
        count += 1
    return count


def change_since(
    kept: Activity | None, now: Activity, history: Sequence[FullRefresh]
) -> ProbeResult:
    """Return what happened since a version, as `compare`; or that probes are contradicted, or have
    been a heartbeat, which ends with a refresh that finds changes.

    Args:
        kept: the activity that was kept with the version.
        now: the activity as the source says it.
        history: as in `contradictions`.
    """
    if (count := contradictions(history, now)) >= CONTRADICTIONS_MAX:
        why = f"{count} refreshes found changes where the source had said that nothing changed"
        return ProbeResult(ProbeAnswer.CONTRADICTED, why=why)
    probe = compare(kept, now)
    if probe.answer is ProbeAnswer.CHANGED and (alarms := false_alarms(history)) >= ALARMS_MAX:
        why = f"the source says that it changed, as before {alarms} refreshes that found nothing"
        return ProbeResult(ProbeAnswer.HEARTBEAT, why=why)
    return probe
