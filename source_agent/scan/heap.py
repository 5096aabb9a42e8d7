"""The heap of this process: have glibc return freed memory to the operating system.

By default glibc raises its threshold to 32 MB with the first large block. It then keeps later
blocks in the heap of each thread and never returns them: 175 MB instead of 155 MB after 10 M rows.
"""

from __future__ import annotations

import contextlib
import ctypes

BLOCK_BYTES_MAX = 128 << 10  # the default of glibc, before it adapts
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_heap_small() -> None:
    """Make glibc return large blocks as they are freed; do nothing on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, 2 * BLOCK_BYTES_MAX)
