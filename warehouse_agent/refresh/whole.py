"""Compare a prepared fragment with its source, in one exchange.

Converse over an open stream and stage what comes, also where the line is cut: the next attempt
builds on it (decision 4). Nothing that a reader sees changes here. Tiles: `tiled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from driftline.sketches import Embedding

from warehouse_agent.methods.conversation import Conversation, Opening
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.prepare import Prepared, Single
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.transport.channel import Stream

__all__ = ["Compared", "Options", "exchange"]


@dataclass(frozen=True, slots=True)
class Compared:
    """What the comparison found, and the URIs of the staged frames that belong to it."""

    prepared: Prepared
    found: Outcome
    staged: list[str]


def exchange(job: Job, p: Prepared, ours: Single, stream: Stream) -> Compared:
    """Converse with the source and stage what comes, also where the line is cut.

    A stream that is out of step afterwards, because the source has not ended the relation, is
    abandoned.

    Raises:
        DriftlineError: whatever the source refused with, or a broken line or message.
    """
    writer = job.staging.begin(job.note(p.base, p.layout))
    opening = Opening(
        relation=job.fragment.relation,
        recipe=p.layout.recipe,
        fragment_key=p.fragment_key,
        salt=p.salt,
        partition=ours.partition,
        sums=ours.sums,
        prices=p.known.prices,
        sketch=ours.sketch,
        grouped=ours.units.grouped if ours.units else None,
        forced=job.fragment.method,
        line=p.known.line,
        rows_expected=p.rows_expected,
        room=job.staging.room(job.fragment.staging_at_most),
        rows_lost=ours.rows_lost,
    )

    def list_rows(by: int, chosen: npt.NDArray[np.bool_]) -> digests.Listing:
        with job.phase("list"):
            return digests.list_rows(
                job.spark, p.files, p.layout, ours.partition, p.salt, by=by, chosen=chosen
            )

    conversation = Conversation(
        stream,
        opening,
        keep=writer.add,
        list_rows=list_rows,
        list_keys=partial(_list_keys, job, p, opening.grouped.embedding)
        if opening.grouped
        else None,
        progress=job.rows_read,
    )
    try:
        found = conversation.run()
    finally:
        if not conversation.ended:
            stream.abandon()
        if conversation.admission.is_overrun:
            writer.drop()
        else:
            writer.flush()
    # Rows in no unit came before the totals were known: if these are equal, we have the rows.
    return Compared(p, found, [] if found.is_equal else job.staging.uris(writer.folder))


def _list_keys(
    job: Job, p: Prepared, embedding: Embedding, ks: npt.NDArray[np.uint64]
) -> digests.Listing:
    with job.phase("list"):
        return digests.list_keys(job.spark, p.files, p.layout, embedding, p.salt, ks=ks)
