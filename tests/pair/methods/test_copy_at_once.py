"""A table whose rows all change, refresh after refresh: both agents, without a scan to say so.

Which refreshes do it is decided in `tests/warehouse_agent/planning/test_copy_at_once.py`. Here the
line has notes of 100 ms and 10 Mbit/s, and bytes, scans and round trips are asserted, no seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.report import Report
from warehouse_agent.storage import formats

ROWS = 12_000
KNOWS = 3  # refreshes of as many changes
RTT_S, BYTES_PER_S = 0.1, 1.25e6


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute(
        "CREATE TABLE lines (code TEXT, line INTEGER, note TEXT, price INTEGER NOT NULL,"
        " PRIMARY KEY (code, line))"
    )
    rows = [(f"Ä{i // 4}", i % 4, f"{i * 7919 % 100_003}", i) for i in range(ROWS)]
    legacy.many("INSERT INTO lines VALUES (?, ?, ?, ?)", rows)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"lines": 'table = "lines"'}) as made:
        yield made
    legacy.close()


def refresh(pair: Pair) -> Report:
    """Refresh over a line that seems to be slow, whatever was measured."""
    address = pair.config().sources["erp"].address
    noted = {"address": address, "rtt_s": RTT_S, "rtt_at": time.time(), "bytes_per_s": BYTES_PER_S}
    place = pair.root / "_driftline/sources/erp.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(noted))
    return pair.refresh("lines")


def change_all(pair: Pair, by: int) -> None:
    pair.legacy.many("UPDATE lines SET price = price + ?", [(by,)])


def learn(pair: Pair) -> list[Report]:
    """Load, and refresh until all rows are expected to change."""
    refresh(pair)
    found = []
    for by in range(1, KNOWS + 1):
        change_all(pair, by)
        found.append(refresh(pair))
    return found


def test_what_is_expected_to_change_as_a_whole_is_read_once(pair: Pair) -> None:
    first, *_ = learn(pair)
    assert (first.method, first.source_scans, first.round_trips) == ("full", 2, 2)
    change_all(pair, 100)
    copied = refresh(pair)
    assert (copied.method, copied.source_scans, copied.round_trips) == ("full", 1, 1)
    assert (copied.rows_updated, copied.rows_total, copied.proof) == (ROWS, ROWS, "total")
    assert copied.source_rows_read == ROWS
    sent, copy = copied.bytes_sent + copied.bytes_received, first.bytes_received
    assert sent <= 1.05 * copy
    assert copied.predicted is not None
    assert copied.modelled is not None
    assert copied.predicted["what"] == copied.modelled["what"] == "full copy"
    assert sent == pytest.approx(copied.modelled["bytes"], rel=0.15)
    pair.check("lines")
    pair.check_feed("lines", copied.version or 0)


def test_a_copy_that_brings_nothing_new_publishes_nothing(pair: Pair) -> None:
    *_, last = learn(pair)
    quiet = refresh(pair)
    assert (quiet.source_scans, quiet.round_trips) == (1, 1)
    assert (quiet.version, quiet.rows_changed) == (last.version, 0)
    assert quiet.bytes_rewritten == 0
    pair.check("lines")


def test_some_of_the_rows_changed_after_all(pair: Pair) -> None:
    """The rest keep their statistics: what changed is what the feed says."""
    learn(pair)
    pair.legacy.many("UPDATE lines SET price = 0 WHERE line = ?", [(1,)])
    pair.legacy.many("DELETE FROM lines WHERE code = ?", [("Ä7",)])
    pair.legacy.many("INSERT INTO lines VALUES (?, ?, ?, ?)", [("new", 1, "", 5)])
    found = refresh(pair)
    assert (found.method, found.source_scans) == ("full", 1)
    changed = (found.rows_inserted, found.rows_updated, found.rows_deleted)
    assert changed == (1, ROWS // 4 - 1, 4)
    pair.check("lines")
    pair.check_feed("lines", found.version or 0)


def test_rows_that_a_cut_copy_staged_are_not_sent_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(pair)
    change_all(pair, 1000)

    def fails(*_: object, **__: object) -> None:
        raise WarehouseUnavailable("cut")

    with monkeypatch.context() as patch:
        patch.setattr(formats, "commit", fails)
        pair.error("lines")
    found = refresh(pair)
    assert (found.rows_updated, found.rows_total) == (ROWS, ROWS)
    assert found.bytes_received < 2_000
    pair.check("lines")
