"""Notice a read that never ends: keys that come again and again, as from a damaged index.

One position is kept, and replaced when the number of batches has doubled (Brent's cycle detection).
A read that repeats its keys gives the kept one again, within one round of the cycle, once the kept
one lies in the cycle and is kept for longer than a round. So nothing is assumed about the order in
which a database reads, about its collations or about where batches end, and no memory grows.
"""

from __future__ import annotations

import numpy as np
from driftline.arrays import Positions


class Repeats:
    """The kept position of one read."""

    def __init__(self) -> None:
        self._batches, self._ends_at, self._met = 0, 1, 0
        self._kept: np.int64 | None = None

    def add(self, positions: Positions, met_max: int) -> int | None:
        """Add the positions of a batch; return a row with the kept one, or None.

        Args:
            positions: shape (rows,), of the keys in the batch.
            met_max: the most batches that may have the kept position again; a row of the next is
                returned.
        """
        if not len(positions):
            return None
        if self._kept is not None:
            again = positions == self._kept
            if again.any():
                self._met += 1
                if self._met > met_max:
                    return int(again.argmax())
        self._batches += 1
        if self._batches == self._ends_at:
            self._ends_at *= 2
            self._kept, self._met = positions[-1], 0
        return None
