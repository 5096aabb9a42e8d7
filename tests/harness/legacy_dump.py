"""A folder of dump files as a legacy system: its owner writes CSV, and `csv` of Python reads it.

`DumpFolder` serves `Pair`. `OfDump` serves the suite of engines: its owner is an SQLite database in
memory, of which each table is written as a new snapshot whenever it was changed.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.interface import Session
from source_agent.engines.relations.shapes import Files, Relation, Shape

NULL = "\\N"
DAY_NS = 86_400 * 10**9
_READERS: dict[str, Callable[[str], Any]] = {
    "int4": int,
    "int8": int,
    "text": str,
    "date": dt.date.fromisoformat,
    "numeric": Decimal,
}


class DumpFolder:
    """Snapshots of tables, each with the types of its columns, as CSV that a marker completes."""

    engine = "dump"
    password: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"dump:///{folder}"
        self._numbers = itertools.count(1)
        self._types: dict[str, dict[str, str]] = {}
        self._newest: dict[str, Path] = {}

    def describe(self, table: str, types: dict[str, str]) -> None:
        self._types[table] = types
        lines = [f'null = "{NULL}"'.replace("\\", "\\\\"), 'escape = "none"', "[columns]"]
        lines += [f'{name} = "{type}"' for name, type in types.items()]
        (self.folder / f"{table}.toml").write_text("\n".join(lines))

    def deliver(self, table: str, rows: Iterable[Sequence[Any]], *, complete: bool = True) -> Path:
        """Write a snapshot, newer than all before."""
        path = self.folder / f"{table}-{next(self._numbers):06}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self._types[table])
            writer.writerows([NULL if v is None else v for v in row] for row in rows)
        number = int(path.stem[-6:])
        os.utime(path, ns=(DAY_NS, 1_700_000_000 * 10**9 + number * DAY_NS))
        if complete:
            path.with_name(f"{path.name}.done").touch()
            self._newest[table] = path
        return path

    def toml(self, table: str, key: Sequence[str]) -> str:
        """The lines of its table in source.toml."""
        keys = ", ".join(f'"{name}"' for name in key)
        return (
            f'files = "{table}-*.csv"\nformat = "{self.folder / table}.toml"\n'
            f'complete = "{{file}}.done"\nkey = [{keys}]'
        )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The newest complete file, read by `csv`."""
        types = [type.partition("(")[0] for type in self._types[table].values()]
        with self._newest[table].open(newline="", encoding="utf-8") as file:
            _, *found = csv.reader(file)
        return [
            tuple(
                None if text == NULL else _READERS[kind](text)
                for kind, text in zip(types, row, strict=True)
            )
            for row in found
        ]

    def execute(self, sql: str, *parameters: Any) -> None:
        raise NotImplementedError("files have no SQL")

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        raise NotImplementedError("files have no SQL")

    def close(self) -> None:
        """The files go with the test's folder."""


class OfDump(Legacy):
    """Tables of an SQLite database in memory, as the suite of engines writes them."""

    name = "dump"
    text_key = "text"
    hostile_where = ""
    blob = "blob"
    types = ()
    lacks = frozenset(Capability) - {Capability.SNAPSHOT, Capability.TIME_LIMIT}

    def __init__(self, folder: Path) -> None:
        self._folder = DumpFolder(folder)
        self.url = self._folder.url
        self._owner = sqlite3.connect(":memory:", isolation_level=None)

    def described(self, session: Session, relation: Relation) -> Shape:
        """Describe a relation of the suite, which names a table, as one of files."""
        return session.describe(self._published(relation, relation.table or ""))

    def _published(self, relation: Relation, table: str) -> Relation:
        info = self._owner.execute(f"PRAGMA table_info({table})").fetchall()
        key = tuple(row[1] for row in sorted(info, key=lambda row: row[5]) if row[5])
        folder = self._folder.folder
        files = Files(f"{table}-*.csv", folder / f"{table}.toml", "{file}.done")
        return Relation(
            relation.name, key=relation.key or key, columns=relation.columns, files=files
        )

    def run(self, *statements: str) -> None:
        for sql in statements:
            self._owner.execute(sql)
        self._deliver()

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        self._owner.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self._deliver()

    def _deliver(self) -> None:
        tables = self._owner.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            info = self._owner.execute(f"PRAGMA table_info({table})").fetchall()
            self._folder.describe(table, {row[1]: _declared(row[2]) for row in info})
            rows = self._owner.execute(f"SELECT * FROM {table}").fetchall()
            self._folder.deliver(table, [list(map(_written, row)) for row in rows])

    def number(self, text: str) -> object:
        return float(text)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._owner.close()


def _declared(declaration: str) -> str:
    name, _, size = declaration.lower().partition("(")
    kinds = {"bigint": "int8", "int": "int4", "blob": "bytea", "decimal": f"numeric({size}"}
    return kinds.get(name, "text")


def _written(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.2f}"
    return value.hex() if isinstance(value, bytes) else value
