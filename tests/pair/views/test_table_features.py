"""Columns whose types need a table feature, in kept tables and in views that were there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.views import Sites
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats

pytestmark = pytest.mark.spark

LINES = 'table = "orders"\nderive = ["columns"]\ntypes = { seen = "timestamp" }'
DECLARED = ["timestampNtz"]


@pytest.mark.parametrize("small_bytes", [None, 0], ids=["here", "on Spark"])
def test_a_second_view_needs_the_moments_of_a_kept_table(
    spark: SparkSession, tmp_path: Path, small_bytes: int | None
) -> None:
    """Then the first one shows them as well, and its table, too, was left unreadable once."""
    tables = {"erp": {"orders": "id INTEGER PRIMARY KEY, amount INT, seen TIMESTAMP"}}
    views = {"amounts": "SELECT o.id, o.amount FROM erp.orders o"}
    with Sites(spark, tmp_path, tables, views) as made:
        made.small_bytes = made.small_bytes if small_bytes is None else small_bytes
        made.pairs["erp"].publish("orders", LINES)
        for i in range(40):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?, '2024-10-27 02:30:00')", i, i)
        made.well()
        kept = made.delta(made.store.folder("erp.orders"))
        assert kept.protocol().reader_features is None
        made.views["moments"] = "SELECT o.id, o.seen FROM erp.orders o WHERE o.amount > 3"
        made.well()
        made.check()
        kept = made.delta(made.store.folder("erp.orders"))
        assert (kept.version(), kept.protocol().reader_features) == (1, DECLARED)
        made.views["amounts"] = "SELECT o.id, o.amount, o.seen FROM erp.orders o"
        made.well(options=Options(accept_schema=True))
        made.check()
        assert made.delta(made.store.folder("amounts")).protocol().reader_features == DECLARED
        _undeclare(made, "amounts")
        made.sql("erp", "UPDATE orders SET amount = amount + 1 WHERE id < 9")
        assert formats.head(made.store, "erp.orders") is not None
        made.well()
        made.check()
        newest = formats.view_head(made.store, "amounts")
        assert newest is not None
        assert newest.version == 2


def _undeclare(made: Sites, view: str) -> None:
    """Take from the newest entry of a view what an older release left out."""
    entry = max((made.root / made.store.folder(view) / "_delta_log").glob("*.json"))
    lines = entry.read_bytes().splitlines(keepends=True)
    left = [line for line in lines if not line.startswith(b'{"protocol"')]
    assert len(left) == len(lines) - 1
    entry.write_bytes(b"".join(left))
