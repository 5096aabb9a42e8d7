"""Frames: there and back, against the reference, cut to messages, and from hostile hands."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from driftline.errors import FrameDamaged
from driftline.limits import (
    COLUMNS_MAX,
    FRAME_BODY_BYTES_MAX,
    FRAME_ROWS_MAX,
)
from driftline.rows import frames
from driftline.rows.columns import Block, gather
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix
from driftline.rows.fingerprints import hasher, row_key
from driftline.values.types import Recipe
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import digests as reference_digests
from tests.reference import fingerprints as reference_fingerprints
from tests.reference import frames as reference
from tests.reference import rows as reference_rows
from tests.reference.rows import Row
from tests.samples.rows import KEYS, SALTS, block, recipe, scattered, tables, types_of

Table = tuple[Recipe, list[Row]]
KEY = bytes(range(32))
HEADER = "<4sIHQQQQI"


def mixed(data: Block, recipe: Recipe, salt: Salt, key: bytes = KEY) -> MixedFingerprints:
    return mix(salt, *hasher(row_key(key, recipe))(data.rows()))


def encoded(data: Block, recipe: Recipe, salt: Salt, *, level: int = 3, key: bytes = KEY) -> bytes:
    digest = mixed(data, recipe, salt, key).digest()
    return frames.encode(data, recipe, salt, digest, level=level)


def verified(data: bytes, recipe: Recipe, key: bytes = KEY) -> list[bytes]:
    """What a receiver makes of a frame."""
    return frames.verify(frames.decode(data), hasher(row_key(key, recipe)))[0].rows()


def header(rows: int, columns: int, body: int, *, magic: bytes = b"DLF1") -> bytes:
    return struct.pack(HEADER, magic, rows, columns, 0, 0, 0, 0, body)


def frame(rows: int, columns: int, body: bytes) -> bytes:
    return header(rows, columns, len(body)) + zstandard.compress(body)


@pytest.mark.parametrize("made", [block, scattered])
@given(table=tables(min_size=1), salt=SALTS, key=KEYS, level=st.sampled_from([1, 3, 9, 19]))
def test_there_and_back(made, table: Table, salt, key: bytes, level: int) -> None:
    recipe, rows = table
    data = encoded(made(rows), recipe, Salt(*salt), level=level, key=key)
    decoded = frames.decode(data)
    assert len(decoded) == len(rows)
    again, hi, lo = frames.verify(decoded, hasher(row_key(key, recipe)))
    assert again.rows() == [reference_rows.row_bytes(row) for row in rows]
    assert mix(Salt(*salt), hi, lo).digest() == decoded.digest
    assert reference.decode(data) == (rows, salt, (decoded.digest.count, decoded.digest.sum))


@pytest.mark.slow
@pytest.mark.parametrize("nulls", [False, True])
def test_texts_are_laid_out_as_they_pack_best(nulls: bool) -> None:
    """Numbers, dates and identifiers that are kept as text in planes, words as they are."""
    dice = random.Random(1)
    words = ["4-NOT SPECIFIED", "1-URGENT", "2-HIGH", "5-LOW"]
    kinds: dict[str, tuple[int, Callable[[], str]]] = {
        "words": (reference.PLAIN, lambda: dice.choice(words)),
        "dates": (reference.PLANES, lambda: f"199{dice.randrange(10)}-0{dice.randrange(1, 10)}-17"),
        "identifiers": (reference.PLANES, lambda: f"Clerk#{dice.randrange(1000):09}"),
        "prices": (reference.PLANES, lambda: f"{dice.randrange(10**7) / 100}"),
        "sentences": (reference.PLAIN, lambda: " ".join(dice.choices(words, k=5))),
    }
    texts, salt = recipe(["int4", "text"], 1), Salt(1, 2)
    for best, draw in kinds.values():
        rows: list[Row] = [
            [struct.pack(">i", i), None if nulls and i % 7 == 0 else draw().encode()]
            for i in range(5000)
        ]
        data = encoded(block(rows), texts, salt)
        assert verified(data, texts) == [reference_rows.row_bytes(row) for row in rows]
        sizes = {
            layout: len(reference.encode(rows, [reference.FIXED, layout], (1, 2), (0, 0)))
            for layout in (reference.PLAIN, reference.PLANES)
        }
        assert sizes[best] <= min(sizes.values())
        assert len(data) <= 1.01 * sizes[best]


@given(table=tables(min_size=1), salt=SALTS, data=st.data())
def test_a_frame_of_the_reference_in_any_layout(table: Table, salt, data: st.DataObject) -> None:
    recipe, rows = table
    key = reference_fingerprints.row_key(KEY, types_of(recipe))
    prints = [reference_fingerprints.fingerprint(reference_rows.row_bytes(r), key) for r in rows]
    layouts = []
    for column in zip(*rows, strict=True):
        sizes = {None if value is None else len(value) for value in column}
        longest = max(size or 0 for size in sizes)
        possible = [reference.PLAIN]
        if longest <= frames.PLANE_BYTES_MAX:
            possible += [reference.PLANES]
            possible += [reference.FIXED] if len(sizes) == 1 and None not in sizes else []
        layouts.append(data.draw(st.sampled_from(possible)))
    level = data.draw(st.sampled_from([None, 1]))
    sent = reference.encode(
        rows, layouts, salt, reference_digests.digest(prints, salt), level=level
    )
    assert verified(sent, recipe) == [reference_rows.row_bytes(row) for row in rows]


@given(tables(min_size=1, max_size=4), st.integers(0, 127))
def test_another_digest_is_damage(table: Table, bit: int) -> None:
    recipe, rows = table
    salt = Salt(1, 2)
    digest = mixed(block(rows), recipe, salt).digest()
    lie = Digest(digest.count, digest.sum ^ 1 << bit)
    data = frames.encode(block(rows), recipe, salt, lie, level=1)
    with pytest.raises(FrameDamaged):
        verified(data, recipe)


def test_the_key_of_another_fragment_is_damage() -> None:
    made = recipe(["int4"])
    data = encoded(block([[bytes(4)]]), made, Salt(1, 2))
    with pytest.raises(FrameDamaged):
        verified(data, made, key=bytes(32))


# Hostile bytes

SAMPLE = [
    [struct.pack(">i", i), (None, b"", b"text" * (i % 5))[i % 3], b"\1" * (i % 7), bytes(16)]
    for i in range(-30, 30)
]
SAMPLE_RECIPE = recipe(["int4", "text", "bytea", "uuid"])


@pytest.mark.slow
def test_random_flips_and_truncations() -> None:
    source = random.Random(7)
    good = encoded(block(SAMPLE), SAMPLE_RECIPE, Salt(1, 2))
    body = zstandard.decompress(good[struct.calcsize(HEADER) :])
    expected = [reference_rows.row_bytes(row) for row in SAMPLE]
    survived = 0
    for number in range(3000):
        is_inside = number % 2  # a flip behind the compression, which has a look at nothing
        data = bytearray(body if is_inside else good)
        for _ in range(source.choice([1, 1, 1, 2, 8])):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        if source.random() < 0.3:
            del data[source.randrange(len(data)) :]
        if is_inside:
            packed = good[: struct.calcsize(HEADER) - 4] + len(data).to_bytes(4, "little")
            data = bytearray(packed + zstandard.compress(bytes(data)))
        try:
            assert verified(bytes(data), SAMPLE_RECIPE) == expected
            survived += 1
        except FrameDamaged:
            pass
    assert survived < 100  # bits that mean nothing, such as zstd's own


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(FrameDamaged):
        frames.decode(data)


@given(st.integers(1, 40), st.integers(1, 6), st.binary(max_size=400))
def test_any_body(rows: int, columns: int, body: bytes) -> None:
    try:
        decoded = frames.decode(frame(rows, columns, body))
    except FrameDamaged:
        return
    with pytest.raises(FrameDamaged):
        frames.verify(decoded, hasher(bytes(32)))


@given(st.integers(1, 3), st.lists(st.integers(-3, 60), min_size=1, max_size=4), st.integers(0, 99))
def test_any_lengths(layout: int, lengths: list[int], more: int) -> None:
    planes = np.array(lengths, "<i4").view(np.uint8).reshape(-1, 4).T.tobytes()
    body = bytes([layout]) + planes + bytes(more)
    is_sound = layout in {1, 2} and min(lengths) >= -1 and sum(n for n in lengths if n > 0) == more
    is_sound = is_sound and (layout == 2 or max(lengths) <= frames.PLANE_BYTES_MAX)
    if is_sound:
        assert frames.decode(frame(len(lengths), 1, body)).columns[0].lengths.tolist() == lengths
    else:
        with pytest.raises(FrameDamaged):
            frames.decode(frame(len(lengths), 1, body))


def test_a_frame_says_its_size_before_it_is_unpacked() -> None:
    """What packs worse than zstd packs noise was not packed by it."""
    sound = header(1, 1, 5) + zstandard.compress(bytes(5))
    assert frames.head(sound).body_bytes == 5
    noise = frames.ZSTD_BYTES - (len(sound) - len(header(1, 1, 5))) + 5
    assert frames.head(sound + bytes(noise)).body_bytes == 5
    with pytest.raises(FrameDamaged, match="takes 518 packed"):
        frames.head(sound + bytes(noise + 1))


ZEROS = zstandard.compress(bytes(1 << 26))
PLANES_OF_ONE = struct.pack("<Bi", 1, 60 << 20)
BOMBS = {
    "2^31 rows": header(2**31, 1, 100) + zstandard.compress(bytes(100)),
    "no rows": header(0, 1, 5) + zstandard.compress(bytes(5)),
    "no columns": header(1, 0, 0) + zstandard.compress(b""),
    "too many columns": header(1, COLUMNS_MAX + 1, 5) + zstandard.compress(bytes(5)),
    "all rows of all columns": frame(FRAME_ROWS_MAX, COLUMNS_MAX, bytes(5) * COLUMNS_MAX),
    "another magic": header(1, 1, 5, magic=b"DLF2") + zstandard.compress(bytes(5)),
    "a body of 4 GiB": header(1, 1, 2**32 - 1) + ZEROS,
    "a body just too large": header(1, 1, FRAME_BODY_BYTES_MAX + 1) + ZEROS,
    "zstd that says more": header(1, 1, 5) + ZEROS,
    "zstd that says 2^40": header(1, 1, 5)
    + bytes.fromhex("28b52ffde0" + "0000000000010000" + "010000"),
    "zstd that says nothing": header(1, 1, 5)
    + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5)),
    "zstd of nothing": header(1, 1, 0) + bytes.fromhex("502a4d1800000000"),
    "a fixed column that is wide": frame(1, 1, struct.pack("<BI", 0, 2**32 - 1)),
    "a fixed column beyond the end": frame(FRAME_ROWS_MAX, 1, struct.pack("<BI", 0, 48)),
    "a length of 2 GiB": frame(1, 1, struct.pack("<Bi", 2, 2**31 - 1)),
    "lengths beyond the end": frame(FRAME_ROWS_MAX, 1, b"\2"),
    "sixty million planes": frame(1, 1, PLANES_OF_ONE + bytes(60 << 20)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_neither_memory_nor_time(name: str) -> None:
    data = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(FrameDamaged):
            verified(data, SAMPLE_RECIPE)
        assert tracemalloc.get_traced_memory()[1] < 2 * FRAME_BODY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_the_largest_row_fits_a_frame() -> None:
    made, salt = recipe(["int4", "bytea"]), Salt(1, 2)
    data = gather([reference_rows.row_bytes([bytes(4), bytes((64 << 20) - 100)])])
    assert verified(encoded(data, made, salt, level=1), made) == data.rows()
