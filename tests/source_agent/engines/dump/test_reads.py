"""What is read from a file is what was written: against `csv` of Python, and against Arrow."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import gzip
import io
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from driftline import errors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from source_agent.engines.dump import streams
from tests.source_agent.engines.dump.folders import ACCOUNTS, Accounts

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8
) | st.sampled_from(["", ",", '"', '""', "a\nb", "a\r\nb", "\r", " ", "\\N", ";"])
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        TEXTS,
        st.none() | st.decimals("-9999999.99", "9999999.99", places=2),
    ),
    max_size=30,
)
NO_FIXTURE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def expected(rows: list[tuple[int, str, Decimal | None]]) -> list[list[str | None]]:
    zero = Decimal("0.00")  # numeric has one zero
    return [[str(a), b, None if c is None else f"{c if c else zero:.2f}"] for a, b, c in rows]


@NO_FIXTURE
@given(
    rows=ROWS,
    end=st.sampled_from(["\n", "\r\n"]),
    separator=st.sampled_from([",", ";", "\t"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    piece=st.integers(1, 40) | st.just(1 << 18),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_csv_wrote_is_read(
    tmp_path: Path, rows: Any, end: str, separator: str, quoting: Any, piece: int, encoding: str
) -> None:
    """Wherever a piece of the file ends, whatever is quoted, in any encoding."""
    if quoting == csv.QUOTE_MINIMAL:  # `csv` writes these two as nobody could read them
        rows = [(a, b.replace("\r", "").replace("-", ""), c) for a, b, c in rows]
    else:  # a quoted text is never NULL
        rows = [row for row in rows if row[2] is not None]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, delimiter=separator, quoting=quoting)
    writer.writerow(["id", "name", "balance"])
    writer.writerows([a, b, "-" if c is None else c] for a, b, c in rows)
    tab = separator.replace("\t", "\\t")
    notation = f'separator = "{tab}"\nencoding = "{encoding}"\nnull = "-"\n'
    accounts = Accounts(tmp_path, notation + ACCOUNTS.replace('null = ""', ""))
    accounts.put(text.getvalue().encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "PIECE_BYTES", piece)
        assert accounts.read() == expected(rows)


def test_a_quoted_text_is_no_null(tmp_path: Path) -> None:
    """As PostgreSQL's COPY writes NULL and the empty text."""
    accounts = Accounts(tmp_path)
    accounts.put(b'id,name,balance\n1,"",\n2,,3\n"3","x, ""y""","-1.5"\n')
    assert accounts.read() == [
        ["1", "", None],
        ["2", None, "3.00"],
        ["3", 'x, "y"', "-1.50"],
    ]


@NO_FIXTURE
@given(rows=ROWS, is_ascii=st.booleans())
def test_fixed_width_is_read(tmp_path: Path, rows: Any, is_ascii: bool) -> None:
    accounts = Accounts(
        tmp_path,
        'kind = "fixed"\nencoding = "utf-8"\nnull = "-"\n'
        + ACCOUNTS.replace('null = ""', "")
        + "[widths]\nid = 20\nname = 9\nbalance = 12\n",
    )
    wanted, lines = [], []
    for a, b, c in rows:
        text = "".join(x for x in b if x.isprintable() and x not in "\n\r-").rstrip(" ")
        text = text.encode("ascii", "ignore").decode().rstrip(" ") if is_ascii else text
        number = "-" if c is None else f"{c:.2f}"
        lines.append(f"{a:>20}{text:<9}{number:>12}\n")
        wanted.append((a, text, c))
    accounts.put("".join(lines).encode())
    assert accounts.read() == expected(wanted)


NUMBERS = (
    ("numeric(15,2)", "9999999999999.99", "9999999999999.99"),
    ("numeric(15,2)", "000000000000000000000000.5", "0.50"),
    ("numeric(15,2)", "1.000000000000000001", ""),
    ("numeric(15,2)", "0.005", ""),
    ("numeric(15,2)", "1_0", ""),
    ("numeric(15,2)", " 1", ""),
    ("numeric(15,2)", "1,5", ""),
    ("numeric(15,2)", "12345678901234", ""),
    ("numeric(15,2)", "+7", "7.00"),
    ("numeric(15,2)", "1e3", "1000.00"),
    ("numeric(15,2)", "NaN", "NaN"),
    ("numeric(15,2)", "Infinity", ""),
    ("numeric", "+7", "7"),
    ("numeric", "1e3", "1000"),
    ("numeric", "Infinity", "Infinity"),
    ("numeric(38,10)", "1.0000000001", "1.0000000001"),
    ("numeric(38,10)", "1.00000000001", ""),
    ("numeric", "1.50", "1.50"),
    ("int2", "32767", "32767"),
    ("int2", "32768", ""),
    ("int8", "9223372036854775807", "9223372036854775807"),
    ("int8", "9223372036854775808", ""),
    ("int8", "1_000", ""),
    ("int8", " 7", ""),
    ("int8", "+7", ""),
    ("int8", "7.0", ""),
    ("int8", "٣", ""),
    ("float8", "0.1", "0.1"),
    ("float8", "+7", "7.0"),
    ("float8", "1e3", "1000.0"),
    ("float8", "1e999", ""),
    ("float8", "nan", ""),
    ("float8", "NaN", "NaN"),
    ("date", "2024-02-29", "2024-02-29"),
    ("date", "2023-02-29", ""),
    ("date", "29.02.2024", ""),
    ("timestamp", "2024-02-29 12:00:00.5", "2024-02-29 12:00:00.5"),
    ("bool", "true", "true"),
    ("bool", "1", ""),
    ("bytea", "00ff", "00ff"),
    ("uuid", "00000000-0000-0000-0000-00000000000g", ""),
)


