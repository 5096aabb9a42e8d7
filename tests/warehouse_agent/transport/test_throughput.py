"""How fast a line is: frames that came one after the other, by a clock of the test."""

from __future__ import annotations

import pytest
from driftline import wire_pb2 as pb

from warehouse_agent.transport.throughput import METERED_BYTES_MIN, ThroughputMeter

FRAME = pb.Reply(rows=pb.Rows(frame=bytes(900_000)))
END, VERDICT = pb.Reply(finished=pb.Finished()), pb.Reply(verdict=pb.Verdict())
BUSY = pb.Reply(progress=pb.Progress(phase="ship"))


def rate(*heard: tuple[float, pb.Reply]) -> float | None:
    """After these replies, each so many seconds after the one before."""
    meter, now = ThroughputMeter(), 5.0
    for waited, reply in heard:
        now += waited
        meter.add(reply, now)
    return meter.bytes_per_s


def test_frames_of_one_run() -> None:
    assert rate((9.0, FRAME), (1.0, FRAME), (2.0, FRAME), (0.1, END)) == 600_000
    assert rate((9.0, FRAME), (0.0, FRAME), (0.0, END)) is None


def test_what_lies_between_two_relations_is_no_time_of_the_line() -> None:
    """A frame, and a minute later that of the next relation: 0.12 Mbit/s, on any line."""
    assert rate((1.0, FRAME), (0.0, END), (60.0, FRAME), (0.0, END)) is None
    two = [(1.0, FRAME), (1.0, FRAME), (0.1, END)]
    assert rate(*two, (60.0, FRAME), (1.0, FRAME), (0.1, END)) == 900_000


@pytest.mark.parametrize("between", [VERDICT, END])
def test_what_is_said_between_rows_ends_a_run(between: pb.Reply) -> None:
    said = [(1.0, FRAME), (1.0, FRAME), (3.0, between), (30.0, FRAME), (1.0, FRAME), (1.0, END)]
    assert rate(*said) == 900_000


def test_a_source_that_waits_says_nothing_of_its_line() -> None:
    """A second scan for a few rows, or a DBA's limit: the source has nothing to send."""
    slow = [(6.0, FRAME), (5.0, BUSY), (1.0, FRAME), (5.0, BUSY), (1.0, FRAME), (0.1, END)]
    assert rate(*slow) is None
    irregular = [(1.0, FRAME), (4.0, FRAME), (5.0, BUSY), (1.0, FRAME), (0.1, END)]
    assert rate(*irregular) is None
    assert rate(*irregular, (1.0, FRAME), (1.0, FRAME), (0.1, END)) == 900_000


def test_what_a_source_held_back_is_no_time_of_the_line() -> None:
    """It says so before the next frame; what came before counts, and what comes after."""

    def held(seconds: float) -> pb.Reply:
        return pb.Reply(progress=pb.Progress(phase="scan", held_back_s=seconds))

    run = [(1.0, FRAME), (1.0, FRAME), (1.0, FRAME)]
    rested = [*run, (15.0, held(14.5)), (0.0, FRAME), (1.0, FRAME), (0.1, END)]
    assert rate(*rested) == 900_000
    assert rate(*run, (15.0, BUSY), (0.0, FRAME), (0.1, END)) is None, "it only had nothing to send"
    again = [*rested, (1.0, FRAME), (1.0, FRAME), (9.0, held(0.5)), (0.0, FRAME), (0.1, END)]
    assert rate(*again) == 900_000, "the next relation counts from nothing"


def test_little_tells_nothing() -> None:
    small = pb.Reply(rows=pb.Rows(frame=bytes(METERED_BYTES_MIN - 1)))
    assert rate((1.0, small), (1.0, small), (0.1, END)) is None
    assert rate((1.0, small), (1.0, small), (1.0, small), (0.1, END)) is not None
