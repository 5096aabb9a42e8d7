"""The requests that the history of a table says, beside those that a server counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.counted_requests import RequestCounter
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from warehouse_agent.history import refresh_history
from warehouse_agent.planning import step_places
from warehouse_agent.planning.request_cost import CHECKPOINT_VERSIONS
from warehouse_agent.storage.store import Store

ROWS = 400
KINDS = {"read": "get", "head": "head", "list": "list", "write": "put"}
OF_T = ("/fragments/t.", "/keys/t.", "/locks/t", "/runs/t.", "/schedule/t.", "/staging/t", "/t/")
LINE = "write /_driftline/runs/t.jsonl"  # an append; the read of it comes directly before
COMMAND_DELETES = 2  # of the record of the command and its lock; no path of a delete names a table


def is_of_table(place: str) -> bool:
    return any(part in place for part in OF_T)


def refreshed(pair: Pair, counter: RequestCounter, times: int) -> list[list[str]]:
    """Refresh so many times; return what the server was asked for in each."""
    assert pair.bucket is not None
    found = []
    for n in range(times):
        if n % 2:
            pair.legacy.execute(f"UPDATE t SET note = 'at {n}' WHERE id < 7")
        with counter.counted(pair.bucket) as seen:
            report = pair.refresh("t")
        assert report.requests is not None
        found.append(seen.places)
    return found


@pytest.mark.parametrize(
    ("place", "times"),
    [
        ("driver", 2 * CHECKPOINT_VERSIONS + 4),
        ("processes", 4),
        pytest.param("spark", 4, marks=pytest.mark.spark),
    ],
)
def test_the_history_says_what_the_server_counted(
    place: str,
    times: int,
    moto: Moto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """From one line to the next, which has the write of the line before."""
    if place == "processes":
        monkeypatch.setattr(step_places, "PROCESS_BYTES", 0)
    spark: SparkSession | NoSpark = NoSpark()
    if place == "spark":
        spark = request.getfixturevalue("spark")
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    with (
        RequestCounter(moto) as counter,
        Pair(spark, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as pair,
    ):
        pair.bucket = counter.bucket()
        pair.fragment_lines["t"] = 'method = "sketch"'
        if place == "spark":
            pair.small_bytes = 0
        seen = refreshed(pair, counter, times)
        known = refresh_history.read(Store.of(pair.config()), "t", None)
        shown = [line.spent.requests for line in reversed([*known.successes])]
        totals = known.totals.requests
    legacy.close()
    assert len(shown) == len(seen)
    said = [Counter(one) for one in shown if one is not None]
    assert len(said) == len(shown)
    ends = [max(i for i, asked in enumerate(one) if asked == LINE) - 1 for one in seen]
    before = [one[:end] for one, end in zip(seen, ends, strict=True)]
    after = [one[end:] for one, end in zip(seen, ends, strict=True)]
    for number, tail in enumerate([[], *after[:-1]]):
        asked = Counter(
            KINDS[one.split()[0]] for one in (*tail, *before[number]) if is_of_table(one)
        )
        assert +Counter({k: n for k, n in said[number].items() if k != "delete"}) == asked, number
    for number, one in enumerate(seen[1:], start=1):
        deletes = sum(asked.startswith("remove ") for asked in one)
        assert said[number]["delete"] + COMMAND_DELETES == deletes, number
    assert totals == sum(one.total() for one in said)
