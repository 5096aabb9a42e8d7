"""Mutated messages, both directions: each is refused with an error of ours, or is harmless.

Valid conversations of every method are recorded. One message of one of them is mutated, in its
structure or in its bytes, and the conversation is held again: at the boundary of the source by a
real `Comparison`, at that of the warehouse by real methods and the decoder of frames. Whatever is
raised has to be a `DriftlineError`, at the source not the one for our own mistakes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, InternalError
from driftline.reconciliation.ranges import uniform
from driftline.rows import frames
from driftline.wire.negotiation import Agreement
from google.protobuf.message import DecodeError, Message

from source_agent.engines.relations.shapes import Relation
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.methods.request_validation import check_release
from source_agent.server.service import start
from tests.harness.agents import channel, configuration, make_orders
from tests.harness.exchange_pair import AGREED, BRIEFLY, Groups, Ours, Pair
from tests.simulation.clock import virtual_time
from tests.simulation.database import COMPOSITE, INTEGER, TEXT, Engine, History, Isolation, Schema
from warehouse_agent.methods.registry import compare
from warehouse_agent.methods.resumed_load import ListedSide
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.sketch_size import Sketch, embedding_for
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.staged_chunks import StagedChunks
from warehouse_agent.transport.frame_admission import StagingRoom
from warehouse_agent.transport.reply_validation import check_description, check_reply, refusal

MESSAGES = 10_000  # a third at the source, two thirds at the warehouse, where they are cheaper
SOAK_MESSAGES = 1_000_000
GROWTH_BYTES_MAX = 16 << 20
ROWS, EDITS = 60, 12
NUMBERS = (0, 1, 2, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)
TEXTS = ("", "\0", "'; DROP TABLE t; --", "é" * 300, "x" * 70_000, "\u202e", "\x1b[2J")

F = Message  # a message of either direction


@dataclass(frozen=True)
class Recorded:
    """A valid conversation, and what holds it again."""

    name: str
    schema: Schema
    ours: Ours
    side: Callable[[], Any]
    requests: tuple[bytes, ...]
    replies: tuple[bytes, ...]
    agreed: Agreement


def database(schema: Schema) -> tuple[Engine, History]:
    rng = random.Random(1)
    history = History({"orders": schema}, [{"orders": {}}], rng)
    rows = {}
    for _ in range(ROWS):
        row = history.row(schema, history.new_key(schema))
        rows[schema.key(row)] = row
    history.states.append({"orders": rows})
    history.edit(EDITS / ROWS)
    return Engine(history, Isolation.SNAPSHOT, rng), history


@cache
def recorded() -> tuple[Recorded, ...]:
    """A conversation of each method."""
    found = []
    options: dict[str, Any]
    brief = Sketch(embedding_for(ROWS, (-100, 400)), 60, 1, stalls=False)
    for name, schema, options, forced in (
        ("load", INTEGER, {}, None),
        ("ranges", INTEGER, {"partition": uniform(8)}, Method.RANGE),
        ("copy", TEXT, {"partition": uniform(8)}, Method.FULL),
        ("sketch", INTEGER, {"sketch": Sketch(embedding_for(ROWS, (-100, 400)), 60, 1)}, None),
        ("stalled", COMPOSITE, {"sketch": Sketch(embedding_for(ROWS, None), 60, 10)}, None),
        ("groups", INTEGER, {"groups": Groups(embedding_for(ROWS, (-100, 400)), (3, 0, 7))}, None),
        ("later", INTEGER, {"sketch": Sketch(embedding_for(ROWS, (-100, 400)), 60, 1)}, None),
        ("resumed load", INTEGER, {}, None),
        ("brief ranges", INTEGER, {"partition": uniform(8)}, Method.RANGE),
        ("brief sketch", INTEGER, {"sketch": brief}, None),
    ):
        engine, history = database(schema)
        table = {} if "load" in name else history.states[-2]["orders"]
        partition: Any = options.pop("partition", uniform(8))
        ours = Ours(
            [schema.encode(row) for row in table.values()], schema.recipe, partition, **options
        )
        session = engine.open()
        agreed = BRIEFLY if name.startswith("brief") else AGREED
        shape = session.describe(Relation("orders", table="t"))
        pair = _Recording(session, shape, agreed=agreed)
        side = listed_side if name == "resumed load" else _side(ours, forced, later=name == "later")
        compare(side(), *ours.talk(pair))
        found.append(
            Recorded(
                name,
                schema,
                ours,
                side,
                tuple(pair.sent),
                tuple(r.SerializeToString() for r in pair.received),
                agreed,
            )
        )
    return tuple(found)


def listed_side() -> ListedSide:
    """Return our half of a load that goes on, with chunks that the source has not."""
    digests = np.arange(9, dtype=np.uint64) * np.uint64(1 << 60)
    rows, file = np.full(9, 4), np.zeros(9, np.int64)
    return ListedSide(StagedChunks((DataFile("f", "file:///f", 1, 36),), 12, digests, rows, file))


def _side(ours: Ours, forced: Method | None, *, later: bool) -> Callable[[], Any]:
    return lambda: ours.side(forced, later=later)


class _Recording(Pair):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.sent: list[bytes] = []

    def send(self, request: pb.Request) -> None:
        self.sent.append(request.SerializeToString())
        super().send(request)


# Mutations.


def mutated(rng: random.Random, data: bytes, kind: type[Message]) -> bytes:
    """Return a message that differs from a valid one in its structure, its bytes, or both."""
    if rng.random() < 0.6:
        message = kind()
        message.ParseFromString(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            change_field(rng, message)
        data = message.SerializeToString()
    if rng.random() < 0.5:
        data = change_bytes(rng, data)
    return data


def change_field(rng: random.Random, message: Message) -> None:
    """Change one field of a message, or of a message in it."""
    field: Any = rng.choice(message.DESCRIPTOR.fields)
    is_set = field in [known for known, _ in message.ListFields()]
    if is_set and rng.random() < 0.2:
        message.ClearField(field.name)
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[rng.choice(TEXTS)] = rng.choice(TEXTS)
    elif field.is_repeated:
        many = getattr(message, field.name)
        if field.message_type is not None:
            change_field(rng, rng.choice(many) if len(many) and rng.random() < 0.5 else many.add())
        elif len(many) and rng.random() < 0.5:
            del many[rng.randrange(len(many)) :]
        else:
            many.extend([value_of(rng, field, None)] * rng.choice((1, 3, 200)))
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if inner.DESCRIPTOR.fields:
            change_field(rng, inner)
    else:
        setattr(message, field.name, value_of(rng, field, getattr(message, field.name)))


def value_of(rng: random.Random, field: Any, now: Any) -> Any:
    """Return a value that the type of a field holds, often one at a limit."""
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return change_bytes(rng, now or b"") if rng.random() < 0.7 else rng.randbytes(16)
        case field.CPPTYPE_STRING:
            return rng.choice(TEXTS)
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_DOUBLE:
            return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e308))
        case field.CPPTYPE_UINT32:
            return rng.choice(NUMBERS) % 2**32
        case field.CPPTYPE_UINT64:
            return rng.choice(NUMBERS)
        case _:
            bits = 32 if field.cpp_type == field.CPPTYPE_INT32 else 64
            return (rng.choice(NUMBERS) * rng.choice((1, -1)) + 2 ** (bits - 1)) % 2**bits - 2 ** (
                bits - 1
            )


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut out, repeat, insert or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(changed) + 1)
        end = min(at + rng.choice((1, 2, 8, 40)), len(changed))
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end]
            case 3:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            case _:
                del changed[at:]
    return bytes(changed)


# Both boundaries.


def at_the_source(rng: random.Random) -> None:
    """Hold a conversation in which one request is mutated. Raises whatever the source raises."""
    one = rng.choice(recorded())
    requests = list(one.requests)
    at = rng.randrange(len(requests)) if rng.random() < 0.7 else 0
    requests[at] = mutated(rng, requests[at], pb.Request)
    parsed = [pb.Request.FromString(data) for data in requests]
    engine, _ = database(one.schema)
    session = engine.open()
    shape = session.describe(Relation("orders", table="t"))
    for request in parsed:
        check_release(request)
    comparison = Comparison(session, shape, parsed[0].open, ReadCounts())
    with contextlib.closing(comparison.answer(iter(parsed[1:]))) as replies:
        for reply in replies:
            reply.SerializeToString()


class _Played:
    """A wire on which recorded replies come, whatever is sent."""

    def __init__(self, replies: Sequence[bytes], agreed: Agreement) -> None:
        self._replies, self.agreed = iter(replies), agreed

    def send(self, request: pb.Request) -> None:
        request.SerializeToString()

    def receive(self) -> pb.Reply:
        data = next(self._replies, None)
        if data is None:
            raise DriftlineError("The recording has ended.")
        reply = pb.Reply.FromString(data)
        check_reply(reply)
        return reply


def at_the_warehouse(rng: random.Random) -> None:
    """Hold a conversation in which one reply is mutated. Raises whatever the warehouse raises."""
    one, kept = rng.choice(recorded()), list[bytes]()
    replies = list(one.replies)
    at = rng.randrange(len(replies))
    replies[at] = mutated(rng, replies[at], pb.Reply)
    wire = _Played(replies, one.agreed)
    try:
        compare(one.side(), *one.ours.talk(wire, kept.append, room=StagingRoom(1 << 20)))
    finally:
        for frame in kept:  # staged: they are decoded by this attempt, or by the next
            frames.verify(frames.decode(frame), one.ours.fingerprints)


def at_a_call(rng: random.Random) -> None:
    """Check a mutated description or refusal as the warehouse does."""
    columns = [pb.ColumnDescription(name=n, type="int8", ordinal=i) for i, n in enumerate("abc")]
    description = pb.Description(columns=columns, key_columns=1, fingerprint_version=1, notes=["n"])
    reply = pb.DescribeReply(relations=["t"], protocols=[1], description=description)
    refused = pb.Refused(code="NOT_NOW", message="m", details={"k": "v"})
    if rng.random() < 0.5:
        check_description(
            pb.DescribeReply.FromString(mutated(rng, reply.SerializeToString(), pb.DescribeReply))
        )
    else:
        raise refusal(pb.Refused.FromString(mutated(rng, refused.SerializeToString(), pb.Refused)))


BOUNDARIES = (at_the_source, at_the_warehouse, at_a_call)


def fuzz(first: int, count: int) -> dict[str, int]:
    """Run mutated messages by seed; return how many of each boundary ended in an error of ours.

    Raises:
        AssertionError: another error; its text has the seed.
    """
    refused: dict[str, int] = {}
    for seed in range(first, first + count):
        rng = random.Random(f"message {seed}")
        boundary = BOUNDARIES[seed % len(BOUNDARIES)]
        try:
            boundary(rng)
        except DecodeError:
            continue
        except DriftlineError as error:
            # A source may refuse with any code, and one that nobody knows is an internal error.
            is_ours = isinstance(error, InternalError) and boundary is at_the_source
            if is_ours:
                raise AssertionError(f"fuzz({seed}, 1): {error!r}") from error
            refused[boundary.__name__] = refused.get(boundary.__name__, 0) + 1
        except Exception as error:
            raise AssertionError(f"fuzz({seed}, 1): {type(error).__name__}: {error}") from error
    return refused


def resident_bytes() -> int:
    """Return what this process has in memory, after giving back what is free."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def fuzz_in_bounds(first: int, count: int) -> None:
    with virtual_time():
        fuzz(first, 500)  # modules, buffers and caches
        before = resident_bytes()
        refused = fuzz(first + 500, count - 500)
        growth = resident_bytes() - before
    assert growth < GROWTH_BYTES_MAX, f"{growth:,} bytes after {count:,} messages"
    assert all(refused[b.__name__] > count / 20 for b in BOUNDARIES), refused


