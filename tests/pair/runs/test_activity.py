"""What `driftline status --ask` says of real databases, from the load on. No Spark can start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from driftline.relations.activity import CountedActivity, from_json

from tests.harness.legacy import PostgresLegacy, SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from warehouse_agent.cli.main import cli
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import read
from warehouse_agent.scheduler import probes
from warehouse_agent.storage.formats import head
from warehouse_agent.timetable.activity_change import contradictions

ROWS = 2000
SEEN_S_MAX = 20.0
RELATIONS = {
    "orders": 'table = "orders"',
    "seen": 'table = "seen"\nkey = ["id"]',
}


@pytest.fixture
def pair(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[Pair]:
    legacy = PostgresLegacy(postgresql)
    legacy.execute("CREATE TABLE orders (id int PRIMARY KEY, v int)")
    legacy.execute(f"INSERT INTO orders SELECT n, 0 FROM generate_series(1, {ROWS}) n")
    legacy.execute("CREATE VIEW seen AS SELECT * FROM orders")
    reported(legacy)
    with Pair(NoSpark(), legacy, tmp_path / "pair", RELATIONS) as made:
        made.small_bytes = 32 << 20
        made.limits = "activity_seconds = 0.001"
        made.restart()
        yield made
    legacy.close()


def reported(legacy: PostgresLegacy) -> None:
    """Have the owner's session report its counts: it would do so within ten seconds."""
    legacy.execute("SELECT pg_stat_force_next_flush()")


def asked(pair: Pair, name: str = "orders") -> dict[str, Any]:
    time.sleep(0.002)  # the least time between two questions
    activity: dict[str, Any] = json.loads(pair.said("status", "--ask", "--json", name))["activity"]
    return activity


def written(pair: Pair, statement: str) -> None:
    assert isinstance(pair.legacy, PostgresLegacy)
    pair.legacy.execute(statement)
    reported(pair.legacy)


def test_from_the_load_on(pair: Pair) -> None:
    assert asked(pair)["text"] == "not known: nothing is published yet"
    loaded, _ = pair.reports()
    assert asked(pair)["text"] == "unchanged since version 0"
    assert asked(pair, "seen")["text"].startswith("not known: it is a view")
    written(pair, "UPDATE orders SET v = 1 WHERE id <= 340")
    found = {"state": "changed", "rows": 340, "why": None}
    assert asked(pair) == {**found, "text": "about 340 rows changed since version 0"}
    refreshed = pair.refresh("orders")
    assert refreshed.rows_updated == 340
    before, after = from_json(loaded.activity), from_json(refreshed.activity)
    assert isinstance(before, CountedActivity)
    assert after == CountedActivity(before.identity, before.changes + 340)
    assert asked(pair)["text"] == "unchanged since version 1"
    # A refresh that finds nothing keeps the newer value with the same version.
    written(pair, "UPDATE orders SET v = v WHERE id = 5")
    assert asked(pair)["rows"] == 1
    assert pair.refresh("orders").version == 1
    assert asked(pair)["text"] == "unchanged since version 1"
    written(pair, "TRUNCATE orders")
    assert "count anew" in asked(pair)["why"]
    shown = [json.loads(line) for line in pair.said("status", "--ask", "--json").splitlines()]
    assert [one["activity"]["state"] for one in shown] == ["unknown", "unknown"]
    assert "orders: not known: the source has begun" in pair.said("status", "--ask")
    shown = [json.loads(line) for line in pair.said("status", "--json").splitlines()]
    assert [one["activity"] for one in shown] == [None, None]


def test_a_part_keeps_the_earlier_value_and_a_pass_that_of_its_first_tile(pair: Pair) -> None:
    pair.reports("orders")
    pair.fragment_lines["orders"] = 'require = "fuzzy"\nread_at_most = 1000'
    written(pair, "UPDATE orders SET v = 2 WHERE id <= 10")
    part = pair.refresh("orders")
    assert part.proof == "part"
    assert asked(pair)["rows"] == 10, "the part compared some rows only"
    tiles = "incremental = { rows = 1000, pause_s = 0.001 }"
    pair.fragment_lines["orders"] = f'require = "fuzzy"\n{tiles}'
    whole = pair.refresh("orders")
    assert whole.tiles is not None
    assert whole.proof == "total"
    version = head(pair.store, "orders")
    assert version is not None
    kept = Notes.read(pair.store, "orders").comparison(version).activity
    assert kept == from_json(whole.activity)
    assert asked(pair)["state"] == "unchanged"


def test_answers_that_refreshes_contradict_twice_count_as_nothing(pair: Pair) -> None:
    """A superuser's session that does not count: no probe can know."""
    pair.refresh("orders")
    pair.legacy.execute("SET track_counts = off")
    for number in range(1, 3):
        pair.legacy.execute("UPDATE orders SET v = ? WHERE id = 7", number)
        assert asked(pair)["state"] == "unchanged", "it lies, and nobody can know yet"
        assert pair.refresh("orders").rows_updated == 1
    assert contradictions(probes.refreshes(read(pair.store, "orders"))) == 1
    found = asked(pair)  # read after the second refresh
    assert found["state"] == "contradicted"
    assert "2 refreshes found changes" in found["why"]


def test_a_source_that_does_not_answer_now_is_no_error(pair: Pair) -> None:
    pair.refresh("orders")
    pair.limits = 'activity_seconds = "never"'
    pair.restart()
    assert asked(pair)["text"] == "not known: the source's DBA has switched it off"
    pair.limits = ""
    pair.restart()
    assert asked(pair)["state"] == "unchanged"
    assert "once in 60 s" in asked(pair)["why"]
    pair.stop()
    assert asked(pair)["state"] == "unknown"


def test_sqlite_in_both_modes(tmp_path: Path) -> None:
    for wal, texts in (
        (False, ["unchanged since version 0", "changed since version 0"]),
        (True, ["not known: the file is in WAL mode, which counts no changes"] * 2),
    ):
        legacy = SqliteLegacy(tmp_path / f"{wal}.db", wal=wal)
        legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL)")
        legacy.execute("INSERT INTO orders VALUES (1)")
        relations = {"orders": RELATIONS["orders"]}
        with Pair(NoSpark(), legacy, tmp_path / f"pair {wal}", relations) as made:
            made.small_bytes = 32 << 20
            made.limits = "activity_seconds = 0.001"
            made.restart()
            made.refresh("orders")
            said = [asked(made)["text"]]
            legacy.execute("INSERT INTO orders VALUES (2)")
            said.append(asked(made)["text"])
        legacy.close()
        assert said == texts


def test_a_table_that_cannot_be_read_stops_no_other(pair: Pair) -> None:
    pair.reports()
    (entry,) = sorted((pair.root / "seen" / "_delta_log").glob("*.json"))
    entry.write_bytes(b"{")
    words = ["--config", str(pair.warehouse_toml()), "status", "--ask", "--json"]
    ended = CliRunner().invoke(cli, words)
    (shown,) = [json.loads(line) for line in ended.stdout.splitlines() if '"error"' not in line]
    assert ended.exit_code == 3, ended.output
    assert (shown["name"], shown["activity"]["state"]) == ("orders", "unchanged")
