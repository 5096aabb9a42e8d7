"""Staged frames: whatever their digest says, rows without keys are no rows."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from driftline.errors import FrameDamaged, Locked
from driftline.rows import frames
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import fingerprints
from driftline.values import numerics
from driftline.values.types import Recipe

from tests.harness.staged import any_frame
from tests.samples.exchanges import ORDERS
from tests.samples.rows import block, recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import staged_rows, staging

KEY, SALT = bytes(range(32)), Salt(1, 2)
MADE = recipe(["int8", "text"])


def decoded(
    folder: Path, rows: list[list[bytes | None]], made: Recipe = MADE
) -> list[pa.RecordBatch]:
    """What a task makes of one staged file of these rows, digested by whoever sent them."""
    file = folder / "key"
    file.write_bytes(KEY)
    data = block(rows)
    digest = mix(SALT, *fingerprints(KEY, made)(data.rows())).digest()
    frame = frames.encode(data, made, SALT, digest, level=1)
    staged = folder / "000001.frames"
    staged.write_bytes(struct.pack("<I", len(frame)) + frame)
    layout = lay_out(made, {}, where="t")
    return list(staged_rows.batches([f"file://{staged}"], layout, KeyFile(f"file://{file}")))


def test_rows_that_were_sent(tmp_path: Path) -> None:
    (batch,) = decoded(tmp_path, [[struct.pack(">q", 7), b"x"], [struct.pack(">q", 8), None]])
    assert batch.num_rows == 2


@pytest.mark.parametrize("key", [None, b"", b"\0" * 7, b"\0" * 9])
def test_keys_that_are_none(tmp_path: Path, key: bytes | None) -> None:
    """The digest is right, and the proof would be: nothing else tells."""
    with pytest.raises(FrameDamaged):
        decoded(tmp_path, [[struct.pack(">q", 7), b"x"], [key, b"x"]])


@pytest.mark.parametrize(("most", "parts"), [(4000, 2), (10, 8), (1 << 20, 1)])
def test_numerics_that_become_long_texts_are_batches_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, parts: int
) -> None:
    """Ten bytes of a numeric are up to 147,000 characters, so a small frame could fill memory."""
    monkeypatch.setattr(staged_rows, "TEXT_BYTES_MAX", most)
    texts = [f"{n}e{1000 + n}" for n in range(1, 8)]
    values = [None, numerics.from_text("-1.5"), *map(numerics.from_text, texts)]
    rows = [[struct.pack(">q", n), value] for n, value in enumerate(values)]
    batches = decoded(tmp_path, rows, recipe(["int8", "numeric"]))
    assert len(batches) == parts
    assert all(len(one) == 1 or one.column("c1").nbytes < 2 * most + 2000 for one in batches)
    whole = pa.Table.from_batches(batches)
    expected = [None, "-1.5", *(f"{n}{'0' * (1000 + n)}" for n in range(1, 8))]
    assert whole.column("c1").to_pylist() == expected
    assert whole.column("c0").to_pylist() == [*range(len(rows))]
    layout = lay_out(recipe(["int8", "numeric"]), {}, where="t")
    again = [row for one in batches for row in layout.row_bytes(one).rows()]
    assert again == block(rows).rows()


def test_another_agent_took_up_what_was_staged(tmp_path: Path) -> None:
    """It is told, or no row would seem to have come."""
    theirs = staging.Staging(Store(str(tmp_path)), "orders")
    writer = theirs.begin(ORDERS)
    assert writer.uris() == []
    for rows in (1, 20):
        writer.add(any_frame(rows))
        writer.flush()
    assert [uri.rsplit("/", 1)[-1] for uri in writer.uris()] == [
        "000001-1.frames",
        "000002-20.frames",
    ]
    uris = theirs.uris(writer.folder)
    assert writer.uris() == uris
    theirs.clear()
    with pytest.raises(Locked, match="another agent took them up"):
        next(staging.frames_of(uris[0]))
    with pytest.raises(Locked, match="another agent took them up") as caught:
        writer.uris()
    assert caught.value.where == "orders"


def test_what_unfinished_exchanges_are_taken_up(tmp_path: Path) -> None:
    """Those that compared the same; those of a damaged note, or elsewhere, are removed."""
    theirs = staging.Staging(Store(str(tmp_path)), "orders")
    elsewhere = replace(ORDERS, address="erp:2")

    def stage(exchange: staging.ExchangeIdentity) -> str:
        writer = theirs.begin(exchange)
        writer.add(any_frame())
        writer.flush()
        return writer.folder

    first, second = stage(ORDERS), stage(elsewhere)
    stage(replace(ORDERS, base_version=3))
    stage(replace(ORDERS, recipe="01"))
    damaged = stage(ORDERS)
    theirs.store.write(b'{"recipe": ', PRIVATE, "staging", "orders", damaged, "exchange.json")
    found = theirs.leftovers(ORDERS, anywhere=True)
    assert [one.folder for one in found] == [first, second]
    assert [one.folder for one in theirs.leftovers(ORDERS)] == [first]
    assert theirs.store.folders(PRIVATE, "staging", "orders") == [first]
    assert staging.ExchangeIdentity.from_json(ORDERS.to_json()) == ORDERS
