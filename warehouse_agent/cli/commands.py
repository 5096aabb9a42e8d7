"""The commands behind the command line: each calls a room below and prints its answer.

A command returns an exit code for each fragment, 0 for success; `main` makes one of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from driftline.errors import DriftlineError
from driftline.relations.derivation_json import to_json

from warehouse_agent.cli.answers import ReportPrinter
from warehouse_agent.cli.progress import ProgressDisplay
from warehouse_agent.config import Fragment, View, WarehouseConfig, load
from warehouse_agent.history import command_records
from warehouse_agent.history.command_records import CommandRecord
from warehouse_agent.inspection import readiness
from warehouse_agent.inspection.receipt import PublishedTotal, published_total
from warehouse_agent.monitoring import tellers
from warehouse_agent.monitoring.after_command import AfterCommand, EndedCommand
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report, counted, say_error
from warehouse_agent.runs.batch import Runner
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.spark import session
from warehouse_agent.storage.store import Store
from warehouse_agent.table_maintenance import file_checks, verification
from warehouse_agent.table_maintenance.garbage import collector
from warehouse_agent.views import selection
from warehouse_agent.views.selection import TableSelection

_log = logging.getLogger("driftline")


def refresh(
    config: WarehouseConfig,
    chosen: TableSelection,
    options: Options,
    *,
    as_json: bool,
    spark: session.DeferredSession | None = None,
    after: AfterCommand | None = None,
    others_failed: bool = False,
) -> list[int]:
    """Refresh fragments and views, and print the report of each as soon as it is done.

    Then tell those who watch; `after`: of all commands of this process. `others_failed`: as in
    `EndedCommand`.

    If it is scheduled (`Options.is_scheduled`), what closed hours of a source put off is no
    failure: it is due when they end.
    """
    with ProgressDisplay(len(chosen.fragments) + len(chosen.views)) as display:
        answers = ReportPrinter(display, as_json=as_json)
        killed: Sequence[tuple[CommandRecord, Sequence[str]]] = ()
        reports: Sequence[Report] = ()
        if chosen.fragments or chosen.views:  # else nothing is due
            killed = _tell_killed(config, display)
            runner = Runner(spark or session.DeferredSession.of(config), config, (display, answers))
            reports = runner.refresh(chosen, options)
            answers.end()
        ended = EndedCommand(
            config, Store.of(config), reports, datetime.now(UTC), killed, others_failed
        )
        (after or AfterCommand(tellers.of))(ended, display.note)
    is_put_off = [options.is_scheduled and one.is_put_off(time.time()) for one in reports]
    return [
        0 if put_off else one.exit_code for one, put_off in zip(reports, is_put_off, strict=True)
    ]


def _tell_killed(
    config: WarehouseConfig, display: ProgressDisplay
) -> list[tuple[CommandRecord, list[str]]]:
    """Say which earlier commands were killed, and note it in the histories of their fragments.

    Returns:
        The commands, and the fragments that each had not ended.
    """
    now, killed = datetime.now(UTC), list[tuple[CommandRecord, list[str]]]()
    with contextlib.suppress(DriftlineError):  # the refresh says what is wrong with the storage
        killed = command_records.settle(Store.of(config), now.timestamp())
        for record, left in killed:
            display.note(command_records.killed_text(record, left, now))
    return killed


def report(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    output: Path,
    values: bool,
    as_json: bool,
) -> list[int]:
    """Write the report of fragments and views into a folder, and print where it is.

    Returns:
        An exit code for each: 0, or that of the error for which it could not be read.
    """
    from warehouse_agent.monitoring.report import written_report  # jinja2, for this alone
    from warehouse_agent.monitoring.report.pages import ReportScope

    scope = ReportScope(config.file.name, datetime.now(UTC), values)
    written = written_report.write(config, chosen, scope, output)
    for error in written.errors.values():
        say_error(error)
    wrong = sum(row.needs_a_look for row in written.rows)
    if as_json:
        body = {"index": str(written.index), "tables": len(written.rows), "to_look_at": wrong}
        print(json.dumps(body))
    else:
        tables = counted(len(written.rows), "table")
        print(f"Wrote {written.index}: {tables}, {wrong or 'none'} to look at")
    return [
        written.errors[one.name].exit_code if one.name in written.errors else 0 for one in chosen
    ]


def verify(
    config: WarehouseConfig, chosen: Sequence[Fragment | View], *, repair: bool, as_json: bool
) -> list[int]:
    """Read the published files of fragments, and check each row; with `repair`, refresh what is
    damaged. Compute each view again, and compare."""
    store = Store.of(config)
    spark = session.DeferredSession.of(config)
    unsound: dict[str, verification.UnsoundTable] = {}

    def one(table: Fragment | View) -> None:
        result = verification.verify(config, store, spark, table, repair=repair)
        if isinstance(result, verification.VerifiedTable):
            _say_verified(result, as_json=as_json)
            return
        unsound[table.name] = result
        if result.why:
            print(f"{result.name}: {result.why}", file=sys.stderr)
        for path, what in result.files.items():
            print(f"{result.name}: data file {path}: {what}", file=sys.stderr)

    codes = each(chosen, one, as_json=as_json, command="verify")
    if not unsound:
        return codes
    sound = [code for f, code in zip(chosen, codes, strict=True) if f.name not in unsound]
    options = verification.repairing([*unsound.values()], config.views)
    again = selection.select(config, [*unsound], False)
    return sound + refresh(config, again, options, as_json=as_json, spark=spark)


def _say_verified(table: verification.VerifiedTable, *, as_json: bool) -> None:
    report = table.report
    if as_json:
        print(report.to_json(), flush=True)
        return
    rows = counted(report.rows_total or 0, "row")
    given = "" if table.given is None else f"; {_lagging_readers(table.given)}"
    print(f"{report.name}: version {report.version}, {rows} verified{given}{table.others}")


def _lagging_readers(version: int) -> str:
    """Return in words that readers are given this version, which is not the newest."""
    return f"readers are given version {version} until the views over it follow"


def receipt(config: WarehouseConfig, name: str, output: Path) -> None:
    """Write a receipt of the published values into a file that only its owner can read.

    Raises what `published_total` raises.
    """
    store = Store.of(config)
    total = published_total(config, store, name)
    place = Store(str(output.absolute().parent))
    body = json.dumps(_receipt(total), indent=1)
    place.write(body.encode(), output.name, private=True)
    name, version, digest = total.fragment.name, total.version.version, total.digest
    given = file_checks.given_version(store, name, version)
    rows = counted(digest.count, "row")
    print(f"{name}: version {version}, {rows}, total {digest.sum_bytes().hex()}")
    if given is not None:
        print(_lagging_readers(given), file=sys.stderr)
    command = f"driftline-source total --receipt {output.name}"
    print(f"Wrote {output}. On the DBA's machine: {command}", file=sys.stderr)


def _receipt(total: PublishedTotal) -> dict[str, object]:
    """Return the body of a receipt."""
    layout, record = total.version.layout, total.version.record
    audit = {} if total.audit is None else {"audit": total.audit.to_json()}
    return {
        "relation": total.fragment.relation,
        "columns": [[c.name, str(c.type)] for c in layout.recipe.columns],
        "key_columns": layout.recipe.key_columns,
        "as_of": record.as_of,
        "version": total.version.version,
        "count": total.digest.count,
        "sum": total.digest.sum_bytes().hex(),
        "fragment_key": total.fragment_key.hex(),
        "salt": total.salt.to_bytes().hex(),
        **({} if layout.derivation is None else {"derivation": to_json(layout.derivation)}),
        "proven": {"proof": record.proof, **audit},
    }


def gc(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    keep_hours: int,
    yes: bool,
    as_json: bool,
) -> list[int]:
    """Count the data files that no kept version needs; with `yes`, remove them.

    Also say how many staged bytes the next refresh can use, which are kept.
    """
    collect = collector(Store.of(config), keep_hours, datetime.now(UTC), removes=yes)

    def one(table: Fragment | View) -> None:
        garbage = collect(table)
        files = len(garbage.places)
        if as_json:
            body = {"name": table.name, "files": files, "bytes": garbage.bytes, "removed": yes}
            body["staged_bytes_kept"] = garbage.staged_bytes
            print(json.dumps(body), flush=True)
        else:
            verb = "removed" if yes else "would remove"
            size = counted(garbage.bytes, "byte")
            print(f"{table.name}: {verb} {counted(files, 'file')}, {size}")
            if garbage.staged_bytes:
                staged = counted(garbage.staged_bytes, "byte")
                print(f"  {staged} are staged, and kept until the next version is published")

    return each(chosen, one, as_json=as_json, command="gc")


def notify(path: Path, *, as_json: bool) -> list[int]:
    """Send a test message to everybody who is told, and print who answered; return an exit code for
    each. Raises ConfigurationError: nobody is named."""
    from warehouse_agent.monitoring import notifications  # for this alone, and where it is set
    from warehouse_agent.monitoring.messages import NotDelivered

    config, codes = load(path), []
    for name, send in notifications.trials(config, datetime.now(UTC).timestamp()):
        answer, why = None, None
        try:
            answer = send()
        except (DriftlineError, NotDelivered) as error:
            why = str(error)
        codes.append(0 if why is None else 1)
        if as_json:
            print(json.dumps({"name": name, "answer": answer, "error": why}), flush=True)
        else:
            print(f"{'ok  ' if why is None else 'FAIL'}  {name}: {answer or why}", flush=True)
    return codes


def doctor(path: Path, *, as_json: bool) -> list[int]:
    """Run and print every check; return an exit code for each."""
    codes = []
    first_with: dict[str, str] = {}  # errors, and the check that found each first
    for check in readiness.examine(path):
        error = check.error
        codes.append(0 if error is None else error.exit_code)
        if error is not None:
            _log.debug("%s failed", check.what, exc_info=error)
        if as_json:
            body = {
                "check": check.what,
                "ok": error is None,
                "found": check.found,
                "code": None if error is None else error.code,
                "error": None if error is None else str(error),
            }
            print(json.dumps(body), flush=True)
        elif error is None:
            print(f"ok    {check.what}: {check.found}", flush=True)
        else:
            first = first_with.setdefault(str(error), check.what)
            cause = error if first == check.what else f"same cause as {first}"
            print(f"FAIL  {check.what}: {cause}", flush=True)
    failed = len([code for code in codes if code])
    of_all = f"{failed} of {counted(len(codes), 'check')}" if failed else "no check"
    print(f"{of_all} failed", file=sys.stderr)
    return codes
