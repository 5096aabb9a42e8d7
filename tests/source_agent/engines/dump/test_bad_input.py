"""What is wrong with a file, a folder or a format is said: what, where, and what to do."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from driftline import errors
from driftline.relations.activity import UnknownActivity

from source_agent.engines.conformance.reads import flat
from source_agent.engines.dump import blocks, streams
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Files, Relation
from tests.source_agent.engines.dump.folders import ACCOUNTS, Accounts

HEADER = b"id,name,balance\n"
GOOD = HEADER + b"1,x,2.50\n"
MANY = HEADER + b"".join(b"%d,name %d,%d.25\n" % (i, i * 7, i) for i in range(20_000))
SECONDS_MAX = 5.0  # of a processor; a tenth is usual
ZST = zstandard.ZstdCompressor().compress(MANY)

FILES = (
    ("half a line", "a.csv", GOOD + b"2,y,1", "VALUE", "line 3.*has no end"),
    ("a truncated gz", "a.csv.gz", gzip.compress(MANY)[:-4000], "DATABASE_REFUSED", "in part"),
    ("a gz without its end", "a.csv.gz", gzip.compress(MANY)[:-8], "DATABASE_REFUSED", "in part"),
    ("a damaged gz", "a.csv.gz", b"\x1f\x8bnonsense", "DATABASE_REFUSED", "damaged"),
    ("a truncated zst", "a.csv.zst", ZST[:-4000], "DATABASE_REFUSED", "in part"),
    ("a zst cut in its last bytes", "a.csv.zst", ZST[:-1], "DATABASE_REFUSED", "in part"),
    ("another name", "a.csv", b"id,names,balance\n", "CONFIGURATION", "column 2 is 'names'"),
    ("a column more", "a.csv", b"id,name,balance,x\n", "CONFIGURATION", "4 names instead of 3"),
    ("a column less", "a.csv", b"id,name\n", "CONFIGURATION", "2 names instead of 3"),
    ("no header", "a.csv", b"1,x,2.50\n", "CONFIGURATION", "column 1 is '1'"),
    ("nothing", "a.csv", b"", "VALUE", "empty"),
    ("an undeclared BOM", "a.csv", codecs.BOM_UTF8 + GOOD, "VALUE", "utf-8-sig"),
    ("CR LF in LF", "a.csv", GOOD + b"2,y,1\r\n", "VALUE", "mixed.*line 3"),
    ("LF in CR LF", "a.csv", GOOD.replace(b"\n", b"\r\n") + b"2,y,1\n", "VALUE", "mixed.*line 3"),
    ("CR LF behind quotes", "a.csv", GOOD + b'2,"y",1\r\n', "VALUE", "mixed.*line 3"),
    ("a carriage return alone", "a.csv", GOOD + b"2,\r,1\n", "VALUE", "line 3"),
    ("one in CR LF", "a.csv", GOOD.replace(b"\n", b"\r\n") + b"2,\ry,1\r\n", "VALUE", "line 3"),
    ("a field more", "a.csv", GOOD + b"2,y,1,9\n3,z\n", "VALUE", "4 fields.*line 3"),
    ("a field less behind quotes", "a.csv", GOOD + b'2,"y\n"\n', "VALUE", "2 fields.*line 3"),
    ("an open quote", "a.csv", GOOD + b'2,"y,1\n3,z,1\n', "VALUE", "quote is not closed"),
    ("a quote in a value", "a.csv", GOOD + b'2,y"z",1\n', "VALUE", "quote inside.*line 3"),
    ("text behind a quote", "a.csv", GOOD + b'2,"y"z,1\n', "VALUE", "quote.*line 3"),
    ("latin-1", "a.csv", GOOD + "2,é,1\n".encode("latin-1"), "VALUE", "not utf-8, in line 3"),
    ("a comma for a point", "a.csv", GOOD + b'2,y,"1,5"\n', "VALUE", "balance.*'1,5'.*line 3"),
    ("a value of the 20,001st line", "a.csv", MANY + b"x,y,1\n", "VALUE", "'x'.*line 20002"),
    ("a value behind line breaks", "a.csv", HEADER + b'1,"\n\n",1\n2,y,z\n', "VALUE", "line 5"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "code", "shown"), [f[1:] for f in FILES], ids=[f[0] for f in FILES]
)
def test_a_bad_file_is_refused(
    tmp_path: Path, name: str, data: bytes, code: str, shown: str
) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(data, name.replace("a.", "a-1."))
    with pytest.raises(errors.DriftlineError, match=f"(?s){shown}") as caught:
        accounts.read()
    assert caught.value.code == code
    assert "a-1." in str(caught.value)
    assert caught.value.remedy or code == "DATABASE_REFUSED"


def test_text_of_another_encoding_is_refused(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, 'encoding = "ascii"\n' + ACCOUNTS)
    accounts.put(GOOD + "2,é,1\n".encode())
    with pytest.raises(errors.ValueDoesNotFit, match="not ascii, in line 3"):
        accounts.read()


def test_a_last_line_without_an_end_may_be_declared(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, "last_line_end = false\n" + ACCOUNTS)
    accounts.put(GOOD + b"2,y,1")
    assert len(accounts.read()) == 2


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_bomb_ends_with_an_error(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows: one without line ends is too long a row before."""
    monkeypatch.setattr(streams, "EXPANSION_FREE_BYTES", 1 << 20)
    accounts = Accounts(tmp_path, 'header = false\n[columns]\nid = "text"\n')
    data = b"x\n" * (2 << 20)
    packed = gzip.compress(data) if ending == "gz" else zstandard.compress(data)
    accounts.put(packed, f"a-1.csv.{ending}")
    with pytest.raises(errors.LimitExceeded, match="unpacks to more than"):
        accounts.read()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_bomb_is_unpacked_in_steps(ending: str) -> None:
    data = bytes(150 << 20)
    packed = gzip.compress(data) if ending == "gz" else zstandard.compress(data)
    sizes: list[int] = []
    found = streams.pieces(io.BytesIO(packed), f"a.{ending}", len(packed))
    with pytest.raises(errors.LimitExceeded):
        sizes.extend(map(len, found))
    assert max(sizes) <= 33 << 20
    assert sum(sizes) <= streams.EXPANSION_FREE_BYTES + streams.EXPANSION_MAX * len(packed)


