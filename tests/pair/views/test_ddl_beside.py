"""DDL beside a refresh of the whole warehouse: what readers are given is one instant of all tables.

`tests/source_agent/engines/test_ddl_beside.py` judges the exchange alone; here both agents run. A
component of two tables and a view that joins them moves together, and one table is refreshed in
tiles by a key of text. Before the n-th statement of the source's sessions somebody commits a change
of both tables and then issues DDL.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from driftline.errors import RecipeChanged, SnapshotLost, TableShrank
from pyspark.sql import SparkSession

from source_agent.engines.mysql_family.session import FamilySession
from tests.harness.family import FAMILY
from tests.harness.legacies import of_family
from tests.harness.legacy import LEGACIES, MariaLegacy
from tests.harness.pair import plain
from tests.harness.servers import FamilyServer
from tests.harness.views import Sites
from tests.source_agent.engines.test_ddl_beside import DDL, Hook

pytestmark = [pytest.mark.spark, pytest.mark.soak]

RUNS: Final = 125  # of each test, on each server: 500 in all
KEY: Final = "code VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY"
COLUMNS: Final = "v INT, tag VARCHAR(8)"
TABLES: Final = {"erp": dict.fromkeys("tu", f"code VARCHAR(20) PRIMARY KEY, {COLUMNS}")}
PARTS: Final = (
    "PARTITION BY RANGE COLUMNS (code) (PARTITION p0 VALUES LESS THAN ('k5'), "
    "PARTITION p1 VALUES LESS THAN (MAXVALUE))"
)
VIEW: Final = "SELECT a.code, a.v, b.v AS w FROM erp.t a JOIN erp.u b ON b.code = a.code"
ANSWERS: Final = {"published", RecipeChanged.code, SnapshotLost.code, TableShrank.code}
IN_TILES: Final = (
    'relation = "t"\nsource = "erp"\nmethod = "range"\nrequire = "fuzzy"\n'
    "incremental = { rows = 3, pause_s = 0.01 }"
)

Rows = Counter[tuple[Any, ...]]


class Bench:
    """Two tables of one server, and a warehouse of them."""

    def __init__(self, sites: Sites, legacy: MariaLegacy, server: FamilyServer) -> None:
        self.sites, self.legacy = sites, legacy
        # The hook's own connections write into the same database.
        self.writer = of_family(server)
        self.writer.database, created = legacy.database, self.writer.database
        server.drop_database(created)
        self.hook = Hook(self.writer)

    def made(self) -> None:
        rows = {n: ", ".join(f"('k{i}', {i}, '{n}')" for i in range(10)) for n in "tu"}
        for sql in (
            "DROP TABLE IF EXISTS t, u, old, staged",
            f"CREATE TABLE t ({KEY}, {COLUMNS}) {PARTS}",
            f"CREATE TABLE u ({KEY}, {COLUMNS}) {PARTS}",
            f"CREATE TABLE staged ({KEY}, {COLUMNS})",
            f"INSERT INTO t VALUES {rows['t']}",
            f"INSERT INTO u VALUES {rows['u']}",
            "INSERT INTO staged VALUES ('k1', 1, 'staged'), ('k2', 2, 'staged')",
        ):
            self.legacy.execute(sql)

    def state(self) -> dict[str, Rows]:
        self.legacy.execute("COMMIT")
        found = {n: Counter(self.legacy.rows(n)) for n in "tu"}
        return {n: Counter(tuple(map(plain, r[:3])) for r in rows) for n, rows in found.items()}

    def watched(self, ddl: str, at: int, changed: str) -> None:
        """Issue a change of both tables and DDL of one before the n-th statement from now on."""
        change = ("BEGIN", "UPDATE t SET v = v + 1", "UPDATE u SET v = v + 1", "COMMIT")
        self.hook = Hook(self.writer, at, (*change, DDL[ddl].format(t=changed)))

    def seen(self, name: str) -> Rows:
        """Return what readers of the warehouse's newest version are given."""
        return Counter(tuple(map(plain, row)) for row in self.sites.seen(name).elements())

    def pass_of(self, name: str) -> Rows:
        """Return what readers of a table alone are given."""
        table = self.sites.delta(name).to_pyarrow_table()
        rows = table.select(["code", "v", "tag"]).to_pylist()
        return Counter(tuple(map(plain, row.values())) for row in rows)


