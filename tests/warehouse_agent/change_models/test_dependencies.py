"""Deletions along foreign keys: multiplicities, and cascades of a real database in virtual time."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from driftline.arrays import Floats
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.change_models import processes
from warehouse_agent.change_models.dependencies import (
    RELATIONS_MAX,
    CascadingKey,
    Graph,
    Multiplicity,
    cycles,
    multiplicities,
    own_deaths,
    with_parents,
)

# Figure 1 of the paper: Net.Commerce.
NET_COMMERCE = {
    "scale": (CascadingKey("merchant", True),),
    "disccalc": (CascadingKey("merchant", False), CascadingKey("scale", False)),
    "category": (CascadingKey("merchant", False),),
    "cgryrel": (CascadingKey("category", False), CascadingKey("category", False)),
    "shipto": (CascadingKey("orders", False), CascadingKey("merchant", False)),
    "orders": (CascadingKey("merchant", False),),
}


def test_multiplicities_of_the_paper() -> None:
    """Example 4: the paper knows from the meaning of the rows that the upper or the lower bound is
    kept; the catalogue alone gives both."""
    assert multiplicities(NET_COMMERCE, "disccalc") == {
        "merchant": Multiplicity(1, 2),
        "scale": Multiplicity(1, 1),
    }
    assert multiplicities(NET_COMMERCE, "cgryrel") == {
        "category": Multiplicity(1, 2),
        "merchant": Multiplicity(1, 2),
    }
    assert multiplicities(NET_COMMERCE, "scale") == {"merchant": Multiplicity(0, 1)}
    assert multiplicities(NET_COMMERCE, "merchant") == {}
    assert cycles(NET_COMMERCE) == ()


def counted(graph: Graph, name: str) -> dict[str, Multiplicity]:
    """The multiplicities by each path, one by one."""
    found: dict[str, list[bool]] = {}

    def follow(relation: str, is_certain: bool) -> None:
        for edge in graph.get(relation, ()):
            certain = is_certain and not edge.is_nullable
            found.setdefault(edge.parent, []).append(certain)
            follow(edge.parent, certain)

    follow(name, True)
    return {one: Multiplicity(int(any(paths)), len(paths)) for one, paths in found.items()}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=14))
def test_multiplicities_are_those_of_all_paths(drawn: list[tuple[int, int, bool]]) -> None:
    graph: dict[str, list[CascadingKey]] = {}
    for child, parent, is_nullable in drawn:
        if child < parent:
            graph.setdefault(f"t{child}", []).append(CascadingKey(f"t{parent}", is_nullable))
    for name in graph:
        assert multiplicities(graph, name) == counted(graph, name)


def test_as_many_relations_as_are_followed_with_all_foreign_keys() -> None:
    names = [f"t{n:02}" for n in range(RELATIONS_MAX)]
    graph = {a: [CascadingKey(b, False) for b in names[n + 1 :]] for n, a in enumerate(names)}
    assert multiplicities(graph, "t00")["t63"] == Multiplicity(1, 2**62)
    assert len(own_deaths(graph, dict.fromkeys(names, 0.1))) == RELATIONS_MAX


def test_cycles_are_cut_and_told() -> None:
    graph = {
        "a": (CascadingKey("b", False),),
        "b": (CascadingKey("a", False),),
        "c": (CascadingKey("a", True),),
    }
    assert cycles(graph) == ("a", "b")
    assert multiplicities(graph, "a") == {"b": Multiplicity(1, 1)}
    assert multiplicities(graph, "c") == {"a": Multiplicity(0, 1), "b": Multiplicity(0, 1)}
    itself = {"employees": (CascadingKey("employees", True),)}
    assert cycles(itself) == ("employees",)
    assert multiplicities(itself, "employees") == {}
    same = own_deaths(dict(reversed(graph.items())), {"b": 0.1, "a": 0.1})
    assert own_deaths(graph, {"a": 0.1, "b": 0.1}) == same


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_own_deletions_are_those_that_no_parent_causes(top: float, mid: float, low: float) -> None:
    """Lemma 4 backwards: what is observed of a relation is the sum along its path."""
    graph = {"low": (CascadingKey("mid", False),), "mid": (CascadingKey("top", False),)}
    observed = {"top": top, "mid": mid + top, "low": low + mid + top}
    own = own_deaths(graph, observed)
    assert [own[n] for n in ("top", "mid", "low")] == pytest.approx([top, mid, low], abs=1e-9)
    assert with_parents(graph, "low", own) == pytest.approx((top + mid, top + mid), abs=1e-9)


TABLES = """
CREATE TABLE regions (id INTEGER PRIMARY KEY);
CREATE TABLE customers (id INTEGER PRIMARY KEY, region INT NOT NULL
  REFERENCES regions ON DELETE CASCADE);
CREATE TABLE orders (id INTEGER PRIMARY KEY,
  customer INT NOT NULL REFERENCES customers ON DELETE CASCADE,
  agent INT REFERENCES customers ON DELETE CASCADE,
  region INT REFERENCES regions ON DELETE CASCADE);
