"""Pieces are as large as their line carries in a few seconds, on simulated lines; no I/O."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from driftline.limits import (
    LINE_HELD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    NO_PROGRESS_S,
    PIECE_BYTES_MIN,
    PIECE_S_MAX,
)
from hypothesis import given
from hypothesis import strategies as st

from source_agent.server.conversation import WINDOW_S, PieceSize


class Line:
    """A line that carries bytes at a rate, behind a buffer that takes them at once."""

    def __init__(self, rate: float, held_max: int) -> None:
        self.rate, self.held_max = rate, held_max  # bytes per second, bytes
        self.now = self._free_at = 0.0
        self.arrivals = [0.0]
        self.size = PieceSize(0.0)

    def rest(self, seconds: float) -> None:
        """Let time pass, in which nothing is sent."""
        self.now += seconds

    def send(self, size: int) -> None:
        """Send a piece; return when the buffer has taken all of it."""
        began = self.now
        self._free_at = max(self._free_at, began) + size / self.rate
        self.now = max(began, self._free_at - self.held_max / self.rate)
        self.arrivals.append(self._free_at)
        self.size.note(size, self.now - began, self.now)

    def load(self, total: int) -> list[int]:
        """Send so many bytes in pieces as large as allowed; return their sizes."""
        sent: list[int] = []
        while sum(sent) < total:
            sent.append(self.size.bytes_max)
            self.send(sent[-1])
        return sent

    def longest_s(self) -> float:
        """Return the longest time between two arrivals."""
        return max(b - a for a, b in pairwise(self.arrivals))


def test_a_fast_line_gets_large_pieces_soon() -> None:
    sizes = Line(rate=12.5e6, held_max=LINE_HELD_BYTES_MAX).load(32 << 20)
    assert sizes[:10] == [PIECE_BYTES_MIN] * 10
    assert sizes[-1] == MESSAGE_BYTES_MAX
    assert len(sizes) <= 32 + 25


@pytest.mark.parametrize("held_max", [0, 64 << 10, LINE_HELD_BYTES_MAX])
@pytest.mark.parametrize("kbit_s", [32, 128, 256, 512, 2000])
def test_no_piece_is_long_on_a_slow_line(kbit_s: int, held_max: int) -> None:
    line = Line(kbit_s * 125, held_max)
    line.load(8 << 20)
    first_s = PIECE_BYTES_MIN / line.rate
    assert line.longest_s() <= max(1.01 * first_s, 1.1 * PIECE_S_MAX)


@given(
    rate=st.floats(3e3, 1e8),
    held_max=st.integers(0, LINE_HELD_BYTES_MAX),
    seed=st.integers(0, 1 << 32),
)
def test_no_piece_takes_longer_than_the_rule(rate: float, held_max: int, seed: int) -> None:
    """Whatever the source's own pace is, and whenever it rests."""
    line, chance = Line(rate, held_max), random.Random(seed)
    for _ in range(200):
        size = line.size.bytes_max
        assert PIECE_BYTES_MIN <= size <= MESSAGE_BYTES_MAX
        assert size / rate <= max(PIECE_BYTES_MIN / rate, PIECE_S_MAX + 1e-6)
        line.send(int(size * chance.choice([1, 1, 1, 0.2])))
        line.rest(chance.choice([0, 0, 0, 0.05, 1, 2 * WINDOW_S]))


def test_pieces_shrink_when_the_line_becomes_slow() -> None:
    line = Line(2e6, LINE_HELD_BYTES_MAX)
    assert line.load(16 << 20)[-1] == MESSAGE_BYTES_MAX
    line.rate /= 10
    sizes = line.load(16 << 20)
    assert line.longest_s() < NO_PROGRESS_S / 3
    assert max(sizes[8:]) / line.rate <= 1.1 * PIECE_S_MAX
    line.rate *= 10
    assert line.load(32 << 20)[-1] == MESSAGE_BYTES_MAX, "and grow again"


def test_a_rest_proves_nothing() -> None:
    line = Line(2e6, LINE_HELD_BYTES_MAX)
    assert line.load(16 << 20)[-1] == MESSAGE_BYTES_MAX
    line.rest(3600)
    assert line.load(2 << 20)[1:3] == [PIECE_BYTES_MIN] * 2
