"""The whole history of a real table replayed, every commit one refresh, and counted in bytes.

    python -m benchmarks.replay.commits [--history ourairports_runways] [--upto N]
                                        [--objective seconds]

Both halves are the product's own: `Comparison` reads a SQLite file that SQL brings from commit to
commit; `compare` opens with the partition, sketch and prediction of `prepare`, and learns from each
refresh what `commit` would. Between them is a queue that carries every message. Left out is Spark:
our side is reduced and applied by the contract's numpy code (`sides`), because 1,474 refreshes in
Spark take an hour; the messages are the same, and `tests/pair/refresh/test_replay.py` takes some of
these commits through all of the product.

 1. After every refresh ours − removed + shipped is, byte for byte, the state that the curators
    recorded; its digest is the one that the source told; the changes counted are the commit's.
 2. Refreshes run at the commits' own times, so the prediction sees the real gaps. Salts come from
    the number of the commit: a replay repeats to the byte.
 3. Bytes are those of the agents' reports: messages of both directions with 5 bytes of gRPC framing
    each. What a connection costs is added where results are shown.

Two no-change refreshes are noted with each commit. *idle* is the same opening, had nothing changed;
*bare* is one that expected nothing: the opening without cells. Their difference is what the
prediction costs in advance; only subtracting the smaller hides nothing.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click
from driftline.arrays import U64, Bools
from driftline.reconciliation.named_keys import KeyMap
from driftline.reconciliation.ranges import Partition
from driftline.rows.digests import Salt
from driftline.values.types import Recipe

from benchmarks.replay.results import CONNECTION_BYTES, Record, read, summary, write
from benchmarks.replay.sides import KEY, Copy, Recorded, Source, Wire
from source_agent.engines.interface import Session
from source_agent.engines.relations.shapes import Shape
from tests.harness.histories import DATA, History, available
from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import OurSide
from warehouse_agent.methods.ranges import RangeSide
from warehouse_agent.methods.registry import compare, modelled
from warehouse_agent.methods.sketch import SketchSide
from warehouse_agent.planning import choice, prices, sketch_size
from warehouse_agent.planning.change_forecast import ChangeForecast, EarlierRefresh
from warehouse_agent.planning.choice import Costs, Method
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.frame_admission import FrameAdmission
from warehouse_agent.transport.waiting import Waiting

HISTORIES = ("ourairports_runways", "intl_football_results")
RTT_S, BYTES_PER_S = 0.1, 1.25e6  # 100 ms, 10 Mbit/s
SAID_EVERY = 100  # commits


@dataclass(frozen=True)
class Rows:
    """Lists rows of the copy."""

    copy: Copy
    salt: Salt

    def list_rows(self, partition: Partition, by: int, chosen: Bools) -> Listing:
        return self.copy.listing(partition, self.salt, by, chosen)

    def list_keys(self, embedding: KeyMap, ks: U64) -> Listing:
        raise AssertionError("nothing is compared by groups")


class Warehouse:
    """Our agent between refreshes: the copy, the history of refreshes, what was learned."""

    def __init__(self, recipe: Recipe, line: Line) -> None:
        self.copy, self.line = Copy(recipe), line
        self.earlier: list[EarlierRefresh] = []
        self._learnt = prices.LearntPrices()
        self._quantiles: tuple[int, list[int]] = 0, []  # of so many rows

    def refresh(self, session: Session, shape: Shape, at: datetime, number: int) -> Record:
        """One refresh; `number` seeds its salt. The record lacks floor and CSV."""
        copy, came = self.copy, list[bytes]()
        rows = len(copy.rows)
        # None before the first refresh after the load.
        expected = changes_expected(self.earlier, rows, at)
        known = self._known(shape, at)
        salt = _salt(number)
        wire = Wire(session, shape)
        level = self.line.level(rows)
        terms = ExchangeTerms(shape.relation.name, copy.recipe, KEY, salt, level, wire.agreed)
        admission = FrameAdmission(copy.recipe, salt)
        over = Waiting(
            wire, admission, keep=lambda frame, _: came.append(frame), progress=lambda _: None
        )
        out = compare(self._side(known, expected, salt), terms, over)
        assert wire.is_done
        assert out.round_trips == wire.round_trips
        inserted, updated, deleted = copy.take(out, salt, came)
        self._learn(out, at, rows, inserted, updated, deleted)
        return Record(
            commit=number,
            at=at.isoformat(),
            rows=len(copy.rows),
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            expected=(expected.low, expected.median, expected.high) if expected else None,
            sent_bytes=sum(wire.sent),
            received_bytes=wire.received_bytes,
            frame_bytes=out.frame_bytes,
            round_trips=out.round_trips,
            method=out.method.value,
            scans=out.scans,
            idle_bytes=wire.opening_bytes + wire.end_bytes(),
            bare_bytes=wire.sent[0] + wire.end_bytes(),
            modelled_bytes=self._modelled(known, expected, out, inserted + updated + deleted),
            load_bytes=copy.load_bytes(salt),
        )

    def _known(self, shape: Shape, at: datetime) -> PlanInputs:
        """Return what `refresh.prepare` knows before the refresh."""
        copy, rows = self.copy, len(self.copy.rows)
        level = self.line.level(rows)
        return PlanInputs(
            name=shape.relation.name,
            version=len(self.earlier) - 1,
            rows=rows,
            rows_expected=None,
            prices=prices.from_notes(self._learnt, len(copy.recipe.columns), level=level),
            partition=self._partition(),
            integer_key=copy.recipe.integer_key,
            bounds=copy.bounds() if rows else None,
            line=self.line,
            now=at,
            forced=None,
            read_at_most=None,
            earlier=(),
        )

    def _modelled(
        self, known: PlanInputs, expected: ChangeForecast | None, out: Outcome, changed: int
    ) -> int | None:
        """Return the model of costs as `refresh.commit` reports it."""
        if not known.rows or out.method is not Method.SKETCH or out.is_equal:
            return None
        costs = modelled(known, expected, changed, out.method, out.theirs.count)
        return None if costs is None else costs.bytes

    def _side(self, known: PlanInputs, expected: ChangeForecast | None, salt: Salt) -> OurSide:
        """Reduce our side as `refresh.prepare` does."""
        lister = Rows(self.copy, salt)
        costs = Costs(known.prices, known.line, known.integer_key)
        if not known.rows:
            sums = self.copy.reduced(known.partition, salt, None)
            return RangeSide(known.partition, sums.ranges, lister, costs)
        sketch = sketch_size.open_sketch(
            rows=known.rows,
            bounds=known.bounds,
            expected=expected,
            prices=known.prices,
            line=known.line,
        )
        sums = self.copy.reduced(known.partition, salt, sketch)
        ranges = RangeSide(known.partition, sums.ranges, lister, costs)
        return SketchSide(ranges, sketch, sums.cells)

    def _partition(self) -> Partition:
        """Its knots are found again when the table has outgrown them."""
        rows, is_integer = len(self.copy.rows), self.copy.recipe.integer_key
        if not is_integer or not rows:
            return choice.partition_for([], rows, integer_key=is_integer)
        counted, knots = self._quantiles
        if choice.outgrown(knots, counted, rows, self.copy.bounds()):
            counted, knots = self._quantiles = rows, self.copy.quantiles()
        return choice.partition_for(knots, rows, integer_key=True)

    def _learn(
        self, out: Outcome, at: datetime, before: int, inserted: int, updated: int, deleted: int
    ) -> None:
        """Learn prices as `refresh.commit` does; `before` are our rows then."""
        is_load, changed = not self.earlier, inserted + updated + deleted
        rows = len(self.copy.rows)
        counts, method = (inserted, updated, deleted), out.method.value
        self.earlier.append(EarlierRefresh(at, *counts, rows, is_load, method, out.scans, 0.0))
        if not out.is_equal:
            self._learnt = prices.new_notes(
                self._learnt,
                frame_bytes=out.frame_bytes,
                shipped=out.came.count,
                changed=changed,
                is_copy=out.is_copy,
                level=self.line.level(before),
            )


def _salt(number: int) -> Salt:
    random = Random(number)
    return Salt(random.getrandbits(64), random.getrandbits(64))


def replay(
    name: str, *, upto: int | None = None, objective: Objective = Objective.SECONDS
) -> Iterator[Record]:
    """A record for each commit up to this one; the load before them is none.

    Raises:
        AssertionError: the copy is not what the curators recorded.
    """
    history, times = History(name), times_of(name)
    recorded = Recorded(history)
    rows = list(recorded.values.values())
    with (
        TemporaryDirectory() as folder,
        closing(Source(Path(folder) / "erp.db", history, rows)) as source,
    ):
        with closing(source.open()) as session:
            shape = session.describe(source.relation)
            line = Line(RTT_S, BYTES_PER_S, objective, is_brief=True)
            warehouse = Warehouse(shape.recipe, line)
            warehouse.refresh(session, shape, times[0], 0)
        for commit in history.commits(0, max(times) if upto is None else upto):
            if commit.number not in times:
                assert not len(commit)  # the curators excluded it
                continue
            source.edit(commit)
            recorded.advance(commit)
            with closing(source.open()) as session:
                shape = session.describe(source.relation)
                record = warehouse.refresh(session, shape, times[commit.number], commit.number)
            where = f"{name}, commit {commit.number}"
            counts = (record.inserted, record.updated, record.deleted)
            edits = (commit.inserts, commit.updates, commit.deletes)
            assert counts == tuple(map(len, edits)), where
            assert len(warehouse.copy.rows) == len(recorded.rows), where
            assert set(warehouse.copy.rows) == set(recorded.rows.values()), where
            floor = recorded.floor_bytes(commit)
            yield replace(record, floor_bytes=floor, csv_bytes=recorded.csv_bytes)


def times_of(name: str) -> dict[int, datetime]:
    """Return the time of each commit; 0 is the load."""
    with (DATA / name / "versions.csv").open(newline="") as file:
        times = {0: datetime.fromisoformat(next(csv.DictReader(file))["committer_date"])}
    with (DATA / name / "changes_all_commits.csv").open(newline="") as file:
        for commit in csv.DictReader(file):
            times[int(commit["seq"])] = datetime.fromisoformat(commit["date"])
    return times


@click.command()
@click.option("--history", type=click.Choice(HISTORIES), default=HISTORIES[0], show_default=True)
@click.option("--upto", type=int, help="The last commit; else all.")
@click.option(
    "--objective",
    type=click.Choice([o.value for o in Objective]),
    default="seconds",
    show_default=True,
)
@click.option("--connection-bytes", default=CONNECTION_BYTES, show_default=True)
@click.option("--results", type=Path, default=Path("benchmarks/replay.jsonl"), show_default=True)
@click.option("--recorded", is_flag=True, help="Replay nothing: the tables of recorded results.")
def main(
    history: str,
    upto: int | None,
    objective: str,
    connection_bytes: int,
    results: Path,
    recorded: bool,
) -> None:
    """Replay, write the results down, print the tables."""
    if not recorded:
        if not available(history):
            raise SystemExit(f"NO REAL TABLES, NOT MEASURED: {DATA} is not there")
        records = replay(history, upto=upto, objective=Objective(objective))
        for number, record in enumerate(write(records, results), start=1):
            if not number % SAID_EVERY:
                print(f"{number} refreshes, {record.at[:10]}", file=sys.stderr, flush=True)
        print(f"{history}, objective {objective}\n")
    print(summary(read(results), connection_bytes))


if __name__ == "__main__":
    main()
