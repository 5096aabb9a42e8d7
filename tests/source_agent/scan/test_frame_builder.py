"""Rows become messages that fit, hold every row once, and are close to full."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from driftline import wire_pb2
from driftline.limits import FRAME_ROWS_MAX, MESSAGE_BYTES_MAX
from driftline.rows.columns import Block
from driftline.rows.digests import Salt

from source_agent.scan.batches import Batch
from source_agent.scan.frame_builder import FrameBuilder
from tests.driftline.rows.test_frames import mixed, verified
from tests.samples.rows import block, recipe

SHIPMENTS = {
    "many small rows": ([8] * 70_000, 4),
    "incompressible": ([30_000] * 200, 256),
    "compressible": ([30_000] * 200, 1),
    "one row above a message": ([10] * 50 + [MESSAGE_BYTES_MAX + 9] + [10] * 50, 256),
    "only large rows": ([MESSAGE_BYTES_MAX // 2 + 1] * 6, 256),
    "first compressible, then not": ([0] * 100_000 + [4000] * 900, 256),
    "nothing": ([], 256),
}


def rows_of(sizes: list[int], seed: int = 1, *, letters: int = 256) -> Block:
    source = random.Random(seed)
    table = bytes(i % letters for i in range(256))
    rows = [
        [struct.pack(">i", i), source.randbytes(n).translate(table)] for i, n in enumerate(sizes)
    ]
    return block(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPMENTS)
@pytest.mark.parametrize("step", [7_000, 16_384])
def test_messages_fit_and_hold_every_row_once(name: str, step: int) -> None:
    sizes, letters = SHIPMENTS[name]
    whole, made, salt = rows_of(sizes, letters=letters), recipe(["int4", "bytea"]), Salt(1, 2)
    builder = FrameBuilder(made, salt, level=1)
    replies: list[wire_pb2.Reply] = []
    for at in range(0, len(whole), step):
        part = whole.take(np.arange(at, min(at + step, len(whole))))
        batch = Batch(part, np.arange(len(part)), mixed(part, made, salt))
        replies += builder.add(batch)
    replies += builder.flush()
    assert list(builder.flush()) == []
    arrived: list[bytes] = []
    for reply in replies:
        rows = verified(reply.rows.frame, made)
        assert 1 <= len(rows) <= FRAME_ROWS_MAX
        assert reply.ByteSize() <= MESSAGE_BYTES_MAX or len(rows) == 1
        arrived += rows
    assert sorted(arrived) == sorted(whole.rows())
    # Close to full, so that a load is not a swarm of small messages.
    sent = sum(reply.ByteSize() for reply in replies)
    assert len(replies) <= 4 + len(whole) // FRAME_ROWS_MAX + 5 * sent // MESSAGE_BYTES_MAX


def test_chosen_rows_alone_are_shipped() -> None:
    whole, made, salt = rows_of([8] * 100), recipe(["int4", "bytea"]), Salt(1, 2)
    chosen = np.arange(100) % 7 == 0
    builder = FrameBuilder(made, salt, level=1)
    batch = Batch(whole, np.arange(100), mixed(whole, made, salt))
    assert list(builder.pick(batch, np.zeros(100, np.bool_))) == []
    assert list(builder.flush()) == []
    (reply,) = [*builder.pick(batch, chosen), *builder.flush()]
    assert verified(reply.rows.frame, made) == whole.take(np.flatnonzero(chosen)).rows()
