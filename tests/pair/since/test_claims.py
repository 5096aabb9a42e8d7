"""Refreshes by a marker that is claimed: between audits no key is compared.

The random histories have writers that lie in every way: updates, inserts and deletes that no marker
shows. No version may say more than `claimed`, and the next audit has to find each lie.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy
from tests.pair.since.rig import OLD, Stock, by_time, counts, now, used
from warehouse_agent.history import refresh_history
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import utc_at
from warehouse_agent.storage.formats import head

FLAG, NEVER = ', deleted = "gone"', ', deletes = "never"'
HISTORIES = 1_000  # of a soak
SAMPLE = 6
ROWS = 60
SEEDS = [
    *range(SAMPLE),
    *(pytest.param(s, marks=pytest.mark.soak) for s in range(SAMPLE, HISTORIES)),
]


@pytest.fixture
def stock(legacy: Legacy, tmp_path: Path) -> Iterator[Stock]:
    """Yield the table on every engine, with a flag of deleted rows, of a fragment that accepts
    claims."""
    made = Stock(legacy, tmp_path / "pair", by_time(legacy, FLAG), rows=ROWS, proof="claimed")
    yield made
    made.pair.stop()


def flag(stock: Stock, keys: list[int]) -> None:
    """Delete rows as an honest writer does: by the flag, with the time."""
    at = now(stock.legacy)
    sql = "UPDATE stock SET gone = TRUE, updated_at = ? WHERE id = ?"
    stock.legacy.many(sql, [(at, key) for key in keys])


def insert(stock: Stock, keys: list[int]) -> None:
    """Insert rows as an honest writer does."""
    rows = [(key, 1, "new", now(stock.legacy), 0, False) for key in keys]
    stock.legacy.many("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?)", rows)


def refused(stock: Stock, code: str) -> str:
    """Return why a refresh is refused."""
    error = stock.pair.error("stock")
    assert error["code"] == code
    return f"{error['message']}"


def test_what_the_marker_claims_is_published(stock: Stock) -> None:
    first = stock.refresh()
    assert first.proof == "total"
    stock.update([3, 6], 1000)
    insert(stock, [1, 2])
    flag(stock, [9, 12, 15])
    found = stock.refresh()
    assert (found.proof, counts(found)) == ("claimed", (2, 2, 3))
    assert (found.miss_probability, used(found)["rows"]) == (None, 4)
    assert found.source_rows_read == 7, "no other row, and no key"
    stock.check("NOT gone")
    heard = stock.pair.heard()
    assert heard.report.proof == "claimed"
    assert "is claimed, not proven" in heard.out


def test_the_instant_advances_and_the_check_does_not(stock: Stock) -> None:
    first = stock.refresh()
    same = stock.refresh()
    assert (same.version, same.proof) == (first.version, "claimed")
    assert first.as_of is not None
    assert same.as_of is not None
    assert same.as_of > first.as_of
    stock.update([3], 1000)
    next_one = stock.refresh()
    assert next_one.checked_at == same.checked_at == first.checked_at
    status = json.loads(stock.pair.said("status", "--json"))
    assert (status["proof"], status["checked_at"]) == ("claimed", first.checked_at)
    assert status["as_of"] == next_one.as_of
    assert "nothing was compared since" in stock.pair.said("status")
    assert "proof: claimed, as of" in stock.pair.said("history", "stock")
    snapshot = head(stock.pair.store, "stock")
    assert snapshot is not None
    assert (snapshot.record.proof, snapshot.record.checked_at) == ("claimed", first.checked_at)


def test_a_refresh_by_claims_is_a_refresh(stock: Stock) -> None:
    """Else its fragment would be due again at once, and late for ever."""
    stock.fragment('interval_max = "1h"')
    stock.refresh()
    assert stock.refresh().proof == "claimed"
    notes = json.loads(stock.notes.read_text())
    notes["checked"]["checked_at"] = long_ago = utc_at(time.time() - 3 * 3600)
    stock.notes.write_text(json.dumps(notes))
    stock.update([3], 1000)
    found = stock.refresh()
    assert (found.proof, found.checked_at) == ("claimed", long_ago)
    refreshed_at = refresh_history.read(stock.pair.store, "stock").refreshed_at
    assert refreshed_at is not None
    assert time.time() - refreshed_at.timestamp() < 600
    status = json.loads(stock.pair.said("status", "--json"))
    assert (status["state"], status["late_s"], status["checked_at"]) == ("ok", None, long_ago)
    due = json.loads(stock.pair.said("schedule", "--json"))["at"]
    assert datetime.fromisoformat(due).timestamp() > time.time() + 600


def test_an_audit_says_since_when_versions_may_be_wrong(stock: Stock) -> None:
    first = stock.refresh()
    stock.update([3], 1000, honest=False)
    stock.delete([6])
    stock.insert([1])
    lied = stock.refresh()
    assert (lied.proof, counts(lied)) == ("claimed", (0, 0, 0))
    stock.fragment('audit = "1s"')
    stock.make_due()
    told = stock.pair.said("refresh")
    assert "the marker had missed 3 changed rows (" in told
    assert "may be wrong" in told
    stock.check("NOT gone")
    audit = fragment_state(stock.pair.store, "stock").audit
    assert audit is not None
    assert (audit.missed, audit.in_row, set(audit.keys)) == (3, 1, {"1", "3"})
    assert audit.wrong_since == "2020-01-01T00:00:00Z", "where the audit before was put"
    stock.delete([9])
    again = stock.refresh_when_due()
    assert again.audit is not None
    assert (again.audit["missed"], again.audit["in_row"]) == (1, 2)
    assert again.audit["wrong_since"] == "2020-01-01T00:00:00Z", "of the last one that found none"
    assert "may be wrong" in stock.pair.said("status")
    stock.fragment()
    assert stock.refresh().proof == "total", "two audits in a row found lies"
    right = stock.refresh(Options(trust_marker=True))
    assert right.proof == "claimed"
    stock.fragment('audit = "1s"')
    clean = stock.refresh_when_due()
    assert clean.audit is not None
    assert (clean.audit["missed"], clean.audit["wrong_since"]) == (0, None)
    assert first.proof == clean.proof == "total"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_it_needs_a_word_about_deletes(stock: Stock) -> None:
    stock.mark(by_time(stock.legacy))
    assert "neither which rows are deleted" in refused(stock, "CONFIGURATION")
    stock.mark(by_time(stock.legacy, NEVER))
    assert stock.refresh().proof == "total"
    stock.update([3], 1000)
    assert (stock.refresh().proof, stock.ours()[3][1]) == ("claimed", 1000)
    stock.mark('{ checksum = "note" }')
    assert "by which the keys of all rows are read" in refused(stock, "CONFIGURATION")


@pytest.mark.parametrize("engine", ["sqlite"])
def test_rows_that_leave_the_filter_of_the_dba_are_deleted(stock: Stock) -> None:
    stock.mark(by_time(stock.legacy, NEVER), 'where = "amount < 500"')
    stock.refresh()
    stock.update([3, 6], 1000)
    found = stock.refresh()
    assert (found.proof, counts(found)) == ("claimed", (0, 0, 2))


@pytest.mark.parametrize("value", [None, 2, -1])
def test_a_wrong_flag_is_refused_by_name(stock: Stock, value: int | None) -> None:
    if stock.legacy.engine == "postgresql" and value is not None:
        stock.legacy.execute("ALTER TABLE stock ALTER gone TYPE int4 USING gone::int4")
    stock.refresh()
    at = now(stock.legacy)
    stock.legacy.many("UPDATE stock SET gone = ?, updated_at = ? WHERE id = ?", [(value, at, 33)])
    if value is None:  # it is behind the mark, and a row like any other
        flag_other = "UPDATE stock SET updated_at = ? WHERE id = ?"
        stock.legacy.many(flag_other, [(at, 36)])
    told = refused(stock, "VALUE")
    assert "'gone', is NULL, or neither 0 nor 1, in the row with key id=33" in told
    stock.make_due()
    assert refused(stock, "VALUE") == told, "by an audit too"


@pytest.mark.parametrize("engine", ["sqlite"])
@pytest.mark.parametrize("value", ["x", "", 0.5, b"\x01", 2**40])
def test_a_flag_of_another_type_is_refused_by_name(
    stock: Stock, value: str | float | bytes
) -> None:
    """A column of SQLite may hold any value, whatever its declared type; it is not published."""
    stock.mark(by_time(stock.legacy, FLAG), 'columns = ["id", "amount"]')
    stock.refresh()
    at = now(stock.legacy)
    stock.legacy.many("UPDATE stock SET gone = ?, updated_at = ? WHERE id = ?", [(value, at, 33)])
    told = refused(stock, "VALUE")
    assert "'gone', is NULL, or neither 0 nor 1, in the row with key id=33" in told
    stock.make_due()
    assert refused(stock, "VALUE") == told
    stock.legacy.execute("UPDATE stock SET gone = FALSE WHERE id = 33")
    assert stock.refresh().proof == "total"


class Liars:
    """Writers of a small table of which some lie; `lies` are the keys that no marker shows right.

    Each history is a few rounds of changes, each followed by a refresh, and an audit at its end.
    """

    def __init__(self, stock: Stock, rng: random.Random) -> None:
        self.stock, self.rng = stock, rng

    def live(self) -> None:
        """Change the table in one round, honestly or not."""
        rng, stock = self.rng, self.stock
        present = sorted(row[0] for row in stock.legacy.rows("stock") if not row[5])
        rng.shuffle(present)
        taken = {row[0] for row in stock.legacy.rows("stock")}
        free = [key for key in range(1, 6 * ROWS) if key not in taken]
        rng.shuffle(free)
        stock.update(present[: rng.randrange(4)], rng.randrange(1000, 2**31))
        flag(stock, present[4 : 4 + rng.randrange(4)])
        insert(stock, free[: rng.randrange(4)])
        if rng.random() < 0.4:
            stock.update(
                present[8 : 8 + rng.randrange(3)], rng.randrange(1000, 2**31), honest=False
            )
        if rng.random() < 0.4:
            stock.delete(present[12 : 12 + rng.randrange(3)])
        if rng.random() < 0.4:
            stock.insert(free[4 : 4 + rng.randrange(3)], at=OLD)
        gone = [row[0] for row in stock.legacy.rows("stock") if row[5]]
        rng.shuffle(gone)
        at = now(stock.legacy)
        for lie, kinds in (
            ("UPDATE stock SET gone = FALSE WHERE id = ?", gone[:1]),
            ("UPDATE stock SET gone = TRUE WHERE id = ?", present[16:18]),
            # The key that it had is gone without a flag.
            ("UPDATE stock SET id = id + 100000 WHERE id = ?", present[18:19]),
        ):
            honest = lie.replace("SET", f"SET updated_at = '{at}',")
            sql = rng.choice((None, None, lie, honest))
            if sql is not None:
                stock.legacy.many(sql, [(key,) for key in kinds])
        if rng.random() < 0.3:  # as another row, which only its values show
            again = present[20 : 20 + rng.randrange(3)]
            stock.delete(again)
            stock.insert(again, at=OLD)
            stock.update(again, rng.randrange(1000, 2**31), honest=False)

    def differing(self) -> set[int]:
        """Return the keys whose published rows are not the source's."""
        theirs = {row[0]: row[1] for row in self.stock.legacy.rows("stock") if not row[5]}
        ours = {row[0]: row[1] for row in self.stock.published()}
        return {key for key in theirs.keys() | ours if theirs.get(key) != ours.get(key)}


