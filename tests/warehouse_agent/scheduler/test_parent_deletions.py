"""`fit` of a fragment whose rows are deleted with those that they reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.warehouse_agent.change_models.weeks import every, remembered
from warehouse_agent.cli.main import cli
from warehouse_agent.storage.store import PRIVATE

pytestmark = pytest.mark.starts

OWN, WITH = 0.001, 0.002  # deletions per row and hour: of customers, and of orders in all
ROWS = 10_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE regions (id INTEGER PRIMARY KEY)")
    legacy.execute(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY,"
        " region INT NOT NULL REFERENCES regions ON DELETE CASCADE)"
    )
    legacy.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY,"
        " customer INT NOT NULL REFERENCES customers ON DELETE CASCADE,"
        " region INT REFERENCES regions ON DELETE SET NULL)"
    )
    names = ("orders", "customers", "regions")
    with Pair(NoSpark(), legacy, tmp_path / "pair", {n: f'table = "{n}"' for n in names}) as made:
        yield made
    legacy.close()


def remember(pair: Pair, name: str, per_row: float) -> None:
    """Deletions at a rate per row and hour, as daily refreshes of 12 weeks found them."""
    memory = remembered(np.zeros(168), every(24), np.random.default_rng(1))
    deleted = ROWS * -np.expm1(-per_row * 24)
    recent = tuple(replace(one, deleted=deleted, rows=ROWS) for one in memory.recent)
    body = json.dumps(replace(memory, recent=recent).to_json()).encode()
    pair.store.write(body, PRIVATE, "schedule", f"{name}.json")


def fitted(pair: Pair, name: str, *words: str) -> str:
    said = CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), "fit", name, *words])
    assert said.exit_code == 0, said.output
    return said.stdout


def test_deletions_that_parents_cause(pair: Pair) -> None:
    remember(pair, "orders", WITH)
    remember(pair, "customers", OWN)
    said = fitted(pair, "orders")
    assert "rows are deleted with those that they reference: customers (1 each), regions" in said
    assert "how often rows of regions are deleted is not known" in said
    body = json.loads(fitted(pair, "orders", "--json"))
    assert [one["relation"] for one in body["parents"]] == ["customers", "regions"]
    assert [one["rows_each"] for one in body["parents"]] == [[1, 1], [1, 1]]
    assert body["deleted_with_parents_per_row_and_hour"] == pytest.approx([OWN, OWN], rel=1e-6)
    assert body["deleted_alone_per_row_and_hour"] == pytest.approx(WITH - OWN, rel=1e-6)
    assert body["parents_not_known"] is None
    a_day = ROWS * -np.expm1(-OWN * 24)
    assert f"of {ROWS:,} rows {a_day:,.1f} a day are expected to be deleted so" in said


def test_a_relation_without_parents(pair: Pair) -> None:
    remember(pair, "regions", OWN)
    assert "foreign keys" not in fitted(pair, "regions")
    assert json.loads(fitted(pair, "regions", "--json"))["parents"] == []


def test_a_source_that_is_away_tells_no_foreign_keys(pair: Pair) -> None:
    remember(pair, "orders", WITH)
    pair.stop()
    assert "  foreign keys are not known: " in fitted(pair, "orders")
    body = json.loads(fitted(pair, "orders", "--json"))
    assert body["parents_not_known"]
    assert body["deleted_with_parents_per_row_and_hour"] is None
