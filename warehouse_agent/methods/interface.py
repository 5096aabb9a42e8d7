"""The two roles of a method: an opening, and a continuation after an opening that stalled.

An opening plans a refresh, reduces our side and begins the exchange. It returns an `Outcome`, or
`StalledExchange` when the source said that both sides differ and waits. Then every continuation
makes an offer and the cheapest goes on (`planning.choice`); it returns an outcome or stalls again.

`OurSide` is our half of one exchange, reduced before the stream opens, or by `open` while the
source scans. If the opening may stall, it has range sums (`RangedRows`), because every continuation
needs them. All of this is frozen, except sums that are added up later.

Both roles are generators of requests (`Requests`), as the source's are of replies: `yield request`
sends, `reply = yield None` receives. Who runs them waits (`transport.waiting`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from driftline.arrays import U64, Bools
from driftline.reconciliation.named_keys import KeyMap
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import Grid
from driftline.rows.digests import Digest, Salt

from warehouse_agent.columns.layout import Layout
from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.planning.candidates import Candidate
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import Choice, Costs, Disagreement, Method, PricedChoice
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.update_probability import ChangeOutlook
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.tasks.digests import Inside, Listing
from warehouse_agent.tasks.staged_chunks import StagedChunks
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.waiting import Requests


class Lister(Protocol):
    """Lists our rows; called at most once in an exchange, while the source waits."""

    def list_rows(self, partition: Partition, by: int, chosen: Bools) -> Listing:
        """Return our rows in the chosen ranges, bool [ranges], coarsened by `by`."""

    def list_keys(self, embedding: KeyMap, ks: U64) -> Listing:
        """Return our rows whose k is one of `ks`, uint64 [n] ascending."""


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """Our rows that are compared, always a set of files; each listing is one step.

    `outlook` says how likely each row was updated, None: all alike; `turn` says where a part
    begins; `phase` measures the time of a phase; `within` are the first and last position of a
    tile, both inclusive, and no other rows are listed; of a tile between keys, `inside` decides
    which rows are listed, and `near` which files may have them. `later`: they may be added up while
    the source scans, where the method can wait for that. `chunks`: the files are those of
    a load that was cut; None: of anything else.
    """

    steps: Steps
    name: str
    layout: Layout
    files: tuple[DataFile, ...]
    salt: Salt
    phase: Callable[[str], AbstractContextManager[object]]
    outlook: ChangeOutlook | None = None
    turn: NextPartNote = field(default_factory=NextPartNote)
    within: tuple[int, int] | None = None
    inside: Inside | None = None
    near: Callable[[DataFile], bool] | None = None
    later: bool = False
    chunks: StagedChunks | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows in all files."""
        return sum(file.rows for file in self.files)

    def list_rows(self, partition: Partition, by: int, chosen: Bools) -> Listing:
        place = digests.in_ranges(partition, by, chosen, self.within)
        choice = digests.RowChoice(place, self.inside, self._is_read)
        with self.phase("list"):
            return digests.list_rows(self.steps, self.files, self.layout, choice, self.salt)

    def list_keys(self, embedding: KeyMap, ks: U64) -> Listing:
        place = partial(digests.below, embedding=embedding, salt=self.salt, ks=ks)
        with self.phase("list"):
            choice = digests.RowChoice(place)
            return digests.list_rows(self.steps, self.files, self.layout, choice, self.salt)

    def _is_read(self, file: DataFile) -> bool:
        is_near = self.near is None or self.near(file)
        return is_near and (self.within is None or file.meets(*self.within))


class OurSide(Protocol):
    """Our half of an exchange."""

    @property
    def rows(self) -> int:
        """Return the number of our rows that the exchange compares; known before they are added
        up."""

    @property
    def compared(self) -> Digest:
        """Return the digest of our rows that the exchange compares."""

    @property
    def rest(self) -> Digest:
        """Return the digest of our other rows, which are kept without being compared."""

    @property
    def updates_left(self) -> float:
        """Return how many rows of `rest` are expected to have been updated."""

    @property
    def turn(self) -> NextPartNote:
        """Return where the next part begins, to be noted once the refresh is done."""

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send the opening and what follows it at once; receive the source's answer."""


@dataclass(frozen=True, slots=True)
class RangedRows:
    """Our sums over the ranges of a partition; `lister` lists the rows in them."""

    partition: Partition
    sums: RangeSums
    lister: Lister
    costs: Costs

    @property
    def rows(self) -> int:
        """Return the number of our rows that are compared."""
        return self.sums.total.count

    @property
    def compared(self) -> Digest:
        """Return the digest of our rows that the exchange compares."""
        return self.sums.total


@dataclass(frozen=True, slots=True)
class StalledExchange:
    """The source knows that both sides differ and waits for a continuation.

    `more_cells` sends the cells of a grid that the source lacks; None where there is no sketch.
    """

    at: Disagreement
    ours: RangedRows
    more_cells: Callable[[ExchangeTerms, Grid], Requests[Step]] | None = None


Step = StalledExchange | Outcome


class ScanPlan(Protocol):
    """A planned opening."""

    def reduce(self, copy: WorkingCopy) -> OurSide:
        """Reduce the working copy to our side of the exchange, in Spark; or leave that to the
        exchange (`WorkingCopy.later`)."""


Offers = Callable[[Disagreement], list[PricedChoice]]  # one of each continuation that can go on
Priced = tuple[tuple[Candidate, ...], str]  # candidates, and the name of the one to be taken


class Opening(Protocol):
    """A way to begin a refresh. Pure; Spark runs only in `ScanPlan.reduce`."""

    method: Method
    stalls: bool  # may return `StalledExchange`: then continuations are among its candidates

    def supports(self, known: PlanInputs) -> bool:
        """Return True if this opening can begin a refresh of this scope."""

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        """Return the candidates: the first for no change, the others for `changed` rows.

        Raises:
            ConfigurationError: groups are asked for, and cannot name so many rows.
        """

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> ScanPlan:
        """Plan the opening for the expected changes; None: nothing is known of them."""


class Continuation(Protocol):
    """A way to go on after an opening that stalled."""

    method: Method

    def offer(self, at: Disagreement) -> PricedChoice | None:
        """Return the price of this way; None: it is not possible. Pure."""

    def go_on(self, at: StalledExchange, choice: Choice, terms: ExchangeTerms) -> Requests[Step]:
        """Send what was chosen; receive the source's answer."""
