"""Views maintained by affected keys, where it is easy to be wrong.

Each view has `maintain = "incremental"`. After each refresh its rows are those that DuckDB makes of
the sources' rows, its lineage that of a recomputation, and its feed leads from the version before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.views import Sites

pytestmark = pytest.mark.spark

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, amount INT, note VARCHAR",
        "line": "id INT NOT NULL, pos INT NOT NULL, part VARCHAR, PRIMARY KEY (id, pos)",
    },
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR, region INT"},
}
VIEWS = {
    "chain": "SELECT o.id, c.name, l.part FROM erp.orders o JOIN crm.customer c ON c.id = o.customer"
    " JOIN erp.line l ON l.id = o.id WHERE o.amount > 10",
}


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Iterator[Sites]:
    with Sites(spark, tmp_path, TABLES, dict(VIEWS)) as made:
        for i in range(60):
            made.sql("erp", "INSERT INTO orders VALUES (?, ?, ?, ?)", i, i % 9, i, f"n{i % 4}")
            for pos in range(i % 4):
                made.sql("erp", "INSERT INTO line VALUES (?, ?, ?)", i, pos, f"p{(i + pos) % 7}")
        for i in range(12):
            made.sql("crm", "INSERT INTO customer VALUES (?, ?, ?, ?)", f"c{i}", i % 8, f"n{i}", i % 3)
        for name in made.views:
            made.view_lines[name] = 'maintain = "incremental"'
        yield made


def test_chain(sites: Sites) -> None:
    sites.well()
    sites.sql("erp", "UPDATE orders SET amount = amount + 5 WHERE id IN (3, 20, 41)")
    sites.sql("erp", "DELETE FROM line WHERE id = 7 AND pos = 0")
    sites.sql("crm", "UPDATE customer SET name = 'other' WHERE code = 'c4'")
    sites.sql("crm", "INSERT INTO customer VALUES ('new', 2, 'newcomer', 1)")
    report = sites.well()["chain"]
    print(report)
    assert report.method == "incremental", report.method_why
    sites.check()
