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
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import DatabaseUnavailable, SourceUnreachable
from driftline.limits import STRATA, STRATUM_CELLS
from driftline.ranges import Partition

from warehouse_agent import plan, publish, schema
from warehouse_agent.configure import Fragment
from warehouse_agent.link import Link
from warehouse_agent.plan import Method
from warehouse_agent.store import PRIVATE, Store

RUNS_MAX = 20  # earlier refreshes that are looked at, the newest
CHANGE_SHARE = 0.01  # assumed where there is no earlier refresh
_OPEN_BYTES = 96  # of `Open` without its variable parts; a reply to it that says "equal" is smaller
_CELL_BYTES = 2  # of a stratum
_REPLY_BYTES = 80
_COLUMN_BYTES = 8.0  # a compressed value, before any row was shipped; as in a refresh


@dataclass(frozen=True, slots=True)
class Run:
    """An earlier refresh that went well. `changed` and `rows` are counts of rows."""

    changed: int
    rows: int
    is_load: bool
    method: str | None
    scans: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Known:
    """What a prediction is made from.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None where it gave none; `row_bytes` is a compressed row on the line.
    """

    name: str
    version: int | None
    rows: int | None
    rows_expected: int | None
    row_bytes: float
    partition: Partition
    integer_key: bool
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
    change_share: float
    change_share_from: str
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
        return "\n".join(lines)

    def _situation(self) -> str:
        expected = "unknown" if self.rows_expected is None else f"about {self.rows_expected:,}"
        if self.first_load:
            return f"first load, {expected} rows at the source"
        return (
            f"version {self.version}, {self.rows_published:,} rows, {expected} at the source; "
            f"{self.change_share:.2%} expected to have changed ({self.change_share_from})"
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
    row_bytes = remembered.get("row_bytes")
    if not isinstance(row_bytes, int | float):
        row_bytes = _COLUMN_BYTES * (len(recipe.columns) if recipe else 1)
    expected = description.rows_expected if description is not None else 0
    return Known(
        name=fragment.name,
        version=base.version if base else None,
        rows=rows,
        rows_expected=expected or None,
        row_bytes=float(row_bytes),
        partition=partition,
        integer_key=integer_key,
        forced=fragment.method,
        runs=tuple(earlier(store.read(PRIVATE, "runs", f"{fragment.name}.jsonl") or b"")),
        staged_bytes=sum(e.size for e in store.walk(PRIVATE, "staging", fragment.name)),
        source_error=source_error,
        schema_changes=tuple(changes),
    )


def earlier(lines: bytes) -> list[Run]:
    """The last refreshes that went well, oldest first; a damaged line is passed over."""
    found = []
    for line in lines.splitlines():
        try:
            run = _run(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if run is not None:
            found.append(run)
    return found[-RUNS_MAX:]


def _run(body: dict[str, Any]) -> Run | None:
    if body["error"] is not None or body["command"] != "refresh":
        return None
    changed = sum(int(body[f"rows_{kind}"]) for kind in ("inserted", "updated", "deleted"))
    return Run(
        changed,
        int(body["rows_total"]),
        body["previous_version"] is None,
        body["method"],
        int(body["source_scans"]),
        sum(body["seconds"].values()),
    )


def predict(known: Known) -> Forecast:
    """The candidates and the choice."""
    share, origin = _change_share(known.runs)
    if known.rows is None:
        candidates: tuple[Candidate, ...] = (_load(known),)
        chosen = candidates[0].what
    else:
        candidates, chosen = _refreshes(known, share)
    return Forecast(
        name=known.name,
        command="plan",
        version=known.version,
        rows_published=known.rows,
        rows_expected=known.rows_expected,
        first_load=known.rows is None,
        change_share=share,
        change_share_from=origin,
        candidates=candidates,
        chosen=chosen,
        staged_bytes=known.staged_bytes,
        source_error=known.source_error,
        schema_changes=known.schema_changes,
    )


def _load(known: Known) -> Candidate:
    size = None
    if known.rows_expected is not None:
        size = _open_bytes(known.partition) + int(known.rows_expected * known.row_bytes)
    # Describe, then the exchange.
    return Candidate("full copy", size, 2, 1, None)


def _refreshes(known: Known, share: float) -> tuple[tuple[Candidate, ...], str]:
    ours = known.rows or 0
    theirs = ours if known.rows_expected is None else known.rows_expected
    changed = max(round(ours * share), 1)
    ranges = known.partition.ranges
    differing = round(expected_ranges(ranges, changed))
    opening = _open_bytes(known.partition)
    options = {
        forced: plan.choose(
            ours=Digest(ours),
            theirs=Digest(theirs),
            ranges=ranges,
            differing=differing,
            row_bytes=known.row_bytes,
            forced=forced,
        )
        for forced in (Method.RANGE, Method.FULL, known.forced)
    }
    chosen = options[known.forced].method
    found = [
        Candidate("nothing changed", opening + _REPLY_BYTES, 1, 1, _seconds(known.runs, None)),
    ]
    by_ranges = options[Method.RANGE]
    if by_ranges.method is Method.RANGE:  # else too many rows would have to be hashed
        found.append(
            Candidate(
                _NAMES[Method.RANGE],
                opening + by_ranges.bytes_expected,
                3,
                _scans(known, Method.RANGE),
                _seconds(known.runs, Method.RANGE),
            )
        )
    found.append(
        Candidate(
            _NAMES[Method.FULL],
            opening + options[Method.FULL].bytes_expected,
            2,
            2,
            _seconds(known.runs, Method.FULL),
        )
    )
    return tuple(found), _NAMES[chosen]


_NAMES = {Method.RANGE: "by ranges", Method.FULL: "full copy"}


def expected_ranges(ranges: int, changed: int) -> float:
    """How many of these ranges so many changed rows fall into, scattered evenly (the occupancy
    problem: n(1 - (1 - 1/n)^k))."""
    return float(ranges * (1 - (1 - 1 / ranges) ** changed))


def _change_share(runs: Sequence[Run]) -> tuple[float, str]:
    known = [min(r.changed / r.rows, 1.0) for r in runs if not r.is_load and r.rows]
    if not known:
        return CHANGE_SHARE, "assumed"
    noun = "refresh" if len(known) == 1 else f"{len(known)} refreshes"
    return statistics.fmean(known), f"as in the last {noun}"


def _scans(known: Known, method: Method) -> int:
    """As the last time; else rows of an integer key are fetched by index, others by a scan."""
    for run in reversed(known.runs):
        if run.method == method.value and run.changed and not run.is_load:
            return run.scans
    return 1 if known.integer_key else 2


def _seconds(runs: Sequence[Run], method: Method | None) -> float | None:
    """The median of refreshes that went this way; None for those that found nothing."""
    spent = [
        r.seconds
        for r in runs
        if not r.is_load
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None


def _open_bytes(partition: Partition) -> int:
    """Of the first message: strata, and a start and a shift for every segment."""
    starts = partition.starts
    # Steps are zigzag varints, modulo 2^64: seven bits a byte, one of them the sign.
    steps = [(b - a + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in pairwise((0, *starts))]
    varints = sum((step.bit_length() + 7) // 7 for step in steps)
    return _OPEN_BYTES + _CELL_BYTES * STRATA * STRATUM_CELLS + varints + len(starts)


def _describe(fragment: Fragment) -> tuple[pb.DescribeReply | None, str | None]:
    """What the source says of the relation, or why it says nothing."""
    try:
        with Link(fragment.source) as link:
            return link.describe(fragment.relation), None
    except (SourceUnreachable, DatabaseUnavailable) as error:
        return None, error.message


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