"""
OWN = {"regions": 0.002, "customers": 0.004, "orders": 0.01}  # deletions per row and hour
ROWS = {"regions": 500, "customers": 1000, "orders": 20_000}
HOURS = 24.0


def cascaded(rng: np.random.Generator, *, nullable: bool) -> tuple[float, np.ndarray]:
    """Delete rows of a real SQLite database that die within HOURS, each with its cascade.

    Returns the share of orders that survive, and w_S of each order for regions and customers,
    counted from its rows.
    """
    customers = rng.integers(0, ROWS["regions"], ROWS["customers"])
    buyer = rng.integers(0, ROWS["customers"], ROWS["orders"])
    has_agent = rng.random(ROWS["orders"]) < 0.5 if nullable else np.zeros(ROWS["orders"], np.bool_)
    agent = np.where(has_agent, rng.integers(0, ROWS["customers"], ROWS["orders"]), -1)
    region = np.where(
        has_agent & (rng.random(ROWS["orders"]) < 0.5),
        rng.integers(0, ROWS["regions"], ROWS["orders"]),
        -1,
    )
    orders = zip(range(ROWS["orders"]), buyer.tolist(), agent.tolist(), region.tolist())  # noqa: B905
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA foreign_keys = ON")
        database.executescript(TABLES)
        database.executemany(
            "INSERT INTO regions VALUES (?)", [(n,) for n in range(ROWS["regions"])]
        )
        database.executemany(
            "INSERT INTO customers VALUES (?, ?)", list(enumerate(customers.tolist()))
        )
        database.executemany(
            "INSERT INTO orders VALUES (?, ?, nullif(?, -1), nullif(?, -1))", orders
        )
        for column in ("customer", "agent", "region"):  # else each cascade is a scan
            database.execute(f"CREATE INDEX by_{column} ON orders ({column})")
        database.execute("CREATE INDEX of_region ON customers (region)")
        for table, rate in OWN.items():
            dies = np.flatnonzero(rng.exponential(1 / rate, ROWS[table]) <= HOURS)
            database.executemany(f"DELETE FROM {table} WHERE id = ?", [(int(n),) for n in dies])
        ((alive,),) = database.execute("SELECT count(*) FROM orders").fetchall()
    agents = [{int(b), int(a)} - {-1} for b, a in zip(buyer, agent, strict=True)]
    regions = [
        ({int(customers[c]) for c in some} | {int(r)}) - {-1}
        for some, r in zip(agents, region, strict=True)
    ]
    found = np.array([(len(r), len(c)) for r, c in zip(regions, agents, strict=True)], np.float64)
    return alive / ROWS["orders"], found


def deaths() -> np.ndarray:
    """M_S(s, f) of regions, customers and the orders themselves."""
    rates = [np.full(168, OWN[name]) for name in ("regions", "customers", "orders")]
    return np.array([processes.integral(rate, 3.0, 3.0 + HOURS) for rate in rates])


def survival(multiplicities: Floats, deaths: Floats) -> float:
    """Return the probability that a tuple survives, a mean over tuples (Lemmas 3 and 4).

    Args:
        multiplicities: how many tuples of each relation a tuple depends on, [tuples, relations].
        deaths: the integrated deletion rate of each relation, [relations].
    """
    return float(np.mean(np.exp(-np.atleast_2d(multiplicities) @ deaths)))


@pytest.mark.slow
def test_a_cascade_matches_lemma_4() -> None:
    """Every order has one customer, and through it one region: fixed multiplicities."""
    graph = {
        "orders": (CascadingKey("customers", False),),
        "customers": (CascadingKey("regions", False),),
    }
    known = multiplicities(graph, "orders")
    assert all(one.is_fixed for one in known.values())
    fixed = np.array([known["regions"].least, known["customers"].least, 1.0])
    expected = survival(fixed, deaths())
    found = [cascaded(np.random.default_rng(seed), nullable=False)[0] for seed in range(4)]
    # Orders of one customer die together: 4 * 500 regions are the sample. 5 standard errors.
    error = 5 * math.sqrt(expected * (1 - expected) / (4 * ROWS["regions"]))
    assert float(np.mean(found)) == pytest.approx(expected, abs=error)
    observed = {name: OWN[name] for name in OWN} | {
        "customers": OWN["customers"] + OWN["regions"],
        "orders": -math.log(float(np.mean(found))) / HOURS,
    }
    own = own_deaths(graph, observed)
    assert with_parents(graph, "orders", own) == pytest.approx((0.006, 0.006))
    assert own["orders"] == pytest.approx(OWN["orders"], abs=error * 2 / HOURS)


@pytest.mark.slow
def test_a_cascade_matches_lemma_3() -> None:
    """Half of the orders have an agent, some a region of their own: multiplicities differ."""
    graph = {
        "orders": (
            CascadingKey("customers", False),
            CascadingKey("customers", True),
            CascadingKey("regions", True),
        ),
        "customers": (CascadingKey("regions", False),),
    }
    known = multiplicities(graph, "orders")
    assert known == {"customers": Multiplicity(1, 2), "regions": Multiplicity(1, 3)}
    alive, expected = [], []
    for seed in range(4):
        share, each = cascaded(np.random.default_rng(seed), nullable=True)
        assert known["regions"].least <= each[:, 0].min() <= each[:, 0].max() <= 3
        assert known["customers"].least <= each[:, 1].min() <= each[:, 1].max() <= 2
        alive.append(share)
        expected.append(survival(np.c_[each, np.ones(len(each))], deaths()))
    mean = float(np.mean(expected))
    error = 5 * math.sqrt(mean * (1 - mean) / (4 * ROWS["regions"]))
    assert float(np.mean(alive)) == pytest.approx(mean, abs=error)
    # The catalogue's bounds, by Lemma 4 with either, hold Lemma 3 between them.
    own = dict(OWN)
    low, high = with_parents(graph, "orders", own)
    assert (
        math.exp(-(high + OWN["orders"]) * HOURS) < mean < math.exp(-(low + OWN["orders"]) * HOURS)
    )
