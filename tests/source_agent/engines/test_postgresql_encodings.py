"""Text of every server encoding of PostgreSQL, over all forms that a character may have.

A text is read as what the server converts it to, if no two texts become one. It is refused by name
before anything is read if its encoding cannot promise that, and by value where it is no character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import psycopg
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import read
from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.servers import PostgreSQL

T = Relation("t", table="t")
ONE = "SELECT set_byte('\\x00', 0, a) FROM generate_series(1, 255) a"
HIGH = "generate_series(128, 255)"
TWO = f"SELECT set_byte(set_byte('\\x0000', 0, a), 1, b) FROM {HIGH} a, {HIGH} b"
THREE = (
    "SELECT set_byte(set_byte(set_byte('\\x000000', 0, a), 1, b), 2, c)"
    f" FROM generate_series(142, 143) a, {HIGH} b, {HIGH} c"
)
FOUR = (
    "SELECT set_byte(set_byte(set_byte(set_byte('\\x8e000000', 0, 142), 1, a), 2, b), 3, c)"
    f" FROM generate_series(161, 176) a, {HIGH} b, {HIGH} c"
)
SINGLE = (
    "LATIN1", "LATIN2", "LATIN3", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9",
    "LATIN10", "WIN866", "WIN874", "WIN1250", "WIN1251", "WIN1252", "WIN1253", "WIN1254",
    "WIN1255", "WIN1256", "WIN1257", "WIN1258", "ISO_8859_5", "ISO_8859_6", "ISO_8859_7",
    "ISO_8859_8", "KOI8R", "KOI8U",
)  # fmt: skip
READ: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SINGLE, (ONE,)),
    "UTF8": (ONE, TWO),
    "EUC_CN": (ONE, TWO, THREE),
    "EUC_KR": (ONE, TWO, THREE),
}
REFUSED: dict[str, tuple[str, ...]] = {  # and two forms that have one text
    "EUC_JP": ("adfc", "a2c0"),
    "EUC_JIS_2004": ("abc4", "a9dcabdc"),
    "EUC_TW": ("a1a1", "8ea1a1a1"),
}


@contextmanager
def database(server: PostgreSQL, encoding: str) -> Iterator[psycopg.Connection]:
    name = server.create_database(f"encoded_{encoding.lower()}", encoding=encoding)
    uri = f"{server.uri_of(name)}&client_encoding={'SQL_ASCII' if encoding[0] == 'M' else 'UTF8'}"
    try:
        with psycopg.connect(uri, autocommit=True) as connection:
            yield connection
    finally:
        server.drop_database(name)


def opened(server: PostgreSQL, encoding: str) -> Session:
    return connect(server.url("postgres", f"encoded_{encoding.lower()}"), None, Limits()).open()


def fill(connection: psycopg.Connection, encoding: str, forms: Sequence[str]) -> None:
    """Make `t` of all forms that the server takes for text, with what it converts them to.

    One that is no character has NULL for that.
    """
    connection.execute(
        "CREATE FUNCTION utf8(form bytea) RETURNS bytea LANGUAGE plpgsql AS $$BEGIN"
        f" RETURN convert(form, '{encoding}', 'UTF8');"
        " EXCEPTION WHEN untranslatable_character THEN RETURN NULL; END$$"
    )
    connection.execute(
        "CREATE FUNCTION held(form bytea) RETURNS text LANGUAGE plpgsql AS $$BEGIN"
        f" RETURN convert_from(form, '{encoding}');"
        " EXCEPTION WHEN character_not_in_repertoire THEN RETURN NULL; END$$"
    )
    connection.execute(
        "CREATE TABLE every AS SELECT form, held(form) AS v, utf8(form) AS shown"
        f" FROM ({' UNION ALL '.join(forms)}) AS f(form) WHERE held(form) IS NOT NULL"
    )
    connection.execute(
        "CREATE TABLE t AS SELECT form, v FROM every WHERE shown IS NOT NULL;"
        " ALTER TABLE t ADD PRIMARY KEY (form);"
        " CREATE VIEW u AS SELECT form, v FROM every WHERE shown IS NULL ORDER BY form LIMIT 1"
    )


@pytest.mark.parametrize("encoding", READ)
def test_every_form_is_read_as_the_character_that_it_is(
    postgresql: PostgreSQL, encoding: str
) -> None:
    with database(postgresql, encoding) as connection:
        fill(connection, encoding, READ[encoding])
        shown = {
            form.hex(): text.decode()
            for form, text in connection.execute(
                "SELECT form, shown FROM every WHERE shown IS NOT NULL"
            )
        }
        assert max(map(len, shown.values())) == 1, "else two characters may look like another one"
        with closing(opened(postgresql, encoding)) as session:
            rows = read(session, T)
            assert {str(form): text for form, text in rows} == shown
            assert len({text for _, text in rows}) == len(shown) >= 128
            has_none = connection.execute("SELECT form FROM u").fetchall()
            if has_none:
                with pytest.raises(errors.ValueDoesNotFit, match="has no equivalent") as caught:
                    read(session, Relation("u", table="u", key=("form",)))
                named = (caught.value.where, caught.value.details["key"])
                assert named == ("u.v", f"x'{has_none[0][0].hex()}'")
                where = (caught.value.remedy or "").split("WHERE ")[1].split(". ")[0]
                found = f"SELECT form FROM u WHERE {where.replace('col', 'v')}"
                assert connection.execute(found).fetchall() == has_none, "as the remedy says"
                as_bytes = Relation(
                    "b", query=f"SELECT form, convert_to(v, '{encoding}') FROM u", key=("form",)
                )
                assert read(session, as_bytes) == [[has_none[0][0].hex()] * 2]


@pytest.mark.parametrize("encoding", REFUSED)
def test_an_encoding_with_two_forms_of_one_character_is_refused(
    postgresql: PostgreSQL, encoding: str
) -> None:
    with database(postgresql, encoding) as connection:
        one, other = (
            connection.execute(f"SELECT convert('\\x{form}', '{encoding}', 'UTF8')").fetchone()
            for form in REFUSED[encoding]
        )
        assert one == other
        connection.execute(
            "CREATE TABLE t AS SELECT n AS id, convert_from(form, %s) AS v FROM"
            " unnest(%s::bytea[]) WITH ORDINALITY AS f(form, n)",
            (encoding, [bytes.fromhex(form) for form in REFUSED[encoding]]),
        )
        _refused_unless_bytes(postgresql, encoding, REFUSED[encoding])


def test_text_of_no_known_encoding_is_refused(postgresql: PostgreSQL) -> None:
    with database(postgresql, "SQL_ASCII") as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT get_byte(form, 0) AS id, convert_from(form, 'SQL_ASCII') AS v"
            f" FROM ({ONE}) AS f(form)"
        )
        forms = [bytes([byte]).hex() for byte in range(1, 256)]
        _refused_unless_bytes(postgresql, "SQL_ASCII", forms)


def _refused_unless_bytes(server: PostgreSQL, encoding: str, forms: Sequence[str]) -> None:
    """Check that `t` is refused by the name of the encoding, and that the remedy reads `forms`."""
    with closing(opened(server, encoding)) as session:
        with pytest.raises(errors.ConfigurationError, match=encoding) as caught:
            session.describe(Relation("t", table="t", key=("id",)))
        assert caught.value.remedy is not None
        assert f"convert_to(col, '{encoding}')" in caught.value.remedy
        without = Relation("t", table="t", key=("id",), columns=("id",))
        assert len(read(session, without)) == len(forms)
        as_bytes = Relation(
            "b", query=f"SELECT id, convert_to(v, '{encoding}') AS v FROM t", key=("id",)
        )
        assert [v for _, v in read(session, as_bytes)] == list(forms)


def test_an_encoding_that_the_server_does_not_convert_is_refused(postgresql: PostgreSQL) -> None:
    name = postgresql.create_database("encoded_mule", encoding="MULE_INTERNAL")
    try:
        with pytest.raises(
            errors.DatabaseRefused, match="MULE_INTERNAL, which PostgreSQL does not"
        ):
            opened(postgresql, "mule")
    finally:
        postgresql.drop_database(name)
