"""Everything that is said of a fragment between its audits says `claimed`, and a flip ends it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.legacy import Legacy
from tests.pair.since.rig import Stock, by_time, now, used
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.report import Report, utc_at
from warehouse_agent.storage.formats import head
from warehouse_agent.visible_versions import freshness_table

FLAG = ', deleted = "gone"'
ROWS = 200
MANY = 3000  # of which a part is compared
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


@pytest.fixture
def stock(legacy: Legacy, tmp_path: Path) -> Iterator[Stock]:
    """Yield a fragment that accepts claims, whose table has a flag of deleted rows."""
    made = Stock(legacy, tmp_path / "pair", by_time(legacy, FLAG), rows=ROWS, proof="claimed")
    yield made
    made.pair.stop()


def state(stock: Stock) -> str | None:
    return fragment_state(stock.pair.store, "stock").proof


def flip(stock: Stock, proof: str) -> Report:
    """Accept another proof, and refresh."""
    method = "" if proof == "total" else 'method = "since"\n'
    stock.pair.fragment_lines["stock"] = f'proof = "{proof}"\n{method}'
    found = stock.refresh()
    assert found.proof == state(stock)
    return found


def test_flips_of_the_proof(stock: Stock) -> None:
    """No proof outlives the comparison that it is of."""
    stock.refresh()
    lie = iter(range(3, 3 * ROWS, 3))
    for proofs in ("claimed total", "claimed keys claimed total", "total claimed keys total"):
        for proof in proofs.split():
            stock.update([key := next(lie)], 1000, honest=False)
            stock.update([next(lie)], 2000)
            stock.delete([next(lie)])
            found = flip(stock, proof)
            # A mark that was given up while all rows were compared is made anew by a comparison.
            assert found.proof in {proof, "total"}, proofs
            if found.proof == "total":
                stock.check("NOT gone")
            else:
                assert stock.ours()[key][1] != 1000
    assert found.proof == "total"


@pytest.mark.parametrize("has_changes", [False, True])
def test_a_part_after_claims_is_claimed(stock: Stock, *, has_changes: bool) -> None:
    """Rows that a part leaves are those of the version, whose instant was only claimed."""
    stock.insert([3 * row for row in range(ROWS, MANY)])
    stock.refresh()
    stock.update([3], 1000, honest=False)
    assert stock.refresh().proof == "claimed"
    if has_changes:
        stock.update([3 * row for row in range(MANY)], 3000)
    stock.pair.fragment_lines["stock"] = (
        'proof = "part"\nrequire = "fuzzy"\nread_at_most = 1000\nmethod = "group"\n'
    )
    part = stock.refresh()
    snapshot = head(stock.pair.store, "stock")
    assert snapshot is not None
    assert part.rows_left, "rows were left"
    assert part.rows_updated or not has_changes
    said = {part.proof, state(stock)}
    if part.version != part.previous_version:
        said.add(snapshot.record.proof)
    assert said == {"claimed"}
    assert flip(stock, "total").proof == "total"
    stock.check("NOT gone")


def test_another_declaration_of_deletes_compares_all_rows(stock: Stock) -> None:
    at = now(stock.legacy)
    stock.refresh()
    stock.legacy.many("UPDATE stock SET gone = TRUE, updated_at = ? WHERE id = ?", [(at, 3)])
    assert stock.refresh().proof == "claimed"
    assert 3 not in stock.ours()
    for marker in (by_time(stock.legacy, ', deletes = "never"'), by_time(stock.legacy, FLAG)):
        stock.mark(marker)
        found = stock.refresh()
        assert (found.proof, used(found)["used"]) == ("total", False)
        assert "which rows the relation has" in used(found)["why"]
        stock.check("" if "never" in marker else "NOT gone")
        assert stock.refresh().proof == "claimed"
    stock.mark(by_time(stock.legacy, FLAG), 'where = "amount < 90"')
    assert stock.refresh().proof == "total"


def test_files_that_are_verified_and_repaired(stock: Stock) -> None:
    """`verify` reads values, and compares nothing; rows that are lost come from a comparison."""
    stock.refresh()
    stock.update([3], 1000)
    assert stock.refresh().proof == "claimed"
    (verified,) = json.loads(f"[{stock.pair.said('verify', '--json')}]")
    assert verified["proof"] == "values"
    assert state(stock) == "claimed"
    stock.update([6], 1000, honest=False)
    snapshot = head(stock.pair.store, "stock")
    assert snapshot is not None
    stock.pair.place(snapshot.files[0].uri).unlink()
    stock.pair.said("verify", "--repair")
    assert state(stock) == "total"
    stock.check("NOT gone")
    stock.pair.said("verify")


def test_all_that_watches_says_claimed(stock: Stock, tmp_path: Path) -> None:
    metrics, told = tmp_path / "metrics.prom", tmp_path / "told"
    stock.pair.warehouse_lines = (
        f'[metrics]\ntextfile = "{metrics}"\n'
        f'[notify]\ncommand = ["/bin/sh", "-c", "cat >> {told}"]\n'
    )
    stock.fragment('interval_max = "1h"')
    stock.pair.said("refresh")
    notes = json.loads(stock.notes.read_text())
    notes["checked"]["checked_at"] = compared_at = utc_at(time.time() - 600)
    stock.notes.write_text(json.dumps(notes))
    for keys in ([], [3]):  # no change, then one
        stock.update(keys, 1000)
        (report,) = json.loads(f"[{stock.pair.said('refresh', '--json')}]")
        assert (report["proof"], report["checked_at"]) == ("claimed", compared_at)
        assert report["refreshed_at"] > compared_at
        _, rows = freshness_table._newest(stock.pair.store)
        row = rows["stock"]
        assert row.checked_at == datetime.fromisoformat(compared_at)
        assert (row.proof, row.state) == ("claimed", "ok")
        assert row.last_success_at is not None
        assert row.last_success_at > row.checked_at
        (line,) = re.findall(r"driftline_proof\{(.*)\} 1\.0", metrics.read_text())
        assert 'proof="claimed"' in line
        stock.pair.said("report", "--output", str(tmp_path / "pages"))
        for page in ("index.html", "tables/stock.html"):
            assert "claimed" in (tmp_path / "pages" / page).read_text()
    assert "proof: claimed, as of" in stock.pair.said("history", "stock")
    receipt = tmp_path / "receipt.json"
    stock.pair.said("receipt", "stock", "--output", str(receipt))
    assert json.loads(receipt.read_text())["proven"]["proof"] == "claimed"
    assert not told.exists(), "nothing is stale, and nothing failed"


def test_what_is_due_and_what_is_late(stock: Stock) -> None:
    """By the refreshes, not by the comparisons."""
    stock.fragment('interval_max = "1h"')
    stock.refresh()
    assert stock.refresh().proof == "claimed"
    notes = json.loads(stock.notes.read_text())
    notes["checked"]["checked_at"] = utc_at(time.time() - 9 * 3600)
    stock.notes.write_text(json.dumps(notes))
    stock.update([3], 1000)
    assert stock.refresh().proof == "claimed"
    due = json.loads(stock.pair.said("schedule", "--json"))["at"]
    assert datetime.fromisoformat(due).timestamp() > time.time() + 600
