"""Mixing against the reference and against Spark's own; digests as sums over multisets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from driftline.reconciliation.ranges import RangeSums
from driftline.rows import digests
from driftline.rows.digests import Digest, Salt
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import digests as reference
from tests.samples.rows import SALTS, U64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRINTS = st.binary(min_size=16, max_size=16)
EXTREMES = [0, 1, -1, 42, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]


def mixed(salt: tuple[int, int], prints: list[bytes]) -> digests.MixedFingerprints:
    lanes = np.frombuffer(b"".join(prints), "<u8").reshape(-1, 2)
    return digests.mix(Salt(*salt), lanes[:, 0].copy(), lanes[:, 1].copy())


def digest(salt: tuple[int, int], prints: list[bytes]) -> Digest:
    return mixed(salt, prints).digest()


@given(U64, U64)
def test_xx_is_that_of_the_reference(v: int, h: int) -> None:
    expected = reference.xx(v, h)
    assert digests.xx(v, h) == digests.xx(v - 2**64, h) == expected
    values = np.array([v, v], np.uint64)
    assert digests.xx_array(values, np.uint64(h)).tolist() == [expected] * 2
    assert digests.xx_array(values, np.array([h, 0], np.uint64)).tolist()[0] == expected


@given(SALTS, st.lists(PRINTS, max_size=20))
def test_mixing_and_digests_are_those_of_the_reference(salt, prints: list[bytes]) -> None:
    found = mixed(salt, prints)
    pairs = zip(found.m0.tolist(), found.m1.tolist(), strict=True)
    assert list(pairs) == [reference.mixed(print, salt) for print in prints]
    assert found.digest() == Digest(*reference.digest(prints, salt))
    sums = RangeSums(1)
    sums.add(np.zeros(len(prints), np.int64), found)
    assert int(sums.short_digests()[0]) == reference.short_digest(prints, salt)


@given(SALTS, st.lists(PRINTS), st.lists(PRINTS), st.randoms())
def test_digests_add_and_know_no_order(salt, some, others, random: random.Random) -> None:
    whole = digest(salt, some + others)
    assert digest(salt, some) + digest(salt, others) == whole
    assert whole - digest(salt, others) == digest(salt, some)
    shuffled = some + others
    random.shuffle(shuffled)
    assert digest(salt, shuffled) == whole
    assert whole + Digest() == whole


@given(SALTS, st.lists(PRINTS, min_size=1))
def test_duplicates_and_missing_rows_show(salt, prints: list[bytes]) -> None:
    twice = [digest(salt, [*prints, prints[0]]), digest(salt, [*prints, prints[0], prints[0]])]
    assert len({digest(salt, prints), digest(salt, prints[1:]), *twice}) == 4


def test_a_row_in_place_of_another_shows() -> None:
    salt = (5, 6)
    prints = [i.to_bytes(16, "little") for i in range(200)]
    found = {digest(salt, [prints[0], print]) for print in prints[1:]}
    assert len(found) == len(prints) - 1


def test_equal_rows_are_unequal_under_another_salt() -> None:
    prints = [bytes(16)]
    assert digest((1, 2), prints) != digest((1, 3), prints) != digest((2, 2), prints)
    first, second = Salt.fresh(), Salt.fresh()
    assert len({first.s0, first.s1, second.s0, second.s1}) == 4


@pytest.mark.starts
def test_no_two_processes_draw_the_same_salt() -> None:
    """Outside of tests, which draw theirs from a seed."""
    program = [sys.executable, "-c", "from driftline.rows.digests import Salt; print(Salt.fresh())"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    drawn = {subprocess.check_output(program, env=environment) for _ in range(2)}
    assert len(drawn) == 2


@given(SALTS)
def test_a_salt_as_bytes(salt: tuple[int, int]) -> None:
    data = Salt(*salt).to_bytes()
    assert Salt.from_bytes(data) == Salt(*salt)
    assert data == b"".join(s.to_bytes(8, "little") for s in salt)


@pytest.mark.spark
def test_xx_is_sparks_xxhash64(spark: SparkSession) -> None:
    source = random.Random(4)
    triples = [[source.choice(EXTREMES) for _ in range(3)] for _ in range(60)]
    triples += [[source.randrange(-(2**63), 2**63) for _ in range(3)] for _ in range(200)]
    frame = spark.createDataFrame([tuple(t) for t in triples], "a bigint, b bigint, c bigint")
    for (a, b, c), row in zip(
        triples, frame.selectExpr("xxhash64(a, b, c) as h").collect(), strict=True
    ):
        expected = digests.xx(c, digests.xx(b, digests.xx(a, digests.SPARK_SEED)))
        assert row.h % 2**64 == expected == reference.xxhash64(a, b, c)
