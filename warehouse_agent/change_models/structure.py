"""Structures of a week: which of its hours share one rate, and which of them can be told apart.

A refresh at midnight of every day sees the same mix of hours each time, so no amount of history
tells hours apart. Segments are merged until every contrast of rates is known better than by the
mean rate itself.
"""

from __future__ import annotations

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.week import HOURS

_HOUR = np.arange(HOURS)
_OF_DAY, _DAY = _HOUR % 24, _HOUR // 24
_KIND = np.clip(_DAY - 4, 0, 2)  # workday, Saturday, Sunday

HOMOGENEOUS = "homogeneous"
HOUR_OF_DAY = "hour of day"
DAY = "day of week"
# The segment of each hour of the week, from few segments to many.
STRUCTURES: dict[str, Integers] = {
    HOMOGENEOUS: np.zeros(HOURS, np.int64),
    DAY: _DAY,
    HOUR_OF_DAY: _OF_DAY,
    "workday, Saturday or Sunday, and hour": _KIND * 24 + _OF_DAY,
    "hour of week": _HOUR,
}


def matrix(segments: Integers) -> Floats:
    """Return 1 where an hour of the week is of a segment, [168, K].

    Args:
        segments: [168], each of 0..K−1.
    """
    membership: Floats = (segments[:, None] == np.arange(segments.max() + 1)).astype(np.float64)
    return membership


def merged(segments: Integers, exposures: Floats, information: Floats) -> Integers:
    """Merge segments whose rates these intervals cannot tell apart, [168].

    The information about rates in units of the mean rate is S = Σ_j w_j E_j E_jᵀ, so a contrast
    along an eigenvector of S is known to 1/√eigenvalue of the mean rate. While one is not known
    within the mean rate, the two segments are merged on which its ends lie.

    Args:
        segments: [168], each of 0..K−1.
        exposures: hours of each interval in each hour of the week, [J, 168].
        information: w, [J]: mean rate / (hours · dispersion).
    """
    segments = _numbered(segments)
    segments = _numbered(_alike(exposures @ matrix(segments))[segments])
    seen = exposures @ matrix(segments)
    known = seen.T @ (seen * information[:, None])  # of every segment, and then of merged ones
    while len(known) > 1:
        values, vectors = np.linalg.eigh(known)
        unknown = int((values < 1).sum())
        if not unknown:
            break
        labels, taken = np.arange(len(known)), np.zeros(len(known), np.bool_)
        for vector in vectors[:, : max(1, unknown // 4)].T:
            one, other = _ends(vector)
            if not taken[one] and not taken[other]:
                labels[other] = one
                taken[[one, other]] = True
        labels = _numbered(labels)
        joined = matrix(labels)
        known, segments = joined.T @ known @ joined, labels[segments]
    return _numbered(segments)


def _ends(vector: Floats) -> tuple[int, int]:
    """Return the two segments that a contrast tells apart most; [K]."""
    order = np.argsort(vector)
    low, high = int(order[0]), int(order[-1])
    if vector[low] < 0 < vector[high]:
        return min(low, high), max(low, high)
    strongest = np.argsort(-np.abs(vector))  # one segment is hardly seen: join it to the next
    return int(min(strongest[:2])), int(max(strongest[:2]))


def _alike(seen: Floats) -> Integers:
    """Return a label for each column, [K]; proportional columns [J, K] have the same one."""
    totals = seen.sum(axis=0)
    shares = np.round(seen / np.where(totals > 0, totals, 1), 9).T
    first: dict[bytes, int] = {}
    labels = [first.setdefault(share.tobytes(), n) for n, share in enumerate(shares)]
    return np.array(labels, np.int64)


def _numbered(segments: Integers) -> Integers:
    """Return segments numbered anew from 0, in the order in which they come, [168]."""
    _, first, labels = np.unique(segments, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels.reshape(-1)]
