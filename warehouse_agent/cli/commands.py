"""The commands behind the command line: each works on fragments and prints the answer.

A command returns an exit code for each fragment, 0 for success; `main` makes one of them.
"""

from __future__ import annotations

import functools
import json
import logging
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driftline.errors import ProofFailed, UsageError, WarehouseUnavailable
from driftline.relations.derivation_json import to_json
from driftline.rows.digests import Salt
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES

from warehouse_agent.cli.answers import ReportPrinter
from warehouse_agent.cli.doctor import examine
from warehouse_agent.cli.progress import ProgressDisplay
from warehouse_agent.config import Fragment, View, WarehouseConfig, select
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.notes import Notes
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.report import Report, counted, utc_now
from warehouse_agent.runs.batch import Runner
from warehouse_agent.runs.each_fragment import each, published
from warehouse_agent.spark import session
from warehouse_agent.spark.executors import failures, mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance import view_verification
from warehouse_agent.table_maintenance.garbage import kept_flips, unreferenced
from warehouse_agent.table_maintenance.verification import (
    check_files,
    check_rows,
    damaged,
    given_version,
    verified,
)
from warehouse_agent.tasks import proof
from warehouse_agent.tasks.steps import StepLog, Steps
from warehouse_agent.views import selection
from warehouse_agent.views.selection import TableSelection
from warehouse_agent.visible_versions import warehouse_versions

_log = logging.getLogger("driftline")


def refresh(
    config: WarehouseConfig,
    chosen: TableSelection,
    *,
    as_json: bool,
    spark: session.DeferredSession | None = None,
    **allowed: Any,
) -> list[int]:
    """Refresh fragments and views, and print the report of each as soon as it is done.

    If it is scheduled (`Options.is_scheduled`), what closed hours of a source put off is no
    failure: it is due when they end.
    """
    options = Options(**allowed)
    with ProgressDisplay(len(chosen.fragments) + len(chosen.views)) as display:
        answers = ReportPrinter(display, as_json=as_json)
        runner = Runner(spark or session.DeferredSession.of(config), config, (display, answers))
        reports = runner.refresh(chosen, options)
        answers.end()
    is_put_off = [options.is_scheduled and one.is_put_off(time.time()) for one in reports]
    return [
        0 if put_off else one.exit_code for one, put_off in zip(reports, is_put_off, strict=True)
    ]


def verify(
    config: WarehouseConfig, chosen: Sequence[Fragment | View], *, repair: bool, as_json: bool
) -> list[int]:
    """Read the published files of fragments, and check each row; with `repair`, refresh what is
    damaged. Compute each view again, and compare."""
    store = Store.of(config)
    spark = session.DeferredSession.of(config)
    to_repair: list[Fragment | View] = []
    suspects: set[tuple[str, str]] = set()

    def one(fragment: Fragment | View) -> None:
        if isinstance(fragment, View):
            try:
                report = view_verification.verify(config, store, spark, fragment)
                given = given_version(store, fragment.name, report.version)
            except (ProofFailed, WarehouseUnavailable) as problem:
                if not repair:
                    raise
                to_repair.append(fragment)
                print(f"{fragment.name}: {problem.message}", file=sys.stderr)
                return
            _say_verified(report, as_json=as_json, given=given)
            return
        snapshot = published(store, fragment.name)
        report = Report(fragment.name, "verify", snapshot.version, snapshot.version)
        with report.phase("verify"):
            if not repair:
                check_files(store, fragment.name, snapshot)  # before Spark is started
            steps = Steps(spark, config.small_bytes, StepLog(report.places, ["verify"]), store)
            wrong = damaged(steps, store, fragment.name, snapshot, repair=repair)
        if wrong and repair:
            to_repair.append(fragment)
            suspects.update((fragment.name, path) for path in wrong)
            for path, what in wrong.items():
                print(f"{fragment.name}: data file {path}: {what}", file=sys.stderr)
            return
        rows = verified(store, fragment.name, snapshot, wrong)
        others = restored.same_rows(steps, store, fragment.name, snapshot)
        try:
            given = given_version(store, fragment.name, snapshot.version)
        except WarehouseUnavailable as problem:
            if not repair:
                raise
            to_repair.append(fragment)  # the newest version is sound: it is flipped
            print(f"{fragment.name}: {problem.message}", file=sys.stderr)
            return
        report.rows_total, report.proof, report.checked_at = rows, "values", utc_now()
        _say_verified(report, as_json=as_json, given=given + others)

    codes = each(chosen, one, as_json=as_json, command="verify")
    if not to_repair:
        return codes
    sound = [code for f, code in zip(chosen, codes, strict=True) if f not in to_repair]
    anew = frozenset(one.name for one in to_repair if isinstance(one, View))
    told = {"repair": True, "suspects": frozenset(suspects), "anew": anew}
    again = selection.select(config, [f.name for f in to_repair], False)
    return sound + refresh(config, again, as_json=as_json, spark=spark, **told)


