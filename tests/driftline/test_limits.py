"""Limits: named with their unit, related to each other, and those that the protocol mentions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from driftline import limits
from driftline import wire_pb2 as pb
from driftline.reconciliation.ranges import strata_of

from tests import ROOT

PROTOCOL = ROOT / "docs/protocol.md"
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}
UNITS = re.compile(
    r"VERSION$|BYTES|_S(_MAX)?$|ROWS|COLUMNS|RANGES|SEGMENTS|CELLS|HASHES|DIGESTS|KEYS|SAMPLES|ROUNDS|RPCS|POLICIES|COMPARISONS|DEPTH|VALUES|RELATIONS|REFERENCES|BATCHES|PARTS|CHUNKS|CHARACTERS"
)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_a_positive_number_whose_name_has_its_unit(name: str) -> None:
    assert LIMITS[name] > 0
    assert UNITS.search(name)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_has_its_reason_beside_it(name: str) -> None:
    source = Path(limits.__file__).read_text(encoding="utf-8")
    assert re.search(rf"^{name} = .+  # \w+|^{name} = \d+$", source, re.MULTILINE)


def test_the_limits_that_the_protocol_names_exist() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    for name in set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`|\b([A-Z]+_(?:MAX|S|CELLS))\b", text)):
        assert (name[0] or name[1]) in LIMITS


def test_an_opening_of_the_largest_partition_fits_a_message() -> None:
    segments = limits.SEGMENTS_MAX
    opening = pb.Open(
        protocol=2**32 - 1,
        relation="x" * limits.NAME_BYTES_MAX,
        recipe=bytes(16),
        fragment_key=bytes(32),
        salt=bytes(16),
        count=2**64 - 1,
        sum=bytes(16),
        start_steps=[-(2**63)] * segments,
        shifts=bytes(segments),
        strata=bytes(strata_of(limits.THIRD_CELLS_MAX * 3) * limits.STRATUM_CELLS),
        level=19,
    )
    assert pb.Request(open=opening).ByteSize() < 6_000  # an unchanged table costs not much more


def test_a_message_of_digests_fits() -> None:
    piece = pb.Digests(coarsen=20, digests=bytes(8 * limits.DIGESTS_PER_MESSAGE), last=True)
    assert pb.Request(digests=piece).ByteSize() < limits.MESSAGE_BYTES_MAX


def test_a_frame_holds_the_largest_row_of_the_most_columns() -> None:
    header_bytes = 5 * limits.COLUMNS_MAX
    assert limits.ROW_BYTES_MAX + header_bytes <= limits.FRAME_BODY_BYTES_MAX
    assert limits.FRAME_BODY_BYTES_TARGET < limits.FRAME_BODY_BYTES_MAX
    assert limits.KEY_BYTES_MAX < limits.ROW_BYTES_MAX
