"""`check --reads` of dump files: the text of each field against what is published."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from source_agent.engines.dump import values
from source_agent.engines.encoding import rows
from source_agent.engines.interface import Limits
from source_agent.engines.own_values.comparison import ValueComparison, compare
from source_agent.engines.own_values.reading import own_values_of
from source_agent.engines.registry import connect
from tests.source_agent.engines.dump.folders import Accounts

FORMAT = """
null = "NULL"
decimal = ","
separator = ";"
true = "ja"
false = "nein"
encoding = "cp1252"
[columns]
id = "int8"
name = "text"
balance = "numeric(9,2)"
free = "numeric"
ratio = "float8"
single = "float4"
open = "bool"
data = "bytea"
day = "date"
at = "timestamp"
"""
HEADER = "id;name;balance;free;ratio;single;open;data;day;at\n"
ROWS = """-5;é ;-0,01;1,10;0,30000000000000004;0,1;ja;00ff;0001-01-01;2024-10-27 02:30:00
7;;9999999,99;NULL;5e-324;-0,0;nein;;9999-12-31;9999-12-31 23:59:59.999999
-9223372036854775808;NULL;NULL;NULL;NULL;NULL;NULL;NULL;NULL;NULL
9;" a;b";0,00;-0,5;1,7976931348623157e308;16777216;ja;61;2000-02-29;2000-01-01 00:00:00
"""


def compared(accounts: Accounts, rows: int = 100) -> ValueComparison:
    engine = connect(f"dump:///{accounts.folder}", None, Limits())
    with closing(engine.open()) as session:
        own = own_values_of(engine, session)
        assert own is not None
        return compare(session, own, session.describe(accounts.relation), rows)


def test_fields_are_what_is_published(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, FORMAT)
    accounts.put((HEADER + ROWS).encode("cp1252"))
    found = compared(accounts)
    assert {c.name: (c.samples, c.not_compared) for c in found.columns if c.equal != 4} == {}
    assert (found.rows, found.missing, found.unpaired) == (4, (), 0)
    assert found.how == "the first of the file; fields are those of its parser"
    assert compared(accounts, 2).rows == 2


def test_a_wrong_encoder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = Accounts(tmp_path, FORMAT)
    accounts.put((HEADER + ROWS).encode("cp1252"))
    sound = values.encoders

    trimmed = rows.variable(bytes.strip)
    monkeypatch.setattr(values, "encoders", lambda f: {**sound(f), "text": lambda _: trimmed})
    found = compared(accounts)
    assert [(c.name, c.differing) for c in found.columns if c.differing] == [("name", 2)]


def test_times_of_parquet_are_not_compared_and_said_so(tmp_path: Path) -> None:
    accounts = Accounts(
        tmp_path, 'kind = "parquet"\n[columns]\nid = "int8"\nname = "text"\nday = "date"\n'
    )
    table = pa.table({"id": [1, 2], "name": ["a ", None], "day": [dt.date(2000, 1, 1)] * 2})
    pq.write_table(table, tmp_path / "a-1.parquet")
    found = compared(accounts)
    by_name = {c.name: c for c in found.columns}
    assert (by_name["id"].equal, by_name["name"].equal) == (2, 2)
    assert not found.differs
    assert list(by_name["day"].not_compared.values()) == [2]
