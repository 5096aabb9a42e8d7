"""Fragments whose source allows no scan, through the command line: refused early, refreshed in
part, then completely as soon as a scan is allowed. No step of them needs Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.cli import main
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner

ROWS, LIMIT = 4000, 1000
NEVER = 'scan = "never"'
PART = 'require = "fuzzy"\nproof = "part"'
Row = tuple[Any, ...]


def hours(begins: int, ends: int) -> str:
    """Return the setting for scans between two offsets from now, in minutes."""
    now = datetime.now()  # noqa: DTZ005 - the source agent's local time
    at = [f"{now + timedelta(minutes=minutes):%H:%M}" for minutes in (begins, ends)]
    return f'scan = ["{at[0]}-{at[1]}"]'


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        """The single object of `--json`."""
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


class Site:
    """A source agent and a warehouse around a table of ROWS rows with even keys."""

    def __init__(self, pair: Pair, run: Callable[[list[str]], Ended]) -> None:
        self.pair, self.legacy, self._run = pair, pair.legacy, run

    def allow(self, *lines: str) -> None:
        """Have the DBA change what may be read."""
        self.pair.publish("orders", "\n".join(('table = "orders"', *lines)))

    def driftline(self, *words: str) -> Ended:
        """Run a command of the warehouse."""
        return self._run(["--config", str(self.pair.warehouse_toml()), *words])

    def refresh(self) -> dict[str, Any]:
        """Refresh, which must go well."""
        ended = self.driftline("refresh", "orders", "--json")
        assert ended.code == 0, ended.err
        return ended.body

    def ours(self) -> dict[int, Row]:
        """What a reader sees, without Spark and without Driftline."""
        table = self.pair.delta("orders").to_pyarrow_table()
        rows = table.select(["id", "note", "hits"]).to_pylist()
        return {row["id"]: tuple(row.values()) for row in rows}

    def theirs(self) -> dict[int, Row]:
        return {row[0]: tuple(row) for row in self.legacy.rows("orders")}

    def hit(self, keys: list[int], turn: int) -> None:
        """Update rows."""
        rows = [(f"turn {turn}", key) for key in keys]
        self.legacy.many("UPDATE orders SET note = ?, hits = hits + 1 WHERE id = ?", rows)

    def insert(self, *keys: int) -> None:
        self.legacy.many("INSERT INTO orders VALUES (?, ?, ?)", [(k, "new", 0) for k in keys])

    def full_scans(self) -> int | None:
        """Sequential scans of the table so far, by the server's own counter; None: it has none."""
        if not isinstance(self.legacy, PostgresLegacy):
            return None
        return self.legacy.sequential_scans("orders")


