"""What audits of a marker say, and that nothing but a confirmation lifts a refusal.

Both agents run in this process, on SQLite.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from driftline.errors import ProofFailed

from source_agent.scan import marked
from tests.harness.legacy import SqliteLegacy
from tests.pair.since.rig import Stock, counts, used
from warehouse_agent.methods import registry
from warehouse_agent.methods.full_copy import WholeCopy
from warehouse_agent.methods.ranges import RangeDigests
from warehouse_agent.refresh import finish
from warehouse_agent.refresh.job import Options

STALLED = "more keys differ than a refresh by the marker finds cheaply"


@pytest.fixture
def refused(local: Stock) -> Stock:
    """Return a table whose marker is refused after two audits with misses."""
    local.refresh()
    for amount in (1000, 1001):
        local.update([30], amount, honest=False)
        local.fragment('audit = "1s"')
        found = local.refresh_when_due()
        assert found.audit is not None
        assert found.audit["missed"] == 1
    local.fragment()
    expect_refused(local)
    return local


def expect_refused(stock: Stock) -> None:
    """Refresh; the marker is not used, because audits in a row found misses."""
    found = stock.refresh()
    assert found.audit is not None
    assert (found.proof, used(found)["used"], found.audit["in_row"]) == ("total", False, 2)
    assert "--trust-marker" in str(used(found)["why"])
    stock.check()


def test_another_file_lifts_no_refusal(refused: Stock, file: Path) -> None:
    refused.pair.stop()
    refused.legacy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    refused.legacy.close()
    shutil.copy(file, file.with_name("copy.db"))
    os.replace(file.with_name("copy.db"), file)
    refused.legacy = SqliteLegacy(file)
    refused.pair.serve()
    expect_no_audit(refused, why="another database")


def expect_no_audit(stock: Stock, *, why: str, options: Options | None = None) -> None:
    """Refresh with a miss that nobody counts, because the mark cannot be used; still refused."""
    stock.update([33], 5555, honest=False)
    found = stock.refresh(options)
    assert found.audit is not None
    assert (found.proof, counts(found), used(found)["audited"]) == ("total", (0, 1, 0), False)
    assert why in str(used(found)["why"])
    assert (found.audit["missed"], found.audit["in_row"]) == (0, 2)
    expect_refused(stock)


def test_a_deleted_newest_row_lifts_no_refusal(refused: Stock) -> None:
    refused.legacy.execute("DELETE FROM stock WHERE version = (SELECT max(version) FROM stock)")
    refused.update([33], 5555, honest=False)
    found = refused.refresh()
    assert found.audit is not None
    assert (counts(found), used(found)["audited"]) == ((0, 1, 1), False)
    assert "later than" in str(used(found)["why"])
    expect_refused(refused)


def test_accepted_columns_lift_no_refusal(refused: Stock) -> None:
    why = "the columns or rows of the relation changed"
    expect_no_audit(refused, why=why, options=Options(accept_schema=True))


def test_another_marker_lifts_no_refusal_and_a_confirmation_does(refused: Stock) -> None:
    refused.mark('{ column = "updated_at", late = "1m", zone = "UTC" }')
    expect_no_audit(refused, why="the source's DBA changed the marker")
    trusted = refused.refresh(Options(trust_marker=True))
    assert used(trusted)["used"] is True
    assert used(refused.refresh())["used"] is True


def test_a_failed_proof_lifts_no_refusal(refused: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    prove, failed = finish._prove, list[bool]()

    def fail_once(*given: object) -> None:
        if not failed:
            failed.append(True)
            raise ProofFailed("a test lets it fail")
        prove(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(finish, "_prove", fail_once)
    refused.update([33], 5555, honest=False)
    found = refused.pair.refresh("stock", attempts=2)
    assert (found.proof, used(found)["audited"]) == ("total", False)
    assert used(found)["why"] == "the proof of another attempt failed"
    expect_refused(refused)


def test_misses_of_an_audit_are_told_once(local: Stock) -> None:
    local.refresh()
    local.update([30, 33], 7, honest=False)
    local.fragment('audit = "1s"')
    local.make_due()
    assert "the marker had missed 2 changed rows" in local.pair.said("refresh")
    local.update([36], 8, honest=False)
    heard = local.pair.heard("--accept-schema")
    found = heard.report
    assert found.audit is not None
    assert (counts(found), found.audit["missed"]) == ((0, 1, 0), 2)
    assert "had missed" not in heard.out


def test_a_sample_without_a_miss_clears_no_earlier_audit(
    local: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full copy sends all rows, of which the source names a few."""
    local.refresh()
    local.update([30], 999, honest=False)
    local.fragment('audit = "1s"')
    assert (local.refresh_when_due().audit or {})["in_row"] == 1
    local.pair.fragment_lines["stock"] = 'proof = "keys"\nmethod = "full"\n'
    monkeypatch.setattr(marked, "UNMARKED_ROWS_MAX", 100)
    local.update([33], 8)
    heard = local.pair.heard()
    found = heard.report
    assert found.audit is not None
    assert (found.audit["missed"], found.audit["in_row"]) == (0, 1)
    assert found.audit["is_sample"] is True
    assert "in a sample of the rows, the marker had missed none" in heard.out
    # Half of all rows, so that some of them are among the named ones.
    local.legacy.execute("UPDATE stock SET amount = amount + 1000 WHERE id % 2 = 0")
    heard = local.pair.heard()
    found = heard.report
    assert found.audit is not None
    assert (found.audit["missed"] > 100, found.audit["in_row"]) == (True, 2)
    assert "the marker had missed about" in heard.out
    monkeypatch.undo()
    trusted = local.refresh(Options(trust_marker=True))
    assert trusted.audit is not None
    assert (trusted.audit["missed"], trusted.audit["in_row"]) == (0, 0)
    assert trusted.audit["is_sample"] is False


def test_a_refresh_by_the_marker_that_cannot_go_on_is_an_audit(
    local: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many keys differ, so all rows are compared: what the marker missed is counted."""
    monkeypatch.setattr(registry, "CONTINUATIONS", (RangeDigests(), WholeCopy()))
    local.refresh()
    local.update([30], 999, honest=False)
    local.fragment('audit = "1s"')
    first = local.refresh_when_due()
    assert first.audit is not None
    assert first.audit["in_row"] == 1
    local.fragment()
    local.update([33, 36, 39], 4242, honest=False)
    local.delete([k * 3 for k in range(100, 380)])
    local.insert([k * 3 + 1 for k in range(400)])
    found = local.refresh()
    assert found.audit is not None
    assert (found.proof, counts(found)) == ("total", (400, 3, 280))
    assert used(found)["why"] == STALLED
    assert (found.audit["missed"], found.audit["in_row"]) == (3, 2)
    assert sorted(found.audit["keys"]) == ["33", "36", "39"]
    expect_refused(local)
