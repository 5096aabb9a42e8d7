"""Exports of databases and of Spark: read exactly, or refused by name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from driftline import errors

from source_agent.engines.dump import blocks
from tests.source_agent.engines.dump.folders import ACCOUNTS, Accounts

COPY = (
    'separator = "\\t"\nquote = ""\nnull = "\\\\N"\nheader = false\n%s'
    '[columns]\nid = "int8"\nname = "text"\n'
)


def test_a_null_that_is_an_escape_needs_the_others_said(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, COPY % "")
    accounts.put(b"1\tx\n")
    with pytest.raises(errors.ConfigurationError, match="other escapes") as caught:
        accounts.read()
    assert "mysqldump" in caught.value.remedy


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('escape = "c"\n', "escape"),
        ('escape = "postgresql"\n', "escape"),
        ('escape = "mysql"\n', "null"),
    ],
)
def test_what_is_not_supported_is_refused_whole(tmp_path: Path, line: str, key: str) -> None:
    accounts = Accounts(tmp_path, line + ACCOUNTS)
    accounts.put(b"1\tx\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        accounts.read()
    assert caught.value.where == f"accounts.toml: {key}"


def test_escapes_of_copy_are_read(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, COPY % 'escape = "postgresql"\n')
    accounts.put(b"1\tC:\\\\temp\n2\ta\\tb\\nc\\rd\\be\\ff\\vg\n3\t\\N\n4\t\\\\N\n5\t\n")
    assert accounts.read() == [
        ["1", "C:\\temp"], ["2", "a\tb\nc\rd\be\ff\vg"], ["3", None], ["4", "\\N"], ["5", ""],
    ]  # fmt: skip
    accounts.put(b"1\tx\n2\ta\\Zb\n")
    with pytest.raises(errors.ValueDoesNotFit, match="line 2"):
        accounts.read()


def test_backslashes_may_be_backslashes(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, COPY % 'escape = "none"\n')
    accounts.put(b"1\tC:\\temp\n2\t\\N\n")
    assert accounts.read() == [["1", "C:\\temp"], ["2", None]]


@pytest.mark.parametrize(
    "names",
    [
        ("a-part-00000-x.csv", "a-part-00001-x.csv"),
        ("a-20240101.part1.csv", "a-20240101.part2.csv"),
        ("a-1of2.csv", "a-2of2.csv"),
    ],
)
def test_parts_of_one_delivery_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    accounts = Accounts(tmp_path)
    for name in names:
        accounts.put(b"id,name,balance\n1,x,2\n", name)
    with pytest.raises(errors.DatabaseRefused, match="parts of one delivery"):
        accounts.read()


def test_one_part_alone_and_numbers_are_deliveries(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    for name in ("a-part-00000-x.csv", "a-part-00000-y.csv", "a-1.csv"):
        accounts.put(b"id,name,balance\n1,x,2\n", name)
        time.sleep(0.01)  # files of one instant are refused
    assert accounts.read() == [["1", "x", "2.00"]]


@pytest.mark.parametrize("start", [b"2,", b'2,"'])
def test_a_row_without_an_end_costs_what_it_is_long(start: bytes) -> None:
    """Each byte is looked at a few times, however many pieces the row comes in."""
    seen = 0

    def cut(data: bytes) -> int:
        nonlocal seen
        seen += len(data)
        return 0

    pieces = iter([start + b"y" * 1000] * 4000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "ROW_BYTES_MAX", 2_000_000)
        with pytest.raises(errors.LimitExceeded, match="begins in line 1"):
            list(blocks.whole_rows(pieces, cut, None, "a.csv"))  # type: ignore[arg-type]
    assert seen < 3 * 4_100_000
