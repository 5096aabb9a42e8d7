"""A thousand hostile strings, wherever a peer may send one: none becomes a part of a statement.

The oracle is the server's own log: harmless strings in the same places must leave the same
statements, literals aside, and each of them is one of the templates that `explain` prints. And no
string is taken for another: the rows that come are those that Python finds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from driftline.errors import DriftlineError
from driftline.relations.derivations import ColumnPredicate, Derivation, NotPredicate, Operator
from driftline.rows.key_order import KeyRange

from source_agent.engines.conformance.reads import decoded, flat, rows_between, rows_by_keys
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.source_agent.engines.test_statement_log import (
    OnMariaDB,
    OnPostgreSQL,
    command,
    server,
    strangers,
)

__all__ = ["server"]  # the fixture

COUNT = 1000
AT_ONCE = 100  # literals of one comparison
LENGTH_MAX = 60
WORDS = (
    *(
        "'",
        '"',
        "`",
        "\\",
        "\\'",
        "''",
        '""',
        "--",
        "-- ",
        "#",
        "/*",
        "*/",
        "/*!",
        ";",
        ",",
        "(",
        ")",
    ),
    *("%s", "%%", "%(k0)s", "$1", "$$", ":k", "?", "{columns}", "{rows}", "{", "}", "@@version"),
    *("\n", "\r\n", "\t", "\b", "\x1a", "\x7f", "\u2028", "\u202e", "\ufeff", "\u02bc", "\uff07"),
    *("é", "\U0001f600", "¿'", "縗'", "NULL", "TRUE", "0x27", "x'27'", "E'\\047'", "_utf8mb4'"),
    *(" OR 1=1", "' OR '1'='1", "'; DROP TABLE orders; --", "UNION SELECT * FROM secret", "a", "Z"),
    *("CHAR(39)", "; COMMIT; ", "pg_sleep(9)", "SLEEP(9)", " ", "INTO OUTFILE '/tmp/x'", "COPY"),
)
LITERALS = {
    OnPostgreSQL: re.compile(r"'(?:[^']|'')*'"),
    OnMariaDB: re.compile(r"'(?:[^'\\]|''|\\.)*'", re.DOTALL),
}


def hostile() -> list[str]:
    """Texts made of what SQL and its drivers give a meaning to."""
    chosen = random.Random(20)
    found: dict[str, None] = {}
    while len(found) < COUNT:
        text = "".join(chosen.choices(WORDS, k=chosen.randint(1, 6)))[:LENGTH_MAX]
        found[text] = None
    return list(found)


def harmless() -> list[str]:
    return [f"n{i}" for i in range(COUNT)]


class Asked:
    """One session that is asked by strings for rows of a table, and by names for what is not."""

    def __init__(self, on: OnPostgreSQL | OnMariaDB, table: str, strings: Sequence[str]) -> None:
        self._strings = strings
        self._present = strings[::2]
        on.fill(table, [(k, k) for k in self._present])
        before = len(on.statements())
        with closing(connect(on.url, on.password, Limits()).open()) as self._session:
            self._shape = self._session.describe(Relation(table, table=table))
            self._by_literal()
            self._by_key()
            self._between_keys()
            self._by_name()
        pattern = LITERALS[type(on)]
        self.logged = on.statements()[before:]
        self.statements = {pattern.sub("?", sql.replace(table, "t")) for sql in self.logged}

    def _keys(self, rows: Sequence[bytes]) -> list[str]:
        return sorted(str(decoded(row, self._shape)[0]) for row in rows)

    def _by_literal(self) -> None:
        for first in range(0, COUNT, AT_ONCE):
            texts = tuple(self._strings[first : first + AT_ONCE])
            one = ColumnPredicate("v", Operator.IN, texts)
            first_alone = ColumnPredicate("v", Operator.EQUAL, texts[:1])
            inside = [k for k in self._present if k in texts]
            outside = [k for k in self._present if k not in texts]
            for predicate, kept in (
                (one, inside),
                (NotPredicate(one), outside),
                (first_alone, inside[:1]),
            ):
                made = self._session.derive(self._shape, Derivation(None, predicate))
                assert self._keys(flat(self._session.scan(made))) == sorted(kept)

    def _by_key(self) -> None:
        found = flat(rows_by_keys(self._session, self._shape, [(k,) for k in self._strings]))
        assert self._keys(found) == sorted(self._present)

    def _between_keys(self) -> None:
        bounds = sorted(self._strings, key=str.encode)
        for lower, upper in zip(bounds[::50], bounds[25::50], strict=False):
            within = KeyRange((lower,), (upper,))
            kept = [k for k in self._present if lower.encode() <= k.encode() < upper.encode()]
            assert self._keys(flat(rows_between(self._session, self._shape, within))) == sorted(
                kept
            )

    def _by_name(self) -> None:
        for text in self._strings:
            for derivation in (
                Derivation((text,)),
                Derivation(None, ColumnPredicate(text, Operator.IS_NULL)),
            ):
                with pytest.raises(DriftlineError):
                    self._session.derive(self._shape, derivation)


def test_hostile_strings_leave_the_statements_of_harmless_ones(
    server: OnPostgreSQL | OnMariaDB,  # a fixture
    tmp_path: Path,
) -> None:
    expected = Asked(server, "harmless", harmless()).statements
    assert len(expected) > 5
    asked = Asked(server, "hostile", hostile())
    assert asked.statements == expected
    secret = tmp_path / "reader.password"
    secret.write_text(server.password)
    secret.chmod(0o600)
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "{server.url}"\npassword_file = "reader.password"\n[server]\n'
        'listen = "127.0.0.1:0"\ninsecure = true\n[relations.hostile]\ntable = "hostile"\n'
        'derive = ["columns", "rows"]\n'
    )
    explained = command(tmp_path, "explain", "--verbose")
    assert explained.returncode == 0, explained
    assert len(asked.logged) > COUNT / 20
    assert strangers(asked.logged, explained.stdout) == []
    assert strangers(["SELECT k FROM secret"], explained.stdout) != []
