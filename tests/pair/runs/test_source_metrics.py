"""The page of `driftline-source serve`: it says what the audit says, and names nothing else."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError
from driftline.metrics_server import MetricsServer

from source_agent.config import file as source_file
from source_agent.server.service import start
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import UNBRAKED, Pair, SourceProcess
from tests.harness.prometheus import Numbers, numbers
from warehouse_agent.spark import session

ROWS = 400
NAME = "orders €"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair whose source is not served yet: a test does it in a process of its own."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(n, str(n)) for n in range(ROWS)])
    spark = session.DeferredSession({"spark.master": "local[1]"})
    relations = {"orders": 'table = "orders"', f'"{NAME}"': 'table = "orders"'}
    limits = f'{UNBRAKED}\npause_file = "pause"\n[metrics]\nlisten = "127.0.0.1:0"'
    with Pair(spark, legacy, tmp_path / "pair", relations, limits) as pair:
        pair.stop()
        yield pair
    legacy.close()


def served(pair: Pair) -> Numbers:
    log = (pair.folder / "source.log").read_text()
    (address,) = re.findall(r"metrics on (http://\S+)", log)
    with urllib.request.urlopen(address, timeout=10) as response:
        return numbers(response.read())


def audited(pair: Pair) -> list[dict]:
    lines = (pair.folder / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def value(found: Numbers, name: str, **labels: str) -> float | None:
    return found.get((f"driftline_source_{name}", tuple(sorted(labels.items()))))


def refresh(pair: Pair, relation: str) -> str | None:
    """Refresh one fragment; return the code of its error."""
    pair._relations = {"orders": ""}
    pair.fragment_lines["orders"] = f'relation = "{relation}"'
    (report,) = pair.reports("orders")
    return None if report.error is None else report.error["code"]


def test_it_says_what_the_audit_says(pair: Pair) -> None:
    with SourceProcess(pair.source_toml()) as source:
        pair.address = source.address
        found = served(pair)
        assert value(found, "rows_read_total", relation="orders") == 0
        assert value(found, "rows_read_total", relation=NAME) == 0
        assert value(found, "paused") == value(found, "calls") == 0
        assert refresh(pair, "orders") is None
        pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id < 7")
        assert refresh(pair, "orders") is None
        assert refresh(pair, "no such relation") == "NOT_FOUND"
        (pair.folder / "pause").touch()
        assert refresh(pair, "orders") == "NOT_NOW"
        deadline = time.monotonic() + 30
        while value(found := served(pair), "calls") and time.monotonic() < deadline:
            time.sleep(0.1)
        lines = audited(pair)
        rows = sum(line["rows_read"] for line in lines)
        assert rows >= 2 * ROWS
        assert value(found, "rows_read_total", relation="orders") == rows
        assert value(found, "held_back_seconds_total", relation="orders") == 0
        outcomes = Counter(line["outcome"] for line in lines)
        for code in ("NOT_FOUND", "NOT_NOW"):
            assert outcomes[code]
            assert value(found, "refused_total", reason=code) == outcomes[code]
        assert value(found, "paused") == 1
        assert {label for _, labels in found for label in labels} == {
            ("relation", "orders"),
            ("relation", NAME),
            ("reason", "NOT_FOUND"),
            ("reason", "NOT_NOW"),
        }


def test_a_port_that_is_taken_ends_serve_at_once(pair: Pair) -> None:
    taken = MetricsServer("127.0.0.1", 0, lambda: b"")
    port = taken.address.rpartition(":")[2].partition("/")[0]
    pair.limits = f'[metrics]\nlisten = "127.0.0.1:{port}"'
    with pytest.raises(ConfigurationError, match="Address already in use"):
        start(source_file.load(pair.source_toml()))
    taken.stop()