def later(state: dict[str, Rows]) -> dict[str, Rows]:
    """Return a state after the change of both tables."""
    one = plain(1)
    return {
        name: Counter((code, type(one)(v + one), tag) for code, v, tag in rows.elements())
        for name, rows in state.items()
    }


@pytest.fixture(params=FAMILY)
def bench(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    server: FamilyServer = request.getfixturevalue(request.param)
    legacy = LEGACIES[request.param](request, tmp_path)
    assert isinstance(legacy, MariaLegacy)
    current: list[Bench] = []
    execute = FamilySession._execute

    def executed(session: FamilySession, cursor: Any, sql: str, *more: Any) -> Any:
        for made in current:
            made.hook.reach(sql)
        return execute(session, cursor, sql, *more)

    monkeypatch.setattr(FamilySession, "_execute", executed)
    with Sites(spark, tmp_path, TABLES, {}, legacies={"erp": legacy}) as sites:
        current.append(Bench(sites, legacy, server))
        yield current[0]
    legacy.close()


def test_a_component_is_of_one_instant(bench: Bench) -> None:
    sites, chance, published = bench.sites, random.Random(7), Counter[str]()
    sites.views = {"joined": VIEW}
    for run in range(RUNS):
        bench.made()
        sites.well()
        first = bench.state()
        if not run:
            bench.hook = Hook(bench.writer)
            sites.well()
            said = len(bench.hook.said)
        ddl, changed = [*DDL][run % len(DDL)], chance.choice("tu")
        bench.watched(ddl, chance.randrange(said), changed)
        reports = sites.refresh(attempts=3)
        published["beside"] += bench.hook.thread is not None
        bench.hook.done()
        for report in reports.values():
            code = report.error["code"] if report.error else "published"
            assert code in ANSWERS, report
            published[code] += 1
        seen = {name: bench.seen(f"erp.{name}") for name in "tu"}
        # What is refused, for its columns or because it shrank, stays as it was.
        refused = {name for name in "tu" if reports[f"erp.{name}"].error}
        states = [
            {name: first[name] if name in refused else rows for name, rows in state.items()}
            for state in (first, later(first), bench.state())
        ]
        assert seen in states, (ddl, changed, bench.hook.at, refused, seen, states)
        published["whole"] += not refused
        other = {code: v for code, v, _ in seen["u"]}
        joined = Counter((c, v, other[c]) for c, v, _ in seen["t"] if c in other)
        assert bench.seen("joined") == joined, (ddl, changed, bench.hook.at)
    assert published["whole"] > RUNS // 2
    assert published["beside"] == RUNS


def test_tiles_by_a_key_of_text_hold_rows_of_the_table_alone(bench: Bench) -> None:
    """Each tile is of one instant; afterwards a refresh that nobody disturbs is the table."""
    sites, chance, published = bench.sites, random.Random(8), Counter[str]()
    sites.fragment_lines = {"t": 'relation = "t"\nsource = "erp"'}
    bench.made()
    sites.well()
    sites.fragment_lines = {"t": IN_TILES}
    for run in range(RUNS):
        bench.made()
        if sites.well()["t"].resumed_at:  # a pass that was refused: its finished tiles are as then
            sites.well()
        first = bench.state()
        assert bench.pass_of("t") == first["t"]
        if not run:
            bench.hook = Hook(bench.writer)
            assert sites.well()["t"].tiles
            said = len(bench.hook.said)
            assert any(">=" in sql or "BETWEEN" in sql for sql in bench.hook.said)
        ddl = [*DDL][run % len(DDL)]
        bench.watched(ddl, chance.randrange(said), "t")
        (report,) = sites.refresh(attempts=3).values()
        published["beside"] += bench.hook.thread is not None
        bench.hook.done()
        code = report.error["code"] if report.error else "published"
        assert code in ANSWERS, report
        published[code] += 1
        known = first["t"] | later(first)["t"] | bench.state()["t"]
        seen = bench.pass_of("t")
        assert seen <= known, (ddl, bench.hook.at, seen - known)
        assert len({row[0] for row in seen}) == seen.total(), (ddl, bench.hook.at)
    assert published["published"] > RUNS // 2
    assert published["beside"] > RUNS // 2, "a pass that finds nothing is shorter than the first"
