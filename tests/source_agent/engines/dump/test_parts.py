"""A delivery in parts: all of them are one relation, or none is read."""

from __future__ import annotations

import gzip
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import flat
from source_agent.engines.dump import choice
from source_agent.engines.dump.session import DumpSession
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Files
from tests.source_agent.engines.dump.folders import Accounts

PARQUET = 'kind = "parquet"\n[columns]\nid = "int8"\nname = "text"\n'
PLAIN = 'header = false\n[columns]\nid = "int8"\nname = "text"\n'
HEADED = '[columns]\nid = "int8"\nname = "text"\n'
DATED = "a-{%Y%m%d}_{part}.csv"
MARKER = "a-{%Y%m%d}.done"


def delivered(folder: Path, text: str, pattern: str, complete: str) -> Accounts:
    accounts = Accounts(folder, text)
    files = Files(pattern, accounts.format, complete)
    accounts.relation = replace(accounts.relation, files=files)
    return accounts


def dated(folder: Path, parts: dict[str, bytes]) -> Accounts:
    accounts = delivered(folder, HEADED, DATED, MARKER)
    for number, rows in parts.items():
        accounts.put(b"id,name\n" + rows, f"a-20261129_{number}.csv")
    accounts.put(b"", "a-20261129.done")
    return accounts


def spark(folder: Path) -> Accounts:
    accounts = delivered(folder, PARQUET, "part-{part}-*.snappy.parquet", "_SUCCESS")
    for number in range(3):
        name = f"part-{number:05}-5f3d9a56-16b2-4c2e-9b54-0c7d38d0a1e3-c000.snappy.parquet"
        rows = pa.table({"id": pa.array([number], pa.int64()), "name": [f"n{number}"]})
        pq.write_table(rows, folder / name)
    accounts.put(b"", "_SUCCESS")
    return accounts


def split(folder: Path) -> Accounts:
    accounts = delivered(folder, PLAIN, "a-{%Y%m%d}.csv.{part}", MARKER)
    for number in range(3):
        accounts.put(b"%d,n%d\n" % (number, number), f"a-20261129.csv.{number:02}")
    accounts.put(b"", "a-20261129.done")
    return accounts


def big_query(folder: Path) -> Accounts:
    accounts = delivered(folder, HEADED, "a-{%Y%m%d}_{part}.csv.gz", MARKER)
    for number in range(3):
        content = gzip.compress(b"id,name\n%d,n%d\n" % (number, number))
        accounts.put(content, f"a-20261129_{number:012}.csv.gz")
    accounts.put(b"", "a-20261129.done")
    return accounts


@pytest.mark.parametrize("write", [spark, split, big_query])
def test_all_parts_are_the_relation(tmp_path: Path, write: object) -> None:
    assert callable(write)
    accounts = write(tmp_path)
    assert sorted(accounts.read()) == [[str(n), f"n{n}"] for n in range(3)]
    with closing(connect(f"dump:///{tmp_path}", None, Limits()).open()) as session:
        assert "(3 parts)" in session.describe(accounts.relation).notes[0]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (("0", "2"), "part 2 and not the one before"),
        (("2", "3"), "part 2 and not the one before"),
        (("1", "01", "2"), "part 1 twice"),
    ],
)
def test_a_part_is_missing_or_double(tmp_path: Path, numbers: tuple[str, ...], said: str) -> None:
    accounts = dated(tmp_path, dict.fromkeys(numbers, b"1,a\n"))
    with pytest.raises(errors.DatabaseRefused, match=rf"'a-20261129_\{{part}}.csv' has {said}"):
        accounts.read()


def test_more_parts_than_a_process_should_hold_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "PARTS_MAX", 2)
    with pytest.raises(errors.DatabaseRefused, match="3 parts, more than 2"):
        dated(tmp_path, {str(number): b"" for number in range(3)}).read()


def test_one_marker_completes_all_parts(tmp_path: Path) -> None:
    accounts = dated(tmp_path, {"1": b"1,a\n", "2": b"2,b\n"})
    later = accounts.put(b"id,name\n9,z\n", "a-20261130_1.csv")
    assert sorted(accounts.read()) == [["1", "a"], ["2", "b"]]
    marker = accounts.put(b"", "a-20261130.done")
    assert accounts.read() == [["9", "z"]]
    os.utime(later, ns=(0, marker.stat().st_mtime_ns + 1))  # it is written again
    assert sorted(accounts.read()) == [["1", "a"], ["2", "b"]]


@pytest.mark.parametrize("change", ["one more", "another", "removed"])
def test_a_part_that_changes_meanwhile(tmp_path: Path, change: str) -> None:
    accounts = dated(tmp_path, {"0": b"1,a\n", "1": b"2,b\n"})
    with closing(DumpSession(tmp_path, Limits())) as session:
        shape = session.describe(accounts.relation)
        scan = session.scan(shape)
        assert len(next(scan)) == 1
        if change == "removed":
            (tmp_path / "a-20261129_1.csv").unlink()
        else:
            number = 2 if change == "one more" else 1
            accounts.put(b"id,name\n3,c\n4,d\n", f"a-20261129_{number}.csv")
        with pytest.raises(errors.SnapshotLost):
            flat(scan)


def test_each_part_is_as_the_format_says(tmp_path: Path) -> None:
    accounts = dated(tmp_path, {"0": b"1,a\n", "1": b"2,b\nx,c\n"})
    with pytest.raises(errors.ValueDoesNotFit, match=r"line 3 of the file 'a-20261129_1.csv'"):
        accounts.read()
    accounts.put(b"2,b\n", "a-20261129_1.csv")  # no header
    accounts.put(b"", "a-20261129.done")
    with (
        closing(DumpSession(tmp_path, Limits())) as session,
        pytest.raises(errors.DriftlineError, match=r"'?a-20261129_1.csv"),
    ):
        session.describe(accounts.relation)  # `check` says it, too


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (Files(DATED, Path("f"), settle_s=300), "marker of the whole delivery"),
        (Files(DATED, Path("f"), "{file}.done"), "marker of the whole delivery"),
        (Files("a-{part}-of-{part}-*", Path("f"), "_SUCCESS"), "one number"),
        (Files("data_{part}.csv", Path("f"), "_SUCCESS"), "left from the delivery before"),
    ],
)
def test_what_says_too_little_is_refused(files: Files, said: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=said):
        choice.pattern(files, "r")
