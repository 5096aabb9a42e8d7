"""What an attempt staged that published nothing, and the refresh by a marker that follows.

A refresh by a marker compares keys alone: rows that came from elsewhere would stay as they are.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.pair.since.rig import STOCK, TYPES, Stock, counts, used
from warehouse_agent.history import forecast_inputs
from warehouse_agent.refresh.job import Options

_TEST_TABLE = STOCK.format(**TYPES["sqlite"]).replace("stock", "stock_test", 1)
_TEST_ROWS = "INSERT INTO stock_test SELECT * FROM stock WHERE id < 600"
_STALE = ("UPDATE stock SET amount = -1 WHERE id < 600", "DELETE FROM stock WHERE id >= 600")


def refuse_shrunk(stock: Stock) -> None:
    """Refresh from a source with less than half of the rows, which are staged all the same."""
    assert stock.pair.error("stock")["code"] == "SHRANK"
    assert staged(stock) > 0


def staged(stock: Stock) -> int:
    place = stock.pair.root / "_driftline" / "staging" / "stock"
    return len([*place.rglob("*.frames")])


def test_rows_of_a_relation_that_was_configured_by_mistake_are_not_published(local: Stock) -> None:
    local.legacy.execute(_TEST_TABLE)
    local.legacy.execute(_TEST_ROWS)
    local.legacy.execute("UPDATE stock_test SET amount = amount + 7000")
    local.pair.publish("stock_test", 'table = "stock_test"')
    local.refresh()
    local.fragment('relation = "stock_test"')
    refuse_shrunk(local)
    local.fragment()
    local.update([30], 5)
    found = local.refresh()
    assert (found.proof, counts(found), used(found)["used"]) == ("keys", (0, 1, 0), True)
    local.check()


def test_rows_of_a_stale_copy_are_not_published(local: Stock, file: Path) -> None:
    """A copy of the database is served for one refresh, then the database itself again."""
    local.refresh()
    real, stale = file.with_name("real.db"), file.with_name("stale.db")
    serve_copy(local, file, stale)
    refuse_shrunk(local)
    local.pair.stop()
    file.rename(stale)
    real.rename(file)
    local.pair.serve()
    local.legacy = SqliteLegacy(file)
    found = local.refresh()
    assert (found.proof, counts(found), used(found)["used"]) == ("keys", (0, 0, 0), True)
    local.check()


def serve_copy(stock: Stock, file: Path, stale: Path) -> None:
    """Serve a copy with other values and fewer rows; the database itself becomes `real.db`."""
    stock.legacy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(file, stale)
    writer = sqlite3.connect(stale)
    for statement in _STALE:
        writer.execute(statement)
    writer.commit()
    writer.close()
    stock.pair.stop()
    stock.legacy.close()
    file.rename(file.with_name("real.db"))
    stale.rename(file)
    stock.pair.serve()


def test_an_audit_that_was_cut_counts_its_misses_when_it_is_repeated(local: Stock) -> None:
    local.refresh()
    local.update([1500, 1503], 4242, honest=False)
    local.delete([k * 3 for k in range(400)])
    local.fragment('audit = "1s"')
    local.make_due()
    refuse_shrunk(local)
    found = local.refresh(Options(allow_shrink=True))
    assert found.audit is not None
    assert (found.proof, counts(found)) == ("total", (0, 2, 400))
    assert (found.audit["missed"], found.audit["in_row"]) == (2, 1)
    assert sorted(found.audit["keys"]) == ["1500", "1503"]
    local.check()


def test_many_staged_rows_are_kept_and_all_rows_compared(
    local: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a refresh that the line cuts again and again would never end."""
    local.refresh()
    local.update([1500, 1503], 4242, honest=False)
    local.delete([k * 3 for k in range(400)])
    local.fragment('audit = "1s"')
    local.make_due()
    refuse_shrunk(local)
    monkeypatch.setattr(forecast_inputs, "AGAIN_BYTES", 0)
    found = local.refresh(Options(allow_shrink=True))
    assert (found.proof, used(found)["rows"]) == ("total", 0)
    assert used(found)["why"] == "rows that a cut exchange staged are compared again"
    assert staged(local) == 0
    local.check()
