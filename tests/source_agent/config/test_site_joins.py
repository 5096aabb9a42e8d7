"""Which joins a source offers of a database with policies, and how it joins over two columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline.relations.derivations import (
    ColumnPredicate,
    Derivation,
    Operator,
    ReferencePredicate,
)

from source_agent.config.file import SourceConfig, load
from source_agent.config.site_joins import site_joins
from source_agent.engines.conformance.reads import flat
from source_agent.engines.registry import connect
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.postgresql

DDL = """
CREATE TABLE size (code varchar(9) COLLATE "C", n int, wide boolean, PRIMARY KEY (code, n));
CREATE TABLE item (id int PRIMARY KEY, code text, n bigint, FOREIGN KEY (n, code)
    REFERENCES size (n, code));
INSERT INTO size VALUES ('a', 1, true), ('a', 2, false), ('b', 1, true);
INSERT INTO item VALUES (1, 'a', 1), (2, 'a', 2), (3, NULL, 1), (4, 'b', NULL), (5, 'b', 1);
"""
RELATIONS = """
[relations.size]
table = "size"
derive = ["rows"]
[relations.item]
table = "item"
derive = ["rows", "joins"]
"""


@pytest.fixture
def config(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[SourceConfig]:
    database = postgresql.create_database(f"s{uuid.uuid4().hex[:10]}")
    login = f"l{database}"
    password = postgresql.create_login(login)
    with postgresql.superuser(database) as connection:
        connection.execute(DDL.encode())
        connection.execute(f'GRANT SELECT ON size, item TO "{login}"')
    secret = tmp_path / "password"
    secret.write_text(password)
    secret.chmod(0o600)
    file = tmp_path / "source.toml"
    file.write_text(
        f'[database]\nurl = "{postgresql.url(login, database)}"\npassword_file = "password"\n'
        f'[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n{RELATIONS}'
    )
    yield load(file)
    postgresql.drop_database(database)
    with postgresql.superuser() as connection:
        connection.execute(f'DROP ROLE "{login}"')


def ids(config: SourceConfig, rows: ReferencePredicate) -> list[int]:
    """The keys of the items that are chosen; none are offered: no join is."""
    database, relations = config.database, config.relations
    engine = connect(database.url, database.password, database.limits)
    with closing(engine.open()) as session:
        shape = session.describe(relations["item"].relation)
        joins = site_joins(session, relations["item"], shape, relations)
        if not joins:
            return []
        made = session.derive(shape, Derivation(None, rows), joins)
        return sorted(int.from_bytes(row[6:10]) for row in flat(session.scan(made)))


def test_two_columns_of_other_widths_and_a_policy(
    config: SourceConfig, postgresql: PostgreSQL
) -> None:
    is_one = ColumnPredicate("n", Operator.EQUAL, ("1",))
    rows = ReferencePredicate(("code", "n"), "size", ("code", "n"), is_one, (("n", "int4"),))
    assert ids(config, rows) == [1, 5], "a foreign key with a NULL references nothing"
    name = config.database.url.partition("?")[0].rpartition("/")[2]
    with postgresql.superuser(name) as connection:
        connection.execute("ALTER TABLE size ENABLE ROW LEVEL SECURITY")
        connection.execute("CREATE POLICY wide_ones ON size USING (wide)")
    assert ids(config, rows) == [], "rows that a policy hides choose none"
