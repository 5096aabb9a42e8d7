"""How far a load is, by the names of staged files and the notes beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.staged import any_frame
from tests.samples.exchanges import ORDERS
from warehouse_agent.storage.staged_files import (
    StagedRows,
    file_name,
    rows_of,
    staged_of_load,
)
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.staging import ExchangeIdentity, Staging

FOLDER = (PRIVATE, "staging", "orders")


def staged(store: Store, rows: int, expected: int, exchange: ExchangeIdentity = ORDERS) -> str:
    """Stage two files of an exchange; return its folder."""
    writer = Staging(store, "orders").begin(exchange, rows_expected=expected)
    for _ in range(2):
        writer.add(any_frame(rows))
        writer.flush()
    assert writer.rows == 2 * rows
    return writer.folder


@given(st.lists(st.integers(0, 10**12)))
def test_names_tell_rows(counts: list[int]) -> None:
    names = [file_name(n, rows) for n, rows in enumerate(counts, 1)]
    assert names == sorted(names), "in the order of their numbers"
    assert rows_of([*names, "exchange.json"]) == sum(counts)


@pytest.mark.parametrize("name", ["000001.frames", "x-1.frames", "000001--1.frames"])
def test_other_names_tell_nothing(name: str) -> None:
    assert rows_of([file_name(1, 7), name]) is None


def test_exchanges_add_up(tmp_path: Path) -> None:
    store, staging = Store(str(tmp_path)), Staging(Store(str(tmp_path)), "orders")
    assert staged_of_load(store, "orders") is None
    begun = datetime.now(UTC).replace(microsecond=0)
    staged(store, 5, 0)
    assert staging.begin(ORDERS).rows_before == 10
    folder = staged(store, 20, 100)
    assert staging.begin(ORDERS).rows_before == 50
    found = staged_of_load(store, "orders")
    assert found is not None
    assert (found.rows, found.rows_expected, found.share) == (50, 100, 0.5)
    assert found.bytes == staging.frame_bytes()
    assert begun <= datetime.fromisoformat(found.at) <= datetime.now(UTC)
    # A refresh of a version, and an exchange whose note is damaged, which no attempt can use.
    staged(store, 7, 100, replace(ORDERS, base_version=3))
    store.write(b'{"recipe": ', *FOLDER, staged(store, 7, 100), "exchange.json")
    assert staged_of_load(store, "orders") == found
    # Files of an older release, whose rows and estimate nobody noted.
    (tmp_path.joinpath(*FOLDER) / folder / "000003.frames").write_bytes(b"frames")
    store.write(json.dumps(ORDERS.to_json()).encode(), *FOLDER, folder, "exchange.json")
    older = staged_of_load(store, "orders")
    assert older is not None
    assert (older.rows, older.rows_expected, older.share) == (None, None, None)
    assert older.bytes == found.bytes + len(b"frames")
    assert staging.begin(ORDERS).rows_before == 0


@pytest.mark.parametrize(
    ("rows", "expected", "share"), [(0, 9, 0.0), (3, 9, 1 / 3), (12, 9, 0.99), (3, None, None)]
)
def test_a_share_is_less_than_one(rows: int, expected: int | None, share: float | None) -> None:
    assert StagedRows(rows, expected, 1, "").share == share
