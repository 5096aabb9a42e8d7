"""Refreshes by a checksum that the source maintains, on three engines.

A source keeps `row_hash`, the MD5 of the other values, beside each row. Some of its writers forget
it. The oracle is the owner's own connection; both agents run in this process, without Spark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any, cast

import pytest
from driftline.wire.negotiation import CHECKSUM, FEATURES

from source_agent.scan.marked import KeyReader
from source_agent.scan.reader import Reader
from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.pair import expect_equal
from tests.pair.since.rig import TYPES, Rig, counts, seeds

ROWS = 500
SEEDS = seeds(1)
INSERT = "INSERT INTO goods VALUES (?, ?, ?, ?)"
KEYS = ["id", "code"]  # an integer, whose rows are found by index; and text, which is hashed

Row = tuple[int, str, int, str | None]


def summed(id: int, amount: int) -> str:
    return md5(f"{id}:{amount}".encode(), usedforsecurity=False).hexdigest()


def row(id: int, amount: int = 0, *, has_sum: bool = True) -> Row:
    return id, f"code {id}", amount, summed(id, amount) if has_sum else None


class Goods(Rig):
    """A pair over the table `goods`, published with one of its two keys."""

    def __init__(self, legacy: Legacy, folder: Path, key: str) -> None:
        text = TYPES[legacy.engine]["text"]
        legacy.execute(
            f"CREATE TABLE goods (id INTEGER PRIMARY KEY, code {text} NOT NULL UNIQUE,"
            f" amount INTEGER, row_hash {text})"
        )
        legacy.many(INSERT, [row(id) for id in range(0, ROWS * 3, 3)])
        self.marker, self.key = '{ checksum = "row_hash" }', key
        super().__init__(legacy, folder, "goods", self.lines())

    def lines(self) -> str:
        return f'table = "goods"\nkey = ["{self.key}"]\nmarker = {self.marker}'

    def insert(self, rows: list[Row]) -> None:
        self.legacy.many(INSERT, rows)

    def delete(self, ids: list[int]) -> None:
        self.legacy.many("DELETE FROM goods WHERE id = ?", [(id,) for id in ids])

    def update(self, ids: list[int], amount: int, *, honest: bool = True) -> None:
        if honest:
            sql = "UPDATE goods SET amount = ?, row_hash = ? WHERE id = ?"
            self.legacy.many(sql, [(amount, summed(id, amount), id) for id in ids])
        else:
            sql = "UPDATE goods SET amount = ? WHERE id = ?"
            self.legacy.many(sql, [(amount, id) for id in ids])

    def theirs(self) -> dict[int, tuple[Any, ...]]:
        return {one[0]: one for one in self.legacy.rows("goods")}

    def check(self) -> None:
        expect_equal(list(self.ours().values()), list(self.theirs().values()))


@pytest.fixture(params=KEYS)
def goods(request: pytest.FixtureRequest, legacy: Legacy, tmp_path: Path) -> Iterator[Goods]:
    made = Goods(legacy, tmp_path / "pair", request.param)
    yield made
    made.pair.stop()


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Goods]:
    """Yield the table on SQLite alone."""
    legacy = LEGACIES["sqlite"](request, tmp_path)
    made = Goods(legacy, tmp_path / "pair", "id")
    yield made
    made.pair.stop()
    legacy.close()


# Each engine with each of both keys; where the engine does not matter, each key once.
ONCE = pytest.mark.parametrize(
    ("engine", "goods"),
    [
        pytest.param(engine, key, marks=() if is_sample else pytest.mark.soak)
        for engine in TYPES
        for key in KEYS
        for is_sample in [(engine, key) in {("sqlite", "id"), ("postgresql", "code")}]
    ],
    indirect=["goods"],
)


def test_rows_whose_checksum_differs_are_pulled(goods: Goods) -> None:
    assert goods.refresh().proof == "total"
    quiet = goods.refresh()
    assert (quiet.version, quiet.proof, quiet.method) == (0, "keys", "since")
    assert quiet.marker is not None
    assert (quiet.marker["used"], quiet.marker["rows"]) == (True, 0)
    goods.update([30, 33, 36], 7)
    goods.delete([60, 63])
    goods.insert([row(61, 5), row(90_000, 6), row(1, 7, has_sum=False)])
    found = goods.refresh()
    assert (found.proof, counts(found)) == ("keys", (3, 3, 2))
    goods.check()
    # A row without a checksum is always read.
    goods.update([1], 8, honest=False)
    found = goods.refresh()
    assert found.marker is not None
    assert (counts(found), found.marker["rows"]) == ((0, 1, 0), 1)
    goods.check()


@ONCE
def test_a_change_that_the_checksum_does_not_show_is_named_by_the_audit(goods: Goods) -> None:
    goods.refresh()
    goods.update([30], 1)
    goods.update([60, 90], 4242, honest=False)
    by_marker = goods.refresh()
    assert (counts(by_marker), by_marker.proof) == ((0, 1, 0), "keys")
    goods.update([120], 5)  # shown, and found by the audit itself
    goods.insert([row(7)])
    audit = goods.audit()
    assert (audit["missed"], audit["changes"]) == (2, 5)
    shown = ["60", "90"] if goods.key == "id" else ["code = code 60", "code = code 90"]
    assert sorted(audit["keys"]) == shown
    goods.check()
    assert goods.refresh().proof == "keys"


@ONCE
def test_more_rows_differ_than_the_cells_tell(goods: Goods) -> None:
    for _ in range(3):
        goods.refresh()
    goods.update([id * 3 for id in range(0, 400, 2)], 11)
    goods.delete([id * 3 for id in range(401, 450)])
    found = goods.refresh()
    assert counts(found) == (0, 200, 49)
    goods.check()
    assert goods.refresh().proof in {"keys", "total"}


def test_only_the_key_and_the_checksum_of_most_rows_are_read(
    local: Goods, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.refresh()
    local.update([30, 33], 9)
    read: dict[str, int] = {}

    def counted(self: Reader, *args: Any) -> Any:
        batch = original(self, *args)
        read["rows"] = read.get("rows", 0) + len(batch.positions)
        return batch

    original = Reader._batch
    assert KeyReader._batch is not original
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "_batch", counted)
        assert counts(local.refresh()) == (0, 2, 0)
    assert read == {"rows": 2}


def test_another_checksum_is_another_marker(local: Goods) -> None:
    local.refresh()
    local.marker = '{ checksum = "amount" }'
    local.pair.publish("goods", local.lines())
    local.update([30], 3)
    other = local.refresh()
    assert (other.proof, counts(other)) == ("total", (0, 1, 0))
    assert other.marker is not None
    assert other.marker["why"] == "the source's DBA changed the marker"
    local.update([30], 4)
    found = local.refresh()
    assert (found.proof, counts(found)) == ("keys", (0, 1, 0))
    local.check()


def test_an_older_warehouse_compares_all_rows(local: Goods) -> None:
    """It keeps the mark, and would send a sketch of keys alone."""
    local.refresh()
    notes = json.loads(local.notes.read_text())
    assert notes["mark"].pop("checksum") == "row_hash"
    local.notes.write_text(json.dumps(notes))
    local.update([30], 3, honest=False)
    found = local.refresh()
    assert (found.proof, counts(found)) == ("total", (0, 1, 0))
    assert found.marker is not None
    assert found.marker["why"] == "the warehouse's agent is older than checksums"


def test_an_older_source_is_not_sent_checksums(
    local: Goods, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.refresh()
    local.update([30], 3)
    with monkeypatch.context() as patch:
        patch.delitem(cast("dict[str, str]", FEATURES), CHECKSUM)
        found = local.refresh()
    assert (found.proof, counts(found)) == ("total", (0, 1, 0))
    assert found.marker is not None
    assert found.marker["why"] == "the source's agent is older than checksums"
    assert local.refresh().proof == "keys"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int, key: str
) -> None:
    """All that a checksum shows is found at once, and what it hides by the next audit."""
    legacy = LEGACIES["sqlite"](request, tmp_path)
    goods, rng = Goods(legacy, tmp_path / "pair", key), random.Random(seed)
    try:
        goods.refresh()
        hidden: set[int] = set()
        for step in range(8):
            present = sorted(goods.theirs())
            rng.shuffle(present)
            honest, lies, gone = present[:8], present[8 : 8 + rng.randrange(3)], present[12:18]
            sizes = [rng.randrange(len(honest) + 1), rng.randrange(len(gone) + 1)]
            honest, gone = honest[: sizes[0]], gone[: sizes[1]]
            taken = set(present)
            new = [id for id in rng.sample(range(1, 4 * ROWS), 5) if id not in taken]
            before = goods.ours()
            goods.update(honest, rng.randrange(1000, 10**6))
            goods.update(lies, rng.randrange(1000, 10**6), honest=False)
            goods.delete(gone)
            goods.insert([row(id, rng.randrange(9), has_sum=rng.random() < 0.8) for id in new])
            report = goods.refresh()
            theirs, ours = goods.theirs(), goods.ours()
            assert (report.proof, report.method) == ("keys", "since"), step
            assert (report.rows_inserted, report.rows_deleted) == (len(new), len(gone))
            shown = {id for id in before if id in theirs and before[id][3] != theirs[id][3]}
            hidden = {id for id in theirs if ours[id] != theirs[id]}
            assert ours.keys() == theirs.keys()
            assert not hidden & shown
            assert all(ours[id][3] == theirs[id][3] is not None for id in hidden)
        audit = goods.audit()
        assert audit["missed"] == len(hidden)
        goods.check()
    finally:
        goods.pair.stop()
        legacy.close()
