"""Compare a prepared fragment with its source tile by tile.

A refresh in tiles is for sources whose readers block writers, or whose DBA wants long pauses. The
published version is compared in key order. Each tile has a stream of its own, hence a snapshot that
lasts as long as one tile; between two tiles nothing is asked of the source. What each tile found is
kept (`auxiliary_table`), so a pass that was interrupted goes on with the next tile. At its end the
tiles' digests add up to the source's total, and the rest of the refresh is the same as for one
exchange: one commit, of rows of different instants (`fuzzy`).

Carnes and Hanson, sections 3.4 to 3.6: incremental differencing with range checksums. They apply
each range as it comes; here readers see one version or the other, and a proof needs all of it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import DriftlineError, VersionMismatch

from warehouse_agent.config import Require
from warehouse_agent.events import RowsRead
from warehouse_agent.history import record
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.methods.ranges import RangeSide
from warehouse_agent.planning.choice import Method
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared
from warehouse_agent.refresh.whole import Compared, converse
from warehouse_agent.storage import row_security
from warehouse_agent.tasks.difference import (
    Difference,
    Emptied,
    Equal,
    Everything,
    ListedRows,
    Outcome,
    Zones,
)
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.channel import Link, Stream

Progress = Callable[[pb.Progress], None]


def walk(
    job: Job, p: Prepared, tiles: Pass, link: Link, sleep: Callable[[float], None]
) -> Compared:
    """Compare the tiles that are left, with a pause between two of them.

    A tile that fails after one that did not is tried once more: a long pass over a bad line must
    not run out of attempts while it advances.

    Raises:
        DriftlineError: whatever ends an exchange; finished tiles are kept.
    """
    left = deque(tiles.left())
    rows_left, compared = sum(tiles.sums.digest(tile).count for tile in left), 0

    def report(found: pb.Progress) -> None:
        """Report the progress of a tile as that of all that this attempt has to compare."""
        job.emit(RowsRead(job.name, "tiles", compared + found.rows, rows_left))

    measured: Stream | None = None
    advances, is_first = False, True
    while left:
        if not is_first:
            sleep(tiles.wanted.pause_s)
        is_first = False
        try:
            with link.stream() as stream:
                _compare(job, p, tiles, left[0], stream, report)
        except DriftlineError as error:
            if not (advances and error.is_retryable):
                raise
            advances = False
            continue
        compared += tiles.sums.digest(left.popleft()).count
        report(pb.Progress())
        advances = True
        if measured is None or stream.bytes_per_s is not None:
            measured = stream
    if measured is not None:
        with contextlib.suppress(DriftlineError):  # the note may be lost
            record.note_line(job.store, link, measured)
    return Compared(p, _outcome_of_all(tiles), tiles.staged(), is_resumed=True)


def _compare(
    job: Job, p: Prepared, tiles: Pass, tile: int, stream: Stream, progress: Progress
) -> None:
    """Compare a tile, and keep what it found."""
    bounds, sums = tiles.tiling.bounds(tile), tiles.sums.of(tile)
    copy = WorkingCopy(job.steps, job.name, p.layout, p.files, p.salt, job.phase, within=bounds)
    ours = RangeSide(tiles.tiling.partition(tile), sums, copy, p.known.costs)
    rows, writer = ours.compared.count, tiles.writer(tile)
    found = converse(job, p, ours, stream, writer, progress, rows_expected=rows, within=bounds)
    if found.scans:
        raise VersionMismatch(
            "The source read more than the tile that it was asked for.",
            where=job.name,
            remedy="Install the same release on both sides.",
        )
    told = (o.row_security for o in tiles.outcomes.values() if o.row_security)
    known = row_security.known(p.base, job.remembered()) if p.base else None
    row_security.refuse_changed(known or next(told, None), found.row_security, job.name)
    tiles.finish(tile, found)


def _outcome_of_all(p: Pass) -> Outcome:
    """Return what the pass found: the outcomes of all tiles as one."""
    found = [p.outcomes[tile] for tile in range(len(p.tiling))]
    ours = [p.sums.digest(tile) for tile in range(len(p.tiling))]
    whole = [tile for tile, out in enumerate(found) if isinstance(out.difference, Everything)]
    listed = Listing.joined(
        [o.difference.rows for o in found if isinstance(o.difference, ListedRows)]
    )
    method = Method.RANGE
    difference: Difference = ListedRows(listed)
    if all(isinstance(out.difference, Equal) for out in found):
        difference = Equal()
    elif whole and len(whole) == sum(1 for digest in ours if digest.count):
        method, difference = Method.FULL, Everything()
    elif whole:
        # By their bounds, not row by row: the driver holds none of these rows.
        bounds, rows = map(p.tiling.bounds, whole), sum(ours[tile].count for tile in whole)
        difference = Zones(Emptied.of(list(bounds), rows), listed)
    return Outcome(
        difference,
        method,
        theirs=sum((o.theirs for o in found), Digest()),
        as_of=min(o.as_of for o in found),
        checked_at=max(o.checked_at for o in found),
        consistency=found[0].consistency if len(found) == 1 else Require.FUZZY.value,
        changed=any(o.changed for o in found),
        vouched=all(o.vouched for o in found),
        frame_bytes=sum(o.frame_bytes for o in found),
        row_security=found[-1].row_security,
    )
