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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, VersionMismatch
from driftline.rows.digests import Digest

from warehouse_agent.events import RowsRead
from warehouse_agent.history import line_notes
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.methods.ranges import RangeSide
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import KeyTiling, TilePause
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import PreparedPass
from warehouse_agent.refresh.whole import ComparisonResult, Intake, converse
from warehouse_agent.storage import row_security
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.difference import (
    AllRows,
    ChangedZones,
    Difference,
    EmptiedZones,
    ListedRows,
    NoDifference,
    Outcome,
    joined,
)
from warehouse_agent.tasks.digests import Listing, RowChoice, RowsInKeyTiles, list_rows
from warehouse_agent.tasks.staging import FrameWriter
from warehouse_agent.transport.channel import SourceChannel, Stream

Progress = Callable[[pb.Progress], None]


def walk(
    job: Job, p: PreparedPass, link: SourceChannel, sleep: Callable[[float], None]
) -> ComparisonResult:
    """Compare the tiles that are left, with a pause between two of them.

    The pause may adapt to how fast the source answers.

    A tile that fails after one that did not is tried once more: a long pass over a bad line must
    not run out of attempts while it advances. Tiles that say a later time than one after them are
    compared again, once: the source's clock was set back, or a standby that lags answered.

    Raises:
        DriftlineError: whatever ends an exchange; finished tiles are kept.
    """
    tiles = p.tiles
    left = deque(tiles.unfinished())
    compared, repeated = 0, set[int]()

    def rows_of(some: Iterable[int]) -> int:
        return sum(tiles.sums.digest(tile).count for tile in some)

    rows = rows_of(left)

    def report(progress: pb.Progress) -> None:
        """Report the progress of a tile as that of all that this attempt has to compare."""
        job.emit(RowsRead(job.name, "tiles", compared + progress.rows, rows))

    wanted = tiles.wanted
    measured: Stream | None = None
    pause = TilePause(wanted.rows, wanted.pause_s)
    advances, is_first = False, True
    while left:
        if not is_first:
            sleep(pause.seconds)
        is_first = False
        tile = left[0]
        try:
            with link.stream() as stream:
                writer = tiles.writer(tile)
                outcome = _compare(job, p, tile, writer, stream, report)
                again = tiles.forget_later(outcome.as_of, repeated)
                tiles.finish(tile, outcome, writer)
        except DriftlineError as error:
            if not (advances and error.is_retryable):
                raise
            advances, left = False, deque(tiles.unfinished())
            continue
        if wanted.adapts:
            pause.note(outcome.theirs.count, outcome.answered_s)
        left.popleft()
        left.extend(again)
        repeated.update(again)
        compared += rows_of([tile])
        rows += rows_of(again)
        report(pb.Progress())
        advances = True
        if measured is None or stream.bytes_per_s is not None:
            measured = stream
    if measured is not None:
        with contextlib.suppress(DriftlineError):  # the note may be lost
            line_notes.note_line(job.store, link, measured)
    return ComparisonResult(p, _outcome_of_all(job, p), tiles.staged())


def _compare(
    job: Job,
    p: PreparedPass,
    tile: int,
    writer: FrameWriter,
    stream: Stream,
    progress: Progress,
) -> Outcome:
    """Compare a tile; return what it found."""
    tiles = p.tiles
    bounds, sums = tiles.tiling.bounds(tile), tiles.sums.of(tile)
    copy = _copy_of(job, p, tile)
    ours = RangeSide(tiles.tiling.partition(tile), sums, copy, p.known.costs)
    intake = Intake(writer, progress, ours.compared.count)
    try:
        outcome = converse(job, p, ours, stream, intake, within=bounds)
    except DriftlineError:
        with contextlib.suppress(DriftlineError):  # another attempt has a folder of its own
            writer.drop()
        raise
    if outcome.scans:
        raise VersionMismatch(
            "The source read more than the tile that it was asked for.",
            where=job.name,
            remedy="Install the same release on both sides.",
        )
    told = (o.row_security for o in tiles.outcomes.values() if o.row_security)
    known = job.notes.policies(p.base)
    row_security.refuse_changed(known or next(told, None), outcome.row_security, job.name)
    return outcome


def _copy_of(job: Job, p: PreparedPass, tile: int) -> WorkingCopy:
    """Return our rows of a tile."""
    tiling = p.tiles.tiling
    copy = WorkingCopy(job.steps, job.name, p.layout, p.files, p.salt, job.phase)
    if isinstance(tiling, KeyTiling):
        inside = RowsInKeyTiles.between(tiling.recipe, *tiling.keys_around(tile))
        return replace(copy, inside=inside, near=lambda file: _is_near(tiling, file, [tile]))
    return replace(copy, within=tiling.bounds(tile))


def _is_near(tiling: KeyTiling, file: DataFile, tiles: Sequence[int]) -> bool:
    """Return True if a file may have rows in some of the tiles, which ascend."""
    first, last = tiling.near.get(file.path, (0, len(tiling)))
    return any(first <= tile <= last for tile in tiles)


def _emptied(job: Job, p: PreparedPass, tiles: list[int], listed: Listing) -> Difference:
    """Return that all our rows of some tiles, and listed rows of others, are replaced."""
    tiling = p.tiles.tiling
    if isinstance(tiling, KeyTiling):
        # A hash says nothing of the tile: the rows are listed, in one step.
        is_chosen = np.zeros(len(tiling), np.bool_)
        is_chosen[tiles] = True
        inside = RowsInKeyTiles(tiling.recipe, tiling.keys, tuple(is_chosen.tolist()))
        emptied = list_rows(
            job.steps,
            p.files,
            p.layout,
            RowChoice(np.zeros_like, inside, near=lambda file: _is_near(tiling, file, tiles)),
            p.salt,
        )
        return ListedRows(Listing.joined([listed, emptied]))
    # By their bounds, not row by row: the driver holds none of these rows.
    zones = [*map(tiling.bounds, tiles)]
    rows = sum(p.tiles.sums.digest(tile).count for tile in tiles)
    return ChangedZones(EmptiedZones.of(zones, rows), listed)


def _outcome_of_all(job: Job, p: PreparedPass) -> Outcome:
    """Return what the pass found: the outcomes of all tiles as one."""
    tiles = p.tiles
    outcomes = [tiles.outcomes[tile] for tile in range(len(tiles.tiling))]
    ours = [tiles.sums.digest(tile) for tile in range(len(tiles.tiling))]
    whole = [tile for tile, out in enumerate(outcomes) if isinstance(out.difference, AllRows)]
    listed = Listing.joined(
        [o.difference.rows for o in outcomes if isinstance(o.difference, ListedRows)]
    )
    method = Method.RANGE
    difference: Difference = ListedRows(listed)
    if all(isinstance(out.difference, NoDifference) for out in outcomes):
        difference = NoDifference()
    elif whole and len(whole) == sum(1 for digest in ours if digest.count):
        method, difference = Method.FULL, AllRows()
    elif whole:
        difference = _emptied(job, p, whole, listed)
    one = joined(outcomes, difference, method, is_one_snapshot=False)
    return replace(one, came=Digest())  # the results of finished tiles do not tell it
