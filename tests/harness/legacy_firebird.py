"""A Firebird database, opened in this process or by a server: for the suite, and for `Pair`.

The embedded engine locks the file against other processes, so the owner of a test writes through
another connection of this one. It checks SQL privileges of whatever user it is told.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from firebird import driver

from source_agent.engines import registry
from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Legacy, Refusal
from source_agent.engines.interface import Engine, Limits
from tests.harness.firebird_server import USER, FirebirdServer

TYPES: list[Case] = [
    ("smallint", "int2", ["-32768", "-1", "0", "32767"], ["-32768", "-1", "0", "32767"]),
    ("integer", "int4", ["-2147483648", "2147483647"], ["-2147483648", "2147483647"]),
    ("bigint", "int8", ["-9223372036854775808", "12345678901234", "9223372036854775807"], []),
    ("numeric(4,1)", "numeric(4,1)", ["999.9", "-0.1", "0"], ["999.9", "-0.1", "0.0"]),
    ("decimal(15,2)", "numeric(15,2)", ["-0.01", "0", "0.1", "9999999999999.99", "10000"],
     ["-0.01", "0.00", "0.10", "9999999999999.99", "10000.00"]),
    ("decimal(18,10)", "numeric(18,10)", ["1.0000000001", "99999999.9999999999"],
     ["1.0000000001", "99999999.9999999999"]),
    ("decimal(5,0)", "numeric(5,0)", ["-99999", "0", "10"], ["-99999", "0", "10"]),
    ("float", "float4", ["1234567", "1234567.125", "1.1"], ["1234567.0", "1234567.1", "1.1"]),
    ("double precision", "float8", ["0.1", "0.30000000000000004", "3e-1", "1e-300"],
     ["0.1", "0.30000000000000004", "0.3", "1e-300"]),
    ("boolean", "bool", ["true", "false"], ["true", "false"]),
    ("date", "date", ["'0001-01-01'", "'2000-02-29'", "'9999-12-31'"],
     ["0001-01-01", "2000-02-29", "9999-12-31"]),
    ("time", "time", ["'00:00'", "'23:59:59.9999'"], ["00:00:00", "23:59:59.9999"]),
    ("timestamp", "timestamp", ["'1999-12-31 23:59:59.9999'", "'2024-10-27 02:30:00'"],
     ["1999-12-31 23:59:59.9999", "2024-10-27 02:30:00"]),
    ("varchar(9)", "text", ["''", "' '", "'a'", "'A'", "'a '", "'NULL'", "'é'", "'😀'"], []),
    ("char(3)", "text", ["'a'", "'b'", "'é'", "'😀'"], ["a  ", "b  ", "é  ", "😀  "]),
    ("varchar(9) character set iso8859_1", "text", ["'é'", "'e'"], ["é", "e"]),
    ("varchar(9) character set none", "text", ["'a'", "'a '", "'é'"], ["a", "a ", "é"]),
    ("blob sub_type text", "text", ["''", "'a '", "'😀'"], ["", "a ", "😀"]),
    ("blob", "bytea", ["x''", "x'00'", "x'c328'"], ["", "00", "c328"]),
    ("char(3) character set octets", "bytea", ["x'61'", "x'c328ff'"], ["610000", "c328ff"]),
    ("varchar(3) character set octets", "bytea", ["x''", "x'00'", "x'0000'"], ["", "00", "0000"]),
]  # fmt: skip
REFUSED: list[Refusal] = [
    ("decimal(4,1)", "12345.6", "12345.6"),  # stored as a 32-bit integer
    ("varchar(9) character set none", "x'c328'", "c328"),
]


class OfFirebird(Legacy):
    """One file."""

    name = engine = "firebird"
    password: str | None = None
    text_key = "varchar(100)"
    hostile_where = "\"name\" IS DISTINCT FROM '%s?' -- a comment"
    blob = "blob"
    types = TYPES
    refused = REFUSED
    grants_columns = False
    refused_types = ("blob sub_type -5",)
    write_errors = (driver.DatabaseError,)
    lacks = frozenset({Capability.PLANS})

    def __init__(self, folder: Path, server: FirebirdServer | None) -> None:
        self._path = folder / f"legacy{uuid.uuid4().hex[:8]}.fdb"
        self._server = server
        self.url = server.url(self._path) if server else f"firebird:///{self._path}"
        self.password = server.password if server else None
        place = server.dsn(self._path) if server else str(self._path)
        login = {"user": USER, "password": self.password}
        driver.create_database(place, **login, charset="UTF8").close()
        for number in (signal.SIGINT, signal.SIGTERM):
            # With its first connection the library took them, to end all connections of the
            # process, also for tests that follow one which sends itself a signal.
            signal.signal(number, signal.getsignal(number))
        with driver.connect(place, **login) as owner:
            owner.execute_immediate("ALTER DATABASE SET DEFAULT CHARACTER SET UTF8")
            owner.commit()
        self._owner = driver.connect(place, **login, charset="UTF8")

    def connect(self, **budgets: Any) -> Engine:
        return registry.connect(self.url, self.password, Limits(**budgets))

    @property
    def version(self) -> float:
        """The version of the engine, such as 3.0."""
        return float(self._owner.info.engine_version)

    def run(self, *statements: str) -> None:
        for sql in statements:
            self._owner.execute_immediate(sql)
            self._owner.commit()

    def execute(self, sql: str, *parameters: Any) -> None:
        self.many(sql, [parameters])

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        self.many(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(rows[0]))})', rows)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with closing(self._owner.cursor()) as cursor:
            cursor.executemany(sql, [tuple(row) for row in rows])
        self._owner.commit()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.rows_of(f'SELECT * FROM "{table}"')

    def rows_of(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self._owner.cursor()) as cursor:
            cursor.execute(sql)
            found = [tuple(row) for row in cursor.fetchall()]
        self._owner.commit()
        return found

    def raw_write(self, session: Any, sql: str) -> None:
        session._connection.execute_immediate(sql)

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        execute = driver.Cursor.execute

        def recorded(self: Any, operation: Any, *rest: Any, **options: Any) -> Any:
            issued.append(operation)
            return execute(self, operation, *rest, **options)

        monkeypatch.setattr(driver.Cursor, "execute", recorded)

    def granted(self, script: str, login: str) -> str:
        """The embedded engine knows no passwords, and needs no CREATE USER."""
        if self._server is not None:
            self.run(f"CREATE USER {login} PASSWORD 'pw'")
        lines = [line for line in script.splitlines() if not line.startswith(("--", "SET "))]
        try:
            for line in lines:
                self._owner.execute_immediate(line.rstrip(";")) if line != "COMMIT;" else None
        except driver.DatabaseError:
            self._owner.rollback()  # as isql does, told by the lines that begin with SET
            raise
        self._owner.commit()
        host = f"{self._server.host}:{self._server.port}" if self._server else ""
        return f"firebird://{login}@{host}/{self._path}"

    def drop_login(self, login: str) -> None:
        """Its grants go with the file; the embedded engine never created it."""
        if self._server is not None:
            self.run(f"DROP USER {login}")

    def close(self) -> None:
        with suppress(driver.DatabaseError):
            self._owner.close()