@pytest.mark.parametrize(
    "engine",
    ["sqlite", *(pytest.param(e, marks=pytest.mark.soak) for e in ("postgresql", *FAMILY))],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_lies(stock: Stock, seed: int) -> None:
    """No version says more than `claimed`; an audit finds all lies, and says since when."""
    liars = Liars(stock, random.Random(f"{stock.legacy.engine} {seed}"))
    before = stock.refresh()
    for _ in range(2):
        stock.fragment()
        options = Options(trust_marker=True)
        for _ in range(liars.rng.randrange(1, 4)):
            liars.live()
            report = stock.refresh(options)
            snapshot = head(stock.pair.store, "stock")
            assert snapshot is not None
            said = {report.proof, fragment_state(stock.pair.store, "stock").proof}
            assert said == {"claimed"}
            if report.version != report.previous_version:
                assert snapshot.record.proof == "claimed"
        wrong = liars.differing()
        stock.fragment('audit = "1s"')
        checked = fragment_state(stock.pair.store, "stock").audit
        assert checked is not None
        expected = checked.wrong_from
        stock.make_due()
        audit = stock.refresh()
        assert audit.proof == "total"
        assert audit.audit is not None
        assert audit.audit["missed"] == len(wrong)
        if wrong:
            shown = audit.audit["wrong_since"]
            assert shown in {expected, "2020-01-01T00:00:00Z"}
        assert not liars.differing()
    assert before.proof == "total"
