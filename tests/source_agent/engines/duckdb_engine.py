"""A minimal engine: DuckDB, in one module, which `test_duckdb` registers.

It shows the least that an engine needs: a session, its engine and `from_url`. As a plug-in, it
needs `ENGINE_API` as well. Every column is read
as the text that DuckDB writes, and encoded by the contract. DuckDB locks its file against other
processes, so the owner of a test writes through another connection of this process.

Invariants: reads are in one READ ONLY transaction. Relations are described on a connection of their
own, because an error ends DuckDB's transaction.

Left out, because no test asks for it: limits of time, plans, columns of other types.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
from driftline.arrays import Positions
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    SnapshotLost,
)
from driftline.rows.key_order import Key
from driftline.values.send_format import string_encoder
from driftline.values.types import DeclaredType
from sqlalchemy.engine import URL

from source_agent.engines.encoding import rows
from source_agent.engines.interface import (
    Limits,
    Listed,
    Privilege,
    Rows,
    SnapshotState,
)
from source_agent.engines.own_values.reading import DriverKey, OwnValues
from source_agent.engines.relations.column_warnings import column_warnings, spark_warning
from source_agent.engines.relations.select import (
    Access,
    ReadColumn,
    arrange,
    derived_table,
    each_column,
    null_key_sql,
    plan_of,
    quote,
    refuse_types,
    refused_type,
    select_sql,
    shape,
    split_name,
    unknown_table,
)
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import SnapshotSession, attempted

ENGINE_API = 3

BEGIN = "BEGIN TRANSACTION READ ONLY"
AS_OF = "SELECT strftime(now() AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
TABLES = "SELECT table_name, table_type FROM information_schema.tables ORDER BY 1"
PRIMARY = """SELECT constraint_column_names FROM duckdb_constraints()
WHERE table_name = ? AND constraint_type = 'PRIMARY KEY'"""
RANGES = """EXISTS (
    FROM (SELECT unnest(?::BIGINT[]) AS driftline_first, unnest(?::BIGINT[]) AS driftline_last)
    WHERE {key} BETWEEN driftline_first AND driftline_last)"""
TYPES: Final = {
    "SMALLINT": DeclaredType("int2"),
    "INTEGER": DeclaredType("int4"),
    "BIGINT": DeclaredType("int8"),
    "DOUBLE": DeclaredType("float8"),
    "VARCHAR": DeclaredType("text"),
    "DATE": DeclaredType("date"),
    "BLOB": DeclaredType("bytea"),
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MISTAKES: Final = (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException)


def _column(relation: Relation, described: tuple[str, str, bool]) -> ReadColumn:
    name, written, is_nullable = described
    cast = f"CAST({quote(name)} AS VARCHAR)"
    if name in relation.as_text:
        return ReadColumn(name, DeclaredType("text"), cast, nullable=is_nullable)
    if sizes := _DECIMAL.fullmatch(written):
        type = DeclaredType("numeric", int(sizes[1]), int(sizes[2]))
    elif written in TYPES:
        type = TYPES[written]
    else:
        remedy = f'Set as_text = ["{name}"], or publish a query with CAST.'
        raise refused_type(relation, name, f"has the type {written}", remedy)
    read = {
        "bytea": f"hex({quote(name)})",
        "float8": f"replace(replace({cast}, 'inf', 'Infinity'), 'nan', 'NaN')",
    }.get(type.kind, cast)
    return ReadColumn(name, type, read, nullable=is_nullable)


def _describe(session: Any, relation: Relation) -> Shape:
    refuse_types(relation, "DuckDB")
    if relation.table is None:
        query = (relation.query or "").strip().rstrip("; \n")
        source, table, primary, is_stored = derived_table(relation), query, (), False
    else:
        parts, tables = split_name(relation.table), dict(session.ask(TABLES))
        if len(parts) != 1 or parts[0] not in tables:
            raise unknown_table(relation, list(tables))
        is_stored = tables[parts[0]] == "BASE TABLE"  # a view's NOT NULL is that of its tables
        source = table = quote(parts[0])
        primary = tuple(name for (names,) in session.ask(PRIMARY, parts[0]) for name in names)
    described = {}
    columns = [(row[0], row[1], row[2]) for row in session.ask(f"DESCRIBE {table}")]
    for name, written, null in columns:
        described[name] = (name, written, not is_stored or null == "YES")
    order = arrange(relation, [name for name, _, _ in columns], primary)
    found = each_column(relation, [described[name] for name in order.names], _column)
    is_key = bool(primary) and set(primary) <= set(order.key)
    access = Access(source, vouched=is_key, indexed=is_key and len(order.key) == 1)
    made = shape(relation, [name for name, _, _ in columns], order, found, access)
    session.ask(f"DESCRIBE {select_sql(made)}")  # binds `where`
    return made


def _reads(shape: Shape) -> dict[str, str]:
    """Return the statements that read a relation, by what they read."""
    key = quote(shape.recipe.columns[0].name)
    return {
        "all": select_sql(shape),
        "in order": select_sql(shape, tail=f"\nORDER BY {key}"),
        "ranges": select_sql(shape, RANGES.format(key=key)),
        "no key": null_key_sql(shape),
    }


class DuckdbSession(SnapshotSession):
    """Implements `interface.Session`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        if not path.is_file():
            raise DatabaseUnavailable(f"The file {str(path)!r} does not exist.")
        self._connection = duckdb.connect(str(path))
        self._connection.execute(BEGIN)
        self.snapshot = SnapshotState(str(self._connection.execute(AS_OF).fetchall()[0][0]))
        self._connection.execute(TABLES)  # the first read takes the snapshot

    def answers(self, within_s: float) -> bool:
        return True

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(self._connection.cursor()) as apart:
            apart.execute(BEGIN)
            return apart.execute(sql, values).fetchall()

    def describe(self, relation: Relation) -> Shape:
        try:
            return _describe(self, relation)
        except _MISTAKES as error:
            raise ConfigurationError(f"DuckDB says: {error}.", where=relation.name) from error

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        sql = _reads(shape)["in order" if ordered else "all"]
        yield from self._read(shape, sql)

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        reads = _reads(shape)
        if shape.may_be_null_in(first):
            yield from self._read(shape, reads["no key"])
        yield from self._read(shape, reads["ranges"], first.tolist(), last.tolist())

    def _read(self, shape: Shape, sql: str, *values: object) -> Iterator[Rows]:
        self.refuse_interrupted()
        encoders = [rows.variable(string_encoder(c.type)) for c in shape.recipe.columns]
        try:
            cursor = self._connection.execute(sql, values)
            self.pulse.beat()
            yield from rows.batches(cursor.fetchmany, rows.RowEncoder(shape, encoders))
        except duckdb.CatalogException as error:
            raise SnapshotLost(f"DuckDB says: {error}.", where=shape.relation.name) from error
        except duckdb.Error as error:
            raise DatabaseRefused(f"DuckDB says: {error}.", where=shape.relation.name) from error

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()


