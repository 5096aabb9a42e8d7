"""The warehouse's folder: whole files or none, private ones, one agent at a time, full disks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from driftline.errors import ConfigurationError, Locked, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.absent import absent
from tests.harness.forks import Fork
from tests.harness.legacy import SqliteLegacy
from tests.harness.object_stores import ObjectStore
from tests.harness.pair import Pair, environment
from warehouse_agent.storage.store import PRIVATE, HeldSources, Store

HOLD = """
import sys
from warehouse_agent.storage.store import Store
with Store(sys.argv[1]).lock("orders"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "warehouse"))


def test_what_is_written_is_read(store: Store) -> None:
    store.write(b"one", PRIVATE, "keys", "a.key")
    store.write(b"two", PRIVATE, "keys", "a.key")
    assert store.read(PRIVATE, "keys", "a.key") == b"two"
    assert store.read(PRIVATE, "keys", "b.key") is None
    assert store.read(PRIVATE, "keys") is None
    assert store.files(PRIVATE, "keys") == [("a.key", 3)]
    assert store.folders() == [PRIVATE]
    assert store.files("nowhere") == []
    assert store.folders("nowhere") == []
    assert store.walk("nowhere") == []


def test_a_damaged_note_is_no_note(store: Store) -> None:
    for data in (b"{", b"[1]", b"\xff"):
        store.write(data, "note.json")
        assert store.read_json("note.json") == {}
    store.write(b'{"a": 1}', "note.json")
    assert store.read_json("note.json") == {"a": 1}


def half(lines: bytes) -> bytes:
    return lines[len(lines) // 2 :].partition(b"\n")[2]


def appended(store: Store, *lines: str, bytes_max: int = 1 << 20) -> bytes:
    for line in lines:
        store.append_line(line, PRIVATE, "runs", "a.jsonl", bytes_max=bytes_max, shorten=half)
    return store.read(PRIVATE, "runs", "a.jsonl") or b""


def test_lines_are_added(store: Store) -> None:
    assert appended(store, "one", "zwölf") == "one\nzwölf\n".encode()


def test_a_line_that_was_cut_spoils_no_other(store: Store) -> None:
    store.write(b"one\ntw", PRIVATE, "runs", "a.jsonl")
    assert appended(store, "three", "four") == b"one\ntw\nthree\nfour\n"
    store.write(b"1\n2\n3\n4", PRIVATE, "runs", "a.jsonl")
    assert appended(store, "5", bytes_max=2) == b"4\n5\n"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 16])
def test_lines_are_read_from_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("warehouse_agent.storage.store.END_BYTES", block)
    assert [*store.lines_backwards("a.jsonl")] == []
    for text in ("", "\n", "one", "one\n", "one\n\nzwölf\nthree", "a\nb\nc\n" * 9):
        store.write(text.encode(), "a.jsonl")
        found = [line.decode() for line in store.lines_backwards("a.jsonl") if line]
        assert found == [line for line in text.split("\n")[::-1] if line]


