"""`plan`: what a refresh would do and cost, before it is done.

From what is known without reading a row: the published version, what earlier refreshes reported
and, where it answers, the source's description. Candidates are costed by the same `plan.choose`
that decides in a refresh, so the forecast is wrong only where its inputs are: how much has changed
is a guess from earlier refreshes, how many rows the source has is its catalogue's.

`Known` is everything the prediction depends on; `predict` is pure. A source that does not answer is
said, not fatal: the rest still holds. Rejected: a trial reduction in Spark, which costs a refresh.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import DatabaseUnavailable, SourceUnreachable
from driftline.ranges import Partition
from driftline.sketches import CELL_BYTES, HASHES

from warehouse_agent import plan, publish, remember, schema
from warehouse_agent.configure import Fragment
from warehouse_agent.expect import Expected
from warehouse_agent.link import Link
from warehouse_agent.plan import Line, Method, Sketch, Stall
from warehouse_agent.remember import Run
from warehouse_agent.store import PRIVATE, Store

CHANGE_SHARE = 0.01  # assumed where there is no earlier refresh


@dataclass(frozen=True, slots=True)
class Known:
    """What a prediction is made from.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None where it gave none; `row_bytes` is a compressed row on the line; `bounds` the
    least and the greatest integer key; `now` when it is asked.
    """

    name: str
    version: int | None
    rows: int | None
    rows_expected: int | None
    row_bytes: float
    partition: Partition
    integer_key: bool
    bounds: tuple[int, int] | None
    line: Line
    now: datetime
    forced: Method | None
    runs: tuple[Run, ...]
    staged_bytes: int = 0
    source_error: str | None = None
    schema_changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way a refresh may go. Bytes are both directions, None where no row count is known;
    `round_trips` and `source_scans` are counts, `seconds` the median of earlier refreshes."""

    what: str
    bytes: int | None
    round_trips: int
    source_scans: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a refresh would do. `chosen` is the `what` of a candidate."""

    name: str
    command: str
    version: int | None
    rows_published: int | None
    rows_expected: int | None
    first_load: bool
    changes_expected: tuple[int, int, int] | None  # low, median, high: four of five lie within
    change_share: float
    change_share_from: str
    floor_bytes: int | None
    candidates: tuple[Candidate, ...]
    chosen: str
    staged_bytes: int
    source_error: str | None
    schema_changes: tuple[str, ...]
    error: None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def text(self) -> str:
        """For people."""
        lines = [f"{self.name}: {self._situation()}"]
        if self.source_error:
            lines.append(f"  the source was not asked: {self.source_error}")
        for change in self.schema_changes:
            lines.append(f"  a refresh will be refused without --accept-schema: {change}")
        if self.staged_bytes:
            lines.append(f"  {self.staged_bytes:,} bytes of an earlier attempt need not come again")
        for candidate in self.candidates:
            mark = "→" if candidate.what == self.chosen else " "
            size = "unknown" if candidate.bytes is None else f"{candidate.bytes:,}"
            took = "" if candidate.seconds is None else f", about {candidate.seconds:,.0f} s"
            lines.append(
                f"  {mark} {candidate.what}: {size} bytes, "
                f"{_plural(candidate.round_trips, 'round trip')}, "
                f"{_plural(candidate.source_scans, 'scan')} at the source{took}"
            )
        if self.floor_bytes is not None:
            lines.append(f"    no method can ship less than {self.floor_bytes:,} bytes")
        return "\n".join(lines)

    def _situation(self) -> str:
        expected = "unknown" if self.rows_expected is None else f"about {self.rows_expected:,}"
        if self.first_load:
            return f"first load, {expected} rows at the source"
        between = ""
        if self.changes_expected is not None:
            low, _, high = self.changes_expected
            between = f", {low:,} to {high:,} rows"
        return (
            f"version {self.version}, {self.rows_published:,} rows, {expected} at the source; "
            f"{self.change_share:.2%}{between} expected to have changed ({self.change_share_from})"
        )


def forecast(store: Store, fragment: Fragment) -> Forecast:
    """Ask the store and the source, and predict.

    Raises:
        WarehouseUnavailable: the published table cannot be read.
        DriftlineError: the source refuses the relation, for whatever reason; being unreachable is
            no reason.
    """
    return predict(know(store, fragment, *_describe(fragment)))


def know(
    store: Store, fragment: Fragment, reply: pb.DescribeReply | None, source_error: str | None
) -> Known:
    """What the store holds, with what the source said."""
    base = publish.head(store, fragment.name)
    remembered = store.read_json(PRIVATE, "fragments", f"{fragment.name}.json")
    description = reply.description if reply is not None else None
    described = schema.recipe_of(description) if description is not None else None
    published = base.layout.recipe if base is not None else None
    recipe = published or described
    changes: list[str] = []
    if published and described and published.id != described.id:
        changes = list(schema.column_changes(published, described)) or ["its fingerprint version"]
    rows = base.rows if base else None
    quantiles = remembered.get("quantiles")
    integer_key = recipe is not None and recipe.integer_key
    knots = quantiles if isinstance(quantiles, list) and integer_key and rows else []
    partition = plan.partition_for(knots, rows or 0, integer_key=bool(knots))
    expected = description.rows_expected if description is not None else 0
    return Known(
        name=fragment.name,
        version=base.version if base else None,
        rows=rows,
        rows_expected=expected or None,
        row_bytes=remember.row_bytes(remembered, len(recipe.columns) if recipe else 1),
        partition=partition,
        integer_key=integer_key,
        bounds=publish.bounds(base.files) if base else None,
        line=remember.line(store, fragment.source),
        now=datetime.now(UTC),
        forced=fragment.method,
        runs=tuple(remember.runs(store, fragment.name)),
        staged_bytes=sum(e.size for e in store.walk(PRIVATE, "staging", fragment.name)),
        source_error=source_error,
        schema_changes=tuple(changes),
    )


def predict(known: Known) -> Forecast:
    """The candidates and the choice."""
    expected = remember.changes_expected(list(known.runs), known.rows or 0, known.now)
    changed, origin, interval = _changes(known, expected)
    floor = None
    if known.rows is None:
        candidates: tuple[Candidate, ...] = (_load(known),)
        chosen = candidates[0].what
    else:
        candidates, chosen = _refreshes(known, expected, max(changed, 1))
        floor = plan.floor_bytes(known.rows, changed, known.row_bytes)
    return Forecast(
        name=known.name,
        command="plan",
        version=known.version,
        rows_published=known.rows,
        rows_expected=known.rows_expected,
        first_load=known.rows is None,
        changes_expected=interval,
        change_share=changed / known.rows if known.rows else 0.0,
        change_share_from=origin,
        floor_bytes=floor,
        candidates=candidates,
        chosen=chosen,
        staged_bytes=known.staged_bytes,
        source_error=known.source_error,
        schema_changes=known.schema_changes,
    )


def _load(known: Known) -> Candidate:
    size = None
    if known.rows_expected is not None:
        size = plan.opening_bytes(known.partition) + int(known.rows_expected * known.row_bytes)
    # Describe, then the exchange.
    return Candidate("full copy", size, 2, 1, None)


def _refreshes(
    known: Known, expected: Expected | None, changed: int
) -> tuple[tuple[Candidate, ...], str]:
    ours = known.rows or 0
    theirs = ours if known.rows_expected is None else known.rows_expected
    sketch = _sketch(known, expected)
    opening = plan.opening_bytes(known.partition)
    sent = sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0
    options = {
        forced: plan.choose(
            ours=Digest(ours),
            theirs=Digest(theirs),
            ranges=known.partition.ranges,
            differing=_differing(known, sketch, changed),
            row_bytes=known.row_bytes,
            forced=forced,
            line=known.line,
            stall=None if sketch is None else Stall(sketch),
        )
        for forced in (*Method, known.forced)
    }
    found = [
        Candidate(
            "nothing changed", opening + sent + plan.REPLY_BYTES, 1, 1, _seconds(known, None)
        ),
    ]
    if sketch is not None and options[Method.SKETCH].method is Method.SKETCH:
        cells = plan.cells_for(changed)
        is_enough = CELL_BYTES * cells <= sketch.bytes_sent
        size = sent + int(changed * known.row_bytes)
        if not is_enough:
            size = sent + options[Method.SKETCH].bytes_expected
        scans = 1 if sketch.embedding.base is not None else 2
        found.append(_candidate(known, Method.SKETCH, opening + size, 2 - is_enough, scans))
    if options[Method.RANGE].method is Method.RANGE:  # else too many rows would have to be hashed
        size = opening + options[Method.RANGE].bytes_expected
        scans = 1 if known.integer_key else 2
        found.append(_candidate(known, Method.RANGE, size, 3, scans))
    size = opening + sent + options[Method.FULL].bytes_expected
    found.append(_candidate(known, Method.FULL, size, 2, 2))
    return tuple(found), _NAMES[options[known.forced].method]


def _candidate(known: Known, method: Method, size: int, trips: int, scans: int) -> Candidate:
    return Candidate(_NAMES[method], size, trips, scans, _seconds(known, method))


def _sketch(known: Known, expected: Expected | None) -> Sketch | None:
    if not known.rows or known.forced in (Method.RANGE, Method.FULL):
        return None
    return plan.open_sketch(
        rows=known.rows,
        bounds=known.bounds,
        expected=expected,
        row_bytes=known.row_bytes,
        line=known.line,
    )


def _differing(known: Known, sketch: Sketch | None, changed: int) -> int:
    """What a verdict would say: ranges, or cells where there is a sketch."""
    if sketch is None:
        return round(expected_slots(known.partition.ranges, changed))
    return round(expected_slots(sketch.cells, HASHES * changed))


_NAMES = {Method.SKETCH: "by sketch", Method.RANGE: "by ranges", Method.FULL: "full copy"}


def expected_slots(slots: int, entries: int) -> float:
    """How many of these slots so many entries fall into, scattered evenly (the occupancy problem:
    n(1 - (1 - 1/n)^k))."""
    if slots == 1:
        return float(min(entries, 1))
    return slots * -math.expm1(entries * math.log1p(-1 / slots))


def _changes(
    known: Known, expected: Expected | None
) -> tuple[int, str, tuple[int, int, int] | None]:
    """How many rows are expected to have changed, why, and between what."""
    rows = known.rows or 0
    if expected is None:
        return round(rows * CHANGE_SHARE), "assumed", None
    count = len(known.runs) - 1
    noun = "refresh" if count == 1 else f"{count} refreshes"
    interval = (expected.low, expected.median, expected.high)
    return min(expected.median, rows), f"after the last {noun}", interval


def _seconds(known: Known, method: Method | None) -> float | None:
    """The median of refreshes that went this way; None for those that found nothing."""
    spent = [
        r.seconds
        for r in known.runs
        if not r.is_load
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None


def _describe(fragment: Fragment) -> tuple[pb.DescribeReply | None, str | None]:
    """What the source says of the relation, or why it says nothing."""
    try:
        with Link(fragment.source) as link:
            return link.describe(fragment.relation), None
    except (SourceUnreachable, DatabaseUnavailable) as error:
        return None, error.message


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
