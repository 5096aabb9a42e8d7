"""`plan`: print what a refresh of fragments and views would do and cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from driftline.errors import SourceUnreachable
from driftline.peer_text import one_line

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.inspection import place_prediction, refresh_prediction
from warehouse_agent.inspection.part_prediction import PartForecast
from warehouse_agent.inspection.refresh_prediction import Forecast, MarkerForecast
from warehouse_agent.planning.candidates import Candidate
from warehouse_agent.planning.request_cost import RequestForecast
from warehouse_agent.report import counted, is_held_back_for_long
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX

if TYPE_CHECKING:
    from warehouse_agent.inspection.view_prediction import ViewForecast

# Of staged rows of a load or copy.
_OLDER_SOURCE = (
    ". The source's release knows no chunks: staged rows are compared, and if more than about 1.7"
    " million differ, all come again"
)


def plan(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    as_json: bool,
    verbose: bool = False,
) -> list[int]:
    """Print a forecast of a refresh of each fragment and view; read no row of the source.

    Args:
        verbose: print all ways to refresh and their prices; always of a fragment alone. Else a
            line for each.
    """
    verbose |= len(chosen) == 1
    steps = Steps.of(config, DeferredSession.of(config))

    def one(fragment: Fragment | View) -> int:
        if isinstance(fragment, View):
            from warehouse_agent.inspection import view_prediction  # and sqlglot

            expected = view_prediction.forecast(Store.of(config), fragment, config)
            text = text_of_view(expected) if verbose else line_of_view(expected)
            print(json.dumps(asdict(expected)) if as_json else text, flush=True)
            return 0
        predicted = refresh_prediction.forecast(Store.of(config), fragment, steps)
        text = text_of(predicted) if verbose else line_of(predicted)
        print(json_of(predicted) if as_json else text, flush=True)
        return SourceUnreachable.exit_code if predicted.source_error else 0

    return each(chosen, one, as_json=as_json, command="plan")


def json_of(forecast: Forecast) -> str:
    """Return a forecast as one line of JSON."""
    head = {"name": forecast.name, "command": "plan"}
    return json.dumps(head | asdict(forecast) | {"error": None})


def line_of(forecast: Forecast) -> str:
    """Return a forecast as one line: what hinders a refresh, or the way that it would go."""
    if forecast.source_error:
        return f"{forecast.name}: the source could not be asked: {forecast.source_error}"
    if forecast.refused:
        part = ""
        if forecast.part_expected is not None:
            part = f" A part by groups {_found_text(forecast.part_expected)}."
        return f"{forecast.name}: will be refused now: {forecast.refused}{part}"
    if forecast.schema_changes:
        changes = counted(len(forecast.schema_changes), "change")
        return f"{forecast.name}: will be refused without --accept-schema: {changes} of columns"
    said = ["first load"] if forecast.first_load else []
    if forecast.staged_rows:
        said.append("goes on where it was cut")
    way = next((one for one in forecast.candidates if one.what == forecast.chosen), None)
    if not forecast.first_load and forecast.changes_expected is not None:
        said.append(f"about {counted(forecast.changes_expected[1], 'row')} changed")
    said.append(forecast.chosen)
    if way is not None:
        said.append("bytes not known" if way.bytes is None else counted(way.bytes, "byte"))
        seconds = way.exchange_seconds if way.seconds is None else way.seconds
        said += [] if seconds is None else [f"{seconds:,.0f} s"]
    return f"{forecast.name}: {', '.join(said)}"


def line_of_view(forecast: ViewForecast) -> str:
    """Return a forecast of a view as one line."""
    took = "" if forecast.seconds is None else f", {forecast.seconds:,.0f} s"
    return f"{forecast.name}: view, {forecast.what} if an input moves{took}"


def text_of(forecast: Forecast) -> str:
    """Return a forecast as lines for people."""
    lines = [f"{forecast.name}: {_situation(forecast)}"]
    if forecast.source_error:
        lines.append(f"  the source could not be asked: {forecast.source_error}")
    for change in forecast.schema_changes:
        shown = one_line(change, LINE_CHARACTERS_MAX)
        lines.append(f"  a refresh will be refused without --accept-schema: {shown}")
    if forecast.refused:
        lines.append(f"  a refresh will be refused now: {forecast.refused}")
    if forecast.staged_bytes:
        lines.append(f"  {_staged(forecast)}")
    if forecast.tiles_done:
        lines.append(f"  {forecast.tiles_done} of {forecast.tiles} tiles are done already")
    for candidate in forecast.candidates:
        mark = "→" if candidate.what == forecast.chosen else " "
        lines.append(f"  {mark} {candidate.what}: {_cost(candidate)}")
    if forecast.marker is not None:
        lines.append(f"    {_marker_text(forecast.marker)}")
    if forecast.part_expected is not None:
        lines += _part_lines(forecast.part_expected)
    if forecast.why:
        lines.append(f"    {forecast.chosen}: {forecast.why}")
    if forecast.row_hours is not None:
        weighed = f"{forecast.row_hours:,.1f} row-hours"
        lines.append(f"    changes since the last refresh are unseen for about {weighed}")
    if forecast.held_back_s is not None and is_held_back_for_long(forecast.held_back_s):
        lines.append(
            f"    the source held the last refresh back for {forecast.held_back_s:,.1f} of its"
            f" {forecast.last_s or 0.0:,.1f} s, to spare its database; that is in no price above"
        )
    if forecast.places_expected:
        lines.append(f"    {place_prediction.text_of(forecast.places_expected)}")
    if forecast.requests_expected is not None:
        lines.append(f"    {_requests_text(forecast.requests_expected)}")
    if forecast.floor_bytes is not None:
        floor = counted(forecast.floor_bytes, "byte")
        lines.append(f"    the changed rows alone would take about {floor}")
    return "\n".join(lines)


def _situation(forecast: Forecast) -> str:
    expected = forecast.rows_expected
    if forecast.rows_published is None:
        about = f"about {counted(expected, 'row')}" if expected is not None else "unknown rows"
        return f"first load, {about} at the source"
    at_source = "unknown" if expected is None else f"about {expected:,}"
    between = ""
    if forecast.changes_expected is not None:
        low, _, high = forecast.changes_expected
        between = f", {low:,} to {high:,} rows"
    grown = ""
    if forecast.rows_forecast is not None:
        grown = f" (by its history about {forecast.rows_forecast:,.0f})"
    return (
        f"version {forecast.version}, {counted(forecast.rows_published, 'row')}, "
        f"{at_source} at the source{grown}; expected to have changed: "
        f"{forecast.change_share:.2%}{between} ({forecast.change_share_from})"
    )


def _staged(forecast: Forecast) -> str:
    """Return what earlier attempts staged, what of a load or copy is left, and where the source is
    of an older release."""
    size, rows = forecast.staged_bytes, forecast.staged_rows
    if not rows:
        text = f"{counted(size, 'byte')} of an earlier attempt are staged and are not sent again"
    else:
        text = f"{counted(rows, 'row')} ({counted(size, 'byte')}) of earlier attempts are staged"
        text += "" if forecast.first_load else "; the copy that was cut goes on"
        if (left := (forecast.rows_expected or forecast.rows_published or 0) - rows) > 0:
            text += f"; about {counted(left, 'row')} ({left * size / rows:,.0f} bytes) are left"
    return text + _OLDER_SOURCE if forecast.staged_listed is False else text


def _marker_text(marker: MarkerForecast) -> str:
    age_s = marker.audit_age_s
    last = "no audit yet" if age_s is None else f"last audit {age_s / 3600:,.1f} hours ago"
    every = f"{last}, due every {marker.audit_s / 3600:,.1f} hours"
    if marker.used:
        return f'proves "keys"; {every}'
    return f"the marker is not used: {marker.why}; {every}"


def _part_lines(part: PartForecast) -> list[str]:
    """Return what a part would find, and, where the fragment does not allow one, what to write."""
    by = "by the statistics of each row" if part.by_statistics else "if all rows are alike"
    new = counted(part.new_rows_max, "new row")
    said = f"{_found_text(part)}, {by}, and up to {new} behind the greatest key"
    if not part.settings:
        return [f"    the part {said}"]
    written = " and ".join(f'`{key} = "{value}"`' for key, value in part.settings.items())
    return [f"  with {written} it compares {part.way.what}: {_cost(part.way)}", f"    it {said}"]


def _found_text(part: PartForecast) -> str:
    """Return which changes a part finds."""
    rows = f"{part.found:,.1f} of {part.changed:,.1f} changed rows"
    return f"finds about {rows} (all of them: {part.finds_all:.0%})"


def _requests_text(asked: RequestForecast) -> str:
    """Return the requests of the object store, and their price if one is set."""
    quiet, all_ = (
        counted(count, "request") + ("" if price is None else f" (price {price:.4g})")
        for count, price in (
            (asked.unchanged, asked.unchanged_price),
            (asked.rewritten, asked.rewritten_price),
        )
    )
    return f"the object store gets up to {quiet} if nothing changed, {all_} if all files change"


def _cost(candidate: Candidate) -> str:
    size = "bytes not known" if candidate.bytes is None else counted(candidate.bytes, "byte")
    read = candidate.source_rows
    rows = "" if read is None else f" of {counted(read, 'row')}"
    cost = (
        f"{size}, {counted(candidate.round_trips, 'round trip')}, "
        f"{counted(candidate.source_scans, 'scan')} at the source{rows}"
    )
    if candidate.exchange_seconds is not None:
        cost += f", {candidate.exchange_seconds:,.1f} s for scan and line"
    if candidate.bytes_rewritten:
        cost += f", {counted(candidate.bytes_rewritten, 'byte')} of files rewritten"
    if candidate.seconds is not None:
        cost += f"; earlier ones took {candidate.seconds:,.0f} s in all"
    return cost


def text_of_view(forecast: ViewForecast) -> str:
    """Return a forecast of a view for a person."""
    from_ = ", ".join(
        f"{name} version {version}" if version is not None else f"{name}, not loaded yet"
        for name, version in forecast.inputs.items()
    )
    took = "" if forecast.seconds is None else f"; earlier ones took {forecast.seconds:,.1f} s"
    if (ahead := forecast.ahead) is not None:
        rows = counted(ahead.rows, "changed row")
        took += f"; {rows} already wait for it, since {ahead.since}, until {ahead.due_by}"
    return (
        f"{forecast.name}: view, {forecast.what} if an input moves ({forecast.why}), from {from_}: "
        f"{counted(forecast.rows_read, 'row')}, {counted(forecast.bytes_read, 'byte')}{took}"
        + "".join(
            f"\n  {'advised: ' if price.is_advised else ''}{price.describe()}"
            for price in forecast.site_joins
        )
    )
