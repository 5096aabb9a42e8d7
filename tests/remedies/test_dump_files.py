"""Remedies for dump files and their formats: with what each says, the file is read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import DriftlineError

from source_agent.engines.dump import blocks, choice, streams
from source_agent.engines.relations.shapes import Files
from tests.remedies.told import told
from tests.source_agent.engines.dump.folders import Accounts

COLUMNS = '[columns]\nid = "int8"\nv = "text"\n'
GOOD = b"id,v\n1,x\n"
FIXED = 'kind = "fixed"\nheader = true\n' + COLUMNS + "[widths]\nid = 2\nv = 2\n"
ESCAPES = (
    'Write escape = "postgresql" for COPY in text format, escape = "mysql" for OUTFILE and'
    ' mysqldump --tab, or escape = "none" if a backslash is always a backslash.'
)
AGAIN = "Deliver it again, and mark it as complete only then."
Change = Callable[[Accounts], Any]


def made(
    folder: Path, format: str = COLUMNS, data: bytes = GOOD, name: str = "a-1.csv"
) -> Accounts:
    accounts = Accounts(folder, format)
    accounts.put(data, name)
    return accounts


def written(text: str) -> Change:
    return lambda accounts: accounts.format.write_text(text)


def put(data: bytes, name: str = "a-1.csv") -> Change:
    return lambda accounts: accounts.put(data, name)


def files(**settings: Any) -> Change:
    def change(accounts: Accounts) -> None:
        of = accounts.relation.files
        assert of is not None
        accounts.relation = replace(accounts.relation, files=replace(of, **settings))

    return change


def relation(**settings: Any) -> Change:
    def change(accounts: Accounts) -> None:
        accounts.relation = replace(accounts.relation, **settings)

    return change


def of_one_instant(accounts: Accounts) -> None:
    for name in ("1", "x", "20260101000000"):
        os.utime(accounts.put(GOOD, f"a-{name}.csv"), (0, 0))


def parts(pattern: str, name: str, complete: str = "_SUCCESS") -> Change:
    """Deliver `a-name` as a part alone, completed by a marker."""

    def change(accounts: Accounts) -> None:
        files(pattern=pattern, complete=complete, settle_s=None)(accounts)
        for old in accounts.folder.glob("a-*"):
            old.unlink()
        accounts.put(GOOD, f"a-{name}")
        accounts.put(b"", "_SUCCESS")

    return change


def removed(name: str) -> Change:
    return lambda accounts: (accounts.folder / name).unlink()


# The remedy, the format and the file that have the fault, and what mends each.
CASES: list[tuple[str, str, bytes, tuple[Change, ...]]] = [
    ("Did you mean …?", 'kind = "cvs"\n' + COLUMNS, GOOD, (written('kind = "csv"\n' + COLUMNS),)),
    ('Write [columns] and id = "int8", ….', "", GOOD, (written(COLUMNS),)),
    ("Remove it.", "[widths]\nid = 2\nv = 3\n" + COLUMNS, GOOD, (written(COLUMNS),)),
    ("See docs/types.md.", COLUMNS.replace("int8", "integer"), GOOD, (written(COLUMNS),)),
    (
        "Write one of ….",
        'separator = "x"\n' + COLUMNS,
        GOOD,
        (written('separator = ","\n' + COLUMNS),),
    ),
    (
        'Write "\'" or \'"\', or "" for none.',
        'quote = "x"\n' + COLUMNS,
        GOOD,
        tuple(written(f"quote = {quote}\n{COLUMNS}") for quote in ('"\'"', "'\"'", '""')),
    ),
    (
        'Write "utf-8", "cp1252" or "utf-16".',
        'encoding = "klingon"\n' + COLUMNS,
        GOOD,
        (written('encoding = "utf-8"\n' + COLUMNS), written('encoding = "cp1252"\n' + COLUMNS)),
    ),
    (
        ESCAPES,
        'null = "\\\\N"\n' + COLUMNS,
        GOOD,
        (
            written('null = "\\\\N"\nescape = "none"\n' + COLUMNS),
            written('null = "\\\\N"\nescape = "postgresql"\nquote = ""\n' + COLUMNS),
            written('null = "\\\\N"\nescape = "mysql"\n' + COLUMNS),
        ),
    ),
    (
        'Write null = "\\\\N".',
        'escape = "mysql"\nnull = ""\n' + COLUMNS,
        GOOD,
        (written('escape = "mysql"\nnull = "\\\\N"\n' + COLUMNS),),
    ),
    (
        'Write quote = "".',
        'escape = "postgresql"\n' + COLUMNS,
        GOOD,
        (written('escape = "postgresql"\nquote = ""\n' + COLUMNS),),
    ),
    (
        'Write "." or ",".',
        'decimal = ";"\n' + COLUMNS,
        GOOD,
        (written('decimal = "."\n' + COLUMNS), written('decimal = ","\n' + COLUMNS)),
    ),
    ("Deliver it again; a table without rows is a header alone.", COLUMNS, b"", (put(b"id,v\n"),)),
    (
        (
            "If the columns changed, change … and tell the data engineer; check `separator` and"
            " `encoding`."
        ),
        COLUMNS,
        b"id,w\n1,x\n",
        (written(COLUMNS.replace("v =", "w =")), put(GOOD)),
    ),
    (
        "Deliver it again, or set last_line_end = false in … if its last line never has one.",
        COLUMNS,
        GOOD[:-1],
        (put(GOOD), written("last_line_end = false\n" + COLUMNS)),
    ),
    (
        "Correct …: the type, `null`, `decimal`; or declare the column `text`.",
        COLUMNS,
        b"id,v\n1.0,x\n",
        (
            written(COLUMNS.replace("int8", "numeric(9,1)")),
            written(COLUMNS.replace("int8", "text")),
        ),
    ),
    (
        "Set `encoding` in its format as the file is written.",
        COLUMNS,
        "id,v\n1,é\n".encode("cp1252"),
        (written('encoding = "cp1252"\n' + COLUMNS),),
    ),
    (
        'Set encoding = "utf-8-sig" in its format.',
        COLUMNS,
        b"\xef\xbb\xbf" + GOOD,
        (written('encoding = "utf-8-sig"\n' + COLUMNS),),
    ),
    (
        "Correct `widths` and names in the format, or set header = false.",
        FIXED,
        b"x y \n1 x \n",
        (put(b"idv \n1 x \n"), written(FIXED.replace("true", "false").replace("int8", "text"))),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:40])
def test_the_file_is_read(tmp_path: Path, case: tuple[str, str, bytes, tuple[Change, ...]]) -> None:
    remedy, format, data, mended = case
    for number, change in enumerate(mended):
        accounts = made(tmp_path / str(number), format, data)
        with pytest.raises(DriftlineError) as caught:
            accounts.read()
        told(caught.value, remedy)
        change(accounts)
        assert isinstance(accounts.read(), list)


# The remedy, what is wrong with the names, and what mends each.
NAMES: list[tuple[str, Change, tuple[Change, ...]]] = [
    (
        "Write names without folders; a folder has an agent of its own.",
        files(pattern="x/a-*"),
        (files(pattern="a-*"),),
    ),
    (
        (
            'Write it with the name of the file: complete = "{file}.done", or with the time in'
            " `files`. One name for many tables is for files that are called the same each time."
        ),
        files(complete="done", settle_s=None),
        (lambda a: (files(complete="{file}.done")(a), a.put(b"", "a-1.csv.done")),),
    ),
    (
        "Remove one {…}.",
        files(pattern="a-{%Y%m%d}-{%Y}"),
        (lambda a: (files(pattern="a-{%Y%m%d}.csv")(a), a.put(GOOD, "a-20260101.csv")),),
    ),
    (
        "Write it with …, such as {%Y%m%d}.",
        files(pattern="a-{%y}"),
        (lambda a: (files(pattern="a-{%Y%m%d}.csv")(a), a.put(GOOD, "a-20260101.csv")),),
    ),
    (
        "Rename or remove the file, or correct `files`.",
        lambda a: (files(pattern="a-{%Y%m%d}.csv")(a), a.put(GOOD, "a-20269901.csv")),
        (
            lambda a: (a.folder / "a-20269901.csv").rename(a.folder / "a-20260101.csv"),
            lambda a: (removed("a-20269901.csv")(a), a.put(GOOD, "a-20260101.csv")),
            files(pattern="a-1.csv"),
        ),
    ),
    (
        "Wait for the next delivery, or correct `files`, `complete` or `settle_s`.",
        files(settle_s=1e6),
        (
            files(settle_s=1e-9),
            lambda a: (files(settle_s=None, complete="{file}.ok")(a), a.put(b"", "a-1.csv.ok")),
        ),
    ),
    (
        "Remove one, or name files by the time of their data: {%Y%m%d%H%M%S}.",
        of_one_instant,
        (
            lambda a: (removed("a-x.csv")(a), removed("a-1.csv")(a)),
            files(pattern="a-{%Y%m%d%H%M%S}.csv"),
        ),
    ),
    (
        (
            "Write … in `files` for the number, and a marker of the whole delivery in `complete`,"
            ' such as "_SUCCESS"; make `files` narrower if one of them is the whole.'
        ),
        lambda a: [a.put(GOOD, f"a-part-{number}.csv") for number in (1, 2)],
        (
            lambda a: (
                files(pattern="a-*t-{part}.csv", complete="_SUCCESS", settle_s=None)(a),
                a.put(b"id,v\n", "a-part-2.csv"),
                a.put(b"", "_SUCCESS"),
            ),
            files(pattern="a-1.csv"),
        ),
    ),
    (
        "Write each once, such as {%Y%m%d}.",
        files(pattern="a-{%Y%Y}.csv"),
        (lambda a: (files(pattern="a-{%Y%m%d}.csv")(a), a.put(GOOD, "a-20260101.csv")),),
    ),
    (
        "Remove one …; write * for other numbers.",
        parts("a-{part}-of-{part}-*", "1-of-1-x"),
        (parts("a-{part}-of-*", "1-of-1-x"),),
    ),
    (
        "Deliver with a time in the names, {%Y%m%d}, or with another name each time, *.",
        parts("a-{part}", "1"),
        (parts("a-{%Y%m%d}-{part}", "20260101-1"), parts("a-*-{part}", "x-1")),
    ),
    (
        (
            'Write the name of one file that is written last: complete = "_SUCCESS", or with the'
            ' time in the names of parts: complete = "orders-{%Y%m%d}.done".'
        ),
        files(pattern="a-{%Y%m%d}-{part}.csv"),
        (
            parts("a-{%Y%m%d}-{part}", "20260101-1"),
            lambda a: (
                parts("a-{%Y%m%d}-{part}", "20260101-1", complete="orders-{%Y%m%d}.done")(a),
                a.put(b"", "orders-20260101.done"),
            ),
        ),
    ),
    (
        "Deliver it again, with parts numbered from 0 or 1 without a gap.",
        parts("a-*-{part}", "x-2"),
        (
            parts("a-*-{part}", "x-1"),
            lambda a: (
                a.put(b"id,v\n", "a-x-0"),
                a.put(b"id,v\n", "a-x-1"),
                a.put(b"", "_SUCCESS"),
            ),
        ),
    ),
    (
        "Put the file itself there, or make `files` narrower.",
        lambda a: (a.folder / "a-2.csv").symlink_to(a.folder / "a-1.csv"),
        (
            lambda a: (removed("a-2.csv")(a), a.put(GOOD, "a-2.csv")),
            files(pattern="a-1*"),
        ),
    ),
    (
        AGAIN,
        lambda a: (removed("a-1.csv")(a), a.put(gzip.compress(GOOD)[:-9], "a-1.csv.gz")),
        (put(gzip.compress(GOOD), "a-1.csv.gz"),),
    ),
    (
        'Write files = "accounts-*.csv" and format = "accounts.toml".',
        relation(files=None, table="accounts"),
        (
            lambda a: (
                a.put(GOOD, "accounts-1.csv"),
                relation(table=None, files=Files("accounts-*.csv", a.format, settle_s=1e-9))(a),
            ),
        ),
    ),
    (
        "Remove it.",
        relation(where="id = 1"),
        (relation(where=None),),
    ),
    (
        'Name columns that identify a row: key = ["…"].',
        relation(key=None),
        (lambda a: a.key(("id",)),),
    ),
    ("Did you mean …?", lambda a: a.key(("idd",)), (lambda a: a.key(("id",)),)),
]


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[0][:40])
def test_the_right_file_is_read(
    tmp_path: Path, case: tuple[str, Change, tuple[Change, ...]]
) -> None:
    remedy, fault, mended = case
    for number, change in enumerate(mended):
        accounts = made(tmp_path / str(number))
        fault(accounts)
        with pytest.raises(DriftlineError) as caught:
            accounts.read()
        told(caught.value, remedy)
        change(accounts)
        assert accounts.read() == [["1", "x"]]


def test_limits_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made small, not the files large."""
    accounts = made(tmp_path / "a", COLUMNS, b'id,v\n1,"x\n' + b"y" * 3000 + b"\n")
    monkeypatch.setattr(blocks, "ROW_BYTES_MAX", 1000)
    with pytest.raises(DriftlineError) as caught:
        accounts.read()
    told(caught.value, "A quote that is not closed, or a file without line ends?")
    accounts.put(b'id,v\n1,"x"\n2,y\n')
    assert len(accounts.read()) == 2
    monkeypatch.undo()
    bomb = b"id,v\n1," + b"x" * 100_000 + b"\n"
    packed = made(tmp_path / "b", COLUMNS, gzip.compress(bomb), "a-1.csv.gz")
    monkeypatch.setattr(streams, "EXPANSION_FREE_BYTES", 1000)
    with pytest.raises(DriftlineError) as caught:
        packed.read()
    told(caught.value, "Deliver it unpacked, if it is no mistake.")
    packed.put(bomb, "a-2.csv")
    assert len(packed.read()) == 1
    monkeypatch.setattr(choice, "PARTS_MAX", 1)
    several = made(tmp_path / "c")
    parts("a-*-{part}", "x-1")(several)
    several.put(b"id,v\n2,y\n", "a-x-2")
    several.put(b"", "_SUCCESS")
    with pytest.raises(DriftlineError) as caught:
        several.read()
    told(caught.value, "Deliver fewer, larger files.")
    (several.folder / "a-x-2").unlink()
    several.put(b"id,v\n1,x\n2,y\n", "a-x-1")
    several.put(b"", "_SUCCESS")
    assert len(several.read()) == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    accounts = made(tmp_path / "right")
    accounts.folder = tmp_path / "wrong"
    with pytest.raises(DriftlineError) as caught:
        accounts.read()
    told(
        caught.value,
        "Check database.url: an absolute path has four slashes, dump:////path/to/folder. The agent"
        " must be able to list it.",
    )
    accounts.folder = Path(f"/{tmp_path}/right")
    assert accounts.read() == [["1", "x"]]


