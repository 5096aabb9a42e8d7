"""numeric(p,s) to decimal128 and back, a column at a time (protocol, section 2).

The value of a numeric is the sum of digit[i] * 10000^(weight - i). Both directions use a table of
the base-10000 digits of every row, [groups, rows], aligned at the decimal point. The digits on the
wire are this table without leading and trailing zero groups, so one boolean mask cuts them out or
puts them back. Horner's rule turns the table into integers and back; if s is no multiple of four,
the lowest group has only its upper digits. Integers are two little-endian 64-bit words, the layout
of decimal128; above 18 digits they are computed on four 32-bit limbs, held in 64 bits for carries.

A row that is no such number is reported in `fits` without an error, because the caller names the
column. Rejected: Python's `decimal` per value (0.3 M values a second), `pyarrow.compute.cast` from
text (the text would have to be made first), float arithmetic (not exact above 15 digits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.arrays import U64, Bools, Bytes, Integers
from driftline.rows.columns import RaggedColumn
from driftline.values.types import DeclaredType

Words = Integers  # [rows, 2]: low and high half of a 128-bit two's complement
Digits = npt.NDArray[np.int16]  # [groups, rows]
Limbs = list[U64]  # lowest first, each below 2^32

BASE: Final = 10_000
NEGATIVE: Final = 0x4000
HEADER_WORDS: Final = 4  # ndigits, weight, sign, dscale
WEIGHT_WORD, SCALE_WORD = 1, 3
SMALL_DIGITS_MAX: Final = 18  # 10^18 < 2^63
_LIMB_BITS: Final = np.uint64(32)
_LIMB_MASK: Final = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the digits of numeric(precision, scale) stand, in groups of four.

    Attributes:
        whole_groups, groups: groups before the decimal point, and in all.
        first_limit: the exclusive upper bound of the digit of the highest group.
        last_factor: 10^(decimal digits of the value in the lowest group).
    """

    precision: int
    scale: int
    whole_groups: int
    groups: int
    first_limit: int
    last_factor: int

    @classmethod
    def of(cls, type: DeclaredType) -> _Places:
        precision, scale = type.precision, type.scale
        assert precision is not None
        assert scale is not None
        fraction, whole = -(-scale // 4), -(-(precision - scale) // 4)
        first = int(10 ** (precision - scale - 4 * (whole - 1))) if whole else BASE
        last = int(10 ** (scale - 4 * (fraction - 1))) if scale else BASE
        return cls(precision, scale, whole, whole + fraction, first, last)

    @property
    def is_small(self) -> bool:
        """True if 64 bits hold every value."""
        return self.precision <= SMALL_DIGITS_MAX

    def mask(self, first: Integers, counts: Integers) -> Bools:
        """Return the words of each row that are on the wire, bool [rows, HEADER_WORDS + groups].

        `first` is the highest group of each row that is not zero, `counts` its number of digits.
        """
        column = np.arange(HEADER_WORDS + self.groups) - HEADER_WORDS
        mask = (column >= first[:, None]) & (column < (first + counts)[:, None])
        mask[:, :HEADER_WORDS] = True
        return mask


def decode(ragged: RaggedColumn, type: DeclaredType) -> tuple[Words, Bools]:
    """Return unscaled integers of values that are not NULL, [values, 2], and `fits` [values]."""
    places = _Places.of(type)
    lengths = ragged.lengths[ragged.lengths >= 0].astype(np.int64)
    counts = lengths // 2 - HEADER_WORDS
    fits = (lengths % 2 == 0) & (counts >= 0) & (counts <= places.groups)
    if not fits.all():
        return np.zeros((len(lengths), 2), np.int64), fits
    words = np.ascontiguousarray(ragged.data).view(">i2").astype(np.int16)
    starts = np.cumsum(lengths // 2) - lengths // 2
    header = [words[starts + at] for at in range(HEADER_WORDS)]
    weights = header[1].astype(np.int64)
    first = np.where(counts > 0, places.whole_groups - 1 - weights, 0)
    fits &= (header[0] == counts) & (header[3] == places.scale)
    fits &= (header[2] == 0) | ((header[2] == NEGATIVE) & (counts > 0))
    fits &= (first >= 0) & (first + counts <= places.groups) & ((counts > 0) | (weights == 0))
    if not fits.all():
        return np.zeros((len(lengths), 2), np.int64), fits
    mask = places.mask(first, counts)
    table = np.zeros(mask.shape, np.int16)
    table[mask] = words
    digits = np.ascontiguousarray(table[:, HEADER_WORDS:].T)
    fits &= _canonical(digits, first, counts, places)
    negative = header[2] == NEGATIVE
    return (_small if places.is_small else _large)(digits, negative, places), fits


def _canonical(digits: Digits, first: Integers, counts: Integers, places: _Places) -> Bools:
    """Return which rows are in the one form that the protocol allows, bool [rows]."""
    rows = np.arange(digits.shape[1])
    last = np.maximum(first + counts - 1, 0)
    ends = (digits[np.minimum(first, places.groups - 1), rows] > 0) & (digits[last, rows] > 0)
    fits: Bools = ends | (counts == 0)
    fits &= (digits[0] < places.first_limit) & (digits[-1] % (BASE // places.last_factor) == 0)
    for group in digits:
        fits &= (group >= 0) & (group < BASE)
    return fits


def _small(digits: Digits, negative: Bools, places: _Places) -> Words:
    value = np.zeros(digits.shape[1], np.int64)
    for group in digits[:-1]:
        value *= BASE
        value += group
    value *= places.last_factor
    value += digits[-1] // (BASE // places.last_factor)
    np.negative(value, out=value, where=negative)
    return np.stack([value, value >> 63], axis=1)


def _large(digits: Digits, negative: Bools, places: _Places) -> Words:
    limbs: Limbs = [np.zeros(digits.shape[1], np.uint64) for _ in range(4)]
    for group in digits[:-1]:
        _multiply_add(limbs, BASE, group.astype(np.uint64))
    last = digits[-1] // (BASE // places.last_factor)
    _multiply_add(limbs, places.last_factor, last.astype(np.uint64))
    low = limbs[0] | (limbs[1] << _LIMB_BITS)
    high = limbs[2] | (limbs[3] << _LIMB_BITS)
    return _negated(np.stack([low, high], axis=1).view(np.int64), negative)


def _multiply_add(limbs: Limbs, factor: int, carry: U64) -> None:
    for place, limb in enumerate(limbs):
        product = limb * np.uint64(factor) + carry
        limbs[place] = product & _LIMB_MASK
        carry = product >> _LIMB_BITS


def _negated(words: Words, where: Bools) -> Words:
    """Return the words with the rows `where`, bool [rows], negated as two's complement."""
    low, high = ~words[:, 0] + 1, ~words[:, 1]
    high += low == 0
    return np.where(where[:, None], np.stack([low, high], axis=1), words)


def encode(words: Words, type: DeclaredType) -> tuple[Integers, Bytes, Bools]:
    """Encode unscaled integers, int64 [values, 2].

    Returns:
        Lengths of the values [values], their bytes uint8 [sum of the lengths], and `fits` [values].
    """
    places = _Places.of(type)
    negative = words[:, 1] < 0
    if places.is_small:
        value, limit = words[:, 0], 10**places.precision
        fits = (words[:, 1] == value >> 63) & (value < limit) & (value > -limit)
        digits = _small_digits(np.abs(value), places)
    else:
        digits, fits = _large_digits(_negated(words, negative), places)
    if len(words) == 0 or not fits.all():
        return np.zeros(len(words), np.int64), np.zeros(0, np.uint8), fits
    filled = digits != 0
    first = filled.argmax(axis=0)
    counts = np.where(filled.any(axis=0), places.groups - filled[::-1].argmax(axis=0) - first, 0)
    table = np.empty((len(words), HEADER_WORDS + places.groups), ">i2")
    table[:, 0] = counts
    table[:, 1] = np.where(counts > 0, places.whole_groups - 1 - first, 0)
    table[:, 2] = np.where(negative, NEGATIVE, 0)
    table[:, 3] = places.scale
    table[:, HEADER_WORDS:] = digits.T
    return 2 * (HEADER_WORDS + counts), table[places.mask(first, counts)].view(np.uint8), fits


def _small_digits(value: Integers, places: _Places) -> Digits:
    digits = np.empty((places.groups, len(value)), np.int16)
    factor = places.last_factor
    for at in range(places.groups - 1, -1, -1):
        rest = value // factor
        digits[at] = (value - rest * factor) * (BASE // factor)
        value, factor = rest, BASE
    return digits


def _large_digits(words: Words, places: _Places) -> tuple[Digits, Bools]:
    unsigned = np.ascontiguousarray(words).view(np.uint64)
    limbs: Limbs = [
        half
        for word in (unsigned[:, 0], unsigned[:, 1])
        for half in (word & _LIMB_MASK, word >> _LIMB_BITS)
    ]
    digits = np.empty((places.groups, len(words)), np.int16)
    factor = places.last_factor
    for at in range(places.groups - 1, -1, -1):
        remainder = np.zeros(len(words), np.uint64)
        for place in range(3, -1, -1):
            dividend = (remainder << _LIMB_BITS) | limbs[place]
            limbs[place] = dividend // np.uint64(factor)
            remainder = dividend - limbs[place] * np.uint64(factor)
        digits[at] = remainder * np.uint64(BASE // factor)
        factor = BASE
    fits = (limbs[0] | limbs[1] | limbs[2] | limbs[3]) == 0
    return digits, fits & (digits[0] < places.first_limit)
