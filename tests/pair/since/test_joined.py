"""Refreshes of a query by the markers of its tables, on three engines.

The oracle is a join made here of the owner's own rows. Both agents run in this process.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.legacy import LEGACIES, Legacy
from tests.pair.since.rig import OLD, TYPES, Rig, by_time, counts, now, of, seeds

CUSTOMERS, ORDERS = 20, 400
SEEDS = seeds(2)
QUERY = """SELECT o.id, o.v, c.name, o.changed AS o_changed, c.changed AS c_changed,
o.version AS o_version, c.version AS c_version
FROM orders o JOIN customers AS c ON c.id = o.customer WHERE o.v >= 0"""
BY_VERSIONS = 'markers = { o = { column = "o_version" }, c = { column = "c_version" } }'


class Shop(Rig):
    """A pair over a query of orders and their customers."""

    def __init__(self, legacy: Legacy, folder: Path, markers: str) -> None:
        time = TYPES[legacy.engine]["time"]
        for table, columns in {"customers": "name", "orders": "v"}.items():
            more = ", customer INTEGER" if table == "orders" else ""
            legacy.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {columns} INTEGER, changed {time},"
                f" version INTEGER{more})"
            )
        old = of(legacy, OLD)
        sql = "INSERT INTO customers VALUES (?, ?, ?, ?)"
        legacy.many(sql, [(i, i, old, 0) for i in range(CUSTOMERS)])
        sql = "INSERT INTO orders VALUES (?, ?, ?, ?, ?)"
        legacy.many(sql, [(i, i % 50, old, 0, i % CUSTOMERS) for i in range(ORDERS)])
        self.version = 1
        lines = f'query = """{QUERY}"""\nkey = ["id"]\ncolumns = ["id", "v", "name"]\n{markers}'
        super().__init__(legacy, folder, "shop", lines)

    def update(self, table: str, ids: list[int], **values: int) -> None:
        """Update rows, and both of their markers."""
        self.version += 1
        at = now(self.legacy)
        names = ", ".join(f"{name} = ?" for name in (*values, "changed", "version"))
        rows = [(*values.values(), at, self.version, id) for id in ids]
        self.legacy.many(f"UPDATE {table} SET {names} WHERE id = ?", rows)

    def insert(self, ids: list[int], customer: int) -> None:
        """Insert orders as a bulk load does, which leaves their markers alone."""
        rows = [(id, 1, of(self.legacy, OLD), 0, customer) for id in ids]
        self.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)

    def delete(self, table: str, ids: list[int]) -> None:
        self.legacy.many(f"DELETE FROM {table} WHERE id = ?", [(id,) for id in ids])

    def theirs(self) -> dict[int, tuple[Any, ...]]:
        names = {row[0]: row[1] for row in self.legacy.rows("customers")}
        orders = self.legacy.rows("orders")
        return {o[0]: (o[0], o[1], names[o[4]]) for o in orders if o[1] >= 0 and o[4] in names}

    def newest(self) -> tuple[int, int]:
        """Return the newest version of an order in the result, and of a customer."""
        customers = {row[0]: row[3] for row in self.legacy.rows("customers")}
        orders = self.legacy.rows("orders")
        found = [(o[3], customers[o[4]]) for o in orders if o[1] >= 0 and o[4] in customers]
        return max(o for o, _ in found), max(c for _, c in found)


def by_times(legacy: Legacy) -> str:
    """Return the TOML of a marker for each table, by its times."""
    orders, customers = (by_time(legacy, column=name) for name in ("o_changed", "c_changed"))
    return f"markers = {{ o = {orders}, c = {customers} }}"


@pytest.mark.parametrize("kind", ["time", "version"])
def test_a_change_in_any_table_is_found(legacy: Legacy, tmp_path: Path, kind: str) -> None:
    shop = Shop(legacy, tmp_path / "pair", by_times(legacy) if kind == "time" else BY_VERSIONS)
    try:
        shop.refresh()
        quiet = shop.refresh()
        assert quiet.marker is not None
        assert (quiet.proof, quiet.method) == ("keys", "since")
        if kind == "time":
            assert quiet.marker["rows"] == 0
        shop.update("orders", [3, 4], v=1000)
        shop.update("customers", [7], name=70)
        shop.update("orders", [5], v=-1)  # it leaves the result
        shop.update("orders", [6], customer=8)
        shop.delete("orders", [40, 41])
        shop.insert([1000, 1001], customer=9)
        found = shop.refresh()
        assert found.marker is not None
        assert (found.proof, counts(found)) == ("keys", (2, 3 + ORDERS // CUSTOMERS, 3))
        assert shop.ours() == shop.theirs()
        shop.delete("customers", [2])
        assert counts(shop.refresh()) == (0, 0, ORDERS // CUSTOMERS)
        assert shop.ours() == shop.theirs()
    finally:
        shop.pair.stop()


def test_what_a_joined_table_does_not_show_is_named_by_the_audit(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    legacy = LEGACIES["sqlite"](request, tmp_path)
    shop = Shop(legacy, tmp_path / "pair", BY_VERSIONS)
    try:
        shop.update("orders", list(range(30)), v=2)
        shop.update("customers", [0], name=1)
        shop.refresh()
        legacy.execute("UPDATE customers SET name = 500 WHERE id = 4")
        assert counts(shop.refresh()) == (0, 2, 0)  # orders 4 and 24 are at their own mark
        audit = shop.audit()
        lacking = ORDERS // CUSTOMERS - 2
        assert (audit["missed"], shop.ours() == shop.theirs()) == (lacking, True)
    finally:
        shop.pair.stop()
        legacy.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> None:
    legacy = LEGACIES["sqlite"](request, tmp_path)
    shop, rng = Shop(legacy, tmp_path / "pair", BY_VERSIONS), random.Random(seed)
    try:
        shop.refresh()
        mark = shop.newest()
        for step in range(8):
            present = [row[0] for row in legacy.rows("orders")]
            rng.shuffle(present)
            shop.update("orders", present[: rng.randrange(6)], v=rng.randrange(-1, 99))
            shop.update("orders", present[6:9], customer=rng.randrange(CUSTOMERS))
            some = rng.sample(range(CUSTOMERS), rng.randrange(3))
            shop.update("customers", some, name=rng.randrange(1000, 9999))
            shop.delete("orders", present[10 : 10 + rng.randrange(6)])
            shop.insert(
                [5000 + 10 * step + i for i in range(rng.randrange(4))], rng.choice(range(20))
            )
            if rng.random() < 0.2:
                shop.delete("customers", [rng.randrange(CUSTOMERS)])
            report = shop.refresh()
            # A history may delete the row of the newest version, or let it leave the result.
            before, mark = mark, shop.newest()
            is_unfit = any(now < then for now, then in zip(mark, before, strict=True))
            assert report.marker is not None
            assert is_unfit is ("later than" in str(report.marker["why"]))
            assert (report.proof, report.method == "since") == (
                ("total", False) if is_unfit else ("keys", True)
            )
            assert shop.ours() == shop.theirs()
        assert shop.audit()["missed"] == 0
    finally:
        shop.pair.stop()
        legacy.close()
