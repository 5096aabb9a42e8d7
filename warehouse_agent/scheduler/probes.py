"""Ask sources, without a scan, what changed since the published versions (`status --ask`).

One call for each source. A source that cannot be asked is no error: what it would say is a hint.
Nothing of the warehouse is read here: who asks has read it for more than this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from driftline.errors import DriftlineError, NotNow
from driftline.relations.activity import Activity, UnknownActivity
from driftline.relations.derivations import DerivablePart

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.storage.table import Version
from warehouse_agent.timetable.activity_change import FullRefresh, change_since
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.preflight import reach

SOURCES_AT_ONCE: Final = 4

# What a source says of a relation; or that it was asked too recently.
SourceAnswer = Activity | ProbeResult


@dataclass(frozen=True, slots=True)
class ProbedChange:
    """Answer of a source about the changes since a version; None: nothing is published."""

    probe: ProbeResult
    version: int | None


def asked(fragments: Sequence[Fragment]) -> Mapping[str, SourceAnswer]:
    """Ask the sources of fragments; return what each says of the relation, by fragment."""
    sources = {fragment.source.name: fragment.source for fragment in fragments}
    relations = {
        name: sorted({f.relation for f in fragments if f.source.name == name}) for name in sources
    }
    with ThreadPoolExecutor(SOURCES_AT_ONCE) as pool:
        calls = {n: pool.submit(_activities, s, relations[n]) for n, s in sources.items()}
        said = {name: call.result() for name, call in calls.items()}
    return {f.name: said[f.source.name][f.relation] for f in fragments}


def _activities(source: Source, relations: Sequence[str]) -> Mapping[str, SourceAnswer]:
    """Return what a source says of relations, by name."""
    try:
        reach(source)
        with SourceChannel(source) as link:
            return link.activity(relations)
    except DriftlineError as error:
        if isinstance(error, NotNow) and (wait_s := error.wait_s()) is not None:
            put_off = ProbeResult(ProbeAnswer.PUT_OFF, why=error.message, wait_s=wait_s)
            return dict.fromkeys(relations, put_off)
        return dict.fromkeys(relations, UnknownActivity(error.message))


def change(
    version: Version | None, notes: Notes, history: RefreshHistory, said: SourceAnswer
) -> ProbedChange:
    """Return what a source says of the changes since the published version of a fragment.

    Args:
        version: None: nothing is published.
        history: read down to the load (`earlier_refreshes(None)`).
    """
    if version is None:
        return ProbedChange(ProbeResult(why="nothing is published yet"), None)
    if isinstance(said, ProbeResult):
        return ProbedChange(said, version.version)
    before = notes.comparison(version).activity
    assert isinstance(version.layout, Layout), "the version of a fragment"
    derivation = version.layout.derivation
    # Rows that others choose change while their own relation does not: that contradicts nothing.
    is_joined = derivation is not None and DerivablePart.JOINS in derivation.parts
    earlier = [] if is_joined else refreshes(history)
    return ProbedChange(change_since(before, said, earlier), version.version)


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
