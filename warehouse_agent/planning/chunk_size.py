"""The size of the chunks by which an unfinished load is listed (protocol, section 7).

Small chunks survive more changes of rows between two attempts; large ones make a shorter list. The
list is to take LIST_SHARE of the bytes that are staged, so that it never matters on the line.
"""

from __future__ import annotations

import math

from driftline.limits import CHUNK_BYTES_SHIFT_MAX, CHUNK_BYTES_SHIFT_MIN, CHUNKS_MAX

LIST_SHARE = 0.002
DIGEST_BYTES = 8


def chunk_shift(body_bytes: int, frame_bytes: int) -> int:
    """Return s, where chunks of 2^s row bytes in the mean make a list of about LIST_SHARE of the
    frames, and have half of the number that a source takes.

    Args:
        body_bytes: of the staged rows.
        frame_bytes: of the frames that hold them.
    """
    by_share = DIGEST_BYTES * body_bytes / max(LIST_SHARE * frame_bytes, 1)
    by_count = 2 * body_bytes / CHUNKS_MAX
    shift = math.ceil(math.log2(max(by_share, by_count, 1)))
    return min(max(shift, CHUNK_BYTES_SHIFT_MIN), CHUNK_BYTES_SHIFT_MAX)
