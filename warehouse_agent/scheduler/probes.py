"""Ask sources, without a scan, what changed since the published versions (`status --ask`).

One call for each source. A source that cannot be asked is no error: what it would say is a hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from driftline.errors import DriftlineError, NotNow
from driftline.relations.activity import Activity, UnknownActivity

from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import RefreshHistory, earlier_refreshes, read
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.timetable.activity_change import FullRefresh, change_since
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.preflight import reach

SOURCES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class ProbedChange:
    """Answer of a source about the changes since a version; None: nothing is published."""

    probe: ProbeResult
    version: int | None


def probed(store: Store, fragments: Sequence[Fragment]) -> Mapping[str, ProbedChange]:
    """Ask the sources of fragments; return what changed since which version, by name.

    Raises:
        WarehouseUnavailable: a published table cannot be read.
    """
    sources = {fragment.source.name: fragment.source for fragment in fragments}
    relations = {
        name: sorted({f.relation for f in fragments if f.source.name == name}) for name in sources
    }
    with ThreadPoolExecutor(SOURCES_AT_ONCE) as pool:
        calls = {n: pool.submit(_activities, s, relations[n]) for n, s in sources.items()}
        said = {name: call.result() for name, call in calls.items()}
    return {f.name: _since(store, f, said[f.source.name]) for f in fragments}


def _activities(source: Source, relations: Sequence[str]) -> Mapping[str, Activity] | ProbeResult:
    """Return the activity of relations, by name; or that the source was asked too recently."""
    try:
        reach(source)
        with SourceChannel(source) as link:
            return link.activity(relations)
    except DriftlineError as error:
        if isinstance(error, NotNow) and (wait_s := error.wait_s()) is not None:
            return ProbeResult(ProbeAnswer.PUT_OFF, why=error.message, wait_s=wait_s)
        return dict.fromkeys(relations, UnknownActivity(error.message))


def _since(
    store: Store, fragment: Fragment, said: Mapping[str, Activity] | ProbeResult
) -> ProbedChange:
    version = formats.head(store, fragment.name)
    if version is None:
        return ProbedChange(ProbeResult(why="nothing is published yet"), None)
    if isinstance(said, ProbeResult):
        return ProbedChange(said, version.version)
    now = said[fragment.relation]
    before = kept(store, version, fragment.name)
    history = read(store, fragment.name, earlier_refreshes(None))
    probe = change_since(before, now, refreshes(history))
    return ProbedChange(probe, version.version)


def kept(store: Store, version: Snapshot, name: str) -> Activity | None:
    """Return the activity from before a version's `as_of`; None if it is not known."""
    return Notes.read(store, name).comparison(version).activity


def refreshes(history: RefreshHistory) -> list[FullRefresh]:
    """Return the refreshes of all rows since the last load, the load first.

    A part says nothing of the rows that it did not compare. Where the columns changed, the number
    of changed rows means something else.
    """
    newest_first = [
        FullRefresh(line.activity, line.rows.changed if line.counts_changes else 0)
        for line in history.since_load
        if line.rows is not None and not line.is_part
    ]
    return newest_first[::-1]