@pytest.fixture(params=["sqlite", "postgresql", *FAMILY])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = LEGACIES[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def site(
    legacy: Legacy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    def no_spark(*_: object) -> NoReturn:
        raise AssertionError("No step of a small table needs Spark.")

    def run(words: list[str]) -> Ended:
        monkeypatch.setattr(sys, "argv", ["driftline", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        said, code = capsys.readouterr(), ended.value.code
        return Ended(code if isinstance(code, int) else 0, said.out, said.err)

    monkeypatch.setattr("warehouse_agent.spark.session.start", no_spark)
    key = "INTEGER" if legacy.engine == "sqlite" else "BIGINT"
    legacy.execute(f"CREATE TABLE orders (id {key} PRIMARY KEY, note VARCHAR(40), hits INTEGER)")
    legacy.many("INSERT INTO orders VALUES (?, ?, ?)", [(2 * k, "x", 0) for k in range(ROWS)])
    if legacy.engine == "postgresql":
        legacy.execute("ANALYZE orders")
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        yield Site(pair, run)


CLOSED = {
    "hours": (hours(120, 180), 75, "not before"),
    "never": (NEVER, 1, "no scan of the relation"),
}
SAMPLE = {("postgresql", "hours"), ("mariadb", "never")}


@pytest.mark.parametrize(
    ("legacy", "closed", "code", "said"),
    [
        pytest.param(
            *(engine, *CLOSED[name]),
            id=f"{engine}-{name}",
            marks=() if engine == "sqlite" or (engine, name) in SAMPLE else pytest.mark.soak,
        )
        for engine in ("sqlite", "postgresql", *FAMILY)
        for name in CLOSED
    ],
    indirect=["legacy"],
)
def test_refused_then_in_part_then_completely(
    site: Site, closed: str, code: int, said: str
) -> None:
    hot = list(range(3000, 3080, 2))
    site.refresh()
    for turn in range(2):
        site.hit(hot, turn)
        assert site.refresh()["proof"] == "total"
    before = site.ours()
    assert before == site.theirs()

    site.allow(closed, f"rows_by_key = {LIMIT}")
    site.hit(hot, 2)
    site.hit([6000], 2)
    site.insert(10**6, 4001)
    site.legacy.execute("DELETE FROM orders WHERE id = ?", hot[0])
    scans = site.full_scans()

    # Without leave to publish a part, nothing is read.
    refused = site.driftline("refresh", "orders", "--json")
    assert refused.code == code, refused.err
    assert said in refused.body["error"]["message"]
    assert 'proof = "part"' in refused.body["error"]["remedy"]
    assert refused.body["bytes_sent"] == refused.body["source_rows_read"] == 0
    refusal = site.driftline("plan", "orders", "--json").body
    assert said in refusal["refused"]
    assert "is refused now" in site.driftline("doctor").out

    # But a part is offered, with what it would find and the settings that it needs.
    part = refusal["part_expected"]
    assert part["way"]["what"] == "1,000 rows of it, by groups"
    assert part["way"]["source_scans"] == 0
    assert part["by_statistics"]
    evenly = 0.85 * LIMIT / ROWS  # the rest of a part is for new rows
    assert part["found"] > 1.3 * evenly * part["changed"], "the rows that change are known"
    assert 0 < part["finds_all"] < 1
    assert part["new_rows_max"] == LIMIT - LIMIT * 85 // 100
    shown = site.driftline("plan", "orders").out
    assert '`require = "fuzzy"` and `proof = "part"` it compares 1,000 rows of it' in shown
    lines = "\n".join(f'{key} = "{value}"' for key, value in part["settings"].items())
    assert lines == PART

    site.pair.fragment_lines["orders"] = lines
    planned = site.driftline("plan", "orders", "--json").body
    assert planned["part_expected"]["settings"] == {}
    assert planned["part_expected"]["way"]["bytes"] == part["way"]["bytes"]
    assert planned["refused"] is None
    assert planned["chosen"] == "1,000 rows of it, by groups"
    assert planned["why"].startswith("the source allows no scan")
    assert "a refresh now compares at most 1,000 rows" in site.driftline("doctor").out
    found = site.refresh()
    assert (found["proof"], found["consistency"], found["method"]) == ("part", "fuzzy", "group")
    assert found["source_scans"] == 0
    assert found["source_rows_read"] <= 2 * LIMIT
    assert ROWS - LIMIT <= found["rows_left"] < ROWS - LIMIT / 2
    assert 0 < found["updates_left"] < found["rows_left"] / 20
    assert found["predicted"]["bytes"] == part["way"]["bytes"]
    assert "no scan" in found["allowed"]
    assert site.full_scans() == scans

    # What was read is theirs, the rest as it was; likely and new rows were read.
    ours, theirs = site.ours(), site.theirs()
    for key in ours.keys() | theirs.keys() | before.keys():
        assert ours.get(key) in (theirs.get(key), before.get(key)), key
    assert all(ours.get(key) == theirs.get(key) for key in (*hot, 10**6))
    told = site.driftline("status", "orders", "--json").body
    assert told["proof"] == "part"
    assert told["part"] == {key: found[key] for key in ("rows_left", "updates_left", "allowed")}
    assert "orders: the last refresh left 3," in site.driftline("status", "orders").out

    # In the hours for scans all rows are compared, also the one that came between two keys.
    site.allow(hours(-60, 60), f"rows_by_key = {LIMIT}")
    assert site.driftline("plan", "orders", "--json").body["refused"] is None
    whole = site.refresh()
    assert (whole["proof"], whole["rows_left"], whole["updates_left"]) == ("total", None, None)
    assert whole["source_scans"] >= 1
    assert (after := site.full_scans()) is None or after > (scans or 0)
    assert site.ours() == site.theirs()
    assert site.driftline("status", "orders", "--json").body["part"] is None


@pytest.mark.parametrize(
    ("legacy", "closed"),
    [("sqlite", NEVER), ("sqlite", CLOSED["hours"][0]), ("postgresql", NEVER)],
    ids=["sqlite-never", "sqlite-hours", "postgresql-never"],
    indirect=["legacy"],
)
def test_enough_rows_by_key_for_all(site: Site, closed: str) -> None:
    """All rows are compared by groups, without a setting of the fragment, and proven as by a
    scan; whatever a part would have been allowed."""
    site.refresh()
    enough = 5 * ROWS // 4  # with as much room for new rows as a part has
    for turn, lines in enumerate(("", "", PART)):
        site.pair.fragment_lines["orders"] = lines
        site.hit([0, 3000, 2 * ROWS - 2], turn)
        site.insert(10**6 + turn, 4001 + 2 * turn)
        site.legacy.execute("DELETE FROM orders WHERE id = ?", 5000 + 2 * turn)
        site.allow(closed, f"rows_by_key = {enough}")
        planned = site.driftline("plan", "orders", "--json").body
        assert (planned["refused"], planned["part_expected"]) == (None, None)
        assert planned["chosen"] == "by groups"
        assert planned["why"].endswith("enough for all rows")
        (way,) = (one for one in planned["candidates"] if one["what"] == "by groups")
        assert way["source_scans"] == planned["candidates"][0]["source_scans"] == 0
        assert "a refresh now compares all rows, by key" in site.driftline("doctor").out
        found = site.refresh()
        assert (found["proof"], found["consistency"]) == ("total", "exact")
        assert (found["method"], found["source_scans"]) == ("group", 0)
        assert found["predicted"]["what"] == "by groups"
        counts = (found["rows_inserted"], found["rows_updated"], found["rows_deleted"])
        assert counts == (2, 3, 1)
        assert found["rows_left"] is None
        assert site.ours() == site.theirs()
    moved = found["bytes_sent"] + found["bytes_received"]
    assert moved == pytest.approx(found["modelled"]["bytes"], rel=0.3), "the groups are learnt"

    site.pair.fragment_lines["orders"] = ""
    site.allow(closed, f"rows_by_key = {ROWS}")
    refused = site.driftline("plan", "orders", "--json").body
    assert refused["refused"] is not None
    assert refused["part_expected"] is not None


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_the_engineers_own_budget(site: Site) -> None:
    """It is never more than what the source allows, and holds where no hours are set."""
    site.pair.fragment_lines["orders"] = f"{PART}\nread_at_most = 1500"
    site.refresh()
    site.allow(NEVER)
    assert site.driftline("plan", "--json", "orders").body["chosen"].startswith("1,500 rows")
    site.allow(NEVER, "rows_by_key = 1200")
    refused = site.driftline("refresh", "orders", "--json")
    assert "`read_at_most`, or" in refused.body["error"]["remedy"]
    site.allow()
    assert site.refresh()["proof"] == "part"
    site.allow(hours(-60, 60))
    assert site.refresh()["proof"] == "total"


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_without_a_limit_as_many_rows_as_groups_can_name(site: Site) -> None:
    site.pair.fragment_lines["orders"] = PART
    site.refresh()
    site.allow(NEVER)
    site.hit([0, 3000, 2 * ROWS - 2], 1)
    found = site.refresh()
    assert (found["proof"], found["rows_left"], found["source_scans"]) == ("part", 0, 0)
    assert site.ours() == site.theirs()


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_first_load_needs_a_scan(site: Site) -> None:
    site.pair.fragment_lines["orders"] = PART
    site.allow(NEVER)
    refused = site.driftline("refresh", "orders", "--json")
    assert refused.body["error"]["code"] == "LIMIT"
    assert "first load" in refused.body["error"]["remedy"]


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_first_file_names_the_hours(site: Site, tmp_path: Path) -> None:
    site.allow(hours(120, 180))
    file, address = tmp_path / "first.toml", site.pair.address
    words = ["--config", str(file), "init", "--source", address, "--insecure"]
    assert site._run(words).code == 0
    text = file.read_text()
    assert "# The source allows no scan before " in text
    assert '# proof = "part" ' in text


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_program_asks_what_is_allowed(site: Site) -> None:
    """A caller of `Runner` with a session of its own, which the command line's checks do not
    protect, refreshes in part too."""
    site.pair.fragment_lines["orders"] = PART
    site.refresh()
    site.allow(NEVER, f"rows_by_key = {LIMIT}")
    site.hit([0], 1)
    config = site.pair.config()
    runner = Runner(NoSpark(), config, attempts=1)
    (report,) = runner.refresh([config.fragments["orders"]], Options())
    assert (report.error, report.proof) == (None, "part")


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("key", "where"),
    [("REAL", "orders"), ("TEXT COLLATE NOCASE", "relations.orders.scan")],
    ids=["known here", "known there"],
)
def test_never_needs_a_key_that_is_found(site: Site, key: str, where: str) -> None:
    """`plan` asks the source, which refuses the DBA's setting; a refresh is refused before anything
    is read, by the warehouse where it sees by the types that the key has no order."""
    site.legacy.execute("DROP TABLE orders")
    site.legacy.execute(f"CREATE TABLE orders (code {key} NOT NULL PRIMARY KEY, hits INTEGER)")
    site.legacy.many("INSERT INTO orders VALUES (?, ?)", [(n / 4, n) for n in range(2000)])
    site.pair.fragment_lines["orders"] = PART
    site.allow()
    site.refresh()
    site.allow(NEVER)
    planned = site.driftline("plan", "orders", "--json").body["error"]
    assert (planned["code"], planned["where"]) == ("CONFIGURATION", "relations.orders.scan")
    assert "(code)" in planned["message"]
    refused = site.driftline("refresh", "orders", "--json").body
    error = refused["error"]
    assert (error["code"], error["where"]) == ("CONFIGURATION", where)
    assert refused["source_rows_read"] == 0


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_other_keys_are_refused_before_anything_is_read(site: Site) -> None:
    """As `plan` says."""
    site.legacy.execute("DROP TABLE orders")
    site.legacy.execute("CREATE TABLE orders (code REAL NOT NULL PRIMARY KEY, hits INTEGER)")
    site.legacy.many("INSERT INTO orders VALUES (?, ?)", [(n / 4, n) for n in range(2000)])
    site.pair.fragment_lines["orders"] = PART
    site.allow()
    site.refresh()
    site.allow(hours(120, 180))
    planned = site.driftline("plan", "orders", "--json").body
    assert "key is one integer" in planned["refused"]
    refused = site.driftline("refresh", "orders", "--json").body
    assert (refused["error"]["code"], refused["source_rows_read"]) == ("CONFIGURATION", 0)
    assert '`proof = "part"`' in refused["error"]["remedy"]
