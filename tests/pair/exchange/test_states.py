"""Every exchange of every method goes through the table of states, and all of the table is used.

Both halves are real: those of `tests.harness.exchange_pair` and, for marks, both agents over
SQLite. Each message is looked up in the table, rows too, which a warehouse would take anywhere.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.reconciliation.ranges import from_quantiles, uniform
from driftline.reconciliation.sketches import Embedding
from driftline.wire.exchange_states import TABLE, ExchangeState, StateTracker, name_of

from tests.harness.exchange_pair import INTEGER, Groups, Pair, Table, exchange, fill, open_session
from tests.harness.legacy import SqliteLegacy
from tests.pair.exchange.test_both_halves import patched
from tests.pair.exchange.test_chunks import load
from tests.pair.since.rig import BY_VERSION, Stock
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.transport.channel import Stream

KEYS = range(200)


def table(changed: int = 10**6, without: Container[int] = ()) -> Table:
    """Rows of all keys, of which each `changed`th is another one."""
    return [(k, f"row {k}" if (k + 1) % changed else "new", b"") for k in KEYS if k not in without]


OURS, SOME, MANY = table(), table(40, without={7}), table(2)
MORE: Table = [*OURS, *((key, "new", b"") for key in range(10**6, 10**6 + 60))]
SPAN = Embedding(1 << 20, 0)

Transition = tuple[ExchangeState, str]


class Followed:
    """Follows the messages of exchanges; `seen` are the transitions that occurred."""

    def __init__(self) -> None:
        self.seen: set[Transition] = set()
        self._at = StateTracker()

    def note(self, message: pb.Request | pb.Reply) -> None:
        state, kind = self._at.state, message.WhichOneof("message")
        if kind in {"progress", "piece"}:
            return
        assert kind != "refused"
        name = name_of(message, state)
        assert name in TABLE[state], f"{name} in {state}"
        assert self._at.follow(message)
        self.seen.add((state, name))

    @property
    def is_idle(self) -> bool:
        return self._at.state is ExchangeState.IDLE


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    """Every message of both kinds of wires."""
    made = Followed()
    for wire in (Pair, Stream):
        send, receive = wire.send, wire.receive

        def sent(self: Any, request: pb.Request, send: Any = send) -> None:
            made.note(request)
            send(self, request)

        def received(self: Any, receive: Any = receive) -> pb.Reply:
            reply: pb.Reply = receive(self)
            made.note(reply)
            return reply

        monkeypatch.setattr(wire, "send", sent)
        monkeypatch.setattr(wire, "receive", received)
    yield made
    assert made.is_idle


def compared(folder: Path, theirs: Table, ours: Table = OURS, **options: Any) -> None:
    forcing, coarsen = options.pop("forcing", "as it is"), options.pop("coarsen", None)
    path = folder / "erp.db"
    path.unlink(missing_ok=True)
    fill(path, INTEGER, theirs)
    with closing(open_session(path)) as session, patched(forcing, coarsen):
        exchange(session, INTEGER.relation, ours, **options)


def by_ranges(folder: Path) -> None:
    compared(folder, OURS, [])
    compared(folder, OURS)
    compared(folder, SOME, forced=Method.FULL)
    options: dict[str, Any] = {"forced": Method.RANGE, "partition": uniform(4)}
    compared(folder, SOME, **options)
    compared(folder, SOME, forcing="small pieces", **options)
    compared(folder, SOME, forcing="too many hashes", **options)
    compared(folder, MORE, partition=from_quantiles([*range(200)], 64), coarsen=0)


def by_sketch(folder: Path) -> None:
    for fold in (0, 1, 60):
        sketch = Sketch(SPAN, 60, fold)
        compared(folder, OURS, sketch=sketch)
        compared(folder, SOME, sketch=sketch, forcing="small pieces")
        compared(folder, OURS, sketch=sketch, later=True)
        compared(folder, SOME, sketch=sketch, forcing="small pieces", later=True)
        for method in (Method.FULL, Method.RANGE):
            compared(folder, MANY, sketch=sketch, forced=method)


def by_groups(folder: Path) -> None:
    groups = Groups(SPAN, (0, 4), row_bytes=1000)
    compared(folder, OURS, groups=groups)
    compared(folder, SOME, groups=groups)
    compared(folder, MANY, groups=Groups(SPAN, (4,), row_bytes=1))
    compared(folder, table(without=range(4)), groups=Groups(SPAN, (4,), row_bytes=1000))


def by_chunks(folder: Path) -> None:
    load(folder / "erp.db", OURS, OURS)


def by_mark(folder: Path) -> None:
    stock = Stock(SqliteLegacy(folder / "stock.db"), folder / "pair", BY_VERSION)
    try:
        for _ in range(4):
            stock.refresh()
        stock.update([30], 1)
        stock.refresh()
        for key in range(4):  # cells go first where deletions are expected
            stock.delete([key * 3, key * 3 + 15])
            stock.refresh()
        stock.delete([k * 3 for k in range(20, 500, 2)])
        stock.insert([k * 3 + 1 for k in range(300)])
        stock.refresh()
        for is_edited in (False, True):
            stock.mark(BY_VERSION.replace("version", "amount" if is_edited else "id"))
            stock.update([30] if is_edited else [], 2, honest=False)
            stock.refresh()
        stock.check()
    finally:
        stock.pair.stop()
        stock.legacy.close()


@pytest.mark.starts
def test_all_of_the_table_is_used_and_nothing_else(followed: Followed, tmp_path: Path) -> None:
    for method in (by_ranges, by_sketch, by_groups, by_mark, by_chunks):
        method(tmp_path)
    every = {(state, name) for state, row in TABLE.items() for name in row}
    missing = sorted((state.value, name) for state, name in every - followed.seen)
    assert not missing
