"""Files of records for the tests of differentials, and changes as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftline.rows.columns import Block
from driftline.values.types import Column, Recipe, parse_type

from tests.reference.snapshot_differentials import Change, Record
from warehouse_agent.differential.records import ChangeForm, FileSnapshot

BY_INTEGER = Recipe((Column("id", parse_type("int8"), False), Column("b", parse_type("text"))), 1)
BY_TEXT = Recipe((Column("id", parse_type("text"), False), Column("b", parse_type("text"))), 1)


def row(record: Record, recipe: Recipe) -> bytes:
    key = record.K.to_bytes(8, "big", signed=True)
    if not recipe.integer_key:
        key = f"key {record.K:06}".encode()
    b = record.B.encode()
    return b"\0\2" + len(key).to_bytes(4, "big") + key + len(b).to_bytes(4, "big") + b


def key_of(row: bytes, recipe: Recipe) -> tuple[int, int]:
    """The key of a row, and where it ends."""
    end = 6 + int.from_bytes(row[2:6], "big")
    key = row[6:end]
    return (int.from_bytes(key, "big", signed=True) if recipe.integer_key else int(key[4:])), end


def snapshot(name: str, file: Sequence[Record], recipe: Recipe, batch: int = 7) -> FileSnapshot:
    def read() -> Iterator[list[bytes]]:
        for at in range(0, len(file), batch):
            yield [row(r, recipe) for r in file[at : at + batch]]

    return FileSnapshot(name, recipe, read)


class Found:
    """Changes as the reference has them, in the order in which they were put."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.changes = recipe, list[Change]()

    def put(self, form: ChangeForm, block: Block) -> None:
        for data in block.rows():
            key, end = key_of(data, self.recipe)
            if form is ChangeForm.DELETE:
                assert len(data) == end
                self.changes.append(Change("Delete", key))
            else:
                self.changes.append(Change(form.capitalize(), key, data[end + 4 :].decode()))