@pytest.mark.slow
def test_mutated_messages_are_refused_or_harmless() -> None:
    fuzz_in_bounds(0, MESSAGES)


@pytest.mark.soak
@pytest.mark.parametrize("share", range(10))
def test_a_million_mutated_messages(share: int) -> None:
    fuzz_in_bounds((share + 1) * 10_000_000, SOAK_MESSAGES // 10)


def test_the_recordings_are_valid() -> None:
    """Unmutated they end well, and among them every message of a comparison is."""
    with virtual_time():
        for one in recorded():
            kept: list[bytes] = []
            outcome = compare(
                one.side(), *one.ours.talk(_Played(one.replies, one.agreed), kept.append)
            )
            assert not outcome.is_equal
        sent = {
            pb.Request.FromString(d).WhichOneof("message") for r in recorded() for d in r.requests
        }
        came = {pb.Reply.FromString(d).WhichOneof("message") for r in recorded() for d in r.replies}
    assert sent >= {"open", "whole", "digests", "wanted", "cells", "units"}, sent
    assert came >= {"verdict", "mismatch", "row_hashes", "rows", "deleted", "finished"}, came


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    make_orders(tmp_path / "erp.db", [(n, f"order {n}") for n in range(ROWS)])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    yield server.port
    server.stop()


@pytest.mark.slow
def test_bytes_that_are_no_request_end_their_call_alone(port: int) -> None:
    """However many: gRPC, if it parses them itself, never ends these calls, and 16 block a line."""
    with channel(port, None) as over:
        describe = over.unary_unary("/driftline.Source/Describe", None, None)
        for _ in range(40):
            with pytest.raises(grpc.RpcError) as caught:
                describe(b"\xff\xff", timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        asked = pb.DescribeRequest(protocol=1).SerializeToString()
        reply = pb.DescribeReply.FromString(describe(asked, timeout=20))
    assert list(reply.relations) == ["orders"]
