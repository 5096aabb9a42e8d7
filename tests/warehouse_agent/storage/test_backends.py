"""What every place of a warehouse promises: on a disk, and in a bucket of real servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.harness.object_stores import ObjectStore
from warehouse_agent.storage.backends import s3
from warehouse_agent.storage.backends.disk import Disk
from warehouse_agent.storage.backends.interface import Backend
from warehouse_agent.storage.backends.s3 import PART_BYTES, S3, TAIL_BYTES

pytestmark = pytest.mark.starts

WRITERS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """A backend and an empty folder of it."""

    backend: Backend
    root: str

    def at(self, *parts: str) -> str:
        return "/".join([self.root, *parts])


@pytest.fixture(params=["disk", "moto", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(Disk(), str(tmp_path / "lake"))
        return
    server: ObjectStore = request.getfixturevalue(request.param)
    bucket = server.bucket()
    yield Place(S3(bucket.name, bucket.settings), f"{bucket.name}/lake")


def kept(lines: bytes) -> bytes:
    return lines[len(lines) // 2 :].partition(b"\n")[2]


def test_a_small_file(place: Place) -> None:
    backend, path = place.backend, place.at("notes", "a.json")
    assert backend.read(path) is None
    assert backend.modified(path) is None
    backend.write(path, b"one", private=False)
    backend.write(path, b"two", private=True)
    assert backend.read(path) == b"two"
    at = backend.modified(path)
    assert at is not None
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=5)
    backend.remove_file(path, 0)
    backend.remove_file(path, 0)
    assert backend.read(path) is None


def test_an_empty_file(place: Place) -> None:
    path = place.at("empty")
    place.backend.write(path, b"", private=False)
    assert place.backend.read(path) == b""
    with place.backend.system.open_input_file(path) as source:
        assert source.size() == 0
        assert source.read() == b""


def test_one_of_many_writers_of_a_new_file_succeeds(place: Place) -> None:
    path = place.at("keys", "a.key")
    data = [b"%d" % number for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        won = [*pool.map(lambda one: place.backend.write_new(path, one, private=True), data)]
    assert sum(won) == 1
    assert place.backend.read(path) == data[won.index(True)]
    assert not place.backend.write_new(path, b"later", private=False)


def test_no_line_of_many_writers_is_lost(place: Place) -> None:
    path = place.at("runs", "a.jsonl")

    def append(number: int) -> None:
        place.backend.append(path, b"line %d" % number, 1 << 20, kept)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(append, range(WRITERS)))
    lines = (place.backend.read(path) or b"").splitlines()
    assert sorted(lines) == sorted(b"line %d" % number for number in range(WRITERS))


def test_no_change_of_many_writers_is_lost(place: Place) -> None:
    path, calls = place.at("notes", "a.json"), list[bytes]()

    def change(number: int) -> None:
        def plus(data: bytes) -> bytes:
            calls.append(data)
            return data + b"%d," % number

        place.backend.change(path, plus)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(change, range(WRITERS)))
    written = (place.backend.read(path) or b"").split(b",")
    assert sorted(written) == sorted([b"", *(b"%d" % number for number in range(WRITERS))])
    assert b"" in calls


def test_a_file_that_stays_as_it_is(place: Place) -> None:
    path = place.at("notes", "a.json")
    place.backend.change(path, lambda data: None)
    assert place.backend.read(path) is None
    place.backend.write(path, b"one", private=False)
    place.backend.change(path, lambda data: None)
    assert place.backend.read(path) == b"one"
    place.backend.change(path, lambda data: data + b" two")
    assert place.backend.read(path) == b"one two"


def test_lines_are_ended_and_bounded(place: Place) -> None:
    path = place.at("runs", "a.jsonl")
    place.backend.write(path, b"one\ntw", private=False)
    place.backend.append(path, b"three", 1 << 20, kept)
    assert place.backend.read(path) == b"one\ntw\nthree\n"
    place.backend.append(path, b"four", 10, kept)
    assert place.backend.read(path) == b"three\nfour\n"


def test_folders_are_listed(place: Place) -> None:
    for name in ("b/c/2", "b/1", "a", "bb/3"):
        place.backend.write(place.at(name), name.encode(), private=False)
    found = place.backend.listed(place.at("b"), recursive=True)
    files = {info.path: info.size for info in found if info.type is fs.FileType.File}
    assert files == {place.at("b/c/2"): 5, place.at("b/1"): 3}
    there = {(i.path, i.type) for i in place.backend.listed(place.root, recursive=False)}
    assert there == {
        (place.at("a"), fs.FileType.File),
        (place.at("b"), fs.FileType.Directory),
        (place.at("bb"), fs.FileType.Directory),
    }
    assert place.backend.listed(place.at("nowhere"), recursive=True) == []
    place.backend.remove_folder(place.at("b"))
    place.backend.remove_folder(place.at("nowhere"))
    assert place.backend.listed(place.at("b"), recursive=True) == []
    assert place.backend.read(place.at("bb/3")) == b"bb/3"


def test_more_files_than_a_page_of_a_list(place: Place) -> None:
    def write(number: int) -> None:
        place.backend.write(place.at("many", f"{number:04}"), b"", private=False)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(1010)))
    assert len(place.backend.listed(place.at("many"), recursive=False)) == 1010
    place.backend.remove_folder(place.at("many"))
    assert place.backend.listed(place.at("many"), recursive=True) == []


def test_sizes_of_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies between them, and however many a request lists."""
    monkeypatch.setattr(s3, "PAGE_FILES", 4)
    there = {f"data-{n:02}/{n % 3}/file-{n}": n for n in range(30)}
    there |= {"data-05/\u00fc": 100, "data-1": 101, "data-1.x": 102, "x": 103}
    for name, size in there.items():
        place.backend.write(place.at("t", name), b"x" * size, private=False)
    place.backend.write(place.at("tt", "data-05", "other"), b"", private=False)
    sizes = partial(place.backend.sizes, place.at("t"))
    assert sizes(there) == there
    few = ["x", "data-05/\u00fc", "data-29/2/file-29", "data-07/1/file-7"]
    assert sizes(few) == {name: there[name] for name in few}
    assert sizes(["a", "data-05", "data-07/1", "data-29/2/none", "zz"]) == {}
    assert sizes([]) == {}
    assert place.backend.sizes(place.at("nowhere"), few) == {}
    if not place.backend.is_local:  # a list that is behind
        monkeypatch.setattr("obstore.list", lambda *_, **__: [])
        assert sizes([*few, "none"]) == {name: there[name] for name in few}


