"""The result of a comparison: which rows of ours the rows that came replace.

`Difference` is one of five cases, so that whoever applies it handles each, and mypy names the place
where a further case is missing. An `Outcome` adds what the source said when it finished. Nothing
here is ever changed after it was built, and nothing here knows a method of comparison.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
from driftline.arrays import U64, Integers
from driftline.digests import Digest
from driftline.sketches import Embedding

from warehouse_agent.planning.choice import Method
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.tasks.digests import Listing


@dataclass(frozen=True, slots=True)
class Equal:
    """Both sides hold the same rows."""


@dataclass(frozen=True, slots=True)
class Everything:
    """The rows that came replace all of ours."""


@dataclass(frozen=True, slots=True)
class ListedRows:
    """The listed rows of ours are replaced or deleted; a first load lists none."""

    rows: Listing


@dataclass(frozen=True, slots=True)
class BelowKeys:
    """Every row of ours below these k, uint64 [n] ascending, is replaced or deleted."""

    ks: U64
    embedding: Embedding


@dataclass(frozen=True, slots=True)
class Emptied:
    """Zones in which every row of ours is replaced or deleted, `rows` in number: `first` and
    `last` positions, int64 [n], both inclusive, ascending and apart."""

    first: Integers
    last: Integers
    rows: int

    @classmethod
    def of(cls, zones: list[tuple[int, int]], rows: int) -> Self:
        """Build from the first and last position of each zone, ascending."""
        first, last = np.array(zones, np.int64).reshape(-1, 2).T
        return cls(first, last, rows)

    def holds(self, where: Integers) -> npt.NDArray[np.bool_]:
        """Return which of these positions, int64 [n], lie in a zone: bool [n]."""
        at = np.minimum(np.searchsorted(self.last, where), len(self.last) - 1)
        return (self.first[at] <= where) & (where <= self.last[at])

    def meets(self, first: int, last: int) -> bool:
        """Return True if a zone holds a position between these, both inclusive."""
        at = int(np.searchsorted(self.last, first))
        return at < len(self.last) and int(self.first[at]) <= last


@dataclass(frozen=True, slots=True)
class Zones:
    """Every row of ours in the zones, and the listed rows outside of them, are replaced or
    deleted."""

    emptied: Emptied
    listed: Listing


Difference = Equal | Everything | ListedRows | BelowKeys | Zones


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an exchange, or of all exchanges of a pass.

    `theirs` is the digest of the source's rows; `came` that of the rows that were shipped, which a
    pass does not keep. `as_of` and `checked_at` are ISO 8601, UTC, the second by the warehouse's
    clock. `scans` and `rows_read` are the source's, `frame_bytes` those of all frames that came.
    """

    difference: Difference
    method: Method
    _: KW_ONLY
    theirs: Digest
    as_of: str
    checked_at: str
    consistency: str
    changed: bool
    vouched: bool
    came: Digest = field(default_factory=Digest)
    scans: int = 0
    rows_read: int = 0
    round_trips: int = 1
    frame_bytes: int = 0
    row_security: PolicyDigests | None = None

    @property
    def is_equal(self) -> bool:
        """Return True if both sides hold the same rows."""
        return isinstance(self.difference, Equal)

    @property
    def is_copy(self) -> bool:
        """Return True if all rows came: a load, or a table that was not worth comparing."""
        return self.method is Method.FULL or isinstance(self.difference, Everything)