class DuckdbValues(OwnValues):
    """Read bare columns as duckdb returns them, for `check --reads`; an engine can do without."""

    def __init__(self, session: DuckdbSession) -> None:
        self._session = session

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        return self._session._connection.execute(sql, values).fetchmany(most)

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        return self._session._read(shape, self.read_sql(shape), *self.bound(keys))

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        if isinstance(value, bytes) and shape.recipe.columns[number].type.kind == "text":
            return "".join(chr(b) if 31 < b < 127 else f"\\x{b:02X}" for b in value)
        return value


class DuckdbEngine:
    """Implements `interface.Engine`."""

    name = "duckdb"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(
        self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()
    ) -> DuckdbSession:
        return DuckdbSession(self._path)

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        return [Privilege("write the file", excess=True)] if os.access(self._path, os.W_OK) else []

    def scan_cost(self, shape: Shape) -> str:
        return f"rows unknown in a file of {self._path.stat().st_size / 2**20:,.1f} MiB"

    def own_values(self, session: DuckdbSession) -> DuckdbValues:
        return DuckdbValues(session)

    def warnings(self, shape: Shape) -> list[str]:
        return column_warnings(shape, lambda column, _: spark_warning(column, has_nan=False))

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        file = shlex.quote(str(self._path))
        return f"setfacl --modify u:{shlex.quote(login)}:r {file}\n"

    def listed(self) -> list[Listed]:
        with contextlib.closing(self.open()) as session:
            found = session.ask(TABLES)
        return [Listed("main", name, quote(name)) for (name,) in found]

    def attempts(self, relation: Relation) -> list[str]:
        with contextlib.closing(self.open()) as session:
            return attempted(_describe, session, relation, duckdb.Error)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        found = [BEGIN, AS_OF, TABLES, PRIMARY]
        for made in shapes:
            table = made.relation.query or plan_of(made).source
            found += [f"DESCRIBE {table.strip().rstrip('; ')}", f"DESCRIBE {select_sql(made)}"]
            found += _reads(made).values()
        return list(dict.fromkeys(found))


def from_url(url: URL, _password: str | None, _limits: Limits) -> DuckdbEngine:
    """Return the engine that a URL names. See `registry.connect`."""
    return DuckdbEngine(Path(url.database or ""))