def parquet(folder: Path, value: pa.Array, declared: str) -> Accounts:
    accounts = Accounts(folder, f'kind = "parquet"\n[columns]\nid = "int8"\nv = "{declared}"\n')
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "v": value}), folder / "a-1.parquet")
    return accounts


def test_parquet_is_declared_as_it_is(tmp_path: Path) -> None:
    accounts = parquet(tmp_path / "a", pa.array(["x"]), "int4")
    with pytest.raises(DriftlineError) as caught:
        accounts.read()
    type = told(caught.value, "Declare it ….").removeprefix("Declare it ").rstrip(".")
    accounts.format.write_text(accounts.format.read_text().replace("int4", type.split(" or ")[0]))
    assert accounts.read() == [["1", "x"]]
    accounts.format.write_text(accounts.format.read_text().replace("v =", "w ="))
    with pytest.raises(DriftlineError) as caught:
        accounts.read()
    told(caught.value, "Correct …, and tell the data engineer.")
    accounts.format.write_text(accounts.format.read_text().replace("w =", "v ="))
    assert accounts.read() == [["1", "x"]]
    nested = parquet(tmp_path / "b", pa.array([[1]]), "text")
    with pytest.raises(DriftlineError) as caught:
        nested.read()
    told(
        caught.value, "This type of Parquet is not read: leave it out by `columns` of the relation."
    )
    nested.choose(("id",))
    assert nested.read() == [["1"]]
    (tmp_path / "b" / "a-1.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(DriftlineError) as caught:
        nested.read()
    told(caught.value, AGAIN)
    assert parquet(tmp_path / "b", pa.array(["x"]), "text").read() == [["1", "x"]]


def test_instants_of_parquet(tmp_path: Path) -> None:
    nano = parquet(tmp_path / "a", pa.array([1], pa.timestamp("ns")), "timestamp")
    with pytest.raises(DriftlineError) as caught:
        nano.read()
    told(caught.value, "Write timestamps in microseconds.")
    micro = parquet(tmp_path / "a", pa.array([1], pa.timestamp("us")), "timestamp")
    assert micro.read() == [["1", "1970-01-01 00:00:00.000001"]]
    far = parquet(tmp_path / "b", pa.array([2**62], pa.timestamp("ms")), "timestamp")
    with pytest.raises(DriftlineError) as caught:
        far.read()
    told(
        caught.value,
        "Write NULL, or an instant that a database knows, for what has no end.",
    )
    null = parquet(tmp_path / "b", pa.array([None], pa.timestamp("s")), "timestamp")
    assert null.read() == [["1", None]]
