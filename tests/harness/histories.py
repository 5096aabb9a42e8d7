"""Real tables as histories: a first version and, commit by commit, what was edited.

Reads `log/base.parquet` and `log/events.parquet` of `../shared/data/<name>`; nothing here knows
Driftline, so that a replay compares the pair with what the curators recorded. Rows are tuples in
the order of the table's columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb

from tests import ROOT

DATA = ROOT.parent / "shared" / "data"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Commit:
    """What one commit did to the table. `updates` are new images, `deletes` keys."""

    number: int
    inserts: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    deletes: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.inserts) + len(self.updates) + len(self.deletes)


class History:
    """One table through all of its commits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log = DATA / name / "log"
        meta = json.loads((self._log / "meta.json").read_text())
        self.key: list[str] = meta["keys"]
        self.last = len(meta["commits"]) - 1  # the number of the last commit
        found = _query(f"DESCRIBE SELECT * FROM '{self._log / 'base.parquet'}'")
        self.columns = [str(row[0]) for row in found]
        self.types = [str(row[1]) for row in found]
        self._key_places = [self.columns.index(column) for column in self.key]

    def rows_at(self, number: int) -> dict[Row, Row]:
        """The table as of a commit, by key."""
        base = _query(f"SELECT * FROM '{self._log / 'base.parquet'}'")
        table = {self.key_of(row): row for row in base}
        for commit in self.commits(0, number):
            apply(commit, table, self)
        return table

    def commits(self, after: int, upto: int) -> Iterator[Commit]:
        """The commits (after, upto] one by one, also those that changed no row."""
        columns = ", ".join(f'"{c}"' for c in self.columns)
        events = _query(
            f"SELECT _seq, _op, {columns} FROM '{self._log / 'events.parquet'}' "
            f"WHERE _seq > {after} AND _seq <= {upto}"
        )
        found = {number: Commit(number) for number in range(after + 1, upto + 1)}
        for number, op, *values in events:
            commit, row = found[number], tuple(values)
            if op == "D":
                commit.deletes.append(self.key_of(row))
            else:
                (commit.inserts if op == "I" else commit.updates).append(row)
        yield from found.values()

    def key_of(self, row: Row) -> Row:
        return tuple(row[i] for i in self._key_places)


def apply(commit: Commit, table: dict[Row, Row], history: History) -> None:
    """Bring a table by key from the commit before to this one."""
    for key in commit.deletes:
        del table[key]
    for row in commit.inserts:
        assert history.key_of(row) not in table, f"{history.name} {commit.number}: twice {row}"
        table[history.key_of(row)] = row
    for row in commit.updates:
        assert history.key_of(row) in table, f"{history.name} {commit.number}: no {row}"
        table[history.key_of(row)] = row


def _query(sql: str) -> list[Row]:
    return duckdb.execute(sql).fetchall()


def available(name: str) -> bool:
    return (DATA / name / "log" / "events.parquet").is_file()
