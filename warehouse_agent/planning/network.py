"""What connects the agents and how fast the source reads, as measured; and what a refresh is to
take little of: seconds of line and scan, or bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Of zstd. A load is bound by the scan; 12 takes 3 µs a row, and 19 ten times that for 9 % less,
# which pays on metered lines alone.
LOAD_LEVEL, REFRESH_LEVEL, METERED_LEVEL = 3, 12, 19
ROWS_PER_S = 500_000.0  # of a source that was never read


class Objective(Enum):
    """What a refresh is to take little of."""

    SECONDS = "seconds"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Line:
    """What connects the agents, as measured: a round trip in seconds, and bytes a second; and rows
    that the source reads in a second."""

    rtt_s: float = 0.1
    bytes_per_s: float = 1.25e6
    objective: Objective = Objective.SECONDS
    rows_per_s: float = ROWS_PER_S

    def seconds(self, size: float, round_trips: float, rows: float) -> float:
        """Of an exchange: bytes, round trips and the source's reading, one after the other."""
        waited = round_trips * self.rtt_s + rows / self.rows_per_s
        return waited + size / self.bytes_per_s

    def cost(self, size: float, round_trips: float, rows: float) -> float:
        """What a refresh is to take little of: those seconds, or the bytes alone."""
        is_metered = self.objective is Objective.BYTES
        return size if is_metered else self.seconds(size, round_trips, rows)

    @property
    def round_trip_bytes(self) -> float:
        """What it could have carried while a round trip was waited for; waiting is free where only
        bytes count."""
        return self.rtt_s * self.bytes_per_s if self.objective is Objective.SECONDS else 0.0

    def level(self, ours: int) -> int:
        """Of zstd, for rows that come where there are so many; where there are none, of a load."""
        if not ours:
            return LOAD_LEVEL
        return METERED_LEVEL if self.objective is Objective.BYTES else REFRESH_LEVEL
