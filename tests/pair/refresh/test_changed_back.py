"""Rows that an attempt staged before it failed, and that the source has changed back since.

The next refresh takes them up, finds the source as it was published, and publishes no version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.refresh import finish
from warehouse_agent.storage.store import PRIVATE

ROWS = 900
RELATIONS = {"t": 'table = "t"\nkey = ["code"]'}
METHODS = ("range", "sketch", "full")


@pytest.fixture(params=METHODS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with closing(SqliteLegacy(tmp_path / "erp.db")) as legacy:
        legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, code TEXT NOT NULL, note TEXT)")
        legacy.many(
            "INSERT INTO t VALUES (?, ?, ?)", [(i, f"c{i}", f"note {i}") for i in range(ROWS)]
        )
        with Pair(NoSpark(), legacy, tmp_path / "pair", RELATIONS) as made:
            made.small_bytes = 64 << 20
            made.fragment_lines["t"] = f'method = "{request.param}"'
            made.refresh("t")
            yield made


def two_rows_of_a_key(pair: Pair, _: pytest.MonkeyPatch) -> str:
    pair.legacy.execute("UPDATE t SET code = 'c7' WHERE id = 9")
    pair.legacy.execute("UPDATE t SET note = 'new' WHERE id = 80")
    return str(pair.error("t")["code"])


def full_disk(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> str:
    pair.legacy.execute("UPDATE t SET note = 'new' WHERE id IN (9, 80)")
    pair.legacy.execute("DELETE FROM t WHERE id = 5")
    pair.legacy.execute("INSERT INTO t VALUES (5000, 'c5000', 'new')")

    def full(*_: object) -> Any:
        raise WarehouseUnavailable("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(finish, "_apply", full)
        return str(pair.error("t")["code"])


def change_back(pair: Pair) -> None:
    pair.legacy.execute("DELETE FROM t WHERE id = 5000")
    pair.legacy.execute("INSERT OR IGNORE INTO t VALUES (5, 'c5', 'note 5')")
    pair.legacy.execute("UPDATE t SET code = 'c' || id, note = 'note ' || id")


@pytest.mark.parametrize("fails", [two_rows_of_a_key, full_disk], ids=lambda f: f.__name__)
def test_nothing_is_published(
    pair: Pair, fails: Callable[[Pair, pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = fails(pair, monkeypatch)
    assert code == ("DUPLICATE_KEY" if fails is two_rows_of_a_key else "WAREHOUSE")
    change_back(pair)
    feeds = set((pair.root / PRIVATE / "changes").rglob("*.parquet"))  # of the attempt that failed
    before = pair.refresh("t")
    assert before.version == 0
    assert (before.rows_inserted, before.rows_updated, before.rows_deleted) == (0, 0, 0)
    pair.check("t")
    assert set((pair.root / PRIVATE / "changes").rglob("*.parquet")) == feeds
    pair.legacy.execute("UPDATE t SET note = 'later' WHERE id = 80")
    after = pair.refresh("t")
    assert (after.version, after.rows_updated) == (1, 1)
    pair.check("t")
    pair.check_feed("t", 1)
