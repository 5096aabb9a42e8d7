"""Metrics of real refreshes: Prometheus accepts them, and they say what the histories say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from driftline.errors import ConfigurationError
from driftline.metrics_server import MetricsServer

from tests import ROOT
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, environment
from tests.harness.prometheus import Numbers, numbers, of_table
from warehouse_agent.cli.main import cli
from warehouse_agent.history import refresh_history
from warehouse_agent.monitoring import counted_tables
from warehouse_agent.spark import session
from warehouse_agent.storage.store import PRIVATE

NAMES = ("orders", "customers")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in NAMES:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        legacy.many(f"INSERT INTO {name} VALUES (?, ?)", [(n, str(n)) for n in range(100)])
    relations = {name: f'table = "{name}"' for name in NAMES}
    spark = session.DeferredSession({"spark.master": "local[1]"})
    with Pair(spark, legacy, tmp_path / "pair", relations) as pair:
        (tmp_path / "collector").mkdir()
        pair.warehouse_lines = f'[metrics]\ntextfile = "{tmp_path}/collector/driftline.prom"\n'
        yield pair
    legacy.close()


def textfile(pair: Pair) -> Path:
    return pair.folder.parent / "collector/driftline.prom"


def written(pair: Pair) -> Numbers:
    """Return what the textfile says, which is what the histories say."""
    (file,) = textfile(pair).parent.iterdir()  # nothing half written beside it
    found = numbers(file.read_bytes())
    for name in NAMES:
        totals = refresh_history.read(pair.store, name).totals
        if not totals.attempts:
            continue
        assert of_table(found, name, "refreshes_total") == {(): totals.refreshes}
        assert of_table(found, name, "refreshes_put_off_total") == {(): totals.put_off}
        errors = {(code,): times for code, times in totals.failed.items()}
        assert of_table(found, name, "refresh_errors_total") == errors
        assert of_table(found, name, "refresh_rows_changed_total") == {
            ("inserted",): totals.inserted,
            ("updated",): totals.updated,
            ("deleted",): totals.deleted,
        }
        directions = {("sent",): totals.sent, ("received",): totals.received}
        assert of_table(found, name, "refresh_bytes_total") == directions
        phases = {(phase,): pytest.approx(s) for phase, s in totals.phases.items()}
        assert of_table(found, name, "refresh_duration_seconds_sum") == phases
        counts = dict.fromkeys(phases, totals.attempts)
        assert of_table(found, name, "refresh_duration_seconds_count") == counts
    return found


def refresh(pair: Pair, *names: str) -> str:
    """Run the command; return what it says beside its answers, with its exit code."""
    words = ["--config", str(pair.warehouse_toml()), "refresh", *names]
    ended = CliRunner().invoke(cli, words)
    return f"{ended.exit_code} {ended.stderr}"


def last_line(pair: Pair, name: str) -> dict[str, object]:
    body = pair.store.read(PRIVATE, "runs", f"{name}.jsonl")
    assert body is not None
    line: dict[str, object] = json.loads(body.splitlines()[-1])
    return line


def test_a_textfile_says_what_the_histories_say(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.fragment_lines["orders"] = 'freshness = "2h"'
    pair.fragment_lines["customers"] = 'interval_max = "6h"'
    began = time.time()
    umask = os.umask(0o027)
    assert refresh(pair).startswith("0 ")
    os.umask(umask)
    found = written(pair)
    assert textfile(pair).stat().st_mode & 0o777 == 0o644  # node_exporter is another user
    warehouse = (("warehouse", pair.store.root),)
    stamp = found["driftline_metrics_written_timestamp_seconds", warehouse]
    assert began <= stamp <= time.time()
    assert of_table(found, "orders", "freshness_limit_seconds") == {(): 2 * 3600}
    assert of_table(found, "customers", "freshness_limit_seconds") == {(): 12 * 3600}
    assert of_table(found, "orders", "rows") == {(): 100}
    assert of_table(found, "orders", "refresh_failures") == {("",): 0}
    assert of_table(found, "orders", "proof") == {("total",): 1}
    line = last_line(pair, "orders")
    as_of = datetime.fromisoformat(str(line["as_of"])).timestamp()
    for name in ("as_of_timestamp_seconds", "exact_as_of_timestamp_seconds"):
        assert of_table(found, "orders", name) == {(): as_of}

    # From here on no history is read: the line of a command is added to what was known.
    monkeypatch.setattr(counted_tables, "_newest", lambda *_: pytest.fail("a history is read"))
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id < 7")
    assert refresh(pair, "orders").startswith("0 ")
    assert refresh(pair, "orders").startswith("0 ")  # nothing changed: no version, fresher still
    monkeypatch.undo()
    later = written(pair)
    assert of_table(later, "orders", "refresh_rows_changed_total")["updated",] == 7
    assert of_table(later, "orders", "as_of_timestamp_seconds")[()] >= as_of
    for name in ("refreshes_total", "refresh_last_success_timestamp_seconds"):
        assert of_table(later, "customers", name) == of_table(found, "customers", name)


def test_failures_are_counted_by_code_until_a_refresh_goes_well(pair: Pair) -> None:
    assert refresh(pair).startswith("0 ")
    success = of_table(written(pair), "orders", "refresh_last_success_timestamp_seconds")
    pair.legacy.execute("DELETE FROM orders WHERE id > 9")
    for times in (1, 2):
        assert "SHRANK" in refresh(pair, "orders")
        found = written(pair)
        assert of_table(found, "orders", "refresh_failures") == {("SHRANK",): times}
        assert of_table(found, "orders", "refresh_errors_total") == {("SHRANK",): times}
        assert of_table(found, "orders", "refresh_last_success_timestamp_seconds") == success
        attempt = of_table(found, "orders", "refresh_last_attempt_timestamp_seconds")
        assert attempt[()] >= success[()]
    assert refresh(pair, "orders", "--allow-shrink").startswith("0 ")
    found = written(pair)
    assert of_table(found, "orders", "refresh_failures") == {("",): 0}
    assert of_table(found, "orders", "refresh_errors_total") == {("SHRANK",): 2}


def test_a_killed_command_is_counted_by_the_next_one(pair: Pair) -> None:
    assert refresh(pair).startswith("0 ")
    words = [sys.executable, "-m", "warehouse_agent.cli", "--config", str(pair.warehouse_toml())]
    armed = environment(DRIFTLINE_FAILPOINT="warehouse.compared:kill")
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id < 7")
    killed = subprocess.run([*words, "refresh", "orders"], env=armed, cwd=ROOT, check=False)
    assert killed.returncode in (-signal.SIGKILL, 137)
    assert refresh(pair, "customers").startswith("0 ")
    found = written(pair)
    assert of_table(found, "orders", "refresh_errors_total") == {("KILLED",): 1}
    assert of_table(found, "orders", "refresh_failures") == {("KILLED",): 1}


def scraped(process: subprocess.Popen[str]) -> str:
    """Return the address of the page that a process serves."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"metrics on (http://\S+)", line):
            return found[1]
    return pytest.fail("it ended")


def test_run_serves_the_newest_numbers(pair: Pair) -> None:
    pair.fragment_lines["orders"] = 'interval_max = "2s"'
    pair.warehouse_lines = '[metrics]\nlisten = "127.0.0.1:0"\n'
    assert refresh(pair).startswith("0 ")
    words = [sys.executable, "-m", "warehouse_agent.cli", "--config", str(pair.warehouse_toml())]
    with subprocess.Popen(
        [*words, "run"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT,
        env=environment(),
    ) as process:  # fmt: skip
        try:
            address, seen = scraped(process), list[float]()
            deadline = time.monotonic() + 60
            while len(set(seen)) < 3 and time.monotonic() < deadline:
                with urllib.request.urlopen(address, timeout=10) as response:
                    found = numbers(response.read())
                seen.append(of_table(found, "orders", "refreshes_total")[()])
                assert of_table(found, "customers", "refreshes_total") == {(): 1}
                time.sleep(0.3)
            assert seen == sorted(seen)
            assert len(set(seen)) >= 3
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_port_that_is_taken_ends_run_at_once(pair: Pair) -> None:
    taken = MetricsServer("127.0.0.1", 0, lambda: b"")
    pair.warehouse_lines = f'[metrics]\nlisten = "{taken.address[7:].partition("/")[0]}"\n'
    ended = CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), "run"])
    assert isinstance(ended.exception, ConfigurationError)
    assert "Address already in use" in ended.exception.message
    taken.stop()


def test_a_textfile_that_cannot_be_written_fails_no_refresh(pair: Pair) -> None:
    textfile(pair).parent.rmdir()
    said = refresh(pair)
    assert said.startswith("0 ")
    assert said.count("warning: ") == 1
    assert (
        f"not told of this command: metrics: {textfile(pair)} cannot be written: No such file"
        in said
    )
    assert not textfile(pair).parent.exists()
