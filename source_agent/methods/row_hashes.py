"""Send row hashes, then the rows that the warehouse wants: shared by ranges and groups.

Wanted rows are sent from memory if they fit in ROWS_HELD_BYTES, else they are read again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import zstandard
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Integers
from driftline.errors import LimitExceeded
from driftline.limits import DIGESTS_PER_MESSAGE

from source_agent.methods.interface import Scan
from source_agent.scan.batches import IdentifiedRows, choose_counted


def mismatch(differs: Bools, counts: Integers) -> pb.Reply:
    """Return the reply that names the ranges or groups that differ, bool [ranges or groups].

    counts: rows of the source in each that differs, int64 [differing]. Raises LimitExceeded above
    2^32 rows in one.
    """
    if len(counts) and int(counts.max()) >= 1 << 32:
        raise LimitExceeded("A range holds more than 2^32 rows.")
    compressor = zstandard.ZstdCompressor(level=3)
    bitmap = compressor.compress(np.packbits(differs, bitorder="little").tobytes())
    numbers = compressor.compress(counts.astype("<u4").tobytes())
    return pb.Reply(mismatch=pb.Mismatch(bitmap=bitmap, counts=numbers, last=True))


def send_hashes(hashes: U64) -> Iterator[pb.Reply]:
    """Send row hashes, uint64 [rows], in pieces, and mark their end."""
    for start in range(0, len(hashes), DIGESTS_PER_MESSAGE):
        piece = hashes[start : start + DIGESTS_PER_MESSAGE]
        yield pb.Reply(row_hashes=pb.RowHashes(hashes=piece.astype("<u8").tobytes()))
    yield pb.Reply(hashes_end=pb.HashesEnd())


def send_wanted(
    scan: Scan, hashed: IdentifiedRows, wanted: Integers, *, total: int | None
) -> Iterator[pb.Reply]:
    """Send the wanted rows from memory, or read them again.

    hashed: rows whose hashes were sent; wanted: arrival numbers in `hashed`, int64 [n]; total: the
    number of all rows, None if no scan is wanted. Raises SnapshotLost if a wanted row is gone.
    """
    if not len(wanted):
        return
    reader, frames = scan.reader, scan.frames
    reader.tally.phase = "ship"
    if hashed.blocks is not None:
        start = 0
        for block in hashed.blocks:
            end = start + len(block)
            mine = np.sort(wanted[(wanted >= start) & (wanted < end)]) - start
            if len(mine):
                yield from frames.add(reader.batch(block.take(mine)))
            start = end
        yield from frames.flush()
        return
    hashes, left = np.unique(np.concatenate(hashed.hashes)[wanted], return_counts=True)
    where = np.unique(np.concatenate(hashed.positions)[wanted])
    for batch in reader.find(where, where, rows=len(where), total=total):
        place = np.minimum(np.searchsorted(where, batch.positions), len(where) - 1)
        part = batch.take(where[place] == batch.positions)
        found_at = np.minimum(np.searchsorted(hashes, part.mixed.m0), len(hashes) - 1)
        named = hashes[found_at] == part.mixed.m0
        yield from frames.pick(part, choose_counted(left, found_at, named))
    yield from frames.flush()
    reader.check_snapshot(not left.any())
