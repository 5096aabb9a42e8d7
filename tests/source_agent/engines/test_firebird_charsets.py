"""Every byte, and every form of two bytes, of each character set of Firebird is read exactly, or
refused by name.

The forms are stored by the server itself, which refuses some of them. Every run takes those with
some first bytes; `--soak` takes all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from driftline.errors import ConfigurationError, ValueDoesNotFit
from hypothesis import settings

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.firebird.charsets import CODECS, decode
from source_agent.engines.relations.shapes import Relation

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]

WIDE = sorted(number for number, (_, size) in CODECS.items() if size > 1)
FIRST_BYTES = range(0x80, 0x100)  # below are ASCII characters of their own
SOME = 6  # first bytes of each set in every run
SOME_REFUSED, SOAK_REFUSED = 2, 300  # of each set, read one by one
# Characters that Python's codec and Firebird, which has some of them not at all, give otherwise.
OTHERWISE = {
    "shift_jis": "\\~＼",
    "euc_jp": {*map(chr, range(0xFF61, 0xFFA0)), "＼"},
    "euc_kr": "€®",
    "big5": "╴￣ˍ",
    "cp932": "\x1a\x1c\x7f",
    "gb18030": "\ue7c7",
}
_REFUSED_BY_CP943C = frozenset({0x80, 0xA0, 0xFD, 0xFE, 0xFF})


@pytest.fixture(scope="module")
def legacy(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """One database for the module; each test makes its table anew."""
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path_factory.mktemp("charsets"), server)
    yield made
    made.close()


def fill(legacy: Any, charset: str) -> None:
    """Make a table whose rows hold, in this character set, some bytes."""
    legacy.run(
        f'RECREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" VARCHAR(2) CHARACTER SET {charset}'
        f', "c" CHAR(2) CHARACTER SET {charset})'
    )


def name_of(legacy: Any, number: int) -> str:
    [(charset,)] = legacy.rows_of(
        f"SELECT TRIM(RDB$CHARACTER_SET_NAME) FROM RDB$CHARACTER_SETS"
        f" WHERE RDB$CHARACTER_SET_ID = {number}"
    )
    return str(charset)


def put(legacy: Any, charset: str, values: dict[int, bytes]) -> None:
    raw = "CAST(CAST(? AS VARCHAR(2) CHARACTER SET OCTETS) AS VARCHAR(2) CHARACTER SET {})"
    legacy.many(
        f'INSERT INTO "t" ("id", "v") VALUES (?, {raw.format(charset)})', list(values.items())
    )


def put_forms(legacy: Any, first: int) -> None:
    """Store each form of two bytes with this first one that the server takes, under its number."""
    legacy.run(f"""EXECUTE BLOCK AS
        DECLARE last INT = 0;
        DECLARE form VARCHAR(2) CHARACTER SET OCTETS;
    BEGIN
        WHILE (last < 256) DO BEGIN
            form = ASCII_CHAR({first}) || ASCII_CHAR(last);
            BEGIN
                INSERT INTO "t" ("id", "v") VALUES ({first * 256} + :last, :form);
                WHEN ANY DO BEGIN END
            END
            last = last + 1;
        END
    END""")


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
    charset = name_of(legacy, number)
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


def first_bytes(some: random.Random, codec: str) -> set[int]:
    """Return some first bytes, most of which begin characters."""

    def is_character(form: bytes) -> bool:
        try:
            return len(form.decode(codec)) == 1
        except UnicodeError:
            return False

    def begins(first: int) -> bool:
        return any(is_character(bytes([first, last])) for last in range(256))

    leads = [first for first in FIRST_BYTES if begins(first)]
    return {*some.sample(leads, SOME), some.choice(FIRST_BYTES)}


@pytest.mark.parametrize("number", WIDE)
def test_forms_of_two_bytes_are_read_exactly_or_refused(legacy: Any, number: int) -> None:
    is_soak = settings.get_current_profile_name() == "soak"
    seed = random.randrange(2**32)
    some = random.Random(seed)
    codec, _ = CODECS[number]
    fill(legacy, name_of(legacy, number))
    for first in FIRST_BYTES if is_soak else first_bytes(some, codec):
        put_forms(legacy, first)
    octets = 'SELECT "id", CAST("v" AS VARCHAR(8) CHARACTER SET OCTETS) FROM "t" ORDER BY "id"'
    exact, refused = {}, []
    for form, stored in legacy.rows_of(octets):
        assert stored == form.to_bytes(2), f"seed {seed}"
        try:
            exact[form] = decode(stored, codec)
        except UnicodeError:
            refused.append(form)
    columns = ("id", "v")
    with session_of(legacy) as session:
        as_text = Relation("t", table="t", columns=columns, as_text=("v",))
        shown = [[str(form), f"{form:04x}"] for form in sorted([*exact, *refused])]
        assert sorted(read(session, as_text), key=lambda row: int(row[0] or 0)) == shown
        count = SOAK_REFUSED if is_soak else SOME_REFUSED
        for form in some.sample(refused, min(count, len(refused))):
            one = Relation("t", table="t", columns=columns, where=f'"id" = {form}')
            with pytest.raises(ValueDoesNotFit, match=rf"t\.v.*key {form}\."):
                read(session, one)
    if refused:
        legacy.many('DELETE FROM "t" WHERE "id" = ?', [(form,) for form in refused])
    with session_of(legacy) as session:
        rows = read(session, Relation("t", table="t", columns=columns))
    found = {form: text for form, text in rows}  # noqa: C416 - lists, of which dict() knows no type
    assert found == {str(form): text for form, text in exact.items()}, f"seed {seed}"
    assert len(set(found.values())) == len(found) > 0, "two forms became one text"
    for form, text in legacy.rows_of('SELECT "id", CAST("v" AS VARCHAR(9)) FROM "t"'):
        is_otherwise = not set(exact[form]).isdisjoint(OTHERWISE.get(codec, ""))
        assert (text != exact[form]) == is_otherwise, f"{form:04x}, seed {seed}"


def test_padding_of_several_bytes_has_the_declared_length(legacy: Any) -> None:
    legacy.run(
        'RECREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "c" CHAR(3) CHARACTER SET SJIS_0208)',
        "INSERT INTO \"t\" VALUES (1, _SJIS_0208 x'82a0')",
    )
    with session_of(legacy) as session:
        assert read(session, Relation("t", table="t")) == [["1", "あ  "]]


def test_blobs_of_text_are_decoded_here(legacy: Any) -> None:
    """Bytes that are no character are refused, and a blob of several segments is read whole."""
    legacy.run(
        'RECREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY,'
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
