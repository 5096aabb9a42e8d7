"""How far a numeric column moved, as a refresh measures it and a schedule weighs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.change_models.memory import Distance, Memory
from warehouse_agent.history.change_memory import remembered

pytestmark = pytest.mark.starts

DISTANCE = 'distance = { column = "price", scale = 0.5 }'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price REAL, note TEXT, n INT)")
    rows = [(key, float(key), f"note {key}", key) for key in range(300)]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


def memory_of(pair: Pair) -> Memory:
    return remembered(pair.store, "orders", "UTC")


def test_a_refresh_measures_the_moves_and_a_schedule_weighs_them(pair: Pair) -> None:
    pair.fragment_lines["orders"] = DISTANCE
    assert pair.refresh("orders").changed is None
    pair.legacy.execute("UPDATE orders SET price = price + 0.5 WHERE id < 20")
    pair.legacy.execute("UPDATE orders SET price = price - 1.5 WHERE id BETWEEN 20 AND 29")
    pair.legacy.execute("UPDATE orders SET note = 'other' WHERE id BETWEEN 30 AND 39")
    pair.legacy.execute("UPDATE orders SET price = NULL WHERE id BETWEEN 40 AND 49")
    pair.legacy.execute("DELETE FROM orders WHERE id BETWEEN 50 AND 54")
    report = pair.refresh("orders")
    pair.check("orders")
    assert report.changed is not None
    assert report.changed["moves"] == {"column": "price", "rows": 40, "square": 27.5 / 40}
    json.loads(report.to_json())
    (found,) = memory_of(pair).recent
    assert (found.updated, found.deleted) == (50, 5)
    (weighed,) = memory_of(pair).weighed((1.0, 1.0, 1.0), Distance("price", 0.5)).recent
    assert weighed.updated == pytest.approx(27.5 / 0.25 + 10)
    assert weighed.deleted == 5


def test_nothing_is_measured_where_nobody_asks(pair: Pair) -> None:
    pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET price = price + 1 WHERE id < 20")
    report = pair.refresh("orders")
    assert report.changed is not None
    assert "moves" not in report.changed
    assert memory_of(pair).recent[0].moves is None


@pytest.mark.parametrize(
    ("column", "says"),
    [("note", "published as string, no number"), ("prise", "has no column 'prise'")],
)
def test_a_column_that_is_no_number_is_refused_by_name(pair: Pair, column: str, says: str) -> None:
    pair.refresh("orders")
    before = pair.version("orders")
    pair.fragment_lines["orders"] = f'distance = {{ column = "{column}" }}'
    error = pair.error("orders")
    assert error["code"] == "CONFIGURATION"
    assert error["where"] == "fragments.orders.distance.column"
    assert says in error["message"]
    assert error["remedy"] == "Name a column that is published as a number, or remove `distance`."
    assert pair.version("orders") == before
    pair.fragment_lines["orders"] = 'distance = { column = "price" }'
    pair.refresh("orders")
    pair.fragment_lines["orders"] = ""
    pair.refresh("orders")


@pytest.mark.parametrize("carrier", ["", 'carriers = { n = "string" }\n'])
def test_another_carrier_is_no_number(pair: Pair, carrier: str) -> None:
    pair.fragment_lines["orders"] = f'{carrier}distance = {{ column = "n" }}'
    if carrier:
        assert "no number" in pair.error("orders")["message"]
        return
    pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET n = n + 3 WHERE id = 7")
    report = pair.refresh("orders")
    assert report.changed is not None
    assert report.changed["moves"] == {"column": "n", "rows": 1, "square": 9.0}
