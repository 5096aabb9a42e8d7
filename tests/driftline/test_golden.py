"""Golden vectors: bytes that no release may change, reproduced by the product and the reference.

The vectors are language-neutral (`tests/golden/*.json`) and made by the reference alone; a thousand
further rows are folded into one constant. If a test here fails, the format broke: every fragment in
every warehouse would be found to differ. Then it is a mistake, or FINGERPRINT_VERSION (for what a
row is) or PROTOCOL_VERSION (for what a message is) must change with it.
"""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from blake3 import blake3
from driftline.limits import FINGERPRINT_VERSION
from driftline.reconciliation import ranges, sketches
from driftline.relations import derivation_json, derivations
from driftline.rows import digests, fingerprints, frames, keys
from driftline.rows.columns import Block, gather, join, split
from driftline.values import send_format
from driftline.values.types import WIDTHS, Column, Recipe, parse_type

from tests import ROOT
from tests.reference import digests as reference_digests
from tests.reference import frames as reference_frames
from tests.reference import rows as reference_rows
from tests.reference import values as reference_values
from tests.reference.rows import row_bytes

GOLDEN = ROOT / "tests" / "golden"

# Of STABLE_ROWS generated rows of every declared type: all that outlives an exchange, which are
# their bytes, positions and fingerprints, and the columns in which they are staged.
STABILITY = "6409b964972a4203d6f2a01f7eac3b90f094f032f40ba9394b858eb1c1df205b"
STABLE_ROWS = 1000


