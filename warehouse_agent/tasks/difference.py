"""What an exchange, or a pass of many, found: between the conversation and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
from driftline.digests import Digest
from driftline.sketches import Embedding

from warehouse_agent.planning.choice import Method
from warehouse_agent.storage.row_security import RowSecurity
from warehouse_agent.tasks.digests import Integers, Listing


@dataclass(frozen=True, slots=True)
class Replaced:
    """k, uint64 [n] ascending, below which the source's rows take the place of all of ours."""

    ks: npt.NDArray[np.uint64]
    embedding: Embedding


@dataclass(frozen=True, slots=True)
class Emptied:
    """Where all of ours are replaced or deleted, `rows` in number: `first` and `last` positions,
    int64 [n], both inclusive, ascending and apart."""

    first: Integers
    last: Integers
    rows: int

    @classmethod
    def of(cls, zones: list[tuple[int, int]], rows: int) -> Self:
        """Of these positions, first and last of each zone."""
        first, last = np.array(zones, np.int64).reshape(-1, 2).T
        return cls(first, last, rows)

    def holds(self, where: Integers) -> npt.NDArray[np.bool_]:
        """Whether these positions, int64 [n], are there."""
        at = np.minimum(np.searchsorted(self.last, where), len(self.last) - 1)
        return (self.first[at] <= where) & (where <= self.last[at])

    def meets(self, first: int, last: int) -> bool:
        """Whether some position between these, both inclusive, is there."""
        at = int(np.searchsorted(self.last, first))
        return at < len(self.last) and int(self.first[at]) <= last


@dataclass(slots=True)
class Outcome:
    """What was found: everything is replaced, or rows of ours are `removed` and zones `emptied`, or
    what is below some k is `replaced`, by the rows that came."""

    theirs: Digest = field(default_factory=Digest)
    came: Digest = field(default_factory=Digest)  # of the rows; of a pass it is not kept
    equal: bool = False
    replace_all: bool = False
    removed: Listing | None = None
    emptied: Emptied | None = None
    replaced: Replaced | None = None
    method: Method = Method.RANGE
    round_trips: int = 1
    as_of: str = ""
    checked_at: str = ""  # when that was known, by the warehouse's clock; ISO 8601, UTC
    consistency: str = ""
    changed: bool = False
    vouched: bool = False
    scans: int = 0
    rows_read: int = 0
    frame_bytes: int = 0
    row_security: RowSecurity | None = None

    @property
    def is_copy(self) -> bool:
        """Whether all rows came: a load, or a table that was not worth comparing."""
        return self.method is Method.FULL or self.replace_all