def test_a_row_without_an_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROW_BYTES_MAX", 100_000)
    accounts = Accounts(tmp_path)
    accounts.put(GOOD + b'2,"' + b"y" * 1_000_000)
    with pytest.raises(errors.LimitExceeded, match="begins in line 3"):
        accounts.read()


@pytest.mark.parametrize("before", [b'2,"y",', b"2,y,", b'id,"y",'], ids=ascii)
def test_millions_of_fields_behind_a_lost_quote_are_not_made(tmp_path: Path, before: bytes) -> None:
    accounts = Accounts(tmp_path)
    accounts.put((b"" if before[:2] == b"id" else GOOD) + before + b"ab," * 5_000_000 + b"\n")
    started = time.thread_time()
    tracemalloc.start()
    with pytest.raises(errors.DriftlineError, match=r"more than 4,096 fields|instead of 'name'"):
        accounts.read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20
    assert time.thread_time() - started < SECONDS_MAX


@pytest.mark.parametrize("where", ["a value", "a header", "no end", "unpacked at once"])
def test_a_million_lines_in_one_row_take_no_longer_than_in_a_million(
    tmp_path: Path, where: str
) -> None:
    """Of a quote that is closed late, or not at all; and of zstd, of which 1 KiB may be 32 MiB."""
    lines = b"y\n" * (1 << 20)
    accounts = Accounts(tmp_path)
    if where == "a value":
        accounts.put(HEADER + b'1,"' + lines + b'",0\n2,z,1\n')
        assert [len(row[1] or "") for row in sorted(accounts.read())] == [2 << 20, 1]
        return
    data = {
        "a header": b'id,"' + lines + b'",balance\n',
        "no end": GOOD + b'2,"' + lines,
        "unpacked at once": zstandard.compress(HEADER + b"\n" * (24 << 20)),
    }[where]
    accounts.put(data, "a-1.csv.zst" if where.startswith("unpacked") else "a-1.csv")
    started = time.thread_time()
    with pytest.raises(errors.DriftlineError, match=r"is not what|has no end|1 fields"):
        accounts.read()
    assert time.thread_time() - started < SECONDS_MAX


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "symbolic link"),
        (os.mkfifo, "a pipe"),
        (os.mkdir, "a folder"),
    ],
    ids=["link", "pipe", "folder"],
)
def test_only_files_are_read(tmp_path: Path, make: Callable[[Path], object], shown: str) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(GOOD)
    make(tmp_path / "a-2.csv")
    with pytest.raises(errors.DatabaseRefused, match=rf"'a-2.csv'.* is {shown}|{shown}"):
        accounts.read()


