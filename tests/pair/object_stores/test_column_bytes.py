"""Readers of a bucket fetch little more than the columns that they name, of the rows they want."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.harness.counted_requests import RequestCounter
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from warehouse_agent import read
from warehouse_agent.storage import formats

pytestmark = pytest.mark.spark

ROWS, COLUMNS = 150_000, 8
WANTED = ["id", "c1", "c2"]
RATIO_MAX = 1.2


@pytest.fixture(scope="module")
def counter(moto: Moto) -> Iterator[RequestCounter]:
    with RequestCounter(moto) as made:
        yield made


@pytest.fixture(scope="module")
def pair(counter: RequestCounter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A table of texts that no compression makes small."""
    folder, rng = tmp_path_factory.mktemp("columns"), random.Random(1)
    legacy = SqliteLegacy(folder / "erp.db")
    columns = ", ".join(f"c{n} TEXT" for n in range(COLUMNS))
    legacy.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, {columns})")
    rows = [(i, *(rng.randbytes(8).hex() for _ in range(COLUMNS))) for i in range(ROWS)]
    legacy.many(f"INSERT INTO t VALUES (?{', ?' * COLUMNS})", rows)
    with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as made:
        made.bucket, made.small_bytes = counter.bucket(), None
        made.refresh("t")
        yield made
    legacy.close()


@pytest.mark.parametrize(("share", "of_all"), [(1.0, 0.4), (0.25, 0.25)])
def test_columns_and_row_groups(
    pair: Pair, counter: RequestCounter, spark: SparkSession, share: float, of_all: float
) -> None:
    bucket, below = pair.bucket, int(ROWS * share)
    assert bucket is not None
    wanted, whole = stored_bytes(pair, below)
    with counter.counted(bucket) as asked:
        rows = read(
            spark,
            bucket.root,
            "t",
            columns=WANTED,
            where=[("id", "<", below)],
            storage=bucket.settings,
        )
        found = rows.selectExpr("count(id)", "max(c1)", "min(c2)").collect()[0]
    assert found[0] == below
    assert wanted <= asked.down_bytes <= RATIO_MAX * wanted
    assert wanted <= of_all * whole


def stored_bytes(pair: Pair, below: int) -> tuple[int, int]:
    """Return the bytes of the wanted columns in row groups that have a row with a key below a
    limit, and those of all columns of all row groups."""
    head = formats.head(pair.store, "t")
    assert head is not None
    wanted = whole = 0
    for file in head.files:
        with pair.store.backend.opened(pair.store.backend.path(file.uri)) as opened:
            groups = opened.footer
        for number in range(groups.num_row_groups):
            group = groups.row_group(number)
            columns = [group.column(n) for n in range(group.num_columns)]
            whole += sum(one.total_compressed_size for one in columns)
            least = next(one for one in columns if one.path_in_schema == "id").statistics.min
            if least < below:
                wanted += sum(
                    one.total_compressed_size for one in columns if one.path_in_schema in WANTED
                )
    return wanted, whole
