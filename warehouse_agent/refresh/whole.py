"""Compare a prepared fragment with its source, in one exchange.

Converse over an open stream and stage what comes, also where the line is cut: the next attempt
builds on it (decision 4). Nothing that a reader sees changes here. Tiles: `tiled`.
"""

from __future__ import annotations

from dataclasses import dataclass

from warehouse_agent.methods.conversation import Talk, Terms
from warehouse_agent.methods.interface import OurSide
from warehouse_agent.methods.registry import compare
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.transport.channel import Stream


@dataclass(frozen=True, slots=True)
class Compared:
    """What the comparison found, and the URIs of the staged frames that belong to it."""

    prepared: Prepared
    found: Outcome
    staged: list[str]


def exchange(job: Job, p: Prepared, ours: OurSide, stream: Stream) -> Compared:
    """Converse with the source and stage what comes, also where the line is cut.

    A stream that is out of step afterwards, because the source has not ended the relation, is
    abandoned.

    Raises:
        DriftlineError: whatever the source refused with, or a broken line or message.
    """
    writer = job.staging.begin(job.note(p.base, p.layout))
    terms = Terms(
        relation=job.fragment.relation,
        recipe=p.layout.recipe,
        fragment_key=p.fragment_key,
        salt=p.salt,
        level=p.known.line.level(ours.compared.count),
        rows_expected=p.rows_expected,
        room=job.staging.room(job.fragment.staging_at_most),
    )
    talk = Talk(stream, terms, keep=writer.add, progress=job.rows_read)
    try:
        found = compare(ours, talk)
    finally:
        if not talk.ended:
            stream.abandon()
        if talk.admission.is_overrun:
            writer.drop()
        else:
            writer.flush()
    # Rows in no unit came before the totals were known: if these are equal, we have the rows.
    return Compared(p, found, [] if found.is_equal else job.staging.uris(writer.folder))
