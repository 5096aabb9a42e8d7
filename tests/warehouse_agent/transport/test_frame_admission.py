"""What a source may ship is bounded by what it announced, and looked at before it is kept."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import (
    FrameDamaged,
    LimitExceeded,
    MalformedMessage,
    SourceUnreachable,
    WarehouseUnavailable,
)
from driftline.limits import FRAME_ROWS_MAX, NO_ADVANCE_S
from driftline.reconciliation.ranges import uniform
from driftline.reconciliation.sketches import Embedding
from driftline.rows import frames
from driftline.rows.digests import Digest, Salt, mix
from driftline.rows.fingerprints import fingerprints
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.exchange_pair import KEY, SALT, Ours
from tests.harness.rogue import line_to
from tests.samples.exchanges import ORDERS
from tests.samples.rows import block, recipe
from warehouse_agent.methods import conversation
from warehouse_agent.methods.conversation import KEYS_SHARE, ShippedKeys, ShippedPositions
from warehouse_agent.methods.ranges import row_hashes
from warehouse_agent.methods.registry import compare
from warehouse_agent.spark.machine import Machine
from warehouse_agent.storage import store
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import staging as stage
from warehouse_agent.tasks.staging import FILE_BYTES, Staging
from warehouse_agent.transport import channel, throughput, waiting
from warehouse_agent.transport.frame_admission import FrameAdmission, StagingRoom
from warehouse_agent.transport.throughput import ProgressCheck

MADE = recipe(["int8", "text"])
ALL = Embedding(1 << 20)
REPLIES_MAX = 5_000  # of a source that never ends: the tests end before


class Disk(NamedTuple):
    """What a file system reports of itself, in bytes."""

    total: int
    free: int


def frame(rows: int = 3, *, columns: int = 2, salt: Salt = SALT) -> bytes:
    made = recipe(["int8", *["text"] * (columns - 1)])
    data = block([[struct.pack(">q", n), *[b"x"] * (columns - 1)] for n in range(rows)])
    digest = mix(salt, *fingerprints(KEY, made)(data.rows())).digest()
    return frames.encode(data, made, salt, digest, level=1)


def admitting(room: StagingRoom | None = None) -> FrameAdmission:
    return FrameAdmission(MADE, SALT, room=room)


@given(rows=st.integers(1, 200), level=st.integers(1, 19))
def test_an_honest_frame_is_admitted(rows: int, level: int) -> None:
    data = block([[struct.pack(">q", n), b"x" * (n % 7)] for n in range(rows)])
    digest = mix(SALT, *fingerprints(KEY, MADE)(data.rows())).digest()
    made = frames.encode(data, MADE, SALT, digest, level=level)
    assert admitting().admit(made) == digest == frames.decode(made).digest


@given(st.data())
def test_what_the_head_refuses_does_not_decode(data: st.DataObject) -> None:
    """A frame that is not admitted is one that Spark would not have decoded either."""
    made = bytearray(frame(5))
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    try:
        frames.head(bytes(made))
    except FrameDamaged:
        with pytest.raises(FrameDamaged):
            frames.decode(bytes(made))


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (b"", FrameDamaged),
        (b"DLF2" + frame()[4:], FrameDamaged),
        (frame()[:48], FrameDamaged),
        (frame() + bytes(4096), FrameDamaged),
        (frame(columns=3), MalformedMessage),
        (frame(salt=Salt(7, 7)), MalformedMessage),
    ],
    ids=["empty", "magic", "cut", "junk behind", "columns", "salt"],
)
def test_a_frame_that_is_none_of_this_exchange(made: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        admitting().admit(made)


@pytest.mark.slow
def test_no_number_of_rows_is_refused_before_a_verdict() -> None:
    """A table of 1,000 rows that was bulk-filled, or a view that the planner puts at one row."""
    admits, whole = admitting(), frame(FRAME_ROWS_MAX)
    for _ in range((1 << 24) // FRAME_ROWS_MAX + 2):
        admits.admit(whole)
    assert not admits.is_overrun


@pytest.mark.parametrize("is_set", [True, False], ids=["setting", "disk"])
def test_bytes_beyond_the_room_are_refused(is_set: bool) -> None:
    """What earlier exchanges staged counts; a verdict makes no more room."""
    made = frame(100)
    admits = admitting(StagingRoom(5 * len(made), staged=2 * len(made), is_set=is_set))
    admits.announce(10**6)
    for _ in range(3):
        admits.admit(made)
    assert not admits.is_overrun
    with pytest.raises(LimitExceeded, match="may be staged") as caught:
        admits.admit(made)
    assert admits.is_overrun
    assert f"{6 * len(made):,}" in caught.value.message
    assert "staging_at_most" in caught.value.remedy


def test_the_room_is_half_of_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a second exchange, behind one that was cut; a setting wins; small disks have their
    reserve, object stores and disks of unknown size only the setting."""
    staging, free = Staging(Store(str(tmp_path)), "orders"), 1 << 40
    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(2 * free, free))
    assert staging.room(None) == StagingRoom(free // 2)
    writer = staging.begin(ORDERS)
    writer.add(frame(FRAME_ROWS_MAX))
    writer.flush()
    free -= (staged := staging.frame_bytes())
    assert staging.room(None) == StagingRoom((free + staged) // 2, staged)
    assert staging.room(1 << 30) == StagingRoom(1 << 30, staged, is_set=True)
    free = 1 << 20
    assert staging.room(None) == StagingRoom(stage.ROOM_BYTES_MIN, staged)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(0, 0))
    assert staging.room(None) is None


def test_a_count_is_what_it_says() -> None:
    admits = admitting()
    admits.announce(1000)
    whole = frame(1000)
    for _ in range((FRAME_ROWS_MAX + 2200) // 1000):
        admits.admit(whole)
    with pytest.raises(MalformedMessage, match="counted 1,000 rows and has sent"):
        admits.admit(whole)
    assert admits.is_overrun


@pytest.mark.parametrize("rows", [1, 4096])
@pytest.mark.parametrize("kind", [ShippedKeys, ShippedPositions])
def test_keys_of_endless_rows_do_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch, rows: int, kind: type[ShippedKeys | ShippedPositions]
) -> None:
    """They are held until the source has said which of our rows are gone."""
    most = 1 << 17
    monkeypatch.setattr(conversation, "machine", lambda: Machine(1, KEYS_SHARE * most))
    terms, made = ours(0).terms(), frame(rows)
    of = ShippedPositions(terms, "") if kind is ShippedPositions else ShippedKeys(terms, ALL)

    def take_all() -> None:
        for _ in range(most):
            of.take(made)

    tracemalloc.start()
    with pytest.raises(LimitExceeded, match=f"{most:,} may be taken"):
        take_all()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most / 3 < held < 2 * most


def test_row_hashes_that_come_one_by_one_take_little_memory() -> None:
    hashes, count = row_hashes(), 20_000
    next(hashes)
    one = pb.Reply(row_hashes=pb.RowHashes(hashes=bytes(8)))
    tracemalloc.start()
    for _ in range(count):
        hashes.send(one)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 16 * count


# Over mutual TLS: a source that never ends.


def endless(requests: Iterator[pb.Request], first: list[pb.Reply]) -> Iterator[pb.Reply]:
    next(requests)
    yield from first
    rows = pb.Reply(rows=pb.Rows(frame=frame(FRAME_ROWS_MAX)))
    yield from itertools.repeat(rows, REPLIES_MAX)


def ours(rows: int) -> Ours:
    data = block([[struct.pack(">q", n), b"y"] for n in range(rows)])
    return Ours(data.rows(), MADE, uniform(4))


def converse(
    over: channel.SourceChannel, of: Ours, writer: object, room: StagingRoom | None = None
) -> None:
    stream = over.stream()
    talk = of.talk(stream, writer.add, room=room)  # type: ignore[attr-defined]
    try:
        compare(of.side(), *talk)
    finally:
        stream.abandon()
        writer.flush()  # type: ignore[attr-defined]


@pytest.mark.starts
def test_endless_frames_after_a_verdict(tmp_path: Path) -> None:
    verdict = pb.Verdict(count=2000, sum=bytes(16), differing=4)
    said = [pb.Reply(verdict=verdict)]
    staging = Staging(Store(str(tmp_path)), "orders")
    writer = staging.begin(ORDERS)
    with (
        line_to(tmp_path, lambda requests: endless(requests, said)) as over,
        pytest.raises(MalformedMessage, match="counted 2,000 rows"),
    ):
        converse(over, ours(1000), writer)
    kept = sum(len(p) for p in writer._pieces) + sum(
        size for _, size in writer.store.files("_driftline", "staging", "orders", writer.folder)
    )
    assert kept < 3 * len(frame(FRAME_ROWS_MAX))
    writer.drop()
    assert staging.leftovers(ORDERS) == []


@pytest.mark.starts
def test_endless_frames_of_a_first_load(tmp_path: Path) -> None:
    writer = Staging(Store(str(tmp_path)), "orders").begin(ORDERS)
    most = 3 * len(frame(FRAME_ROWS_MAX))
    with (
        line_to(tmp_path, lambda requests: endless(requests, [])) as over,
        pytest.raises(LimitExceeded, match=f"{most:,} may be staged: `staging_at_most`"),
    ):
        converse(over, ours(0), writer, StagingRoom(most, is_set=True))
    assert sum(len(piece) for piece in writer._pieces) <= most


@pytest.mark.slow
def test_endless_frames_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's reserve: here everything that is free but for two files of staged frames."""
    import shutil

    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(store, "RESERVE_BYTES", free - 3 * FILE_BYTES)
    monkeypatch.setattr(store, "RESERVE_SHARE", 1)
    writer = Staging(Store(str(tmp_path)), "orders").begin(ORDERS)
    wide = frame(40_000)
    big = pb.Reply(rows=pb.Rows(frame=wide))

    def says(requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        next(requests)
        yield from itertools.repeat(big, REPLIES_MAX * 100)

    with line_to(tmp_path, says) as over, pytest.raises(WarehouseUnavailable) as caught:
        converse(over, ours(0), writer)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "are needed" in message
    assert "are free" in message


@pytest.mark.starts
def test_progress_that_never_means_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "NO_ADVANCE_S", 0.5)
    progress = pb.Reply(progress=pb.Progress(phase="scan", rows=7))

    def says(requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        import time

        next(requests)
        for _ in range(REPLIES_MAX):
            time.sleep(0.01)
            yield progress

    writer = Staging(Store(str(tmp_path)), "orders").begin(ORDERS)
    with line_to(tmp_path, says) as over, pytest.raises(SourceUnreachable, match="read no row"):
        converse(over, ours(10), writer)


@pytest.mark.starts
def test_progress_that_counts_rows_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "EXCHANGE_S_MAX", 0.5)
    few = [pb.Reply(rows=pb.Rows(frame=frame(1)))]

    def says(requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        import time

        next(requests)
        for n in range(REPLIES_MAX):
            time.sleep(0.01)
            yield pb.Reply(progress=pb.Progress(phase="scan", rows=n + 1, rows_expected=n + 2))
            yield from few if n % 9 == 0 else ()

    writer = Staging(Store(str(tmp_path)), "orders").begin(ORDERS)
    with line_to(tmp_path, says) as over, pytest.raises(SourceUnreachable, match="not ended"):
        converse(over, ours(10), writer)


def test_progress_means_rows() -> None:
    advance = ProgressCheck(0.0)
    limit = NO_ADVANCE_S

    def progress(rows: int) -> pb.Reply:
        return pb.Reply(progress=pb.Progress(rows=rows))

    assert advance.accepts(progress(5), limit)
    assert advance.accepts(progress(5), 2 * limit)
    assert advance.accepts(progress(6), 2 * limit + 1)
    assert advance.accepts(pb.Reply(rows=pb.Rows()), 3 * limit)
    assert advance.accepts(progress(1), 4 * limit)  # of the next relation
    assert not advance.accepts(progress(1), 5 * limit + 1)


@pytest.mark.starts
def test_a_source_that_has_finished_and_goes_on_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(channel, "CONTROL_S", 0.5)
    total = ours(10).sums.total
    done = pb.Finished(equal=True, count=total.count, sum=total.sum_bytes())
    done.as_of, done.consistency = "2026-01-01T00:00:00Z", "exact"

    def says(requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        next(requests)
        yield pb.Reply(finished=done)
        yield from itertools.repeat(pb.Reply(progress=pb.Progress(phase="x")), 10**7)

    of = ours(10)
    with line_to(tmp_path, says) as over:
        began = time.monotonic()
        with over.stream() as stream:
            outcome = compare(of.side(), *of.talk(stream))
        assert outcome.theirs == Digest(total.count, total.sum)
        assert time.monotonic() - began < 10