@pytest.mark.parametrize("size", [1, TAIL_BYTES, TAIL_BYTES + 1, 2 * PART_BYTES + 5])
def test_a_data_file_is_there_when_it_is_finished(place: Place, size: int) -> None:
    system, path = place.backend.system, place.at("data", "a")
    place.backend.make_folder(place.at("data"))
    data = bytes(range(256)) * (size // 256 + 1)
    file = place.backend.begun(path)
    for begin in range(0, size, 1 << 20):
        file.out.write(data[begin : min(begin + (1 << 20), size)])
    if not place.backend.is_local:
        assert place.backend.read(path) is None
    assert file.finish() == size
    file.abandon()
    assert system.get_file_info(path).size == size
    with system.open_input_file(path) as source:
        assert source.size() == size
        for begin in (0, size // 2, size - 1, size):
            source.seek(begin)
            assert source.read(7) == data[begin : min(begin + 7, size)]
    with system.open_input_stream(path) as source:
        assert source.read() == data[:size]


@pytest.mark.parametrize("size", [1, 2 * PART_BYTES + 5])
@pytest.mark.parametrize("dropped", [False, True], ids=["abandoned", "dropped"])
def test_a_data_file_that_is_not_finished_is_not_there(
    place: Place, size: int, dropped: bool
) -> None:
    path = place.at("data", "a")
    place.backend.make_folder(place.at("data"))
    file = place.backend.begun(path)
    file.out.write(b"x" * size)
    if not dropped:
        file.abandon()
    elif place.backend.is_local:
        return  # `gc` removes what a process leaves that died
    del file
    gc.collect()
    assert place.backend.read(path) is None
    if isinstance(place.backend, S3):
        assert not unfinished_uploads(place.backend)


def unfinished_uploads(backend: S3) -> list[object]:
    """Return the uploads in parts that a bucket still holds."""
    keys, endpoint = backend.credentials.static(), backend.credentials.settings.endpoint
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=keys["access_key_id"],
        aws_secret_access_key=keys["secret_access_key"],
    )
    return list(client.list_multipart_uploads(Bucket=backend.bucket).get("Uploads", ()))


def write_table(place: Place, path: str, table: pa.Table, rows: int) -> None:
    """Write a data file of row groups of so many rows."""
    place.backend.make_folder(place.root)
    file = place.backend.begun(path)
    pq.write_table(table, file.out, row_group_size=rows)
    file.finish()


def test_rows_of_parquet(place: Place) -> None:
    path = place.at("a.parquet")
    rows = pa.table({"a": range(200_000), "b": [f"text {n}" for n in range(200_000)]})
    write_table(place, path, rows, 50_000)
    with place.backend.system.open_input_file(path) as source:
        assert pq.ParquetFile(source).read(["b"], use_threads=False) == rows.select(["b"])


def test_what_is_not_there(place: Place) -> None:
    path = place.at("nothing")
    assert place.backend.system.get_file_info(path).type is fs.FileType.NotFound
    for opened in (place.backend.system.open_input_file, place.backend.system.open_input_stream):
        with pytest.raises(FileNotFoundError):
            opened(path)


def a_data_file(place: Place) -> tuple[str, pa.Table]:
    """Write a data file of two row groups that is longer than its end is read."""
    rng, rows = np.random.default_rng(3), 50_000
    columns = {name: rng.integers(0, 1 << 60, rows) for name in ("a", "b", "c")}
    table, path = pa.table(columns), place.at("data.parquet")
    write_table(place, path, table, rows // 2)
    return path, table


def test_columns_of_a_data_file(place: Place) -> None:
    """Opened twice, fetched or not: the bytes are those that were written."""
    path, table = a_data_file(place)
    for _ in range(2):
        with place.backend.opened(path) as source:
            footer = source.footer
            file = pq.ParquetFile(source.file, metadata=footer)
            for group in range(2):
                if source.fetch is not None:
                    chunk = footer.row_group(group).column(1)
                    begin = chunk.data_page_offset
                    source.fetch([(begin, begin + chunk.total_compressed_size)])
                expected = table.slice(group * 25_000, 25_000)
                assert file.read_row_group(group, ["b"]) == expected.select(["b"])
            assert file.read() == table
    with pytest.raises(FileNotFoundError), place.backend.opened(place.at("none.parquet")):
        pass


def test_a_data_file_that_is_replaced_is_not_read_by_its_old_footer(place: Place) -> None:
    path, table = a_data_file(place)
    with place.backend.opened(path) as source:
        assert source.footer.num_rows == len(table)
    place.backend.write(path, b"x" * (1 << 20), private=False)
    with pytest.raises((OSError, pa.ArrowException)), place.backend.opened(path) as source:
        pq.ParquetFile(source.file, metadata=source.footer).read()
    place.backend.remove_file(path, 0)
    with pytest.raises(FileNotFoundError), place.backend.opened(path) as source:
        pq.ParquetFile(source.file, metadata=source.footer).read()