def _say_verified(report: Report, *, as_json: bool, given: str = "") -> None:
    if as_json:
        print(report.to_json(), flush=True)
        return
    rows = counted(report.rows_total or 0, "row")
    print(f"{report.name}: version {report.version}, {rows} verified{given}")


def receipt(config: WarehouseConfig, name: str, output: Path) -> None:
    """Write a receipt of the published values into a file that only its owner can read.

    The values are totalled as they are read; whether they are what was proven, `verify` says.

    Raises:
        UsageError: it is a view, which no relation of a source equals.
        WarehouseUnavailable: files are missing, or have not all rows of the version.
    """
    store = Store.of(config)
    if name in config.views:
        raise UsageError(
            f"{name} is a view, and no relation of a source has its rows: there is no receipt.",
            remedy=f"`driftline verify {name}` computes it again; ask for receipts of what it"
            f" reads: {', '.join(dict.fromkeys(config.views[name].inputs))}.",
        )
    fragment = select(config, [name], False)[0]
    snapshot = published(store, fragment.name)
    check_files(store, fragment.name, snapshot)
    log = StepLog(phases=["receipt"])
    steps = Steps(session.DeferredSession.of(config), config.small_bytes, log, store)
    one_off, salt = secrets.token_bytes(FRAGMENT_KEY_BYTES), Salt.fresh()
    layout = snapshot.layout
    try:
        digest = proof.values_digest(steps, snapshot.files, layout, one_off, salt)
    except failures() as problem:
        raise mistake(problem, fragment.name) from problem
    check_rows(fragment.name, snapshot, digest.count)
    body = {
        "relation": fragment.relation,
        "columns": [[c.name, str(c.type)] for c in layout.recipe.columns],
        "key_columns": layout.recipe.key_columns,
        "as_of": snapshot.record.as_of,
        "version": snapshot.version,
        "count": digest.count,
        "sum": digest.sum_bytes().hex(),
        "fragment_key": one_off.hex(),
        "salt": salt.to_bytes().hex(),
        **({} if layout.derivation is None else {"derivation": to_json(layout.derivation)}),
        "proven": _proof_of(store, fragment.name, snapshot),
    }
    place = Store(str(output.absolute().parent))
    place.write(json.dumps(body, indent=1).encode(), output.name, private=True)
    given = given_version(store, fragment.name, snapshot.version)
    rows = counted(digest.count, "row")
    print(f"{fragment.name}: version {snapshot.version}, {rows}, total {digest.sum_bytes().hex()}")
    if given:
        print(given.removeprefix("; "), file=sys.stderr)
    command = f"driftline-source total --receipt {output.name}"
    print(f"Wrote {output}. On the DBA's machine: {command}", file=sys.stderr)


def _proof_of(store: Store, name: str, snapshot: Snapshot) -> dict[str, object]:
    """Return what a receipt says of the proof of its version, and of the last audit of a marker."""
    audit = Notes.read(store, name).marking(snapshot).audit
    said: dict[str, object] = {"proof": snapshot.record.proof}
    return said if audit is None else said | {"audit": audit.to_json()}


def gc(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    keep_hours: int,
    yes: bool,
    as_json: bool,
) -> list[int]:
    """Count the data files that no kept version needs; with `yes`, remove them."""
    store, now = Store.of(config), datetime.now(UTC)
    flips = functools.cache(functools.partial(kept_flips, store, keep_hours, now))

    @functools.cache
    def shorten_versions() -> None:
        if flips():
            warehouse_versions.shorten(flips()[0])

    def one(fragment: Fragment | View) -> None:
        with store.lock(fragment.name):
            garbage = unreferenced(
                store,
                fragment.name,
                keep_hours=keep_hours,
                now=now,
                is_view=isinstance(fragment, View),
                flips=flips(),
            )
            if yes:
                for place in garbage.places:
                    store.remove_file(*place)
                    WarehouseFailpoint.GARBAGE_REMOVED.reach()
                if garbage.oldest is not None:
                    formats.shorten(store, fragment.name, garbage.oldest)
                shorten_versions()
        files = len(garbage.places)
        if as_json:
            body = {"name": fragment.name, "files": files, "bytes": garbage.bytes, "removed": yes}
            print(json.dumps(body), flush=True)
        else:
            verb = "removed" if yes else "would remove"
            size = counted(garbage.bytes, "byte")
            print(f"{fragment.name}: {verb} {counted(files, 'file')}, {size}")

    return each(chosen, one, as_json=as_json, command="gc")


def doctor(path: Path, *, as_json: bool) -> list[int]:
    """Run and print every check; return an exit code for each."""
    codes = []
    first_with: dict[str, str] = {}  # errors, and the check that found each first
    for check in examine(path):
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
