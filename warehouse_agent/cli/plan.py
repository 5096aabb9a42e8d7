"""`plan`: what a refresh would do and cost, before it is done.

From what is known without reading a row: the published version, what earlier refreshes reported
and, where it answers, the source's description. Candidates are costed by what decides in a refresh
(`candidates`), so the forecast is wrong only where its inputs are: how much has changed
is a guess from earlier refreshes, how many rows the source has is its catalogue's.

`predict` is pure. A source that does not answer is said, not fatal: the rest still holds. Rejected:
a trial reduction in Spark, which costs a refresh.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from driftline import wire_pb2 as pb
from driftline.errors import DatabaseUnavailable, SourceUnreachable, WarehouseUnavailable
from driftline.peer_text import one_line

from warehouse_agent.config import Fragment
from warehouse_agent.history import record
from warehouse_agent.methods.registry import refreshes
from warehouse_agent.planning import choice, notes, prices
from warehouse_agent.planning.candidates import Candidate, Known
from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.choice import NAMES, Method
from warehouse_agent.planning.network import Objective
from warehouse_agent.refresh import auxiliary_table, schema_change
from warehouse_agent.report import counted
from warehouse_agent.runs.preflight import reach
from warehouse_agent.storage import data_files, formats, row_security
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.staging import Staging
from warehouse_agent.transport.channel import Link
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX


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
    why: str
    staged_bytes: int
    source_error: str | None
    schema_changes: tuple[str, ...]
    tiles: int | None = None
    tiles_done: int | None = None
    error: None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def text(self) -> str:
        """For people."""
        lines = [f"{self.name}: {self._situation()}"]
        if self.source_error:
            lines.append(f"  the source could not be asked: {self.source_error}")
        for change in self.schema_changes:
            shown = one_line(change, LINE_CHARACTERS_MAX)
            lines.append(f"  a refresh will be refused without --accept-schema: {shown}")
        if self.staged_bytes:
            lines.append(
                f"  {counted(self.staged_bytes, 'byte')} of an earlier attempt need not come again"
            )
        if self.tiles_done:
            lines.append(f"  {self.tiles_done} of {self.tiles} tiles are done already")
        for candidate in self.candidates:
            mark = "→" if candidate.what == self.chosen else " "
            size = (
                "bytes not known" if candidate.bytes is None else counted(candidate.bytes, "byte")
            )
            read = candidate.source_rows
            rows = "" if read is None else f" of {counted(read, 'row')}"
            lines.append(
                f"  {mark} {candidate.what}: {size}, "
                f"{counted(candidate.round_trips, 'round trip')}, "
                f"{counted(candidate.source_scans, 'scan')} at the source{rows}{_took(candidate)}"
            )
        if self.why:
            lines.append(f"    {self.chosen}: {self.why}")
        if self.floor_bytes is not None:
            floor = counted(self.floor_bytes, "byte")
            lines.append(f"    the changed rows alone would take about {floor}")
        return "\n".join(lines)

    def _situation(self) -> str:
        expected = self.rows_expected
        if self.first_load:
            at_source = "an unknown number of rows"
            if expected is not None:
                at_source = f"about {counted(expected, 'row')}"
            return f"first load, {at_source} at the source"
        at_source = "unknown" if expected is None else f"about {expected:,}"
        assert self.rows_published is not None
        between = ""
        if self.changes_expected is not None:
            low, _, high = self.changes_expected
            between = f", {low:,} to {high:,} rows"
        rows = counted(self.rows_published, "row")
        return (
            f"version {self.version}, {rows}, {at_source} at the source; "
            f"{self.change_share:.2%}{between} expected to have changed ({self.change_share_from})"
        )


def forecast(store: Store, fragment: Fragment) -> Forecast:
    """Ask the store and the source, and predict.

    Raises:
        WarehouseUnavailable: the published table cannot be read.
        DriftlineError: the source refuses the relation, for whatever reason; being unreachable is
            no reason.
    """
    reply, source_error = _describe(fragment)
    if reply is not None:
        with contextlib.suppress(WarehouseUnavailable):  # it may be lost
            record.note_limits(store, fragment.source, reply.description)
    return predict(know(store, fragment, reply, source_error))


def know(
    store: Store, fragment: Fragment, reply: pb.DescribeReply | None, source_error: str | None
) -> Known:
    """What the store holds, with what the source said."""
    base = formats.head(store, fragment.name)
    remembered = store.read_json(PRIVATE, "fragments", f"{fragment.name}.json")
    description = reply.description if reply is not None else None
    described = schema_change.recipe_of(description) if description is not None else None
    published = base.layout.recipe if base is not None else None
    recipe = published or described
    changes: list[str] = []
    if published and described and published.id != described.id:
        changes = list(schema_change.column_changes(published, described)) or [
            "its fingerprint version"
        ]
    if base is not None and description is not None:
        before = row_security.known(base, remembered)
        changes += row_security.changes(before, PolicyDigests.from_message(description))
    rows = base.rows if base else None
    bounds = data_files.bounds(base.files) if base else None
    integer_key = recipe is not None and recipe.integer_key
    ends = knots(remembered, bounds) if integer_key and rows else []
    partition = choice.partition_for(ends, rows or 0, integer_key=bool(ends))
    expected = description.rows_expected if description is not None else 0
    line = record.line(store, fragment.source, remembered)
    columns = len(recipe.columns) if recipe else 1
    return Known(
        name=fragment.name,
        version=base.version if base else None,
        rows=rows,
        rows_expected=expected or None,
        prices=prices.known(remembered, columns, level=line.level(rows or 0)),
        partition=partition,
        integer_key=integer_key,
        bounds=bounds,
        line=line,
        now=datetime.now(UTC),
        forced=fragment.method,
        read_at_most=fragment.read_at_most if rows else None,  # as `prepare` has it
        runs=tuple(record.runs(store, fragment.name)),
        files=tuple((f.rows, f.size) for f in base.files) if base else (),
        staged_bytes=Staging(store, fragment.name).frame_bytes(),
        source_error=source_error,
        schema_changes=tuple(changes),
        tiled=auxiliary_table.tiled(store, fragment, base),
    )


def knots(remembered: dict[str, object], bounds: tuple[int, int] | None) -> list[int]:
    """Quantiles of the integer keys: the remembered ones; before there are any, as if the keys were
    spread evenly."""
    if (quantiles := notes.knots(remembered, "quantiles")) or bounds is None:
        return quantiles
    first, last = bounds
    return [first + (last - first) * i // choice.QUANTILES for i in range(choice.QUANTILES + 1)]


def predict(known: Known) -> Forecast:
    """The candidates and the choice."""
    expected = record.changes_expected(list(known.runs), known.rows or 0, known.now)
    changed, origin, interval = _changes(known, expected)
    floor = None
    candidates, chosen = refreshes(known, expected, max(changed, 1))
    if known.rows is not None and not known.prices.guessed:
        floor = choice.floor_bytes(known.rows, changed, known.prices.row)
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
        why=_why(known, candidates, chosen),
        staged_bytes=known.staged_bytes,
        source_error=known.source_error,
        schema_changes=known.schema_changes,
        tiles=known.scope.tiles,
        tiles_done=known.scope.tiles_done,
    )


def _changes(
    known: Known, expected: Expected | None
) -> tuple[int, str, tuple[int, int, int] | None]:
    """How many rows are expected to have changed, why, and between what."""
    rows = known.rows or 0
    if expected is None:
        return round(rows * choice.CHANGE_SHARE), "assumed", None
    count = len(known.runs) - 1
    noun = "refresh" if count == 1 else f"{count} refreshes"
    interval = (expected.low, expected.median, expected.high)
    return min(expected.median, rows), f"after the last {noun}", interval


def _describe(fragment: Fragment) -> tuple[pb.DescribeReply | None, str | None]:
    """Ask what the source says of the relation; return that, or why it says nothing."""
    try:
        reach(fragment.source)
        with Link(fragment.source) as link:
            return link.describe(fragment.relation), None
    except (SourceUnreachable, DatabaseUnavailable) as error:
        return None, error.message


def _why(known: Known, candidates: tuple[Candidate, ...], chosen: str) -> str:
    """Why the chosen candidate is, in words."""
    if known.rows is None:
        return "there is nothing to compare yet"
    if known.read_at_most and known.rows:
        return f"read_at_most = {known.read_at_most}"
    if known.tiled is not None:
        return "incremental"
    if known.forced is not None:
        return f'method = "{known.forced.value}"'
    sized = {c.what: c for c in candidates[1:] if c.bytes is not None}
    no_rivals = {chosen, NAMES[Method.GROUP]}  # groups are taken only where they are asked for
    others = [c for what, c in sized.items() if what not in no_rivals]
    line = known.line
    if chosen not in sized or not others:
        return ""
    if line.objective is Objective.BYTES:
        best = min(others, key=lambda c: c.bytes or 0)
        less = (best.bytes or 0) - (sized[chosen].bytes or 0)
        if less < 0:
            return _despite(sized[chosen], best)
        return f'{counted(less, "byte")} fewer than {best.what} (objective = "bytes")'
    best = min(others, key=lambda c: c.exchange_seconds or 0.0)
    less_s = (best.exchange_seconds or 0.0) - (sized[chosen].exchange_seconds or 0.0)
    speed = f"{line.rtt_s * 1000:,.0f} ms and {line.bytes_per_s * 8e-6:,.1f} Mbit/s"
    if less_s < 0:
        return _despite(sized[chosen], best)
    return f"{less_s:,.1f} s less than {best.what} over {speed}"


def _despite(chosen: Candidate, best: Candidate) -> str:
    """Why what seems cheaper is not chosen."""
    if chosen.what == NAMES[Method.SKETCH] and chosen.round_trips == 1:
        return f"the initial sketch is expected to suffice, although {best.what} would take less"
    return f"{best.what} is rejected: its worst case exceeds a full copy"


def _took(candidate: Candidate) -> str:
    took = ""
    if candidate.exchange_seconds is not None:
        took += f", {candidate.exchange_seconds:,.1f} s of scan and line"
    if candidate.bytes_rewritten:
        took += f", {counted(candidate.bytes_rewritten, 'byte')} of files written again"
    if candidate.seconds is not None:
        took += f"; earlier ones took {candidate.seconds:,.0f} s in all"
    return took
