"""What is tried before Spark is started, and that Spark can be started after it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import SourceUnreachable
from driftline.limits import CONTROL_S
from pyspark.sql import SparkSession

from source_agent.server.service import start
from tests.harness.agents import configuration, make_orders
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, environment
from tests.harness.relay import unanswered
from warehouse_agent.config import Fragment, Source, select
from warehouse_agent.inspection.first_configuration import offers
from warehouse_agent.inspection.readiness import examine_source
from warehouse_agent.inspection.refresh_prediction import forecast
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store
from warehouse_agent.transport import preflight
from warehouse_agent.transport.channel import SourceChannel

pytestmark = pytest.mark.slow  # starts processes, waits for a deadline

FORKS = 200
# Python forks with a function to run in the child, as pyspark does, instead of spawning.
FORKING = """
import subprocess, sys
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

ended = set()
with SourceChannel(Source("local", sys.argv[1], insecure=True)) as link:
    for number in range(int(sys.argv[2])):
        if number % 10 == 0:
            link.describe("")
        child = subprocess.Popen(["true"], preexec_fn=lambda: None)
        ended.add(child.wait(30))
print(ended)
"""


def test_processes_start_while_a_channel_is_open(tmp_path: Path) -> None:
    """Spark's JVM is one: with gRPC's own handlers of fork(), three in a hundred were aborted."""
    make_orders(tmp_path / "erp.db", [(1, "x")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    try:
        words = [f"127.0.0.1:{server.port}", str(FORKS)]
        done = subprocess.run(
            [sys.executable, "-c", FORKING, *words],
            capture_output=True,
            text=True,
            env={k: v for k, v in environment().items() if k != "GRPC_ENABLE_FORK_SUPPORT"},
            check=False,
        )
    finally:
        server.stop()
    assert (done.returncode, done.stdout) == (0, "{0}\n"), done.stderr


def test_a_firewall_that_drops_packets_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another look after the first would take as long again."""
    monkeypatch.setattr(preflight, "REACH_S", 0.3)
    with unanswered() as address:
        source = Source("erp", address, insecure=True)
        began = time.monotonic()
        with pytest.raises(SourceUnreachable, match="does not answer in time") as caught:
            preflight.reach(source)
        (looked,) = examine_source(source)
        planned = forecast(Store(str(tmp_path)), Fragment("orders", source, "orders"))
        with SourceChannel(source) as link, pytest.raises(SourceUnreachable, match="in time"):
            list(offers(link))
        assert time.monotonic() - began < CONTROL_S / 2
    assert planned.source_error == caught.value.message
    assert looked.error is not None
    assert str(looked.error) == str(caught.value)
    assert address in str(caught.value)


def test_metadata_of_a_newer_release_is_of_its_fragment(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A table that cannot be understood, or read at all, does not stop the one beside it."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    relations = {name: f'table = "{name}"' for name in ("a", "b", "c")}
    for name in relations:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    with contextlib.closing(legacy), Pair(spark, legacy, tmp_path / "pair", relations) as pair:
        pair.refresh("a")
        pair.refresh("b")
        rewrite(pair, "a", lambda meta: json.dumps({**meta, "layout": {"format": 2}}))
        rewrite(pair, "b", lambda meta: "{cut off")
        config = pair.config()
        runner = Runner(DeferredSession({}, spark), config)
        reports = {r.name: r for r in runner.refresh(select(config, [], True), Options())}
    assert reports["a"].error is not None
    assert reports["a"].error["code"] == "WAREHOUSE"
    assert "written by a newer release" in reports["a"].error["message"]
    assert reports["b"].error is not None
    assert reports["b"].error["where"] == "b"
    assert reports["c"].error is None
    assert reports["c"].version == 0


def rewrite(pair: Pair, name: str, change: Callable[[dict[str, Any]], str]) -> None:
    """Change what the only commit of a table says of it."""
    log = pair.warehouse / name / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if (said := action.get("commitInfo")) is not None:
            said["driftline"] = change(json.loads(said["driftline"]))
    log.write_text("\n".join(map(json.dumps, actions)))


def test_a_host_that_is_no_name_is_not_reached() -> None:
    """The codec of host names raises what is no OSError."""
    with pytest.raises(SourceUnreachable, match=r"'db\.\.example' is not a host name"):
        preflight.reach(Source("erp", "db..example:7443", insecure=True))