def vectors(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def recipe_of(vector: Any) -> Recipe:
    columns = [Column(n, parse_type(t), True, i) for i, (n, t) in enumerate(vector["columns"])]
    return Recipe(tuple(columns), vector["key_columns"])


def u64(numbers: Any) -> Any:
    return np.array([int(n) % 2**64 for n in numbers], np.uint64)


def lanes_of(prints: list[str]) -> tuple[Any, Any]:
    lanes = np.frombuffer(bytes.fromhex("".join(prints)), "<u8").astype(np.uint64).reshape(-1, 2)
    return lanes[:, 0].copy(), lanes[:, 1].copy()


@pytest.mark.starts
def test_the_vectors_are_those_of_the_reference() -> None:
    command = [sys.executable, str(GOLDEN / "generate"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_values() -> None:
    for type, pairs in vectors("values.json").items():
        for text, data in pairs:
            assert send_format.string_encoder(parse_type(type))(text).hex() == data, (type, text)
            assert send_format.decode_string(parse_type(type), bytes.fromhex(data)) == text
            assert reference_values.encode(type, text).hex() == data
            assert reference_values.decode(type, bytes.fromhex(data)) == text


def test_derivations() -> None:
    vector = vectors("derivations.json")
    whole = recipe_of(vector)
    texts = []
    for each in vector["derivations"]:
        predicate = derivation_json.from_json({"rows": each["rows"]}).rows
        assert predicate is not None
        texts.append(derivations.text_of(derivations.canonical(predicate)))
        assert texts[-1] == each["text"]
        assert replace(whole, rows=texts[-1]).id.hex() == each["recipe_id"]
    assert texts[6] == texts[7]
    assert texts[5] == texts[9].replace("paid", 'o""dd').replace(">= '0.00'", "< '2020-01-01'")


@pytest.mark.parametrize("number", range(len(vectors("rows.json"))))
def test_rows(number: int) -> None:
    vector = vectors("rows.json")[number]
    recipe, key = recipe_of(vector), bytes.fromhex(vector["fragment_key"])
    assert recipe.id.hex() == vector["recipe_id"]
    row_key = fingerprints.row_key(key, recipe)
    assert row_key.hex() == vector["row_key"]

    encoded = []
    for row in vector["rows"]:
        texts = zip(recipe.columns, row["values"], strict=True)
        cells = [None if t is None else send_format.string_encoder(c.type)(t) for c, t in texts]
        encoded.append(row_bytes(cells))
    assert [row.hex() for row in encoded] == [row["row"] for row in vector["rows"]]

    block = gather(encoded)
    starts, lengths = keys.key_spans(block, recipe)
    whole = block.buffer.tobytes()
    found = [whole[a : a + n].hex() for a, n in zip(starts, lengths, strict=True)]
    assert found == [row["key"] for row in vector["rows"]]
    where = keys.positions(block, recipe, fingerprints.position_seed(key))
    assert [str(p) for p in where] == [row["position"] for row in vector["rows"]]
    hi, lo = fingerprints.hasher(row_key)(encoded)
    expected = lanes_of([row["fingerprint"] for row in vector["rows"]])
    assert (hi == expected[0]).all()
    assert (lo == expected[1]).all()


def test_digests() -> None:
    golden = vectors("digests.json")
    for v, h, result in golden["xx"]:
        assert digests.xx(int(v), int(h) % 2**64) == int(result)
        assert int(digests.xx_array(u64([v]), u64([h]))[0]) == int(result)
    for longs, result in golden["xxhash64"]:
        h = digests.SPARK_SEED
        for v in longs:
            h = digests.xx(int(v), h)
        assert h == int(result)
    for vector in golden["mixed"]:
        salt = digests.Salt(*map(int, vector["salt"]))
        mixed = digests.mix(salt, *lanes_of([vector["fingerprint"]]))
        assert [str(mixed.m0[0]), str(mixed.m1[0])] == vector["m"]
    for vector in golden["digests"]:
        salt = digests.Salt(*map(int, vector["salt"]))
        mixed = digests.mix(salt, *lanes_of(vector["fingerprints"]))
        assert mixed.digest() == digests.Digest(vector["count"], int(vector["sum"]))
        sums = ranges.RangeSums(2)
        sums.add(np.ones(len(mixed.m0), np.int64), mixed)
        assert [int(d) for d in sums.short_digests()] == [0, int(vector["short"])]


def test_ranges() -> None:
    golden = vectors("ranges.json")
    for vector in golden["partitions"]:
        starts, shifts = zip(*vector["segments"], strict=True)
        partition = ranges.Partition(tuple(map(int, starts)), shifts)
        assert partition.ranges == vector["ranges"]
        where, indices = zip(*vector["indices"], strict=True)
        found = partition.indices(np.array([int(p) for p in where], np.int64))
        assert found.tolist() == list(indices)
        numbers, first, last = zip(*vector["bounds"], strict=True)
        bounds = partition.bounds(np.array(numbers, np.int64))
        assert [b.tolist() for b in bounds] == [[int(p) for p in end] for end in (first, last)]
        for by, count, last_coarse in vector["coarsened"]:
            assert ranges.coarse_ranges(partition.ranges, by) == count
            assert (partition.ranges - 1) >> by == last_coarse
    for vector in golden["strata"]:
        shorts = [digests.xx(i, 7) if i % 3 else 0 for i in range(vector["ranges"])]
        cells = ranges.strata(np.array(shorts, np.uint64), digests.Salt(int(vector["s0"]), 0))
        assert [[f"{c:02x}" for c in row] for row in cells.tolist()] == vector["cells"]


def test_frames() -> None:
    for vector in vectors("frames.json"):
        recipe = recipe_of(vector)
        row_key = fingerprints.row_key(bytes.fromhex(vector["fragment_key"]), recipe)
        data = bytes.fromhex(vector["frame"])
        frame = frames.decode(data)
        assert (frame.salt.s0, frame.salt.s1) == tuple(map(int, vector["salt"]))
        assert frame.digest == digests.Digest(vector["count"], int(vector["sum"]))
        block, _, _ = frames.verify(frame, fingerprints.hasher(row_key))
        assert [row.hex() for row in block.rows()] == vector["rows"]
        again = frames.encode(block, recipe, frame.salt, frame.digest, level=9)
        assert frames.decode(again).digest == frame.digest
        rows, salt, digest = reference_frames.decode(again)
        assert [reference_rows.row_bytes(row).hex() for row in rows] == vector["rows"]
        assert (salt, digest) == (
            (frame.salt.s0, frame.salt.s1),
            (frame.digest.count, frame.digest.sum),
        )


def salt_of(vector: Any) -> digests.Salt:
    return digests.Salt(*map(int, vector["salt"]))


def test_embeddings_of_sketches() -> None:
    for vector in vectors("sketches.json")["embeddings"]:
        base = None if vector["base"] is None else int(vector["base"])
        where, expected = zip(*vector["ks"], strict=True)
        ks, inside = sketches.Embedding(vector["span"], base).embed(
            np.array([int(p) for p in where], np.int64), salt_of(vector)
        )
        assert inside.tolist() == [k is not None for k in expected]
        assert ks.tolist() == [k or 0 for k in expected]


def test_cells_of_sketches() -> None:
    golden = vectors("sketches.json")
    m0, elements = zip(*golden["elements"], strict=True)
    assert sketches.elements(u64(m0)).tolist() == list(elements)
    for s1, third, k, places, c in golden["places"]:
        at, checks = sketches.places(u64([k]), third, digests.Salt(0, int(s1)))
        assert [int(cells[0]) for cells in at] == places
        assert checks.tolist() == [c]
    for vector in golden["tables"]:
        ks, m0 = zip(*vector["rows"], strict=True)
        cells = sketches.Cells(vector["third"])
        cells.add(u64(ks), u64(m0), salt_of(vector))
        assert cells.check == vector["check"]
        for data in map(bytes.fromhex, vector["samples"]):
            assert cells.sample(len(data)) == data
        for grid, data in vector["folded"]:
            assert cells.folded(sketches.Grid(cells.third, *grid)).to_bytes().hex() == data
            assert sketches.Cells.from_bytes(bytes.fromhex(data)).to_bytes().hex() == data
        for refined in vector["children"]:
            parent, grid = (sketches.Grid(cells.third, *refined[x]) for x in ("parent", "grid"))
            stuck = np.zeros(len(parent), np.bool_)
            stuck[refined["stuck"]] = True
            sent = cells.children(parent, grid, stuck)
            assert sent.to_bytes().hex() == refined["cells"]


def test_lists_of_keys() -> None:
    for vector in vectors("sketches.json")["lists"]:
        planes, ks = bytes.fromhex(vector["planes"]), vector["ks"]
        assert zstandard.decompress(sketches.pack(u64(ks))) == planes
        bounds = {"span": max(ks, default=0) + 1, "count_max": len(ks)}
        assert sketches.unpack(reference_frames.stored(planes), **bounds).tolist() == ks
        assert sketches.unpack(zstandard.compress(planes), **bounds).tolist() == ks


# The stability constant

TYPES = (
    *("int8", "text", "bool", "int2", "int4", "oid", "float4", "float8", "numeric(15,2)"),
    *("numeric(38,10)", "numeric", "bytea", "date", "timestamp", "timestamptz", "time"),
    *("timetz", "interval", "uuid", "jsonb"),
)


def noise(row: int, column: int) -> Iterator[int]:
    """Endless 64-bit numbers that are the same in every run and on every machine."""
    state = reference_digests.xx(column, reference_digests.xx(row, 1))
    while True:
        yield state
        state = reference_digests.xx(1, state)


def cell(type: str, row: int, column: int) -> str | None:
    """A value of the type as text; one in eight is NULL, but for the first two columns."""
    source = noise(row, column)
    if column > 1 and next(source) % 8 == 0:
        return None
    kind = type.partition("(")[0]
    if type == "numeric" and next(source) % 16 == 0:
        return ["NaN", "Infinity", "-Infinity"][next(source) % 3]
    if kind == "numeric":
        precision, scale = map(int, type[8:-1].split(",")) if "(" in type else (60, 20)
        number = int("".join(map(str, (next(source) for _ in range(4)))))
        number %= 10 ** (1 + next(source) % precision)
        digits = str(number).rjust(scale + 1, "0")
        sign = "-" if number and next(source) % 2 else ""
        return f"{sign}{digits[:-scale]}.{digits[-scale:]}"
    return reference_values.decode(type, cell_bytes(kind, source))


def cell_bytes(kind: str, source: Iterator[int]) -> bytes:
    if kind in {"text", "jsonb"}:
        letters = (chr(0x20 + next(source) % 0x2000) for _ in range(next(source) % 20))
        return (b"\1" if kind == "jsonb" else b"") + "".join(letters).encode()
    if kind == "bool":
        return bytes([next(source) % 2])
    if kind in {"time", "timetz"}:
        clock = struct.pack(">q", next(source) % (reference_values.DAY_US + 1))
        return clock + (struct.pack(">i", next(source) % 115_199 - 57_599) if kind[4:] else b"")
    if kind == "bytea":
        return b"".join(next(source).to_bytes(8, "big") for _ in range(next(source) % 9))
    size = {"int2": 2, "int8": 8, "float8": 8, "interval": 16, "uuid": 16}.get(kind, 4)
    size = 8 if kind.startswith("timestamp") else size
    data = (next(source).to_bytes(8, "big") + next(source).to_bytes(8, "big"))[:size]
    if kind.startswith("float") and math.isnan(struct.unpack({4: ">f", 8: ">d"}[size], data)[0]):
        data = b"\x3f" + data[1:]
    return data


def stable_block() -> Block:
    declared = [parse_type(type) for type in TYPES]
    encoded = []
    for row in range(STABLE_ROWS):
        texts = [cell(type, row, column) for column, type in enumerate(TYPES)]
        cells = [
            None if text is None else send_format.string_encoder(type)(text)
            for type, text in zip(declared, texts, strict=True)
        ]
        encoded.append(row_bytes(cells))
    return gather(encoded)


def test_stability() -> None:
    block, folded = stable_block(), blake3()
    key = bytes(range(100, 132))
    for key_columns in (1, 2):
        columns = (Column(f"c{i}", parse_type(t), True, i) for i, t in enumerate(TYPES))
        recipe = Recipe(tuple(columns), key_columns)
        hi, lo = fingerprints.hasher(fingerprints.row_key(key, recipe))(block.rows())
        where = keys.positions(block, recipe, fingerprints.position_seed(key))
        folded.update(recipe.id + block.buffer.tobytes())
        folded.update(where.astype("<i8").tobytes())
        folded.update(hi.astype("<u8").tobytes() + lo.astype("<u8").tobytes())
    for column in split(block, len(TYPES)):
        folded.update(column.lengths.astype("<i4").tobytes() + column.data.tobytes())
    assert join(split(block, len(TYPES))).buffer.tobytes() == block.buffer.tobytes()
    assert folded.hexdigest() == STABILITY, (
        "The format broke: rows get other bytes, positions or fingerprints than those in every "
        "existing warehouse. Undo it, or raise FINGERPRINT_VERSION (now "
        f"{FINGERPRINT_VERSION}) in limits.py, regenerate tests/golden and set this constant."
    )


def test_the_stable_rows_are_of_every_type() -> None:
    assert {type.partition("(")[0] for type in TYPES} == set(WIDTHS)
