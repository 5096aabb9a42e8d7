"""A real conversation over gRPC in which a source changes, repeats or leaves out one message.

The warehouse's whole agent is asked, on a table with and without a version: it ends in time with an
error of ours, or publishes what the source's owner reads; the next refresh is right.
`test_fuzzed_messages` changes many more, at the border of the two halves.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import BY_CODE
from google.protobuf.message import DecodeError, Message

from tests.faults.test_fuzzed_messages import mutated
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.relayed_source import Changes, RelayedSource, relayed
from warehouse_agent.transport import channel

SEEDS = 40
ROWS = 300
S_MAX = 20.0
METHODS = ("load", "range", "full", "sketch")
NEWER = "The other agent has a newer release"  # what is said of a code that nobody knows


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with closing(SqliteLegacy(tmp_path / "erp.db")) as legacy:
        legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note VARCHAR(100))")
        legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
        with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
            made.small_bytes = 256 << 20
            yield made


def changing(rng: random.Random) -> Changes:
    """Change one of the first replies that are not progress."""
    left = rng.randrange(6)

    def changes(reply: Any) -> list[Any]:
        nonlocal left
        is_streamed = isinstance(reply, pb.Reply)
        if is_streamed and reply.HasField("progress"):
            return [reply]
        left -= 1
        draw = rng.random() if is_streamed else 0.0
        if left != -1:
            return [reply]
        if draw < 0.8:
            return [_parsed(rng, reply)]
        if draw < 0.85:
            return [reply, reply]
        if draw < 0.9:
            return []
        code = rng.choice(sorted(BY_CODE))
        return [pb.Reply(refused=pb.Refused(code=code, message="m\x1b[2J\nforged", where="w\n"))]

    return changes


def _parsed(rng: random.Random, reply: Message) -> Message:
    kind = type(reply)
    while True:
        try:
            return kind.FromString(mutated(rng, reply.SerializeToString(), kind))
        except DecodeError:  # gRPC would end the call
            continue


def refreshed(pair: Pair, source: RelayedSource, rng: random.Random) -> str:
    """Refresh `t` from a source that changes a reply; return the code of the error, if any."""
    method = rng.choice(METHODS)
    pair.fragment_lines["t"] = "" if method == "load" else f'method = "{method}"'
    if method == "load":
        shutil.rmtree(pair.warehouse, ignore_errors=True)
    elif pair.version("t") is None:
        pair.refresh("t")
    word, every = f"edit {rng.getrandbits(40)}", rng.choice((3, 17, 100))
    pair.legacy.execute("UPDATE t SET note = ? WHERE id % ? = 1", word, every)
    source.changes = changing(rng)
    began = time.monotonic()
    (report,) = pair.reports("t", attempts=2)
    assert time.monotonic() - began < S_MAX
    source.changes = lambda reply: [reply]
    if report.error is None:
        pair.check("t")
        return ""
    error = report.error
    assert all(str(error[name]).isprintable() for name in ("message", "where", "remedy"))
    assert error["code"] != "INTERNAL" or NEWER in error["remedy"], error
    return str(error["code"])


@pytest.mark.slow
def test_one_reply_is_changed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "NO_PROGRESS_S", 4.0)
    codes = set()
    with relayed(pair) as source:
        for seed in range(SEEDS):
            try:
                codes.add(refreshed(pair, source, random.Random(f"reply {seed}")))
                pair.refresh("t", attempts=2)
                pair.check("t")
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
    assert codes >= {"", "MALFORMED"}, codes
