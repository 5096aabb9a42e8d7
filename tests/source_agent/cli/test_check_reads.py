"""`check --reads` as a DBA meets it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from driftline.errors import NotFound, ValueDoesNotFit

from source_agent.cli.check_reads import as_text
from source_agent.cli.main import cli
from source_agent.engines.encoding.plain_values import FixedWidthEncoder
from source_agent.engines.own_values.comparison import ColumnReads, ValueComparison, ValueDifference
from source_agent.engines.sqlite.values import ENCODERS
from tests.harness.agents import configuration

RELATIONS = """
[relations.orders]
table = "orders"
[relations.empty]
table = "orders"
where = "id < 0"
[relations.sum]
query = "SELECT note, count(*) AS n FROM orders GROUP BY note"
key = ["note"]
types = { n = "int8" }
[relations.wrong]
table = "wrong"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price REAL, note TEXT)")
        rows = [(n, 0.1 * n, f"n{n % 7}" if n % 9 else None) for n in range(100)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        connection.execute("CREATE TABLE wrong (id INTEGER PRIMARY KEY, n INTEGER)")
        connection.execute("INSERT INTO wrong VALUES (1, 'text')")
        connection.commit()
    configuration(tmp_path, tmp_path / "erp.db", certs=None, relations=RELATIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["check", *arguments])


def test_equal_values(folder: Path) -> None:
    done = check("--reads", "orders")
    assert done.exit_code == 0, done
    assert done.stdout.splitlines() == [
        "orders",
        "  100 rows: every row",
        "  equal    id int8: 100 values",
        "  equal    price float8: 100 values",
        "  equal    note text: 88 values",
        "  All values that were compared are equal.",
    ]
    assert os.listdir(folder).count("audit.jsonl") == 0


def test_a_sample_has_about_as_many_rows_as_wanted(folder: Path) -> None:
    del folder
    done = check("--reads", "orders", "--rows", "20", "--json")
    (found,) = json.loads(done.stdout)["relations"]
    assert 10 <= found["rows"] <= 30
    assert found["how"] == "from first to last key, by its index"


def test_a_value_that_differs_is_shown_and_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del folder
    rounded = FixedWidthEncoder("float8", convert=lambda v: float(f"{v:.15g}"))
    monkeypatch.setitem(ENCODERS, "real", lambda _: rounded)
    done = check("--reads", "orders")
    assert done.exit_code == 1
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "DIFFERS  price float8: in 35 rows" in lines
    assert "id=3: read 0.3, the driver has 0.30000000000000004" in lines
    assert "equal    id int8: 100 values" in lines
    assert lines[-1].startswith("What Driftline reads is not what the driver returns.")
    found = json.loads(check("--reads", "orders", "--json").stdout)
    assert found["ok"] is False
    (differing,) = (c for c in found["relations"][0]["columns"] if c["differing"])
    sample = {"key": "id=3", "published": "0.3", "driver": "0.30000000000000004"}
    assert differing["samples"][0] == sample


def test_several_relations_a_query_and_no_row(folder: Path) -> None:
    del folder
    done = check("--reads", "empty", "--reads", "sum")
    assert done.exit_code == 0, done
    assert "There is no row." in done.stdout
    assert "no index of its key can be used" in done.stdout
    assert "may be computed as a whole" in done.stdout
    assert "equal    n int8: 8 values" in done.stdout


def test_what_a_scan_refuses_is_refused_here(folder: Path) -> None:
    del folder
    done = check("--reads", "wrong")
    assert isinstance(done.exception, ValueDoesNotFit)
    assert "wrong.n" in str(done.exception)


def test_a_relation_that_is_not_published(folder: Path) -> None:
    del folder
    done = check("--reads", "order")
    assert isinstance(done.exception, NotFound)
    assert "orders" in str(done.exception)


def test_an_engine_that_shows_no_values_of_its_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del folder
    from source_agent.engines.sqlite.engine import SqliteEngine

    monkeypatch.delattr(SqliteEngine, "own_values")
    done = check("--reads", "orders")
    assert done.exit_code == 1
    assert "not compared  id int8: the engine does not show what its driver returns" in done.stdout
    assert done.stdout.endswith("Nothing could be compared.\n")


def test_reasons_missing_rows_and_long_values_are_printed() -> None:
    long = "x" * 500
    columns = (
        ColumnReads("a", "text", 1, 0, 1, (ValueDifference("id=1", long, None),)),
        ColumnReads("b", "text", not_compared={"its reason": 2}),
    )
    found: dict[str, Any] = {"t": ValueComparison(2, "every row", columns, ("id=7: lost",), 3)}
    text = as_text(found)
    assert f"read {'x' * 60}…, the driver has NULL" in text
    assert "not compared  b text: 2 values: its reason" in text
    assert "DIFFERS  row id=7: lost" in text
    assert "3 rows not compared: not found again by their key" in text
