"""The measured line between the agents and the read rate of the source; and the objective of a
refresh: few seconds of line and scan, or few bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Levels of zstd. The scan limits a load; 12 takes 3 µs a row, and 19 ten times that for 9 % fewer
# bytes, which pays only on metered lines.
LOAD_LEVEL, REFRESH_LEVEL, METERED_LEVEL = 3, 12, 19
# Above it a copy of all rows waits for level 12, which makes 4 to 6 MB/s of frames a processor; a
# refresh that compares ships few rows, or does not know yet that they are many.
SLOW_BYTES_PER_S = 5e6
ROWS_PER_S = 500_000.0  # assumed of a source that was never read


class Objective(Enum):
    """The quantity that refreshes minimize."""

    SECONDS = "seconds"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Line:
    """The measured line: seconds of a round trip, bytes a second, and rows read a second; and if
    the source leaves out what an exchange may do without (`wire.negotiation.BRIEF`)."""

    rtt_s: float = 0.1
    bytes_per_s: float = 1.25e6
    objective: Objective = Objective.SECONDS
    rows_per_s: float = ROWS_PER_S
    is_brief: bool = False

    def seconds(self, size: float, round_trips: float, rows: float) -> float:
        """Return the seconds of an exchange: its bytes, round trips and rows read, one by one."""
        waited = round_trips * self.rtt_s + rows / self.rows_per_s
        return waited + size / self.bytes_per_s

    def cost(self, size: float, round_trips: float, rows: float) -> float:
        """Return what the objective minimizes: those seconds, or the bytes."""
        is_metered = self.objective is Objective.BYTES
        return size if is_metered else self.seconds(size, round_trips, rows)

    @property
    def round_trip_bytes(self) -> float:
        """The bytes that the line could carry in a round trip; 0 if only bytes count."""
        return self.rtt_s * self.bytes_per_s if self.objective is Objective.SECONDS else 0.0

    def level(self, ours: int, *, at_once: bool = False) -> int:
        """Return the zstd level if `ours` published rows are compared; of a load if none are.

        at_once: all rows are copied, and none is compared before.
        """
        if not ours or (at_once and self.bytes_per_s > SLOW_BYTES_PER_S):
            return LOAD_LEVEL
        return METERED_LEVEL if self.objective is Objective.BYTES else REFRESH_LEVEL
