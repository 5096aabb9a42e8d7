"""`check`: print to the DBA what the agent would do, before it runs.

Of several relations a line for each, those first that cannot be served; details of one that is
named, or of all.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from driftline.peer_text import one_line
from driftline.relations.derivations import Comparable, DerivablePart
from driftline.text_tables import table

from source_agent.checks.configuration import CheckReport, SnapshotReport
from source_agent.checks.relations import RelationReport
from source_agent.engines.interface import Privilege
from source_agent.printable import counted

HEADINGS = ("relation", "rows", "scan now", "changes", "state")
_TILES = "by the index of its key"
_ERROR_CHARACTERS_MAX = 400
_NEEDED = "needed"
_TEXT_AT = 11  # characters before the text of most lines


def as_json(report: CheckReport) -> str:
    """Return the report for `--json`, with `ok` and the number of relations that are served."""
    facts = {"ok": not report.failed, "served": report.served, **asdict(report)}
    return json.dumps(facts, ensure_ascii=False)


def as_text(report: CheckReport, *, verbose: bool, width: int = 80, colours: bool = False) -> str:
    """Return the report for people.

    Args:
        verbose: details of each relation; always of one alone.
        width: characters in a line of the table of relations.
        colours: mark its states by colours of a terminal.
    """
    verbose |= len(report.relations) <= 1
    if verbose:
        about = [line for one in report.relations for line in ("", *_relation_lines(one))]
        return "\n".join([*_database_lines(report), *about, *_end_lines(report, verbose=True)])
    failed = [one for one in report.relations if one.error is not None]
    name = _failing_first(report.relations)[0].name
    ends = [f"{one.name}: {_why(one)}" for one in failed]
    ends.append(f"Details: driftline-source check {name}, or --verbose.")
    ends += _end_lines(report, verbose=False)  # whose last line is the verdict
    begins = [*_database_lines(report), ""]
    relations = table_of(report.relations, width, colours)
    return "\n".join([*_wrapped(begins, width), *relations, *_wrapped(ends, width)])


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Return lines of at most `width` characters; what is longer goes on below its text."""
    within = " " * _TEXT_AT
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, width, subsequent_indent=within, break_on_hyphens=False)
        or [""]
    ]


def _database_lines(report: CheckReport) -> list[str]:
    """Return what is known of the server of the agent, and of the database."""
    lines = ["server"]
    lines += [
        f"  {'FAILED  ' if entry.problem else 'ok      '} {entry.what:<12} {entry.text}"
        for entry in report.server
    ]
    return [
        *lines,
        "",
        "database",
        f"  engine   {report.database}, reached at {report.as_of}",
        *([f"  server   {report.release}"] if report.release else []),
        *_identity_lines(report.identity),
        f"  login    {report.login or 'the default of the driver'}",
        f"  reads    {report.consistency}; {report.read_only}",
        f"  limits   {', '.join(f'{x.name} {x.seconds:g} s' for x in report.limits) or 'none'}",
        *_snapshot_lines(report.snapshot),
        *(f"  note     {x.name} is {x.note}" for x in report.limits if x.note),
        *(f"  note     {text}" for text in report.notes),
        *(f"  note     {text}" for text in report.plug_ins),
    ]


def _end_lines(report: CheckReport, *, verbose: bool) -> list[str]:
    """Return the privileges and the verdict; several rights that are needed in one line."""
    excess = sum(p.excess for p in report.privileges)
    lines = ["", "privileges"]
    needed = [p for p in report.privileges if _weight(p) == _NEEDED]
    if is_short := not verbose and len(needed) > 1:
        lines.append(f"  {_NEEDED:<8} {counted(len(needed), 'right')}")
    for privilege in report.privileges:
        if not (is_short and privilege in needed):
            lines.append(f"  {_weight(privilege):<8} {privilege.what}")
    if excess:
        lines.append(
            f"  The login may do more than it needs ({excess}). "
            "`driftline-source grants` prints the least that is enough."
        )
    elif not report.privileges:
        lines += ["  none known to this database"]
    return [*lines, "", *_verdict(report)]


def table_of(relations: Sequence[RelationReport], width: int, colours: bool) -> list[str]:
    """Return a line for each relation under HEADINGS, those first that cannot be served."""
    ordered = _failing_first(relations)
    marked = [_colour(one) for one in ordered] if colours else []
    return table(HEADINGS, [_cells(one) for one in ordered], width, numbers="rows", colours=marked)


def _failing_first(relations: Sequence[RelationReport]) -> list[RelationReport]:
    return sorted(relations, key=lambda one: (one.error is None, not one.notes))


def _colour(relation: RelationReport) -> str:
    if relation.error is not None:
        return "red"
    return "yellow" if relation.notes else "green"


def _why(relation: RelationReport) -> str:
    """Return why a relation cannot be served, as one line."""
    why = one_line(relation.error or "", _ERROR_CHARACTERS_MAX)
    return why.removeprefix(f"{relation.name}: ")


