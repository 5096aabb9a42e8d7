"""A folder of dump files through both agents: published equals what `csv` reads of the newest file.

The oracle shares nothing with the engine: see `DumpFolder.rows`.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy_dump import DumpFolder
from tests.harness.pair import Pair
from warehouse_agent.refresh.job import Options

TYPES = {"name": "text", "id": "int8", "balance": "numeric(12,2)", "opened": "date", "n": "int4"}
Rows = dict[int, tuple[Any, ...]]


def account(i: int, name: str = "") -> tuple[Any, ...]:
    opened = dt.date(2000, 1, 1) + dt.timedelta(days=i % 9000)
    note = name or random.Random(i).choice(["", 'a "b", c', "line\nbreak", "Ä", " x "])
    balance = None if i % 13 == 0 else Decimal(i * 7 - 900) / 100
    return (None if i % 11 == 0 else f"{note}{i}", i, balance, opened, i % 5)


@pytest.fixture
def folder(tmp_path: Path) -> DumpFolder:
    made = DumpFolder(tmp_path / "erp")
    made.describe("accounts", TYPES)
    return made


@pytest.fixture
def pair(spark: SparkSession, folder: DumpFolder, tmp_path: Path) -> Iterator[Pair]:
    relations = {"accounts": folder.toml("accounts", ["id"])}
    with Pair(spark, folder, tmp_path / "pair", relations) as made:
        yield made


def test_snapshots_are_loaded_and_refreshed(pair: Pair, folder: DumpFolder) -> None:
    rows: Rows = {i: account(i) for i in range(3000)}
    folder.deliver("accounts", rows.values())
    loaded = pair.refresh()
    assert (loaded.version, loaded.rows_total, loaded.consistency) == (0, 3000, "exact")
    pair.check("accounts")

    for i in range(1, 331, 11):
        rows[i] = account(i, "changed")
    for i in range(2980, 3000):
        del rows[i]
    rows |= {i: account(i) for i in range(-7, 0)}
    shuffled = list(rows.values())
    random.Random(1).shuffle(shuffled)
    folder.deliver("accounts", shuffled)
    folder.deliver("accounts", [], complete=False)  # a newer one that is still on its way
    refreshed = pair.refresh()
    changed = (refreshed.rows_inserted, refreshed.rows_updated, refreshed.rows_deleted)
    assert (refreshed.version, changed) == (1, (7, 30, 20))
    assert (loaded.as_of, refreshed.as_of) == (
        "2023-11-15T22:13:20.000Z",
        "2023-11-16T22:13:20.000Z",
    )
    pair.check("accounts")
    pair.check_feed("accounts", 1)
    assert pair.refresh().version == 1

    folder.deliver("accounts", shuffled[:1000])
    assert pair.error("accounts")["code"] == "SHRANK"
    assert pair.refresh(options=Options(allow_shrink=True)).rows_total == 1000
    pair.check("accounts")


def test_what_a_file_cannot_do_is_refused(pair: Pair, folder: DumpFolder) -> None:
    error = pair.error("accounts")
    assert error["code"] == "DATABASE_UNAVAILABLE"
    rows = [account(i) for i in range(500)]
    folder.deliver("accounts", [*rows, rows[7]])
    error = pair.error("accounts")
    assert error["code"] == "DUPLICATE_KEY"
    folder.deliver("accounts", [*rows, (None, None, None, dt.date(2000, 1, 1), 1)])
    assert pair.error("accounts")["code"] == "NULL_KEY"
    path = folder.deliver("accounts", [*rows, ("x", 501, "1,5", dt.date(2000, 1, 1), 1)])
    line = path.read_text().split("\n").index('x,501,"1,5",2000-01-01,1') + 1
    error = pair.error("accounts")
    assert (error["code"], f"line {line} " in error["message"]) == ("VALUE", True), error
    folder.deliver("accounts", rows)
    assert pair.refresh().rows_total == 500
    tiles = 'require = "fuzzy"\nincremental = { rows = 5000, pause_s = 0.01 }'
    for lines in (tiles, 'require = "fuzzy"\nread_at_most = 1000'):
        pair.fragment_lines["accounts"] = lines
        folder.deliver("accounts", [*rows[1:], account(900)])
        error = pair.error("accounts")
        assert error["code"] == "CONFIGURATION", lines
        assert "index" in error["message"], error
    pair.fragment_lines["accounts"] = 'method = "group"'
    assert pair.refresh().version == 1
    pair.check("accounts")
