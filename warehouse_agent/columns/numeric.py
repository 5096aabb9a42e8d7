"""numeric(p,s) to decimal128 and back, a column at a time (protocol, section 2).

A numeric's value is the sum of digit[i] * 10000^(weight - i). Both directions go through a *grid*,
[rows, groups]: the base-10000 digits of every row aligned at the decimal point, from the highest
group that p - s allows to the lowest that s reaches. The digits on the wire are the grid without
its leading and trailing zero groups, so that one boolean mask cuts them out or puts them back, in
row order and with no loop over rows. Grid and integer are turned into each other by Horner's rule;
where s is no multiple of four, the lowest group gives only its upper digits.

Integers are two little-endian 64-bit words, decimal128's layout. Up to 18 digits the low word is
all there is; beyond, the rule runs on four 32-bit limbs, held in 64 bits so that carries fit.

Rows that are no such number are reported in `fits`, never raised: the caller names the column.

Rejected: Python's `decimal` per value (0.3 M values a second), `pyarrow.compute.cast` from text
(the text would have to be made first), and int64 arithmetic on float (not exact above 15 digits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.arrays import Bytes
from driftline.columns import Ragged

Words = npt.NDArray[np.int64]  # [rows, 2]: low and high half of a 128-bit two's complement
Flags = npt.NDArray[np.bool_]
Limbs = list[npt.NDArray[np.uint64]]  # lowest first, each below 2^32

BASE: Final = 10_000
NEGATIVE: Final = 0x4000
HEADER_WORDS: Final = 4  # ndigits, weight, sign, dscale
SMALL_DIGITS_MAX: Final = 18  # 10^18 < 2^63
_LIMB_BITS: Final = np.uint64(32)
_LIMB_MASK: Final = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the digits of numeric(precision, scale) stand."""

    precision: int
    scale: int

    @property
    def fraction_groups(self) -> int:
        return -(-self.scale // 4)

    @property
    def whole_groups(self) -> int:
        return -(-(self.precision - self.scale) // 4)

    @property
    def groups(self) -> int:
        return self.whole_groups + self.fraction_groups

    @property
    def last_factor(self) -> int:
        """10^(decimal digits of the value in the lowest group)."""
        return int(10 ** (self.scale - 4 * (self.fraction_groups - 1))) if self.scale else BASE

    @property
    def first_limit(self) -> int:
        """What the digit of the highest group stays below."""
        if self.whole_groups == 0:
            return BASE
        return int(10 ** (self.precision - self.scale - 4 * (self.whole_groups - 1)))

    @property
    def is_small(self) -> bool:
        return self.precision <= SMALL_DIGITS_MAX


def decode(ragged: Ragged, *, precision: int, scale: int) -> tuple[Words, Flags]:
    """Unscaled integers of the values that are not NULL: (words [values, 2], fits [values])."""
    grid = Grid(precision, scale)
    lengths = ragged.lengths[ragged.lengths >= 0].astype(np.int64)
    counts = lengths // 2 - HEADER_WORDS
    fits = (lengths % 2 == 0) & (counts >= 0) & (counts <= grid.groups)
    if not fits.all():
        return np.zeros((len(lengths), 2), np.int64), fits
    words = np.ascontiguousarray(ragged.data).view(">i2").astype(np.int16)
    starts = np.cumsum(lengths // 2) - lengths // 2
    header = [words[starts + at] for at in range(HEADER_WORDS)]
    weights = header[1].astype(np.int64)
    first = np.where(counts > 0, grid.whole_groups - 1 - weights, 0)
    fits &= (header[0] == counts) & (header[3] == scale)
    fits &= (header[2] == 0) | ((header[2] == NEGATIVE) & (counts > 0))
    fits &= (first >= 0) & (first + counts <= grid.groups) & ((counts > 0) | (weights == 0))
    if not fits.all():
        return np.zeros((len(lengths), 2), np.int64), fits
    column = np.arange(HEADER_WORDS + grid.groups) - HEADER_WORDS
    mask = (column >= first[:, None]) & (column < (first + counts)[:, None])
    mask[:, :HEADER_WORDS] = True
    table = np.zeros(mask.shape, np.int16)
    table[mask] = words
    digits = np.ascontiguousarray(table[:, HEADER_WORDS:].T)
    fits &= _canonical(digits, first, counts, grid)
    negative = header[2] == NEGATIVE
    return (_small if grid.is_small else _large)(digits, negative, grid), fits


def _canonical(digits: npt.NDArray[np.int16], first: Words, counts: Words, grid: Grid) -> Flags:
    rows = np.arange(digits.shape[1])
    last = np.maximum(first + counts - 1, 0)
    ends = (digits[np.minimum(first, grid.groups - 1), rows] > 0) & (digits[last, rows] > 0)
    fits: Flags = ends | (counts == 0)
    fits &= (digits[0] < grid.first_limit) & (digits[-1] % (BASE // grid.last_factor) == 0)
    for group in digits:
        fits &= (group >= 0) & (group < BASE)
    return fits


def _small(digits: npt.NDArray[np.int16], negative: Flags, grid: Grid) -> Words:
    value = np.zeros(digits.shape[1], np.int64)
    for group in digits[:-1]:
        value *= BASE
        value += group
    value *= grid.last_factor
    value += digits[-1] // (BASE // grid.last_factor)
    np.negative(value, out=value, where=negative)
    return np.stack([value, value >> 63], axis=1)


def _large(digits: npt.NDArray[np.int16], negative: Flags, grid: Grid) -> Words:
    limbs: Limbs = [np.zeros(digits.shape[1], np.uint64) for _ in range(4)]
    for group in digits[:-1]:
        _multiply_add(limbs, BASE, group.astype(np.uint64))
    last = digits[-1] // (BASE // grid.last_factor)
    _multiply_add(limbs, grid.last_factor, last.astype(np.uint64))
    low = limbs[0] | (limbs[1] << _LIMB_BITS)
    high = limbs[2] | (limbs[3] << _LIMB_BITS)
    return _negated(np.stack([low, high], axis=1).view(np.int64), negative)


def _multiply_add(limbs: Limbs, factor: int, carry: npt.NDArray[np.uint64]) -> None:
    for place, limb in enumerate(limbs):
        product = limb * np.uint64(factor) + carry
        limbs[place] = product & _LIMB_MASK
        carry = product >> _LIMB_BITS


def _negated(words: Words, where: Flags) -> Words:
    """128-bit two's complement of the rows `where`."""
    low, high = ~words[:, 0] + 1, ~words[:, 1]
    high += low == 0
    return np.where(where[:, None], np.stack([low, high], axis=1), words)


def encode(words: Words, *, precision: int, scale: int) -> tuple[Words, Bytes, Flags]:
    """Values' bytes from unscaled integers: (lengths [values], data, fits [values])."""
    grid = Grid(precision, scale)
    negative = words[:, 1] < 0
    if grid.is_small:
        value = words[:, 0]
        fits = (words[:, 1] == value >> 63) & (value < 10**precision) & (value > -(10**precision))
        digits = _small_digits(np.abs(value), grid)
    else:
        digits, fits = _large_digits(_negated(words, negative), grid)
    if len(words) == 0 or not fits.all():
        return np.zeros(len(words), np.int64), np.zeros(0, np.uint8), fits
    filled = digits != 0
    first = filled.argmax(axis=0)
    counts = np.where(filled.any(axis=0), grid.groups - filled[::-1].argmax(axis=0) - first, 0)
    table = np.empty((len(words), HEADER_WORDS + grid.groups), ">i2")
    table[:, 0] = counts
    table[:, 1] = np.where(counts > 0, grid.whole_groups - 1 - first, 0)
    table[:, 2] = np.where(negative, NEGATIVE, 0)
    table[:, 3] = scale
    table[:, HEADER_WORDS:] = digits.T
    column = np.arange(HEADER_WORDS + grid.groups) - HEADER_WORDS
    mask = (column >= first[:, None]) & (column < (first + counts)[:, None])
    mask[:, :HEADER_WORDS] = True
    return 2 * (HEADER_WORDS + counts), table[mask].view(np.uint8), fits


def _small_digits(value: npt.NDArray[np.int64], grid: Grid) -> npt.NDArray[np.int16]:
    digits = np.empty((grid.groups, len(value)), np.int16)
    factor = grid.last_factor
    for at in range(grid.groups - 1, -1, -1):
        rest = value // factor
        digits[at] = (value - rest * factor) * (BASE // factor)
        value, factor = rest, BASE
    return digits


def _large_digits(words: Words, grid: Grid) -> tuple[npt.NDArray[np.int16], Flags]:
    unsigned = np.ascontiguousarray(words).view(np.uint64)
    limbs: Limbs = [
        half
        for word in (unsigned[:, 0], unsigned[:, 1])
        for half in (word & _LIMB_MASK, word >> _LIMB_BITS)
    ]
    digits = np.empty((grid.groups, len(words)), np.int16)
    factor = grid.last_factor
    for at in range(grid.groups - 1, -1, -1):
        remainder = np.zeros(len(words), np.uint64)
        for place in range(3, -1, -1):
            dividend = (remainder << _LIMB_BITS) | limbs[place]
            limbs[place] = dividend // np.uint64(factor)
            remainder = dividend - limbs[place] * np.uint64(factor)
        digits[at] = remainder * np.uint64(BASE // factor)
        factor = BASE
    fits = (limbs[0] | limbs[1] | limbs[2] | limbs[3]) == 0
    return digits, fits & (digits[0] < grid.first_limit)
