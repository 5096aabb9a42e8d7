"""Metrics of a warehouse in a bucket: three requests a command, whatever is configured."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.harness.counted_requests import RequestCounter
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from tests.harness.prometheus import numbers, of_table
from warehouse_agent.history import refresh_history
from warehouse_agent.monitoring import metrics

NAMES = ("a", "b", "c")


@pytest.fixture
def counter(moto: Moto) -> Iterator[RequestCounter]:
    with RequestCounter(moto) as made:
        yield made


def test_a_command_lists_reads_and_writes_once(counter: RequestCounter, tmp_path: Path) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in NAMES:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        legacy.many(f"INSERT INTO {name} VALUES (?, ?)", [(n, str(n)) for n in range(9)])
    relations = {name: f'table = "{name}"' for name in NAMES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as pair:
        pair.bucket = counter.bucket()
        config, store = pair.config(), pair.store
        metrics.page(config, store, pair.reports(), datetime.now(UTC))
        reports = pair.reports("a", "b")
        with counter.counted(pair.bucket) as found:
            page = metrics.page(config, store, reports, datetime.now(UTC))
        assert sorted(place.partition(" ")[0] for place in found.places) == [
            "list",
            "read",
            "write",
        ]
        for name in NAMES:
            totals = refresh_history.read(store, name).totals
            told = of_table(numbers(page), name, "refreshes_total")
            assert told == {(): totals.refreshes} == {(): 1 if name == "c" else 2}
    legacy.close()
