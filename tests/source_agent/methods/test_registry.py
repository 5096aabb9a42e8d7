"""The opening decides which method answers, and the next request which one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import STRATUM_CELLS
from driftline.reconciliation.ranges import strata_of
from driftline.reconciliation.sketches import HASHES

from source_agent.methods import registry
from source_agent.methods.full_copy import EverythingSent, send_again
from source_agent.methods.groups import GroupsCompared
from source_agent.methods.ranges import RangesCompared, refine
from source_agent.methods.request_validation import parse_opening
from source_agent.methods.sketch import SketchDecoded
from tests.harness.asked_source import AskedSource, asked_source
from tests.harness.exchange_pair import Table

ROWS: Table = [(key, "a", None) for key in range(20)]
SKETCH = pb.Sketch(span=40, third=60)
GROUPING = pb.Grouping(span=40)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def opening_of(source: AskedSource, method: type, ours: Table) -> pb.Open:
    said = source.opening(ours)
    if method is SketchDecoded:
        said.sketch.CopyFrom(SKETCH)
        said.strata = bytes(strata_of(HASHES * SKETCH.third) * STRATUM_CELLS)
    elif method is GroupsCompared:
        said.grouping.CopyFrom(GROUPING)
        said.strata = b""
    return said


METHODS = [
    (EverythingSent, []),
    (RangesCompared, ROWS),
    (SketchDecoded, ROWS),
    (GroupsCompared, ROWS),
]


@pytest.mark.parametrize(("method", "ours"), METHODS)
def test_an_opening_is_answered_by_its_method(
    source: AskedSource, method: type, ours: Table
) -> None:
    said = opening_of(source, method, ours)
    assert type(registry.answer_to(parse_opening(said, source.shape))) is method
    assert source.tally.rows_read == 0


@pytest.mark.parametrize("method", [SketchDecoded, GroupsCompared])
def test_no_rows_have_neither_a_sketch_nor_groups(source: AskedSource, method: type) -> None:
    said = opening_of(source, method, [])
    with pytest.raises(MalformedMessage, match="of no rows"):
        registry.answer_to(parse_opening(said, source.shape))


def test_a_load_with_strata_of_another_partition_is_refused(source: AskedSource) -> None:
    said = source.opening([])
    said.strata += bytes(STRATUM_CELLS)
    with pytest.raises(MalformedMessage, match="strata"):
        registry.answer_to(parse_opening(said, source.shape))


def test_the_request_decides_who_goes_on() -> None:
    assert registry.continuation_of(pb.Request(whole=pb.Whole())) is send_again
    assert registry.continuation_of(pb.Request(digests=pb.Digests())) is refine
    for other in (pb.Request(), pb.Request(open=pb.Open()), pb.Request(cells=pb.Cells())):
        assert registry.continuation_of(other) is refine, "which refuses it"