@pytest.mark.parametrize(("type", "text", "value"), NUMBERS)
def test_a_value_is_what_is_written_or_is_refused(
    tmp_path: Path, type: str, text: str, value: str
) -> None:
    """Also beside values that fit: the fast paths take a block at once. Empty: it is refused."""
    accounts = Accounts(
        tmp_path, f'separator = ";"\nnull = ""\n[columns]\nid = "int4"\nv = "{type}"\n'
    )
    accounts.put(f"id;v\n1;{text}\n2;\n".encode())
    if value:
        assert accounts.read() == [["1", value], ["2", None]]
        return
    with pytest.raises(errors.DriftlineError, match="line 2") as caught:
        accounts.read()
    assert (caught.value.code, caught.value.where) == ("VALUE", "accounts.v")
    assert "a-1.csv" in str(caught.value)


def test_a_decimal_comma(tmp_path: Path) -> None:
    accounts = Accounts(
        tmp_path,
        'separator = ";"\ndecimal = ","\ntrue = "J"\nfalse = "N"\n'
        '[columns]\nid = "int4"\nv = "numeric(20,2)"\nw = "float8"\nx = "bool"\n',
    )
    accounts.put(b"id;v;w;x\n1;-1,50;0,25;J\n2;1;1;N\n")
    assert accounts.read() == [["1", "-1.50", "0.25", "true"], ["2", "1.00", "1.0", "false"]]
    accounts.put(b"id;v;w;x\n1;1.50;0;J\n")
    with pytest.raises(errors.DriftlineError, match="line 2"):
        accounts.read()


@pytest.mark.slow
def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    rows = b"".join(b"%d,name %d,%d.25\n" % (i, i * 7, i) for i in range(20_000))
    data = b"id,name,balance\n" + rows
    accounts = Accounts(tmp_path)
    path = accounts.put(data)
    wanted = accounts.read()
    assert len(wanted) == 20_000
    maker = zstandard.ZstdCompressor()
    middle = data.index(b"\n", 300_000) + 1
    for name, packed in (
        ("a-1.csv.gz", gzip.compress(data)),
        ("a-2.csv.gz", gzip.compress(data[:middle]) + gzip.compress(data[middle:])),
        ("a-1.csv.zst", maker.compress(data)),
        ("a-2.csv.zst", maker.compress(data[:middle]) + maker.compress(data[middle:])),
    ):
        path.unlink()
        path = accounts.put(packed, name)
        assert accounts.read() == wanted, name


def test_parquet_is_read(tmp_path: Path) -> None:
    utc = dt.UTC
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "b": pa.array([True, None]),
            "f": pa.array([0.1, math.nan], pa.float64()),
            "g": pa.array([0.5, struct.unpack(">f", b"\xff\xc0\0\1")[0]], pa.float32()),
            "n": pa.array([Decimal("-1.50"), None], pa.decimal128(9, 2)),
            "s": pa.array(["é", ""], pa.string()),
            "x": pa.array([b"\0\xff", b""], pa.binary()),
            "d": pa.array([dt.date(1999, 12, 31), dt.date(1, 1, 1)]),
            "t": pa.array([1_704_164_645_000_006, None], pa.timestamp("us")),
            "z": pa.array([dt.datetime(2024, 1, 2, tzinfo=utc), None], pa.timestamp("ms", "UTC")),
        }
    )
    types = {
        "id": "int8", "b": "bool", "f": "float8", "g": "float4", "n": "numeric(9,2)", "s": "text",
        "x": "bytea", "d": "date", "t": "timestamp", "z": "timestamptz",
    }  # fmt: skip
    columns = "\n".join(f'{name} = "{type}"' for name, type in types.items())
    accounts = Accounts(tmp_path, f'kind = "parquet"\n[columns]\n{columns}\n')
    pq.write_table(table, tmp_path / "a-1.parquet")
    assert accounts.read() == [
        ["1", "true", "0.1", "0.5", "-1.50", "é", "00ff", "1999-12-31",
         "2024-01-02 03:04:05.000006", "2024-01-02 00:00:00+00"],
        ["2", None, "NaN", "NaN", None, "", "", "0001-01-01", None, None],
    ]  # fmt: skip
    pq.write_table(
        table.set_column(0, "id", pa.array([1, 2], pa.int32())), tmp_path / "a-2.parquet"
    )
    (tmp_path / "a-1.parquet").unlink()
    with pytest.raises(errors.DriftlineError, match="INT32") as caught:
        accounts.read()
    assert caught.value.code == "CONFIGURATION"


def test_a_byte_order_mark_is_declared(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, 'encoding = "utf-8-sig"\n' + ACCOUNTS)
    accounts.put(codecs.BOM_UTF8 + b"id,name,balance\n1,x,2\n")
    assert accounts.read() == [["1", "x", "2.00"]]
