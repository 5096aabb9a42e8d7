"""The size of the chunks by which staged rows are listed (protocol, section 7).

Small chunks survive more changes of rows between two attempts; large ones make a shorter list. A
row that changed costs its chunk, so of `changed` rows in k chunks a share of 1 − e^(−changed / k)
comes again, and each chunk costs its digest: the sum is least near √(frame_bytes · changed / 8).
If less is expected to change, the list takes LIST_SHARE of the staged bytes, so that it never
matters on the line.

Before a first version nothing tells how many rows change in an hour, nor does the source without a
scan. So a load lists its chunks whatever changed, and never compares rows one by one: where changed
rows are in all chunks, all rows come, which is a load and the list. A comparison would need a
second scan of the source to send less.
"""

from __future__ import annotations

import math

from driftline.limits import CHUNK_BYTES_SHIFT_MAX, CHUNK_BYTES_SHIFT_MIN, CHUNKS_MAX

LIST_SHARE = 0.002
DIGEST_BYTES = 8
LISTED_MAX = CHUNKS_MAX // 2  # as many as are wanted; the number varies


def chunks_wanted(frame_bytes: int, changed: float = 0.0) -> float:
    """Return the number of chunks for which the fewest bytes are expected, at least 1.

    Args:
        frame_bytes: of the frames that hold the staged rows.
        changed: staged rows that are expected to have changed since.
    """
    by_share = LIST_SHARE * frame_bytes / DIGEST_BYTES
    by_changes = math.sqrt(frame_bytes * changed / DIGEST_BYTES)
    return min(max(by_share, by_changes, 1.0), LISTED_MAX)


def chunk_shift(body_bytes: int, frame_bytes: int, changed: float = 0.0) -> int:
    """Return s, where chunks of 2^s row bytes in the mean are as many as are wanted, or fewer.

    Args:
        body_bytes: of the staged rows.
        frame_bytes, changed: as of `chunks_wanted`.
    """
    shift = math.ceil(math.log2(max(body_bytes / chunks_wanted(frame_bytes, changed), 1)))
    return min(max(shift, CHUNK_BYTES_SHIFT_MIN), CHUNK_BYTES_SHIFT_MAX)


def share_again(frame_bytes: int, body_bytes: float, changed: float) -> float:
    """Return the share of staged rows that is expected to come again.

    Args:
        body_bytes: of the staged rows, about.
        frame_bytes, changed: as of `chunks_wanted`.
    """
    if not changed:
        return 0.0
    chunks = max(body_bytes / (1 << chunk_shift(int(body_bytes), frame_bytes, changed)), 1.0)
    return -math.expm1(-changed / chunks)
