"""jsonb and uuid to text and back, a column at a time (protocol, section 2).

A jsonb value is a version byte and its text, a uuid 16 bytes. A value that is not of the type is
reported in `fits`, bool [values that are not NULL], without an error, because the caller names the
column; use the ragged column only if `fits` is all true. Text is not checked to be UTF-8.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from driftline.arrays import Bools
from driftline.rows.columns import NULL, RaggedColumn

JSONB_VERSION: Final = 1
UUID_BYTES: Final = 16
UUID_TEXT_BYTES: Final = 36

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_NO_NIBBLE: Final = 0xFF
_NIBBLE: Final = np.full(256, _NO_NIBBLE, np.uint8)
_NIBBLE[_HEX] = np.arange(16)
_HYPHENS: Final = np.array([8, 13, 18, 23])
_DIGITS: Final = np.setdiff1d(np.arange(UUID_TEXT_BYTES), _HYPHENS)


def each(ragged: RaggedColumn) -> list[bytes | None]:
    """Return every value as bytes, None for NULL."""
    whole, starts = ragged.data.tobytes(), ragged.starts.tolist()
    return [
        whole[at : at + size] if size >= 0 else None
        for at, size in zip(starts, ragged.lengths.tolist(), strict=True)
    ]


def from_jsonb(ragged: RaggedColumn) -> tuple[RaggedColumn, Bools]:
    """Return the texts, which are the values without their version byte, and `fits` [values]."""
    present = ragged.lengths >= 0
    fits = ragged.lengths[present] > 0
    if not fits.all():
        return ragged, fits
    starts = ragged.starts[present]
    keep = np.ones(len(ragged.data), np.bool_)
    keep[starts] = False
    lengths = ragged.lengths - present.astype(np.int32)
    return RaggedColumn(lengths, ragged.data[keep]), ragged.data[starts] == JSONB_VERSION


def to_jsonb(texts: RaggedColumn) -> RaggedColumn:
    """Return the values with these texts, the inverse of `from_jsonb`."""
    present = texts.lengths >= 0
    lengths = texts.lengths + present.astype(np.int32)
    size = len(texts.data) + int(np.count_nonzero(present))
    versioned = RaggedColumn(lengths, np.full(size, JSONB_VERSION, np.uint8))
    is_text = np.ones(size, np.bool_)
    is_text[versioned.starts[present]] = False
    versioned.data[is_text] = texts.data
    return versioned


def from_uuid(ragged: RaggedColumn) -> tuple[RaggedColumn, Bools]:
    """Return the texts, 8-4-4-4-12 lower-case digits, and `fits` [values]."""
    present = ragged.lengths >= 0
    fits = ragged.lengths[present] == UUID_BYTES
    if not fits.all():
        return ragged, fits
    octets = ragged.data.reshape(-1, UUID_BYTES)
    texts = np.full((len(octets), UUID_TEXT_BYTES), ord("-"), np.uint8)
    texts[:, _DIGITS[0::2]] = _HEX[octets >> 4]
    texts[:, _DIGITS[1::2]] = _HEX[octets & 15]
    lengths = np.where(present, UUID_TEXT_BYTES, NULL).astype(np.int32)
    return RaggedColumn(lengths, texts.reshape(-1)), fits


def to_uuid(texts: RaggedColumn) -> tuple[RaggedColumn, Bools]:
    """Return the values with these texts, and `fits` [values]; only lower-case digits fit."""
    present = texts.lengths >= 0
    fits = texts.lengths[present] == UUID_TEXT_BYTES
    if not fits.all():
        return texts, fits
    rows = texts.data.reshape(-1, UUID_TEXT_BYTES)
    nibbles = _NIBBLE[rows[:, _DIGITS]]
    fits = (rows[:, _HYPHENS] == ord("-")).all(axis=1) & (nibbles != _NO_NIBBLE).all(axis=1)
    octets = ((nibbles[:, 0::2] << 4) | (nibbles[:, 1::2] & 15)).astype(np.uint8)
    lengths = np.where(present, UUID_BYTES, NULL).astype(np.int32)
    return RaggedColumn(lengths, octets.reshape(-1)), fits
