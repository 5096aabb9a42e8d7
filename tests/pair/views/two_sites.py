"""Two sources of one table each, with a view over both and one over that view, to begin with.

A test module has VIEWS, and a fixture `template` that loads them (`filled`); `sites` is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.views import Sites

TABLES = {
    "erp": {"orders": "id INTEGER PRIMARY KEY, customer INT, amount INT"},
    "crm": {"customer": "code VARCHAR PRIMARY KEY, id INT, name VARCHAR"},
}


def filled(spark: SparkSession, folder: Path, views: dict[str, str], batches: int) -> Path:
    """Load the sources and refresh, in batches of 30 orders; return the folder to copy."""
    with Sites(spark, folder, TABLES, views) as made:
        for i in range(5):
            made.sql("crm", "INSERT INTO customer VALUES (?, ?, ?)", f"c{i}", i, f"name {i}")
        for batch in range(batches):
            for i in range(batch * 30, batch * 30 + 30):
                made.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", i, i % 5, i)
            made.well()
    return folder


@pytest.fixture
def sites(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, template: Path
) -> Iterator[Sites]:
    views: dict[str, str] = request.module.VIEWS
    with Sites(spark, tmp_path, deepcopy(TABLES), dict(views), template=template) as made:
        yield made
