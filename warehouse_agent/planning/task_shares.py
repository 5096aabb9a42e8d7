"""Divide files among the tasks of a Spark job by their sizes.

Spark's own file sources decide this from a list of the storage. Here the sizes are known: a commit
names each file with its bytes, so nothing is listed. The rule is Spark's: a task gets TASK_BYTES,
or less if then all tasks that run at once have work, and opening a file counts as OPEN_BYTES.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

TASK_BYTES = 128 << 20  # of files, as stored
OPEN_BYTES = 4 << 20
AT_ONCE = 8  # tasks that run at once, where a cluster does not tell


def task_bytes(sizes: Sequence[int], at_once: int | None) -> int:
    """Return the bytes of files that a task gets, what opening them counts included.

    Args:
        sizes: bytes of each file.
        at_once: tasks that run at once; None: not known.
    """
    each = _weight(sizes) // (at_once or AT_ONCE)
    return min(TASK_BYTES, max(OPEN_BYTES, each))


def task_shares(
    sizes: Sequence[int], at_once: int | None, tasks_max: int | None = None
) -> list[slice]:
    """Return the files of each task: slices of neighbours with about as many bytes each, of which
    none is empty.

    Args:
        sizes, at_once: as of `task_bytes`.
        tasks_max: number of tasks at most; None: any.
    """
    if not sizes:
        return []
    count = min(-(-_weight(sizes) // task_bytes(sizes, at_once)), len(sizes))
    count = min(count, tasks_max or count)
    weights = np.array(sizes, np.float64) + OPEN_BYTES
    middles = np.cumsum(weights) - weights / 2
    of = np.minimum(middles * count / weights.sum(), count - 1).astype(np.int64)
    ends = np.searchsorted(of, np.arange(count + 1)).tolist()
    return [slice(a, b) for a, b in pairwise(ends) if a < b]


def _weight(sizes: Sequence[int]) -> int:
    return sum(sizes) + OPEN_BYTES * len(sizes)
