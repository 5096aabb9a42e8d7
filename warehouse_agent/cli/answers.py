"""The answers of `refresh`: a line for each fragment as soon as it is done, and one for all.

A listener of a refresh. Answers go to stdout: JSON for jobs, text for people. Errors and the line
about all fragments go to stderr. The display prints both above its bar.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from warehouse_agent.cli.progress import ProgressDisplay
from warehouse_agent.events import Event, RefreshEnded
from warehouse_agent.report import Report, bytes_text, counted, is_held_back_for_long

NAMED_MAX = 10  # fragments that failed, or were not started, in the line at the end


class ReportPrinter:
    """Listener that prints the report of each fragment. Call `end` when all are done."""

    def __init__(self, display: ProgressDisplay, *, as_json: bool) -> None:
        """Print through `display`; `as_json`: one JSON object per line instead of text."""
        self._display, self._as_json = display, as_json
        self._began = time.monotonic()
        self._reports: list[Report] = []
        self._explained: dict[tuple[str, ...], str] = {}  # error to the first fragment with it
        self._lost: Exception | None = None

    def __call__(self, event: Event) -> None:
        """Print the report of a finished fragment; keep an error of printing for `end`.

        Raises:
            BrokenPipeError: nobody reads the answers any more.
        """
        if not isinstance(event, RefreshEnded):
            return
        self._reports.append(event.report)
        try:
            self._print(event.report)
        except BrokenPipeError:
            raise
        except Exception as lost:  # such as a full disk; the other fragments are refreshed
            self._lost = self._lost or lost

    def end(self) -> None:
        """Print a line about all fragments if there are several.

        Raises:
            Exception: an answer could not be printed.
        """
        if self._lost is not None:
            raise self._lost
        if len(self._reports) > 1:
            self._display.note(total_of(self._reports, time.monotonic() - self._began))

    def _print(self, report: Report) -> None:
        if self._as_json:
            self._display.answer(report.to_json())
        if report.error is not None:
            self._explain(report)
        elif not self._as_json:
            self._display.answer(text_of(report))

    def _explain(self, report: Report) -> None:
        """Print why a fragment was not refreshed; refer to an error that was printed before."""
        e = report.error
        assert e is not None
        error = (e["code"], e["where"], e["message"])
        note = self._display.note
        if (first := self._explained.setdefault(error, report.name)) != report.name:
            note(f"error {e['code']}: {report.name}: same cause as {first}.")
            return
        where = e["where"] if e["where"].startswith(report.name) else f"{report.name}: {e['where']}"
        retry = " Safe to run again." if e["safe_to_retry"] else ""
        note(f"error {e['code']}: {where}: {e['message']} {e['remedy']}{retry}".rstrip())
        for name, text in e["details"].items():
            note(f"  {name}: {text}")


def total_of(reports: Sequence[Report], seconds: float) -> str:
    """Return one line for a person about all fragments of a refresh that took `seconds`."""
    failed = [report.name for report in reports if report.error is not None]
    late = [report.name for report in reports if report.not_started is not None]
    changed = sum(report.rows_changed for report in reports if report.error is None)
    moved = sum(report.bytes_sent + report.bytes_received for report in reports)
    return (
        f"{counted(len(reports), 'table')} in {seconds:,.1f} s: {counted(changed, 'row')} "
        f"changed, {bytes_text(moved)}, {len(failed) or 'none'} failed{_named(failed)}"
        f"{f', {len(late)} not started{_named(late)}' if late else ''}"
    )


def _named(names: Sequence[str]) -> str:
    """Return the first names in brackets, nothing if there is none."""
    more = ", …" if len(names) > NAMED_MAX else ""
    return f" ({', '.join(names[:NAMED_MAX])}{more})" if names else ""


def _on_spark(report: Report) -> str:
    """Return which phases ran on Spark, and why, where no setting says so."""
    chosen = [
        f"{phase} on Spark ({why['why']})"
        for phase, why in report.places_why.items()
        if report.places.get(phase) == "spark" and why["reason"] in ("seconds", "memory")
    ]
    return f", {'; '.join(chosen)}" if chosen else ""


def _wrong_since(at: str | None) -> str:
    """Return since when versions may be wrong, as text; empty: none is."""
    return f", versions since {at} may be wrong" if at is not None else ""


def text_of(report: Report) -> str:
    """Return one line for a person about what a refresh did."""
    if report.not_started is not None:
        return f"{report.name}: not started. {report.not_started}"
    took = [
        counted(report.bytes_sent + report.bytes_received, "byte"),
        counted(report.round_trips, "round trip"),
        f"{sum(report.seconds.values()):.1f} s",
    ]
    if report.tiles is not None:
        after = [f"resumed after {report.resumed_at}"] if report.resumed_at else []
        took = [counted(report.tiles, "tile"), *after, *took]
    extra = ""
    if report.proof == "part" and report.rows_left is not None:
        extra = f", {counted(report.rows_left, 'row')} not compared"
        if report.updates_left is not None:
            extra += f", of which {report.updates_left:,.1f} are expected to have been updated"
        if report.allowed is not None:
            extra += f" (the source allows {report.allowed})"
    if (marker := report.marker) is not None and marker["used"]:
        keys = "no keys" if report.proof == "claimed" else "all keys"
        extra += f", {counted(marker['rows'], 'row')} behind the mark, and {keys}"
    elif marker is not None:
        extra += f", all rows compared: {marker['why']}"
    if marker is not None:
        extra += "".join(f"; {warning}" for warning in marker["warnings"])
    audit, is_new = report.audit, marker is not None and marker.get("audited")
    if audit is not None and audit["missed"] and is_new:
        about = "about " if audit["is_sample"] else ""
        extra += f"; the marker had missed {about}{counted(audit['missed'], 'changed row')}"
        extra += f" ({', '.join(audit['keys'])})" if audit["keys"] else ""
        extra += _wrong_since(audit.get("wrong_since"))
    elif audit is not None and is_new and audit["is_sample"]:
        extra += "; in a sample of the rows, the marker had missed none"
    if report.repaired_files:
        lost = counted(report.repaired_files, "lost file")
        extra += f", {lost} of {counted(report.repaired_rows, 'row')} replaced"
    if is_held_back_for_long(report.held_back_s):
        extra += f", held back for {report.held_back_s:,.1f} s by the source, to spare its database"
    if report.ahead is not None:
        extra += (
            f", {counted(report.ahead['rows'], 'changed row')} of its component"
            f" gathered for readers, until {report.ahead['due_by']} at most"
        )
    if report.staleness is not None and report.staleness["vs_s"] is not None:
        extra += f", {report.staleness['vs_s']:,.1f} s stale on average"
    extra += _on_spark(report)
    if report.version == report.previous_version:
        if report.proof == "keys":
            return (
                f"{report.name}: nothing changed, version {report.version} has the keys of the "
                f"source as of {report.as_of}, and its marker shows no update{extra} "
                f"({', '.join(took)})"
            )
        if report.proof == "claimed":
            return (
                f"{report.name}: the marker shows no change, version {report.version} is claimed, "
                f"not proven, to be the source's as of {report.as_of}{extra} ({', '.join(took)})"
            )
        return (
            f"{report.name}: nothing changed, version {report.version} is equal to the source "
            f"as of {report.as_of}{extra} ({', '.join(took)})"
        )
    assert report.rows_total is not None
    proven = {"keys": "keys proven equal", "claimed": "claimed, not proven"}.get(
        report.proof or "", "proven equal"
    )
    changes = f"+{report.rows_inserted:,} ~{report.rows_updated:,} -{report.rows_deleted:,}"
    if report.schema_changed:
        changes = "columns or their types changed, rows not counted"
    return (
        f"{report.name}: version {report.version}, {counted(report.rows_total, 'row')}, "
        f"{changes}, {proven} as of {report.as_of}{extra} ({report.method}, {', '.join(took)})"
    )
