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
from source_agent.config.site_joins import chosen, site_joins
from source_agent.engines.conformance.reads import decoded, flat
from source_agent.engines.registry import connect
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.postgresql

DDL = """
CREATE TABLE size (code varchar(9) COLLATE "C", n int, wide boolean, PRIMARY KEY (code, n));
CREATE TABLE item (id int PRIMARY KEY, code text, n bigint, FOREIGN KEY (n, code)
    REFERENCES size (n, code));
CREATE TABLE hen (id int PRIMARY KEY, egg int, mother int REFERENCES hen);
CREATE TABLE egg (id int PRIMARY KEY, hen int REFERENCES hen, age int);
ALTER TABLE hen ADD FOREIGN KEY (egg) REFERENCES egg;
INSERT INTO hen VALUES (1, NULL, NULL), (2, NULL, 1), (3, NULL, 1);
INSERT INTO egg VALUES (1, 1, 5), (2, NULL, 5), (3, 2, 9), (4, 1, 9);
UPDATE hen SET egg = 4 WHERE id = 3;
INSERT INTO size VALUES ('a', 1, true), ('a', 2, false), ('b', 1, true);
INSERT INTO item VALUES (1, 'a', 1), (2, 'a', 2), (3, NULL, 1), (4, 'b', NULL), (5, 'b', 1);
"""
RELATIONS = """
[relations.size]
table = "size"
derive = ["rows", "joins"]
[relations.item]
table = "item"
derive = ["rows", "joins"]
[relations.hen]
table = "hen"
derive = ["rows", "joins"]
[relations.egg]
table = "egg"
derive = ["rows", "joins"]
"""


@pytest.fixture
def config(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[SourceConfig]:
    database = postgresql.create_database(f"s{uuid.uuid4().hex[:10]}")
    login = f"l{database}"
    password = postgresql.create_login(login)
    with postgresql.superuser(database) as connection:
        connection.execute(DDL.encode())
        connection.execute(f'GRANT SELECT ON size, item, hen, egg TO "{login}"')
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


def ids(config: SourceConfig, rows: ReferencePredicate, relation: str = "item") -> list[int]:
    """The numbers in the keys of the rows that are chosen; none are offered: no join is."""
    database, relations = config.database, config.relations
    engine = connect(database.url, database.password, database.limits)
    with closing(engine.open()) as session:
        shape = session.describe(relations[relation].relation)
        if not site_joins(session, relations[relation], shape, relations, [rows.relation]):
            return []
        derivation = Derivation(None, rows)
        made = chosen(session, relations[relation], shape, derivation, relations)
        names = [column.name for column in made.recipe.columns]
        place = names.index("n" if relation == "size" else "id")
        return sorted(int(decoded(row, made)[place] or "") for row in flat(session.scan(made)))


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


def test_rows_that_reference_others_over_two_columns(
    config: SourceConfig, postgresql: PostgreSQL
) -> None:
    """A foreign key with a NULL references nothing; one that is not valid promises nothing."""
    name = config.database.url.partition("?")[0].rpartition("/")[2]
    with postgresql.superuser(name) as connection:
        connection.execute("ALTER TABLE item DROP CONSTRAINT item_n_code_fkey")
        connection.execute("INSERT INTO item VALUES (6, 'none', 7), (7, 'a', 2), (8, 'a', NULL)")
        connection.execute(
            "ALTER TABLE item ADD FOREIGN KEY (n, code) REFERENCES size (n, code) NOT VALID"
        )
    late = ColumnPredicate("id", Operator.GREATER_EQUAL, ("3",))
    rows = ReferencePredicate(("code", "n"), "item", ("code", "n"), late, (("id", "int4"),))
    assert ids(config, rows, "size") == [1, 2], "b, 1 by item 5; a, 2 by item 7"
    with postgresql.superuser(name) as connection:
        connection.execute("ALTER TABLE item ENABLE ROW LEVEL SECURITY")
        connection.execute("CREATE POLICY some_items ON item USING (id < 7)")
    assert ids(config, rows, "size") == [], "rows that a policy hides choose none"


def test_relations_that_reference_each_other_and_themselves(config: SourceConfig) -> None:
    old = ColumnPredicate("age", Operator.GREATER, ("6",))
    typed = (("age", "int4"),)
    assert ids(config, ReferencePredicate(("egg",), "egg", ("id",), old, typed), "hen") == [3]
    assert ids(config, ReferencePredicate(("id",), "egg", ("hen",), old, typed), "hen") == [1, 2]
    database, relations = config.database, config.relations
    with closing(connect(database.url, database.password, database.limits).open()) as session:
        shape = session.describe(relations["hen"].relation)
        joins = site_joins(session, relations["hen"], shape, relations, ["hen", "egg", "item"])
    paths = {one.joinable.path: one.joins for one in joins}
    assert paths.keys() == {
        ("egg", frozenset({("egg", "id")})),
        ("egg", frozenset({("id", "hen")})),
    }
    assert not any(paths.values()), "no path returns to where it was"