def _cells(relation: RelationReport) -> tuple[str, ...]:
    if relation.error is not None:
        return (relation.name, "", "", "", f"FAILED: {relation.error_code}")
    rows = f"{relation.rows_expected:,}" if relation.rows_expected > 0 else "unknown"
    scan = "yes" if relation.scan_now.startswith("now") else "no"
    changes = "by marker" if relation.marker is not None else "by a scan"
    notes = counted(len(relation.notes), "note")
    return (relation.name, rows, scan, changes, f"ok, {notes}" if relation.notes else "ok")


def _snapshot_lines(report: SnapshotReport) -> list[str]:
    """Return what waits for the end of a refresh, if anything does, and for how long."""
    if not report.holds_back:
        return []
    most = "no limit" if report.most_s is None else f"at most {report.most_s:g} s"
    held = "the audit file has no refresh yet"
    if report.longest_s is not None:
        exchanges = counted(report.exchanges, "exchange")
        held = f"{report.longest_s:,.1f} s at most in the last {exchanges} of the audit"
    return [
        f"  snapshot holds back {report.holds_back}",
        f"           for as long as a refresh lasts: {held}; {most} (limits.snapshot_seconds)",
    ]


def _weight(privilege: Privilege) -> str:
    if privilege.is_unknown:
        return "unknown"
    if privilege.is_note:
        return "note"
    return "EXCESS" if privilege.excess else _NEEDED


def _verdict(report: CheckReport) -> list[str]:
    problems = sum(entry.problem for entry in report.server)
    served = f"{report.served} of {counted(len(report.relations), 'relation')} can be served"
    if not problems:
        return [served]
    return [f"[server] has {counted(problems, 'problem')}: the agent cannot serve.", served]


def _allowance_lines(relation: RelationReport) -> list[str]:
    """Return when a scan may begin, and how many rows are read by key, where the DBA says so."""
    lines = []
    if relation.scan is not None:
        hours = f"at {', '.join(relation.scan)} (local time): " if relation.scan else ""
        lines.append(f"  scanned  {hours}{relation.scan_now}")
    if relation.rows_by_key is not None:
        lines.append(f"  by key   at most {relation.rows_by_key:,} rows in an exchange")
    return lines


def _identity_lines(identity: dict[str, str]) -> list[str]:
    """Return what tells the database from a copy: a mark of another one is not used."""
    told = ", ".join(f"{name} {value}" for name, value in identity.items())
    return [f"  identity {told}"] if told else []


def _marker_lines(relation: RelationReport) -> list[str]:
    """Return by what changes are found without comparing all rows, and what else might do."""
    lines = []
    if relation.marker is not None and (named := relation.marker_read) is not None:
        lines.append(f"  changes  by {relation.marker}, where a warehouse accepts it")
        lines.append(f"           read {named.read}; {named.promise}")
        lines += [f"           {named.note}"] if named.note else []
        lines += [f"           its keys are read {named.keys}"] if named.keys else []
        lines += [f"           {named.keys_note}"] if named.keys_note else []
    for marker in relation.markers:
        lines.append(f"  possible {marker.line}")
        lines.append(f"           read {marker.read}; {marker.promise}")
        lines += [f"           {marker.note}"] if marker.note else []
    if relation.flags:
        lines.append(f"  flags    {', '.join(relation.flags)}: `deleted` of a marker names one, if")
        lines.append("           rows so flagged count as gone")
    return lines


def _derive_lines(relation: RelationReport) -> list[str]:
    """Return what a warehouse may choose of a relation, and by which columns."""
    if not relation.derive:
        return []
    lines = [f"  derive   a warehouse may choose {' and '.join(relation.derive)}"]
    if DerivablePart.ROWS.value in relation.derive:
        named = [
            c.name + (" (= and <> only)" if c.comparable == Comparable.EQUALITY.value else "")
            for c in relation.columns
            if c.comparable
        ]
        lines.append(f"           rows by {', '.join(named) or 'no column: none can be compared'}")
    return lines


def _relation_lines(relation: RelationReport) -> list[str]:
    if relation.error is not None:
        return [f"relation     {relation.name}", f"  FAILED   {relation.error}"]
    to = "every certificate" if relation.allow is None else ", ".join(relation.allow) or "nobody"
    key = ", ".join(c.name for c in relation.columns if c.key)
    vouched = "ensured by a constraint" if relation.vouched else "checked at every refresh"
    rows = f"about {relation.rows_expected:,}" if relation.rows_expected > 0 else "unknown"
    width = max(len(c.name) for c in relation.columns)
    return [
        f"relation     {relation.name}, for {to}",
        f"  key      {key} ({vouched})",
        f"  rows     {rows}",
        f"  a scan   {relation.scan_cost}",
        f"  changed  rows are read {relation.again}",
        *([f"           {relation.again_note}"] if relation.again_note else []),
        *_allowance_lines(relation),
        f"  compared by fingerprints {relation.fingerprint}",
        f"  in tiles {f'no: {relation.no_tiles}' if relation.no_tiles else _TILES}",
        *_marker_lines(relation),
        *_derive_lines(relation),
        *(f"  note     {note}" for note in relation.notes),
        *(
            f"  column   {c.name:<{width}}  {c.type}{'' if c.nullable else ' not null'}"
            for c in relation.columns
        ),
    ]
