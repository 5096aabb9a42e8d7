"""The two roles of a method: an opening, and a continuation where an opening stalled.

An opening plans a refresh, reduces our side and begins the exchange; it ends in an `Outcome`, or in
`Stalled` when the source said that the sides differ and waits. Then continuations offer to go on,
the cheapest is chosen (`planning.choice`), and it ends in an outcome or stalls again.

`OurSide` is our half of one exchange, reduced before the stream opens. An opening that may stall
has range sums in it (`Ranged`), because every continuation needs them. All of it is frozen: what
counts messages and rows is `Talk`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from driftline.arrays import U64, Bools
from driftline.digests import Digest, Salt
from driftline.ranges import Partition, RangeSums
from driftline.sketches import Embedding, Grid
from pyspark.sql import SparkSession

from warehouse_agent.columns.layout import Layout
from warehouse_agent.methods.conversation import Talk
from warehouse_agent.planning.candidates import Candidate, Known
from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.choice import Choice, Costs, Disagreement, Method, PricedChoice
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.tasks.digests import Listing


class Lister(Protocol):
    """Lists rows of ours; asked at most once in an exchange, while the source waits."""

    def list_rows(self, partition: Partition, by: int, chosen: Bools) -> Listing:
        """Return our rows in the chosen ranges, bool [ranges], coarsened by `by`."""

    def list_keys(self, embedding: Embedding, ks: U64) -> Listing:
        """Return our rows below these k, uint64 [n] ascending."""


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """The rows of ours that are compared, always a set of files; lists rows for `Lister`.

    `probability_sql` is Spark SQL for the probability that a row was updated; `notes` are those of
    earlier refreshes; `phase` notes the time that a phase takes; `within` bounds what is listed to
    the first and last position of a tile, both inclusive.
    """

    spark: SparkSession
    name: str
    layout: Layout
    files: tuple[DataFile, ...]
    salt: Salt
    phase: Callable[[str], AbstractContextManager[object]]
    probability_sql: str = "cast(0 as double)"
    notes: Mapping[str, object] = field(default_factory=dict)
    within: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    def list_rows(self, partition: Partition, by: int, chosen: Bools) -> Listing:
        """Return our rows in the chosen ranges, bool [ranges]; one Spark job."""
        with self.phase("list"):
            place = digests.in_ranges(partition, by, chosen, self.within)
            return digests.list_rows(
                self.spark, self.files, self.layout, place, self.salt, within=self.within
            )

    def list_keys(self, embedding: Embedding, ks: U64) -> Listing:
        """Return our rows below these k, uint64 [n] ascending; one Spark job."""
        with self.phase("list"):
            place = partial(digests.below, embedding=embedding, salt=self.salt, ks=ks)
            return digests.list_rows(self.spark, self.files, self.layout, place, self.salt)


class OurSide(Protocol):
    """Our half of an exchange."""

    @property
    def compared(self) -> Digest:
        """The digest of our rows that the exchange is about."""

    @property
    def rest(self) -> Digest:
        """The digest of our rows that are left as they are."""

    def notes(self) -> dict[str, object]:
        """Return notes to keep once the refresh is done."""

    def open(self, talk: Talk) -> Step:
        """Send the opening and what follows it at once, and hear what the source makes of it."""


@dataclass(frozen=True, slots=True)
class Ranged:
    """Our sums over the ranges of a partition; `lister` lists the rows that were added up."""

    partition: Partition
    sums: RangeSums
    lister: Lister
    costs: Costs


@dataclass(frozen=True, slots=True)
class Stalled:
    """The source knows that both sides differ and waits for a continuation.

    `more_cells` sends the cells of a grid that it has not; None after an opening without a sketch.
    """

    at: Disagreement
    ours: Ranged
    more_cells: Callable[[Talk, Grid], Step] | None = None


Step = Stalled | Outcome


class ScanPlan(Protocol):
    """A planned opening."""

    def reduce(self, copy: WorkingCopy) -> OurSide:
        """Reduce the working copy to our side of the exchange, in Spark."""


Offers = Callable[[Disagreement], list[PricedChoice]]  # of each continuation that can go on


class Opening(Protocol):
    """A way to begin a refresh. Pure, but for what its plan does."""

    method: Method
    # Whether it may end in `Stalled`: then continuations are among its candidates.
    stalls: bool

    def supports(self, known: Known) -> bool:
        """Return True if a refresh of this scope can be opened so."""

    def price(
        self, known: Known, expected: Expected | None, changed: int, offers: Offers
    ) -> tuple[tuple[Candidate, ...], str]:
        """Return "nothing changed", the candidates where `changed` rows did, and the name of the
        one that a refresh would go."""

    def plan(self, known: Known, expected: Expected | None) -> ScanPlan:
        """Plan the opening; `expected` are the changes, None where nothing is known of them."""


class Continuation(Protocol):
    """A way to go on where an opening stalled."""

    method: Method

    def offer(self, at: Disagreement) -> PricedChoice | None:
        """Return what going on this way takes; None: it cannot. Pure."""

    def go_on(self, at: Stalled, choice: Choice, talk: Talk) -> Step:
        """Send what was chosen, and hear what the source makes of it."""
