"""`explain`: what each site is asked for, what stays, what it saves, and a join to publish."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from source_agent.config.file import load
from tests.harness.views import Sites
from tests.warehouse_agent.cli.test_main import command
from tests.warehouse_agent.inspection.test_site_shares import TABLES, VIEW
from warehouse_agent.inspection.site_shares import decomposed

pytestmark = pytest.mark.starts


@pytest.mark.spark
@pytest.mark.slow
def test_explain(spark: SparkSession, tmp_path: Path) -> None:
    with Sites(spark, tmp_path, TABLES, {"v": VIEW}, derive=("columns", "rows")) as sites:
        for i in range(20):
            sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?, 'n')", i, i % 3, i % 4)
            sites.sql("erp", "INSERT INTO lines VALUES (?, 1, ?, 'n')", i, i)
        sites.sql("crm", "INSERT INTO customer VALUES (1, 'x', 'y')")
        # Nothing is known yet: the sources are asked.
        toml = sites.toml()
        ended = command("explain", "v", config=toml)
        assert ended.code == 0, ended.err
        assert "erp.orders as o, nothing published: 3 of 4 columns" in ended.out
        assert "rows not known before the first load" in ended.out
        sites.well()
        audits = [(pair.folder / "audit.jsonl").read_text() for pair in sites.pairs.values()]
        ended = command("explain", "v", config=toml)
        expected = [
            "v: 3 tables of 2 sites",
            "├─ erp (sqlite)",
            "│  ├─ erp.orders as o, version 0: 3 of 4 columns, 5 rows; how many",
            '│  │    reads   SELECT "id", "customer", "state" FROM orders WHERE "state" = 1',
            '│  │    pushed  "state" = 1',
            "│  │    stays   c.id = o.customer: compares two tables",
            "│  ├─ erp.lines as l, version 0: 4 of 4 columns, 20 rows; how many",
            "└─ crm (sqlite)",
            "   └─ crm.customer as c, version 0: 2 of 3 columns, 1 rows; how many",
            "        stays   UPPER(c.name) = 'X': has the function upper",
            "        note    all rows: v needs every row of c",
        ]
        for line in expected:
            assert any(one.startswith(line) for one in ended.out.splitlines()), (line, ended.out)
        assert audits == [(p.folder / "audit.jsonl").read_text() for p in sites.pairs.values()]
        # The proposal is a relation that the DBA can serve as it is.
        (body,) = command("explain", "v", "--json", config=toml).lines
        proposal = body["sites"][0]["proposal"]
        assert body["sites"][1]["proposal"] is None
        served = tomllib.loads(proposal)["relations"]["v_erp"]
        assert served["key"] == ["id", "ord", "line"]
        pair = sites.pairs["erp"]
        pair.publish("v_erp", proposal.split("\n", 1)[1])
        assert "v_erp" in load(pair.source_toml()).relations
        with closing(sqlite3.connect(tmp_path / "erp.db")) as owner:
            found = owner.execute(served["query"]).fetchall()
        assert sorted(row[0] for row in found) == [1, 5, 9, 13, 17]
        # A source that is down is told of; what is noted needs none.
        pair.stop()
        assert command("explain", "v", config=toml).out == ended.out.replace("\r", "")
        asked = command("explain", "v", "--ask", config=toml)
        assert asked.code == 0
        assert "the source cannot be asked" in asked.out
        # Of several views a line for each table, those first of which nothing is known.
        sites.views["w"] = VIEW.replace("'X'", "'Y'")
        lines = command("explain", config=sites.toml()).out.splitlines()
        assert lines[0].split() == ["table", "view", "site", "columns", "rows", "state"]
        assert len(lines) == 1 + 2 * 3 + 1
        assert max(map(len, lines)) <= 80
        assert [line.split()[:3] for line in lines[1:4]] == [
            ["erp.orders", "v", "erp"], ["erp.lines", "v", "erp"], ["crm.customer", "v", "crm"],
        ]  # fmt: skip
        assert "1 condition there" in lines[1]
        assert lines[-1] == "Details: driftline explain v, or --verbose."
        asked = command("explain", "--ask", config=sites.toml())
        assert asked.out.splitlines()[1].startswith("erp.orders")
        assert "not known: " in asked.out.splitlines()[4], "those of a source that is down first"
        whole = command("explain", "--verbose", config=sites.toml()).out
        assert whole.startswith(ended.out)
        assert "w: 3 tables of 2 sites" in whole
        del sites.views["w"]
        # Views change: it says what comes.
        sites.views["v"] = VIEW.replace("o.state = 1", "o.state = 2")
        (orders, *_), *_ = (site.tables for site in decomposed(
            sites.config(), sites.config().views["v"], ask=False
        ))  # fmt: skip
        assert "the next refresh follows the views: this is what it reads then" in orders.notes
        assert orders.pushed == ('"state" = 2',)
        wrong = command("explain", "w", config=sites.toml())
        assert wrong.code == 2
        assert "There is no view 'w'" in wrong.err
        json.dumps(body)