def test_a_marker_is_a_file(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(GOOD)
    (tmp_path / "a-1.csv.done").symlink_to("/etc/passwd")
    files = Files("a-*.csv", accounts.format, "{file}.done")
    accounts.relation = replace(accounts.relation, files=files)
    with pytest.raises(errors.DatabaseRefused, match="symbolic link"):
        accounts.read()


PATTERNS = (
    (Files("../a-*.csv", Path("x"), settle_s=1), "files"),
    (Files("sub/a.csv", Path("x"), settle_s=1), "files"),
    (Files("..", Path("x"), settle_s=1), "files"),
    (Files("a-*.csv", Path("x"), "../{file}.done"), "complete"),
    (Files("a-*.csv", Path("x"), "done"), "complete"),
    (Files("a-*.csv", Path("x"), "{file}"), "complete"),
    (Files("a-{%Y%q}.csv", Path("x"), settle_s=1), "files"),
    (Files("a-{%m}.csv", Path("x"), settle_s=1), "files"),
    (Files("a-{%Y}-{%m}.csv", Path("x"), settle_s=1), "files"),
)


@pytest.mark.parametrize(("files", "setting"), PATTERNS)
def test_a_pattern_stays_in_the_folder(tmp_path: Path, files: Files, setting: str) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(GOOD)
    accounts.relation = replace(accounts.relation, files=replace(files, format=accounts.format))
    with pytest.raises(errors.ConfigurationError) as caught:
        accounts.read()
    assert caught.value.where == f"accounts: {setting}"


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    with pytest.raises(errors.DatabaseUnavailable, match=r"No file matches 'a-\*'"):
        accounts.read()
    accounts.put(GOOD)
    slow = replace(accounts.relation, files=Files("a-*", accounts.format, settle_s=300))
    accounts.relation = slow
    with pytest.raises(errors.DatabaseUnavailable, match="changed 0 s ago, `settle_s` is 300"):
        accounts.read()
    with pytest.raises(errors.DatabaseUnavailable, match="absent' cannot be opened"):
        connect(f"dump:///{tmp_path}/absent", None, Limits()).open()


def _changed(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"7,z,1\n")


def _replaced(path: Path) -> None:
    other = path.with_name("new")
    other.write_bytes(path.read_bytes())
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def _rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"name 7", b"game 7"))
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 1))


CHANGES = (_changed, _replaced, _rewritten, Path.unlink, lambda p: os.truncate(p, 60_000))


