"""Refreshes by a marker: rows behind a mark, and the keys of all rows, on three engines.

Both agents run in this process and no step needs Spark. The oracle is the owner's own connection.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.limits import ROWS_HELD_BYTES

from source_agent.engines.interface import Session
from source_agent.scan import marked as marked_scan
from source_agent.scan.marked import ExchangeMarker
from source_agent.scan.reader import Reader
from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy
from tests.pair.since.rig import BY_VERSION, OLD, ROWS, XMIN, Stock, by_time, counts, seeds, used
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.inspection.refresh_prediction import forecast
from warehouse_agent.refresh.job import Options

SEEDS = seeds(3)


ENGINES = ["sqlite", "sqlite-journal", "postgresql", *FAMILY]


@pytest.fixture(params=["sqlite", "postgresql", *FAMILY])
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine, unless a test says `on` which."""
    name: str = request.param
    return name


def on(*engines: str) -> pytest.MarkDecorator:
    """Run a test on these engines, SQLite also without a write-ahead log; in the soak on all."""
    found = [pytest.param(e, marks=() if e in engines else pytest.mark.soak) for e in ENGINES]
    return pytest.mark.parametrize("engine", found)


@on(*ENGINES)
def test_updates_by_the_marker_and_keys_without_it(stock: Stock) -> None:
    loaded = stock.refresh()
    assert (loaded.proof, used(loaded)["used"]) == ("total", False)
    quiet = stock.refresh()
    assert (quiet.version, quiet.proof, quiet.method) == (0, "keys", "since")
    assert (quiet.round_trips, used(quiet)["rows"]) == (1, 0)
    is_counted = stock.legacy.engine == "postgresql"
    assert used(quiet)["keys_counted"] is is_counted
    stock.update([k * 3 for k in range(10, 30)], 7000)
    found = stock.refresh()
    assert (counts(found), used(found)["rows"]) == ((0, 20, 0), 20)
    assert used(found)["keys_counted"] is is_counted
    # Neither the deleted nor the inserted rows are in the marker.
    stock.delete([0, 300, 600])
    stock.insert([301, 900_000])
    found = stock.refresh()
    assert (found.version, found.proof, found.method) == (2, "keys", "since")
    assert counts(found) == (2, 0, 3)
    told = {"used": True, "why": None, "rows": 20, "keys_counted": False, "audited": False}
    assert used(found) == told | {"warnings": []}
    stock.check()
    # What came is read again for a minute, and changes nothing.
    again = stock.refresh()
    assert (again.version, again.rows_changed, used(again)["rows"]) == (2, 0, 20)
    stock.insert([900_003, 900_006], at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"))
    appended = stock.refresh()  # explained by the rows behind the mark
    assert (counts(appended), used(appended)["keys_counted"]) == ((2, 0, 0), is_counted)
    stock.check()


@on("sqlite")
def test_a_mark_outlives_maintenance_by_another_program(stock: Stock) -> None:
    """The rows are those of the marked version, those too that the marker missed."""
    stock.refresh()
    stock.update([30], 1)
    stock.update([60, 90], 4242, honest=False)
    assert stock.refresh().proof == "keys"
    table = stock.pair.delta("stock")
    assert table.optimize.compact()["numFilesRemoved"] == 2
    stock.update([120], 2)
    stock.insert([301])
    found = stock.refresh()
    assert (found.version, found.proof, found.method) == (4, "keys", "since")
    assert counts(found) == (1, 1, 0)
    assert used(found)["used"] is True
    assert stock.audit()["missed"] == 2
    stock.check()


@on(*ENGINES)
def test_a_missed_update_is_found_and_named_by_the_audit(stock: Stock) -> None:
    stock.refresh()
    stock.update([30], 1)
    stock.update([60, 90], 4242, honest=False)
    by_marker = stock.refresh()
    assert (counts(by_marker), by_marker.proof) == ((0, 1, 0), "keys")
    stock.fragment('audit = "1s"')
    audit = stock.refresh_when_due()
    assert (audit.proof, counts(audit)) == ("total", (0, 2, 0))
    assert audit.audit is not None
    assert (audit.audit["missed"], audit.audit["changes"]) == (2, 3)
    assert sorted(audit.audit["keys"]) == ["60", "90"]
    stock.check()


def test_two_audits_with_misses_refuse_the_marker_until_it_is_trusted(local: Stock) -> None:
    local.refresh()
    for _ in range(2):
        local.update([30], random.randrange(1000, 10**6), honest=False)
        local.fragment('audit = "1s"')
        audit = local.refresh_when_due()
        assert audit.audit is not None
        assert (audit.audit["missed"], audit.audit["keys"]) == (1, ["30"])
    local.fragment()
    refused = local.refresh()
    assert refused.proof == "total"
    assert "--trust-marker" in str(used(refused)["why"])
    assert used(local.refresh())["used"] is False
    trusted = local.refresh(Options(trust_marker=True))
    assert used(trusted)["used"] is True
    assert used(local.refresh())["used"] is True


def test_keys_that_the_database_counts_are_rows_that_are_read(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A rate holds for them too: then the agent reads the keys itself."""
    legacy = LEGACIES["postgresql"](request, tmp_path)
    made = Stock(legacy, tmp_path / "pair", by_time(legacy))
    try:
        made.refresh()
        counted = made.refresh()
        assert (used(counted)["keys_counted"], counted.source_rows_read) == (True, ROWS)
        made.pair.limits = "rows_per_second = 1000000\n"
        made.pair.restart()
        read = made.refresh()
        assert (used(read)["keys_counted"], read.source_rows_read) == (False, ROWS)
    finally:
        made.pair.stop()
        legacy.close()


@pytest.mark.parametrize("kind", ["version", "time"])
def test_a_table_that_another_one_replaces_is_compared(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    legacy = LEGACIES["postgresql"](request, tmp_path)
    marker = by_time(legacy) if kind == "time" else BY_VERSION
    made = Stock(legacy, tmp_path / "pair", marker)
    try:
        made.refresh()
        legacy.execute("ALTER TABLE stock RENAME TO old")
        legacy.execute("CREATE TABLE stock (LIKE old INCLUDING ALL)")
        legacy.execute("INSERT INTO stock SELECT * FROM old")
        made.update([90], 10, honest=False)
        swapped = made.refresh()
        assert (swapped.proof, counts(swapped)) == ("total", (0, 1, 0))
        made.check()
    finally:
        made.pair.stop()
        legacy.close()


def test_rows_without_a_marker_are_always_new(stock: Stock) -> None:
    stock.legacy.execute("UPDATE stock SET updated_at = NULL WHERE id < 15")
    stock.refresh()
    stock.legacy.execute("UPDATE stock SET amount = 5555 WHERE id = 9")
    found = stock.refresh()
    assert (counts(found), used(found)["rows"]) == ((0, 1, 0), 5)
    stock.check()


def test_a_time_in_the_future_does_not_move_the_mark(stock: Stock) -> None:
    future = (datetime.now(UTC) + timedelta(days=400)).strftime("%Y-%m-%d %H:%M:%S")
    stock.insert([5000], at=future)
    (warning,) = used(stock.refresh())["warnings"]
    assert warning.startswith("1 row has a time in the future: ")
    stock.update([30], 12)
    heard = stock.pair.heard()
    found = heard.report
    assert (counts(found), used(found)["rows"]) == ((0, 1, 0), 2)
    assert used(found)["warnings"] == [warning]
    assert fragment_state(stock.pair.store, "stock").marker_warnings == [warning]
    assert warning in heard.out
    stock.check()
    stock.delete([5000])
    assert used(stock.refresh())["warnings"] == []


def test_flagged_rows_are_gone(stock: Stock) -> None:
    stock.mark(by_time(stock.legacy, ', deleted = "gone"'))
    stock.legacy.execute("UPDATE stock SET gone = NULL WHERE id = 3")
    stock.refresh()
    stock.legacy.execute("UPDATE stock SET gone = TRUE WHERE id IN (30, 60)")
    found = stock.refresh()
    assert counts(found) == (0, 0, 2)
    stock.legacy.execute("UPDATE stock SET gone = FALSE WHERE id = 60")
    assert counts(stock.refresh()) == (1, 0, 0)
    stock.check("not gone")


def test_versions(stock: Stock) -> None:
    stock.mark(BY_VERSION)
    stock.refresh()
    stock.update([3, 6], 77)
    stock.delete([9])
    found = stock.refresh()
    assert (found.method, counts(found)) == ("since", (0, 2, 1))
    assert used(found)["rows"] == 3  # the newest one of the last time, too
    stock.check()


@on("sqlite")
def test_a_mark_that_does_not_fit_compares_all_rows_and_says_why(stock: Stock) -> None:
    stock.refresh()
    stock.mark(BY_VERSION)
    stock.update([30], 12, honest=False)
    other = stock.refresh()
    assert (other.proof, counts(other)) == ("total", (0, 1, 0))
    assert used(other)["why"] == "the source's DBA changed the marker"
    assert used(stock.refresh())["used"] is True
    stock.pair.publish("stock", 'table = "stock"')
    none = stock.refresh()
    assert (none.proof, used(none)["why"]) == (
        "total",
        "the source's DBA names no marker of this relation",
    )
    stock.check()


def test_a_longer_late_compares_all_rows(local: Stock) -> None:
    """The mark was made with the shorter one, and a row shows its time after it."""
    local.mark(by_time(local.legacy))
    local.refresh()
    at, before = (
        (datetime.now(UTC) - timedelta(minutes=m)).strftime("%Y-%m-%d %H:%M:%S") for m in (180, 190)
    )
    local.change_mark(at=at)
    local.legacy.execute("UPDATE stock SET amount = 31, updated_at = ? WHERE id = 30", before)
    local.mark(by_time(local.legacy).replace("1m", "1h"))
    found = local.refresh()
    assert (found.proof, counts(found)) == ("total", (0, 1, 0))
    assert used(found)["why"] == "the source's DBA changed the marker"
    local.check()


@pytest.mark.parametrize("kind", ["version", "time", "xmin"])
def test_a_damaged_mark_compares_all_rows(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """So does one that is ahead of the database, as after a restore."""
    legacy = LEGACIES["postgresql" if kind == "xmin" else "sqlite"](request, tmp_path)
    marker = {"version": BY_VERSION, "xmin": XMIN}
    made = Stock(legacy, tmp_path / "pair", marker.get(kind, by_time(legacy)))
    try:
        made.refresh()
        for at in ("", "x", "9" * 5000, "5" if kind == "time" else "2026-01-01 00:00:00"):
            made.change_mark(at=at)
            assert used(made.refresh())["why"] == "the mark is damaged"
        made.change_mark(at="2999-01-01 00:00:00" if kind == "time" else "9" * 18)
        why = str(used(made.refresh())["why"])
        assert why.startswith("the mark is later than the database's clock")
        assert used(made.refresh())["used"] is True
    finally:
        made.pair.stop()
        legacy.close()


@pytest.mark.parametrize("held", [0, ROWS_HELD_BYTES])
def test_rows_behind_the_mark_are_counted_once(
    local: Stock, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Also if they are too large to be held, and are read again to be sent."""
    local.refresh()
    local.update([3, 6, 9], 8)
    monkeypatch.setattr(marked_scan, "ROWS_HELD_BYTES", held)
    found = local.refresh()
    assert (counts(found), used(found)["rows"]) == ((0, 3, 0), 4)  # and the newest before


@on("sqlite")
def test_more_rows_are_behind_the_mark_than_are_held(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are compared, and an audit names none."""
    monkeypatch.setattr(marked_scan, "BEHIND_ROWS_MAX", 20)
    stock.refresh()
    stock.update([k * 3 for k in range(20)], 4242)
    assert used(stock.refresh())["rows"] == 20
    stock.update([k * 3 for k in range(100, 121)], 4242)
    found = stock.refresh()
    assert (found.proof, counts(found)) == ("total", (0, 21, 0))
    assert used(found)["why"] == "more than 20 rows are behind the mark"
    stock.check()


def test_an_audit_whose_snapshot_changes_accuses_no_writer(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without WAL a writer may commit between the audited keys and the scan."""
    legacy = LEGACIES["sqlite-journal"](request, tmp_path)
    made = Stock(legacy, tmp_path / "pair", BY_VERSION)
    begin, audited = marked_scan.begin, []

    def begin_and_write(session: Session, reader: Reader, asked: pb.Since) -> ExchangeMarker:
        found = begin(session, reader, asked)
        if asked.audited:
            session.pause()
            with closing(sqlite3.connect(tmp_path / "erp.db")) as writer:
                writer.execute("UPDATE stock SET amount = 77, version = 9999 WHERE id = 30")
                writer.commit()
            audited.append(found)
        return found

    try:
        made.refresh()
        made.fragment('audit = "1s"')
        monkeypatch.setattr(marked_scan, "begin", begin_and_write)
        audit = made.refresh_when_due()
        assert len(audited) == 1
        assert (audit.proof, counts(audit)) == ("total", (0, 1, 0))
        assert audited[0].message(by_marker=False).audited is False
        assert audit.audit is not None
        assert (audit.audit["missed"], audit.audit["keys"]) == (0, [])
    finally:
        made.pair.stop()
        legacy.close()


def test_an_audit_samples_all_rows_alike(local: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first ones that come: a writer may miss rows of one age alone."""
    monkeypatch.setattr(marked_scan, "UNMARKED_ROWS_MAX", 100)
    local.refresh()
    local.update([k * 3 for k in range(400, 600)], 9999, honest=False)
    local.pair.fragment_lines["stock"] = 'proof = "keys"\nmethod = "full"\naudit = "1s"\n'
    audit = local.refresh_when_due()
    assert (audit.method, counts(audit)) == ("full", (0, 200, 0))
    assert audit.audit is not None
    assert 30 < audit.audit["missed"] < 420  # 200, estimated by 100 of 599 rows
    local.check()


def test_hashed_keys(legacy: Legacy, tmp_path: Path) -> None:
    made = Stock(legacy, tmp_path / "pair", by_time(legacy))
    try:
        made.mark(by_time(legacy), 'key = ["note"]')
        made.refresh()
        made.update([30, 33], 9)
        made.delete([60, 63])
        made.legacy.execute("UPDATE stock SET note = 'other' WHERE id = 90")
        found = made.refresh()
        assert (found.method, counts(found)) == ("since", (1, 2, 3))
        made.check()
    finally:
        made.pair.stop()


def test_what_people_are_told(local: Stock, tmp_path: Path) -> None:
    """`status`, `plan`, the receipt and the line of a refresh name the proof and the audit."""
    local.refresh()
    local.update([3], 8)
    local.update([60, 90], 4242, honest=False)
    assert "keys proven equal" in local.pair.said("refresh")
    planned = forecast(local.pair.store, local.pair.config().fragments["stock"])
    assert (planned.chosen, planned.marker and planned.marker.proof) == ("by marker", "keys")
    said = local.pair.said("plan")
    assert 'proves "keys"; last audit 0.0 hours ago, due every 168.0 hours' in said
    told = fragment_state(local.pair.store, "stock")
    assert (told.proof, told.miss_probability) == ("keys", None)
    output = tmp_path / "receipt.json"
    local.pair.said("receipt", "stock", "--output", str(output))
    body = json.loads(output.read_text())
    assert (body["proven"]["proof"], body["proven"]["audit"]["missed"]) == ("keys", 0)
    local.fragment('audit = "1s"')
    local.make_due()
    said = local.pair.said("refresh")
    assert "the marker had missed 2 changed rows (60, 90)" in said
    told = fragment_state(local.pair.store, "stock")
    assert told.proof == "total"
    lines = local.pair.said("status").splitlines()
    (line,) = [one for one in lines if "missed" in one][:1]
    assert line == "stock: the marker missed 2 of 3 changes since 2020-01-01 (60, 90)"
    local.pair.publish("stock", 'table = "stock"')
    local.fragment()
    assert "the source's DBA names no marker of this relation" in local.pair.said("plan")


@on("sqlite", "postgresql")
def test_more_keys_differ_than_the_cells_tell(stock: Stock) -> None:
    """The source asks for more cells, or all rows are compared; nothing is lost either way."""
    stock.refresh()
    for _ in range(3):
        stock.refresh()
    stock.delete([k * 3 for k in range(0, 500, 2)])
    stock.insert([k * 3 + 1 for k in range(300)])
    stock.update([3], 8)
    found = stock.refresh()
    assert counts(found) == (300, 1, 250)
    assert found.round_trips > 1
    stock.check()
    assert used(stock.refresh())["used"] is True


def test_two_rows_of_one_key_are_named(local: Stock) -> None:
    """A key that no constraint vouches for is not unique any more."""
    local.mark(BY_VERSION, 'key = ["note"]')
    local.refresh()
    local.legacy.execute("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?)", 7, 1, "note 5", OLD, 0, 0)
    error = local.pair.error("stock")
    assert error["code"] == "DUPLICATE_KEY"
    assert "note 5" in error["message"]


@pytest.mark.parametrize("claims", [True, False])
def test_a_source_that_is_wrong_about_the_marker(
    local: Stock, monkeypatch: pytest.MonkeyPatch, claims: bool
) -> None:
    """A version that was made by a marker is never called total, nor the reverse."""
    local.refresh()
    local.fragment("" if not claims else 'audit = "1s"')
    message = ExchangeMarker.message
    with monkeypatch.context() as patch:
        patch.setattr(ExchangeMarker, "message", lambda self, **_: message(self, by_marker=claims))
        if claims:
            local.make_due()
        assert local.pair.error("stock")["code"] == "MALFORMED"
    assert local.refresh().error is None


def test_xmin_shows_updates_that_no_column_shows(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    legacy = LEGACIES["postgresql"](request, tmp_path)
    made = Stock(legacy, tmp_path / "pair", XMIN)
    try:
        made.refresh()
        made.update([30, 33], 9, honest=False)
        made.delete([60])
        made.insert([61])
        found = made.refresh()
        assert (found.proof, counts(found)) == ("keys", (1, 2, 1))
        made.check()
        made.update([90], 10, honest=False)
        legacy.execute("ALTER TABLE stock RENAME TO old")
        legacy.execute("CREATE TABLE stock (LIKE old INCLUDING ALL)")
        legacy.execute("INSERT INTO stock SELECT * FROM old")
        swapped = made.refresh()
        assert (swapped.proof, counts(swapped)) == ("total", (0, 1, 0))
        assert "the mark is of another database" in str(used(swapped)["why"])
        made.fragment('audit = "1s"')
        made.update([93], 11, honest=False)
        audit = made.refresh_when_due()
        assert audit.audit is not None
        assert (audit.audit["missed"], counts(audit)) == (0, (0, 1, 0))
    finally:
        made.pair.stop()
        legacy.close()


@pytest.mark.mariadb_alone
def test_system_versioning_shows_updates_that_no_column_shows(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    legacy = LEGACIES["mariadb"](request, tmp_path)
    legacy.execute("SET timestamp = 978307200")  # the rows are those of 2001
    by_versions = '{ versioned = true, late = "1m" }'
    made = Stock(legacy, tmp_path / "pair", by_versions, options="WITH SYSTEM VERSIONING")
    legacy.execute("SET timestamp = DEFAULT")
    try:
        made.refresh()
        made.update([30, 33], 9, honest=False)
        made.delete([60])
        made.insert([61])
        found = made.refresh()
        assert (found.proof, counts(found), used(found)["rows"]) == ("keys", (1, 2, 1), 3)
        made.check()
        legacy.execute("SET timestamp = 978307200")  # a writer that sets its own clock
        made.update([90], 10, honest=False)
        assert counts(made.refresh()) == (0, 0, 0)
        made.fragment('audit = "1s"')
        audit = made.refresh_when_due()
        assert audit.audit is not None
        assert (audit.audit["missed"], audit.audit["keys"]) == (1, ["90"])
        made.check()
    finally:
        made.pair.stop()
        legacy.close()


@pytest.mark.mariadb_alone
def test_keys_compared_without_a_snapshot_are_no_proof_of_rows(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The fragment needs one instant, so only the time of the check and its proof are new."""
    legacy = LEGACIES["mariadb"](request, tmp_path)
    made = Stock(legacy, tmp_path / "pair", by_time(legacy))
    try:
        loaded = made.refresh()
        legacy.execute("ALTER TABLE stock ENGINE = Aria")
        made.await_next_second()
        made.pair.restart()
        assert made.refresh().proof == "total"  # the mark was of another table
        found = made.refresh()
        assert (found.proof, found.consistency, found.version) == ("keys", "fuzzy", loaded.version)
        told = fragment_state(made.pair.store, "stock")
        assert (told.as_of, told.checked_at) == (loaded.as_of, found.checked_at)
        assert told.proof == "keys"
    finally:
        made.pair.stop()
        legacy.close()


def newest(stock: Stock) -> int:
    """Return the newest version of a row at the source."""
    return max(row[4] or 0 for row in stock.legacy.rows("stock"))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(local: Stock, seed: int) -> None:
    """Deletes and inserts are found at once, and lies by the next audit."""
    rng = random.Random(seed)
    local.refresh()
    lied, mark = set[int](), newest(local)
    for _ in range(6):
        present = [row[0] for row in local.legacy.rows("stock")]
        honest = rng.sample(present, rng.randrange(8))
        lies = [k for k in rng.sample(present, rng.randrange(3)) if k not in honest]
        gone = [k for k in rng.sample(present, rng.randrange(8)) if k not in (*honest, *lies)]
        new = rng.sample(range(10**6, 2 * 10**6), rng.randrange(4))
        new += [k for k in rng.sample(range(1, 3 * ROWS), 3) if k not in present]
        local.update(honest, rng.randrange(1000, 10**6))
        local.update(lies, rng.randrange(1000, 10**6), honest=False)
        local.delete(gone)
        local.insert(new, version=rng.choice([0, None, 10**7]))
        lied = (lied | set(lies)) - set(honest) - set(gone)
        report = local.refresh()
        # A history may delete the row of the newest version.
        before, mark = mark, newest(local)
        is_unfit = mark < before
        assert is_unfit is ("later than" in str(used(report)["why"]))
        assert report.proof == ("total" if is_unfit else "keys")
        assert (report.rows_inserted, report.rows_deleted) == (len(new), len(gone))
        theirs = {row[0]: row[1] for row in local.legacy.rows("stock")}
        ours = {row[0]: row[1] for row in local.published()}
        assert ours.keys() == theirs.keys()
        assert {k for k in ours if ours[k] != theirs[k]} <= lied
        lied = {k for k in lied if ours[k] != theirs[k]}
    local.fragment('audit = "1s"')
    audit = local.refresh_when_due()
    assert audit.audit is not None
    assert (audit.proof, audit.audit["missed"]) == ("total", len(lied))
    assert set(map(int, audit.audit["keys"])) <= lied
    local.check()