@pytest.mark.starts
@pytest.mark.parametrize("is_shortened", [False, True])
def test_a_file_that_grows_while_it_is_read(object_store: ObjectStore, is_shortened: bool) -> None:
    """Another command appends a line, and may leave old ones out: no line comes twice, or cut."""
    bucket = object_store.bucket()
    store, place = Store(bucket.root, storage=bucket.settings), (PRIVATE, "runs", "a.jsonl")
    lines = [f"{number:05} {'x' * 200}" for number in range(1500)]
    store.write("".join(line + "\n" for line in lines).encode(), *place)
    seen: list[str] = []
    for line in store.lines_backwards(*place):
        if len(seen) == 100:
            most = 1000 if is_shortened else 1 << 20
            store.append_line("later", *place, bytes_max=most, shorten=half)
        seen += [line.decode()] if line else []
    kept = (store.read(*place) or b"").decode().splitlines()
    assert kept.pop() == "later"
    assert len(kept) == (len(lines) // 2 - 1 if is_shortened else len(lines))
    assert seen == kept[::-1]


@pytest.mark.starts
def test_files_that_a_step_reads_again_are_asked_for_once(object_store: ObjectStore) -> None:
    """Those that fit into what it may hold, and none before it is wanted."""
    bucket = object_store.bucket()
    store, sizes = Store(bucket.root, storage=bucket.settings), {"a": 100, "b": 300, "c": 50}
    for name, size in sizes.items():
        store.write(name.encode() * size, "t", name)
    store.requests("t")
    sources = HeldSources({store.uri("t", name): size for name, size in sizes.items()}, 160)

    def asked(name: str) -> int:
        with sources(store.uri("t", name)) as source:
            assert source.file.read() == name.encode() * sizes[name]
        made = store.requests("t")
        assert made is not None
        return made["get"]

    assert [asked(name) for name in "aabbcca"] == [1, 0, 1, 1, 1, 0, 0]
    store.remove_file("t", "a")
    assert asked("a") == 0
    with pytest.raises(FileNotFoundError):
        HeldSources({store.uri("t", "a"): 100}, 160)(store.uri("t", "a"))


def test_a_file_of_lines_is_bounded(store: Store) -> None:
    for number in range(1000):
        kept = appended(store, f"line {number}", bytes_max=100).decode().splitlines()
        assert kept == [f"line {n}" for n in range(number + 1 - len(kept), number + 1)]
        assert len("\n".join(kept)) < 120
    assert len(kept) >= 5


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_private_files_are_for_their_owner(store: Store, mask: int) -> None:
    before = os.umask(mask)
    try:
        store.write(b"secret", PRIVATE, "keys", "a.key", private=True)
        store.write(b"open", PRIVATE, "fragments", "a.json")
    finally:
        os.umask(before)
    root = Path(store.root) / PRIVATE
    assert stat.S_IMODE((root / "keys" / "a.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "fragments" / "a.json").stat().st_mode) == 0o644 & ~mask


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store.write(b"before", "note")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(WarehouseUnavailable, match="No space left") as caught:
            store.write(b"after", "note")
    assert "untouched" in caught.value.remedy
    assert store.read("note") == b"before"
    assert store.files() == [("note", 6)]


def test_walking_and_removing(store: Store) -> None:
    places = [
        ("orders", "data-1", "_temporary", "0", "x"),
        ("orders", "data-1", "y"),
        (PRIVATE, "changes", "orders", "_version=1", "z"),
    ]
    for place in places:
        store.write(b"abc", *place)
    found = store.walk("orders")
    assert [(e.place, e.size) for e in found] == [(place, 3) for place in places[:2]]
    assert all(abs(datetime.now(UTC) - e.modified) < timedelta(minutes=5) for e in found)
    for place in places:
        store.remove_file(*place)
        store.remove_file(*place)  # gone already: fine
    root = Path(store.root)
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*")) == [
        PRIVATE,
        f"{PRIVATE}/changes",
        f"{PRIVATE}/changes/orders",
        "orders",
    ]


def test_a_path_that_nothing_can_reach() -> None:
    with pytest.raises(ConfigurationError, match="nosuch:// is no storage that is supported"):
        Store("nosuch://bucket/path").read("a")


def test_one_agent_at_a_time(store: Store) -> None:
    with store.lock("orders"):
        with store.lock("items"):
            pass
        with pytest.raises(Locked) as caught, store.lock("orders"):
            pass
    assert (caught.value.exit_code, caught.value.is_retryable) == (75, True)
    with store.lock("orders"):
        pass


def test_storage_without_locks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS without its lock daemon: an error of the fragment, not of the command."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(WarehouseUnavailable, match="be locked: No locks"), store.lock("orders"):
        pass


@contextlib.contextmanager
def held(root: Path) -> Iterator[Fork]:
    """Another process holds the fragment `orders`."""
    words = ["-c", HOLD, str(root)]
    pipe = subprocess.PIPE
    with Fork(words, env=environment(), stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.starts
def test_a_lock_ends_with_its_process(store: Store) -> None:
    with held(Path(store.root)) as other:
        with pytest.raises(Locked), store.lock("orders"):
            pass
        other.kill()
        other.wait()
        with store.lock("orders"):
            pass


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, f"order {i}") for i in range(200)])
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


def test_a_second_agent_is_told_to_come_again(pair: Pair) -> None:
    pair.refresh()
    with held(pair.warehouse):
        (report,) = pair.reports("orders")
    assert report.error is not None
    found = (report.error["code"], report.error["exit_code"], report.error["safe_to_retry"])
    assert found == ("LOCKED", 75, True)
    assert pair.version("orders") == 0
    pair.refresh()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "driftline-test", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        absent("FULL DISK", "there is no mount", is_required_in_ci=False)
    if done.returncode != 0:
        absent("FULL DISK", done.stderr.strip(), is_required_in_ci=False)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.starts
def test_a_full_disk_leaves_small_files_whole(small_disk: Path) -> None:
    store = Store(str(small_disk / "warehouse"))
    store.write(b"before", "note")
    with pytest.raises(WarehouseUnavailable, match="No space left"):
        store.write(bytes(4 << 20), "note")
    assert store.read("note") == b"before"
    assert store.files() == [("note", 6)]


def test_a_refresh_on_a_full_disk(pair: Pair, small_disk: Path) -> None:
    pair.disk = small_disk / "warehouse"
    pair.refresh()
    before = sorted(pair.published("orders"))
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    pair.legacy.execute("UPDATE orders SET note = hex(randomblob(400))")
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE", error
    assert sorted(pair.published("orders")) == before
    ballast.unlink()
    pair.refresh()
    pair.check("orders")


def test_a_file_system_that_does_not_say_its_size_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE mounts without statfs report zeros."""
    store = Store(str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    store.refuse_full(1 << 20, "_driftline")
    assert store.disk("_driftline") is None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=0))
    with pytest.raises(WarehouseUnavailable, match="nearly full"):
        store.refuse_full(1 << 20, "_driftline")