@pytest.mark.parametrize("change", CHANGES, ids=["grown", "swapped", "same size", "gone", "cut"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_file_that_changes_is_lost(
    tmp_path: Path, change: Callable[[Path], object], when: str
) -> None:
    accounts = Accounts(tmp_path)
    path = accounts.put(MANY)
    with closing(connect(f"dump:///{tmp_path}", None, Limits()).open()) as session:
        shape = session.describe(accounts.relation)
        if when == "before":
            change(path)
            with pytest.raises(errors.SnapshotLost, match="a-1"):
                flat(session.scan(shape))
            return
        rows = session.scan(shape)
        next(rows)
        change(path)
        with pytest.raises(errors.SnapshotLost, match="a-1"):
            flat(rows)


def test_a_newer_file_waits_for_the_next_session(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    os.utime(accounts.put(GOOD), ns=(1, 1))
    with closing(connect(f"dump:///{tmp_path}", None, Limits()).open()) as session:
        shape = session.describe(accounts.relation)
        accounts.put(HEADER, "a-2.csv")
        assert len(flat(session.scan(shape))) == 1
        assert session.describe(accounts.relation) == shape
        assert shape.as_of == "1970-01-01T00:00:00.000Z"
    assert accounts.read() == []


def test_no_activity_is_told_of_files(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    engine = connect(f"dump:///{tmp_path}", None, Limits())
    with closing(engine.open([accounts.relation])) as session:
        assert session.capabilities.activities == {
            "accounts": UnknownActivity("files keep no counters")
        }


SETTINGS = (
    ({"where": "id > 1"}, "where"),
    ({"as_text": ("name",)}, "as_text"),
    ({"types": (("name", "text"),)}, "types"),
    ({"key": ("idd",)}, "key"),
    ({"columns": ("nmae", "id")}, "columns"),
    ({"files": None, "table": "a"}, ""),
    ({"key": None}, ""),
)


@pytest.mark.parametrize(("changes", "setting"), SETTINGS)
def test_a_wrong_relation_is_refused(
    tmp_path: Path, changes: dict[str, object], setting: str
) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(GOOD)
    relation: Relation = replace(accounts.relation, **changes)  # type: ignore[arg-type]
    accounts.relation = relation
    with pytest.raises(errors.ConfigurationError) as caught:
        accounts.read()
    assert caught.value.where == (f"accounts: {setting}" if setting else "accounts")


FORMATS = (
    ('kind = "xml"\n' + ACCOUNTS, "kind"),
    ('separator = "ab"\n' + ACCOUNTS, "separator"),
    ('separator = "1"\n' + ACCOUNTS, "separator"),
    ('quote = "x"\n' + ACCOUNTS, "quote"),
    ('encoding = "utf-99"\n' + ACCOUNTS, "encoding"),
    ('encoding = "base64"\n' + ACCOUNTS, "encoding"),
    ('encoding = "\\u0000"\n' + ACCOUNTS, "encoding"),
    ('decimal = "x"\n' + ACCOUNTS, "decimal"),
    ('true = "x"\nfalse = "x"\n' + ACCOUNTS, "false"),
    ("null = 7\n" + ACCOUNTS.replace('null = ""', ""), "null"),
    ('null = " "\n' + ACCOUNTS.replace('null = ""', ""), "null"),
    ('seperator = ";"\n' + ACCOUNTS, "seperator"),
    (ACCOUNTS + "[widths]\nid = 3\n", "widths"),
    ('kind = "fixed"\n' + ACCOUNTS + "[widths]\nid = 3\nname = 2\n", "widths.balance"),
    ('kind = "fixed"\nseparator = ";"\n' + ACCOUNTS, "separator"),
    ('kind = "parquet"\n' + ACCOUNTS, "null"),
    ('null = ""\n', "columns"),
    (ACCOUNTS + 'x = "int9"\n', "columns.x"),
)


@pytest.mark.parametrize(("text", "key"), FORMATS, ids=[f[1] for f in FORMATS])
def test_a_wrong_format_is_refused(tmp_path: Path, text: str, key: str) -> None:
    accounts = Accounts(tmp_path, text)
    accounts.put(GOOD)
    with pytest.raises(errors.ConfigurationError) as caught:
        accounts.read()
    assert caught.value.where == f"accounts.toml: {key}"


def test_a_line_of_another_width(tmp_path: Path) -> None:
    widths = "[widths]\nid = 2\nname = 3\nbalance = 5\n"
    accounts = Accounts(tmp_path, 'kind = "fixed"\n' + ACCOUNTS + widths)
    accounts.put(b" 1abc 1.50\n 2abc 2.5\n")
    with pytest.raises(errors.ValueDoesNotFit, match=r"9 characters.*line 2"):
        accounts.read()
    accounts.put("1 äöü 1.50\n".encode())
    assert accounts.read() == [["1", "äöü", "1.50"]]
    accounts.put(b"1 a\0\0 1.50\n")
    assert accounts.read() == [["1", "a\0\0", "1.50"]]


@pytest.mark.parametrize("data", [b"PAR1", b"", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_file_that_is_no_parquet(tmp_path: Path, data: bytes) -> None:
    accounts = Accounts(tmp_path, 'kind = "parquet"\n[columns]\nid = "int8"\n')
    accounts.put(data, "a-1.parquet")
    with pytest.raises(errors.DatabaseRefused, match="no Parquet"):
        accounts.read()
