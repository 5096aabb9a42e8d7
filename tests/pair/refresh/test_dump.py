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

from source_agent.checks.total import read_receipt, total
from source_agent.config.file import load
from source_agent.engines.registry import connect
from tests.harness.legacy_dump import DumpFolder
from tests.harness.pair import Pair
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.views.inputs import load as load_warehouse
from warehouse_agent.views.selection import select
from warehouse_agent.visible_versions.readers import at

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


@pytest.mark.parametrize("method", ["sketch", "range", "group", "full"])
def test_every_method_proves_and_has_a_receipt(
    pair: Pair, folder: DumpFolder, method: str, tmp_path: Path
) -> None:
    """All rows are compared (`proof` is of all rows), and the DBA finds the total in her file."""
    rows: Rows = {i: account(i) for i in range(2000)}
    folder.deliver("accounts", rows.values())
    pair.refresh()
    del rows[7]
    rows |= {8: account(8, "changed"), 5000: account(5000)}
    folder.deliver("accounts", rows.values())
    pair.fragment_lines["accounts"] = f'method = "{method}"'
    report = pair.refresh()
    assert (report.version, report.method, report.proof) == (1, method, "total")
    pair.check("accounts")
    pair.check_feed("accounts", 1)

    receipt = tmp_path / "receipt.json"
    ended = command("receipt", "accounts", "--output", str(receipt), config=pair.warehouse_toml())
    assert ended.code == 0, ended.err
    assert is_equal(pair, receipt)
    del rows[9]
    folder.deliver("accounts", rows.values())
    assert not is_equal(pair, receipt)


def is_equal(pair: Pair, receipt: Path) -> bool:
    """The DBA's side of a receipt."""
    config = load(pair.source_toml())
    engine = connect(config.database.url, None, config.database.limits)
    return total(config, engine, read_receipt(receipt)).equal


def test_a_view_has_its_columns_and_rows_chosen_at_the_folder(
    pair: Pair, folder: DumpFolder
) -> None:
    view = (
        "SELECT a.id, a.balance FROM erp.accounts a"
        " WHERE a.n = 3 AND a.balance >= 10.00 AND a.opened < DATE '2004-01-01'"
    )

    def expected() -> list[tuple[Any, ...]]:
        return sorted(
            (i, balance)
            for _, i, balance, opened, n in folder.rows("accounts")
            if n == 3 and balance is not None and balance >= 10 and opened < dt.date(2004, 1, 1)
        )

    lines = folder.toml("accounts", ["id"])
    pair.publish("accounts", f'{lines}\nderive = ["columns", "rows"]')
    toml = f'''[warehouse]
path = "{pair.root}"
{"" if pair.bucket is None else pair.bucket.toml}
[sources.erp]
address = "{pair.address}"
insecure = true
[views.rich]
query = """{view}"""
'''
    path = pair.folder / "views.toml"
    path.write_text(toml)
    rows: Rows = {i: account(i) for i in range(3000)}
    for changed in (0, 40):
        for i in range(changed):
            rows[i * 5 + 3] = (*account(i * 5 + 3, "changed")[:2], None, dt.date(2001, 1, 1), 3)
        folder.deliver("accounts", rows.values())
        config = load_warehouse(path)
        runner = Runner(pair.spark, config, attempts=1, sleep=lambda _: None)
        reports = {r.name: r for r in runner.refresh(select(config, (), True, ()), Options())}
        assert all(r.error is None for r in reports.values()), reports
        kept = reports["erp.accounts"]
        assert "the rows where" in str(kept.derived)
        assert kept.rows_total == len(expected()) > 100
        found = at(pair.spark, str(pair.root), None, storage=pair.storage).read("rich").collect()
        assert sorted(map(tuple, found)) == expected()
