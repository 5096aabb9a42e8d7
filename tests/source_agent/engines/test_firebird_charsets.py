"""Every byte, and every form of two bytes, of each character set of Firebird is read exactly, or
refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, ValueDoesNotFit

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.firebird.charsets import CODECS, decode
from source_agent.engines.shapes import Relation

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]

_REFUSED_BY_CP943C = frozenset({0x80, 0xA0, 0xFD, 0xFE, 0xFF})


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path, server)
    yield made
    made.close()


def fill(legacy: Any, charset: str) -> None:
    """Make a table whose rows hold, in this character set, some bytes."""
    legacy.run(
        f'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" VARCHAR(2) CHARACTER SET {charset},'
        f' "c" CHAR(2) CHARACTER SET {charset})'
    )


def put(legacy: Any, charset: str, values: dict[int, bytes]) -> None:
    raw = "CAST(CAST(? AS VARCHAR(2) CHARACTER SET OCTETS) AS VARCHAR(2) CHARACTER SET {})"
    legacy.many(
        f'INSERT INTO "t" ("id", "v") VALUES (?, {raw.format(charset)})', list(values.items())
    )


@pytest.mark.parametrize("codec", sorted({codec for codec, _ in CODECS.values()}))
def test_a_decoding_is_injective(codec: str) -> None:
    seen: dict[str, bytes] = {}
    forms = [bytes([first]) for first in range(256)]
    forms += [bytes([first, second]) for first in range(128, 256) for second in range(256)]
    for form in forms:
        try:
            text = decode(form, codec)
        except UnicodeError:
            continue
        assert seen.setdefault(text, form) == form
    assert len(seen) > 100


@pytest.mark.parametrize("number", sorted(set(CODECS) - {2, 3}))
def test_bytes_are_read_exactly_or_refused(legacy: Any, number: int) -> None:
    [(charset,)] = legacy.rows_of(
        f"SELECT TRIM(RDB$CHARACTER_SET_NAME) FROM RDB$CHARACTER_SETS"
        f" WHERE RDB$CHARACTER_SET_ID = {number}"
    )
    codec, _ = CODECS[number]
    exact, lossy = {}, {}
    for byte in range(256):
        try:
            exact[byte] = decode(bytes([byte]), codec)
        except UnicodeError:
            lossy[byte] = bytes([byte])
    fill(legacy, charset)
    if charset == "CP943C":  # the database accepts these bytes in no text
        exact = {byte: text for byte, text in exact.items() if byte not in _REFUSED_BY_CP943C}
    put(legacy, charset, {byte: bytes([byte]) for byte in exact})
    with session_of(legacy) as session:
        relation = Relation("t", table="t", columns=("id", "v"))
        assert read(session, relation) == [[str(byte), text] for byte, text in exact.items()]
    for byte in list(lossy)[:2]:
        legacy.run('DELETE FROM "t"')
        try:
            put(legacy, charset, {byte: bytes([byte])})
        except legacy.write_errors:
            continue  # the database accepts no such byte
        with session_of(legacy) as session:
            with pytest.raises(ValueDoesNotFit, match=r"t\.v"):
                read(session, Relation("t", table="t"))
            as_text = Relation("t", table="t", columns=("id", "v"), as_text=("v",))
            assert read(session, as_text) == [[str(byte), f"{byte:02x}"]]


def test_padding_of_several_bytes_has_the_declared_length(legacy: Any) -> None:
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "c" CHAR(3) CHARACTER SET SJIS_0208)',
        "INSERT INTO \"t\" VALUES (1, _SJIS_0208 x'82a0')",
    )
    with session_of(legacy) as session:
        assert read(session, Relation("t", table="t")) == [["1", "あ  "]]


def test_blobs_of_text_are_decoded_here(legacy: Any) -> None:
    """Bytes that are no character are refused, and a blob of several segments is read whole."""
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY,'
        ' "v" BLOB SUB_TYPE TEXT CHARACTER SET WIN1252)'
    )
    long = "é€" * 50_000
    legacy.insert("t", [(1, "é€"), (2, ""), (3, None), (4, long)])
    with session_of(legacy) as session:
        found = read(session, Relation("t", table="t"))
    assert found == [["1", "é€"], ["2", ""], ["3", None], ["4", long]]
    legacy.run(
        'UPDATE "t" SET "v" = CAST(CAST(x\'418d\' AS VARCHAR(2) CHARACTER SET OCTETS)'
        ' AS VARCHAR(2) CHARACTER SET WIN1252) WHERE "id" = 1'
    )
    with session_of(legacy) as session, pytest.raises(ValueDoesNotFit, match=r"t\.v.*418d"):
        read(session, Relation("t", table="t"))


@pytest.mark.parametrize("charset", ["NEXT", "CYRL"])
def test_a_character_set_without_a_decoding_is_refused(legacy: Any, charset: str) -> None:
    fill(legacy, charset)
    put(legacy, charset, {1: b"\x98"})
    with session_of(legacy) as session:
        with pytest.raises(ConfigurationError, match="not decoded here"):
            session.describe(Relation("t", table="t"))
        as_text = Relation("t", table="t", columns=("id", "v"), as_text=("v",))
        assert read(session, as_text) == [["1", "98"]]
