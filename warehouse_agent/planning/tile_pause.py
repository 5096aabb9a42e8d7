"""Decide the pause between two tiles, without I/O: longer while the database answers more slowly.

A pass is to disturb a database little when it is busy, and nobody knows beforehand when that is.
Each tile tells: the seconds per row until its first answer, against the median of the last tiles. A
slow answer doubles the pause, up to PAUSE_S_MAX; any other halves it, down to what was configured.
A database that stays slow is not slower than its recent past: the median follows within half of
TILES_REMEMBERED tiles, and the pass goes on as before.

Rejected: a fixed share of time (n seconds of pause for each second of reading). It slows a pass
down where rows are wide or the line is long, which disturbs nobody.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SLOWER = 1.5  # times the median; answers of a database at rest vary by less
TILES_REMEMBERED = 32
TILES_MIN = 3  # before anything is slow
ROWS_SHARE_MIN = 0.5  # of a tile's rows: what fewer take is mostly waiting for the line
PAUSE_S_MAX = 60.0  # and no longer than this, however short the configured pause


class TilePause:
    """The pause after each tile of one attempt; `rows` of a tile and `pause_s` are configured."""

    def __init__(self, rows: int, pause_s: float) -> None:
        self._rows, self._least_s = rows, pause_s
        self._most_s = max(pause_s, PAUSE_S_MAX)
        self._past: deque[float] = deque(maxlen=TILES_REMEMBERED)
        self.seconds = pause_s

    def note(self, rows: int, answered_s: float) -> float:
        """Return the seconds of the pause after a tile.

        Args:
            rows: of the source in the tile.
            answered_s: seconds from its opening to its first answer.
        """
        if rows < ROWS_SHARE_MIN * self._rows:
            return self.seconds
        cost = answered_s / rows
        is_slow = len(self._past) >= TILES_MIN and cost > SLOWER * median(self._past)
        self._past.append(cost)
        wanted = self.seconds * 2 if is_slow else self.seconds / 2
        self.seconds = min(max(wanted, self._least_s), self._most_s)
        return self.seconds
