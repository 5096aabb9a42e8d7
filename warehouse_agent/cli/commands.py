"""What each command does, between the command line and the machinery.

A command takes a configuration and prints its answer; it returns an exit code per fragment, 0 for
those that went well, so that `cli` can tell all from some from none.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from driftline.digests import Salt
from driftline.errors import SourceUnreachable
from driftline.fingerprints import FRAGMENT_KEY_BYTES

from warehouse_agent.cli.answers import Answers
from warehouse_agent.cli.doctor import examine
from warehouse_agent.cli.gc import unreferenced
from warehouse_agent.cli.plan import forecast
from warehouse_agent.cli.progress import Display
from warehouse_agent.cli.verify import check_files, damaged, verified
from warehouse_agent.config import Fragment, WarehouseConfig, select
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report, counted, utc_now
from warehouse_agent.runs.batch import Runner
from warehouse_agent.runs.each_fragment import each, published
from warehouse_agent.spark import session
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import proof
from warehouse_agent.tasks.file_damage import SPARK_FAILURES

_log = logging.getLogger("driftline")


def refresh(
    config: WarehouseConfig, names: Sequence[str], all_: bool, options: Options, *, as_json: bool
) -> list[int]:
    """Refresh fragments; prints a report for each as it is done."""
    chosen = select(config, names, all_ or not names)
    return _refresh(session.Deferred(config.spark), config, chosen, options, as_json=as_json)


def _refresh(
    spark: session.Deferred,
    config: WarehouseConfig,
    chosen: Sequence[Fragment],
    options: Options,
    *,
    as_json: bool,
) -> list[int]:
    with Display(len(chosen)) as display:
        answers = Answers(display, as_json=as_json)
        reports = Runner(spark, config, (display, answers)).refresh(chosen, options)
        answers.end()
    return [_code(report) for report in reports]


def plan(config: WarehouseConfig, names: Sequence[str], all_: bool, *, as_json: bool) -> list[int]:
    """What a refresh of each fragment would do."""

    def one(fragment: Fragment) -> int:
        predicted = forecast(Store(config.path), fragment)
        print(predicted.to_json() if as_json else predicted.text(), flush=True)
        return SourceUnreachable.exit_code if predicted.source_error else 0

    return each(select(config, names, all_ or not names), one, as_json=as_json, command="plan")


def verify(
    config: WarehouseConfig, names: Sequence[str], all_: bool, *, repair: bool, as_json: bool
) -> list[int]:
    """Read every published file back; with `repair`, refresh the fragments that are damaged."""
    store = Store(config.path)
    chosen = select(config, names, all_ or not names)
    spark = session.Deferred(config.spark)
    left: list[Fragment] = []  # to repair
    suspects: set[tuple[str, str]] = set()

    def one(fragment: Fragment) -> None:
        snapshot = published(store, fragment.name)
        report = Report(fragment.name, "verify", snapshot.version, snapshot.version)
        with report.phase("verify"):
            if not repair:
                check_files(store, fragment.name, snapshot)  # before Spark is started
            wrong = damaged(spark.get(), store, fragment.name, snapshot, repair=repair)
        if wrong and repair:
            left.append(fragment)
            suspects.update((fragment.name, path) for path in wrong)
            for path, what in wrong.items():
                print(f"{fragment.name}: data file {path}: {what}", file=sys.stderr)
            return
        rows = verified(store, fragment.name, snapshot, wrong)
        report.rows_total, report.proof, report.checked_at = rows, "values", utc_now()
        if as_json:
            print(report.to_json(), flush=True)
        else:
            said = f"{counted(rows, 'row')} verified"
            print(f"{fragment.name}: version {snapshot.version}, {said}")

    codes = each(chosen, one, as_json=as_json, command="verify")
    if not left:
        return codes
    codes = [code for fragment, code in zip(chosen, codes, strict=True) if fragment not in left]
    options = Options(repair=True, suspects=frozenset(suspects))
    return codes + _refresh(spark, config, left, options, as_json=as_json)


def receipt(config: WarehouseConfig, name: str, output: Path) -> None:
    """Write a receipt of the published values, private to its owner."""
    store = Store(config.path)
    fragment = select(config, [name], False)[0]
    snapshot = published(store, fragment.name)
    check_files(store, fragment.name, snapshot)
    spark = session.start(dict(config.spark))
    one_off, salt = secrets.token_bytes(FRAGMENT_KEY_BYTES), Salt.fresh()
    layout = snapshot.layout
    try:
        digest = proof.values_digest(spark, snapshot.files, layout, one_off, salt)
    except SPARK_FAILURES as problem:
        raise mistake(problem, fragment.name) from problem
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
    }
    place = Store(str(output.absolute().parent))
    place.write(json.dumps(body, indent=1).encode(), output.name, private=True)
    print(f"{fragment.name}: {counted(digest.count, 'row')}, total {digest.sum_bytes().hex()}")
    print(
        f"wrote {output}; on the DBA's machine: driftline-source total --receipt {output.name}",
        file=sys.stderr,
    )


def gc(
    config: WarehouseConfig,
    names: Sequence[str],
    all_: bool,
    keep_hours: int,
    *,
    yes: bool,
    as_json: bool,
) -> list[int]:
    """Remove what no version within the retention needs."""
    store = Store(config.path)

    def one(fragment: Fragment) -> None:
        with store.lock(fragment.name):
            found = unreferenced(store, fragment.name, keep_hours=keep_hours, now=datetime.now(UTC))
            if yes:
                for place in found.places:
                    store.remove_file(*place)
        verb = "removed" if yes else "would remove"
        if as_json:
            body = {
                "name": fragment.name,
                "files": len(found.places),
                "bytes": found.bytes,
                "removed": yes,
            }
            print(json.dumps(body), flush=True)
        else:
            files = f"{counted(len(found.places), 'file')}, {counted(found.bytes, 'byte')}"
            print(f"{fragment.name}: {verb} {files}")

    return each(select(config, names, all_), one, as_json=as_json, command="gc")


def doctor(path: Path, *, as_json: bool) -> list[int]:
    """Check everything a refresh needs, each thing by itself."""
    codes = []
    said: dict[str, str] = {}  # errors, and the check that found each first
    for check in examine(path):
        codes.append(0 if check.error is None else check.error.exit_code)
        if check.error is not None:
            _log.debug("%s failed", check.what, exc_info=check.error)
        if as_json:
            error = None if check.error is None else str(check.error)
            body = {
                "check": check.what,
                "ok": error is None,
                "found": check.found,
                "code": None if check.error is None else check.error.code,
                "error": error,
            }
            print(json.dumps(body), flush=True)
        elif check.error is None:
            print(f"ok    {check.what}: {check.found}", flush=True)
        elif (first := said.setdefault(str(check.error), check.what)) != check.what:
            print(f"FAIL  {check.what}: same cause as {first}", flush=True)
        else:
            print(f"FAIL  {check.what}: {check.error}", flush=True)
    failed = len([code for code in codes if code])
    of_all = f"{failed} of {counted(len(codes), 'check')}" if failed else "no check"
    print(f"{of_all} failed", file=sys.stderr)
    return codes


def _code(report: Report) -> int:
    return int(report.error["exit_code"]) if report.error else 0
