"""Databases that the generic engine reads, for the suite: SQLite and PostgreSQL, by SQLAlchemy."""

from __future__ import annotations

from pathlib import Path

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Refusal
from source_agent.engines.encoding import rows
from tests.harness.legacies import OfPostgreSQL, OfSQLite
from tests.harness.servers import PostgreSQL

LACKS = frozenset(
    {
        Capability.QUERIES,
        Capability.NOT_NULL,
        Capability.READ_ONLY,
        Capability.READ_ONLY_CONNECTION,
        Capability.TIME_LIMIT,
        Capability.TEMPLATES,
        Capability.PLANS,
        Capability.LOGINS,
    }
)
TEXTS = ["''", "' '", "'a'", "'A'", "'a '", "'NULL'", "'é'", "'e\u0301'", "'😀'"]
COMMON: list[Case] = [
    ("smallint", "int8", ["-32768", "0", "32767"], ["-32768", "0", "32767"]),
    ("integer", "int8", ["-2147483648", "2147483647"], ["-2147483648", "2147483647"]),
    ("bigint", "int8", ["-9223372036854775808", "12345678901235"], []),
    ("decimal(15,2)", "numeric(15,2)", ["-0.01", "0", "0.1", "9999999999999.99", "10000"],
     ["-0.01", "0.00", "0.10", "9999999999999.99", "10000.00"]),
    ("date", "date", ["'0001-01-01'", "'9999-12-31'"], ["0001-01-01", "9999-12-31"]),
    ("timestamp", "timestamp", ["'1999-12-31 23:59:59.999999'", "'2024-10-27 02:30:00'",
     "'2024-10-27 02:30:00.000001'", "'2024-10-27 02:30:00.100000'"],
     ["1999-12-31 23:59:59.999999", "2024-10-27 02:30:00", "2024-10-27 02:30:00.000001",
      "2024-10-27 02:30:00.1"]),
    ("varchar(9)", "text", TEXTS, []),
    ("boolean", "bool", ["true", "false"], ["true", "false"]),
]  # fmt: skip
POSTGRESQL: list[Case] = [
    *COMMON,
    ("decimal(38,10)", "numeric(38,10)", ["1.0000000001", "1.0000000002",
     "9999999999999999999999999999.9999999999"], []),
    ("double precision", "float8", ["0.1", "0.30000000000000004", "0.3", "'NaN'", "1e-320"], []),
    ("char(3)", "text", ["'a'", "'b'"], ["a  ", "b  "]),
    ("bytea", "bytea", ["'\\x00'", "'\\x0000'", "''"], ["00", "0000", ""]),
]  # fmt: skip
SQLITE: list[Case] = [*COMMON, ("blob", "bytea", ["x''", "x'00'", "x'c328'"], ["", "00", "c328"])]
REFUSED_BY_SQLITE: list[Refusal] = [
    ("integer", "'abc'", "abc"),
    ("decimal(5,2)", "1.005", "1.005"),
    ("varchar(9)", "x'00'", "x00"),
    ("decimal(20,2)", "0.07", "0.07"),
    ("date", "'tomorrow'", "tomorrow"),
    ("boolean", "2", "2"),
]


class GenericOverPostgreSQL(OfPostgreSQL):
    """Has a snapshot statement, and text of floats."""

    name = "generic over postgresql"
    types = POSTGRESQL
    prelude = ()
    refused_types = ("real[]", "uuid", "numeric")
    row_limits = (rows,)
    lacks = LACKS

    def __init__(self, server: PostgreSQL) -> None:
        super().__init__(server)
        self.url = f"generic+{self.url}"


class GenericOverSQLite(OfSQLite):
    """Has neither."""

    name = "generic over sqlite"
    types = SQLITE
    refused = REFUSED_BY_SQLITE
    refused_types = ("real", "double precision", "json", "numeric")
    row_limits = (rows,)
    names_wide_rows = True
    lacks = LACKS | {Capability.SNAPSHOT}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.url = f"generic+sqlite+pysqlite:///{path}"
