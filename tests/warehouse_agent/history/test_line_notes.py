"""The line to a source as it was measured, and as its DBA limits it."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import cast

import pytest
from driftline import wire_pb2 as pb

from warehouse_agent.config import Source
from warehouse_agent.history.line_notes import line, note_limits, note_line
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.transport.channel import SourceChannel, Stream


@dataclasses.dataclass
class Measured:
    """A link and its stream, as far as they are asked."""

    source: Source
    rtt_s: float | None
    bytes_per_s: float | None
    asked: int = 0

    def round_trip_s(self) -> float | None:
        self.asked += 1
        return self.rtt_s


@pytest.mark.parametrize("damaged", [0, -1, math.nan, math.inf, 10**400, 1e-200, "?", None, [], {}])
def test_a_line_that_cannot_be_is_an_ordinary_one(tmp_path: Path, damaged: object) -> None:
    store, source = Store(str(tmp_path)), Source("erp", "erp:1")
    noted = dict.fromkeys(["rtt_s", "bytes_per_s", "rtt_at", "rows_per_s_max"], damaged)
    noted["address"] = source.address
    store.write(json.dumps(noted).encode(), PRIVATE, "sources", "erp.json")
    assert line(store, source, None) == Line()
    measured = Measured(source, 0.2, 1000.0)
    note_line(store, cast("SourceChannel", measured), cast("Stream", measured))
    assert line(store, source, None) == Line(rtt_s=0.2, bytes_per_s=1000.0)


def test_a_round_trip_measured_in_the_future_is_measured_again(tmp_path: Path) -> None:
    store, source = Store(str(tmp_path)), Source("erp", "erp:1")
    noted = {"rtt_s": 0.9, "rtt_at": time.time() + 86_400, "address": source.address}
    store.write(json.dumps(noted).encode(), PRIVATE, "sources", "erp.json")
    measured = Measured(source, 0.2, None)
    note_line(store, cast("SourceChannel", measured), cast("Stream", measured))
    assert line(store, source, None).rtt_s == 0.2


def test_a_line_is_averaged_and_may_be_lost(tmp_path: Path) -> None:
    store, source = Store(str(tmp_path)), Source("erp", "erp:1", objective=Objective.BYTES)
    assert line(store, source, None) == Line(objective=Objective.BYTES)

    def note(rtt_s: float | None, bytes_per_s: float | None) -> Line:
        measured = Measured(source, rtt_s, bytes_per_s)
        note_line(store, cast("SourceChannel", measured), cast("Stream", measured))
        return line(store, source, None)

    assert note(None, None) == Line(objective=Objective.BYTES)
    assert note(0.2, None).rtt_s == 0.2
    assert note(0.9, None).rtt_s == 0.2, "a round trip is not measured every time"
    assert note(0.9, 1000.0).bytes_per_s == 1000
    assert note(0.9, 2000.0).bytes_per_s == 1500
    assert line(store, Source("other", "other:1"), 5.0) == Line(rows_per_s=5)
    moved = Source("erp", "erp:2", objective=Objective.BYTES)
    assert line(store, moved, None) == Line(objective=Objective.BYTES)
    measured = Measured(moved, 0.7, 500.0)
    note_line(store, cast("SourceChannel", measured), cast("Stream", measured))
    assert line(store, moved, None) == Line(0.7, 500.0, Objective.BYTES)


def test_no_line_is_faster_than_its_dba_allows(tmp_path: Path) -> None:
    """As was last said: a refresh asks for it only before a load, or with other columns."""
    store, source = Store(str(tmp_path)), Source("erp", "erp:1")
    note_limits(store, source, pb.Description(rows_per_second=10_000, bytes_per_second=5_000))
    assert line(store, source, None) == Line(bytes_per_s=5_000, rows_per_s=10_000)
    assert line(store, source, 9_000.0).rows_per_s == 9_000
    measured = Measured(source, 0.2, 4_000.0)
    note_line(store, cast("SourceChannel", measured), cast("Stream", measured))
    assert line(store, source, None) == Line(0.2, 4_000, rows_per_s=10_000)
    note_limits(store, source, pb.Description())
    assert line(store, source, None) == Line(0.2, 4_000)
