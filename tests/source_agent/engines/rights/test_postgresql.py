"""Whatever PostgreSQL lets the login do, `check` has a line of it; each right is granted once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from source_agent.engines.interface import Engine, Limits, Privilege
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL

ITEMS: Final = Relation("items", table="shop.items")
SETUP: Final = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.items (id int PRIMARY KEY, name text)",
    "CREATE TABLE shop.others (id int PRIMARY KEY, name text)",
    "CREATE SEQUENCE shop.numbers",
    "CREATE FUNCTION shop.plain() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION shop.definer() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'",
    "REVOKE EXECUTE ON FUNCTION shop.plain(), shop.definer() FROM PUBLIC",
    "SELECT lo_create(77)",
    "CREATE FOREIGN DATA WRAPPER wrapper",
    "CREATE SERVER elsewhere FOREIGN DATA WRAPPER wrapper",
    "REVOKE TEMPORARY ON DATABASE {db} FROM PUBLIC",
    "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
)


@dataclass(frozen=True)
class Case:
    """`grant` to {login}, or to {role}, of which {login} is a member, or to PUBLIC."""

    grant: str
    line: str
    weight: str = "EXCESS"
    since: int = 14
    undo: str = ""  # of what neither DROP OWNED nor DROP ROLE takes back
    elsewhere: bool = False  # executed in another database


CASES: Final = [
    *(
        Case(f"ALTER ROLE {{login}} {word}", f"{{login}} has {word}")
        for word in ("CREATEDB", "CREATEROLE", "REPLICATION", "BYPASSRLS")
    ),
    *(
        Case(
            f"ALTER ROLE {{role}} {word}", f"role {{role}}, of which the login is a member, {told}"
        )
        for word, told in (
            ("CREATEDB", "has CREATEDB"),
            ("SUPERUSER", "is SUPERUSER: nothing is refused to it"),
        )
    ),
    Case("ALTER ROLE {login} SUPERUSER", "{login} is SUPERUSER: nothing is refused to it"),
    Case(
        "ALTER ROLE {role2} SUPERUSER; GRANT {role2} TO {role}",
        "role {role2}, of which the login is a member, is SUPERUSER: nothing is refused to it",
    ),
    Case(
        "ALTER ROLE {role2} SUPERUSER; GRANT {role2} TO {login} WITH INHERIT FALSE, SET TRUE",
        "role {role2}, of which the login is a member, is SUPERUSER: nothing is refused to it",
        since=16,
    ),
    Case("GRANT {role2} TO {login} WITH ADMIN OPTION", "may grant membership of role {role2}"),
    Case(
        "GRANT {role2} TO {role} WITH ADMIN OPTION",
        "may grant membership of role {role2}, by role {role}",
    ),
    Case(
        "GRANT {role2} TO {login} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE",
        "may grant membership of role {role2}",
        since=16,
    ),
    # Databases, schemas, tablespaces, settings.
    Case("GRANT CREATE ON DATABASE {db} TO {login}", "CREATE on database {db}"),
    Case("GRANT TEMP ON DATABASE {db} TO {role}", "TEMPORARY on database {db}, by role {role}"),
    Case(
        "GRANT TEMP ON DATABASE {db} TO PUBLIC",
        "TEMPORARY on database {db}, which PUBLIC has",
        "note",
        undo="REVOKE TEMP ON DATABASE {db} FROM PUBLIC",
    ),
    Case(
        "GRANT CREATE ON DATABASE {db2} TO {role}",
        "CREATE on database {db2}, by role {role}",
        undo="REVOKE CREATE ON DATABASE {db2} FROM {role}",
    ),
    Case(
        "ALTER DATABASE {db} OWNER TO {role}",
        "owns database {db}, by role {role}",
        undo="ALTER DATABASE {db} OWNER TO postgres",
    ),
    Case("GRANT CREATE ON SCHEMA shop TO {login}", "CREATE on schema shop"),
    Case("GRANT USAGE ON SCHEMA public TO {login}", "USAGE on schema public"),
    Case(
        "GRANT CREATE ON SCHEMA public TO PUBLIC",
        "CREATE on schema public, which PUBLIC has",
        "note",
        undo="REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    ),
    Case("GRANT CREATE ON SCHEMA pg_catalog TO {login}", "CREATE on schema pg_catalog"),
    Case("CREATE SCHEMA mine AUTHORIZATION {role}", "owns schema mine, by role {role}"),
    Case(
        "GRANT CREATE ON TABLESPACE pg_default TO {login}",
        "CREATE on tablespace pg_default",
        undo="REVOKE CREATE ON TABLESPACE pg_default FROM {login}",
    ),
    Case(
        "GRANT SET ON PARAMETER session_replication_role TO {role}",
        "SET of the setting session_replication_role, by role {role}",
        since=15,
    ),
    Case(
        "GRANT ALTER SYSTEM ON PARAMETER work_mem TO {login}",
        "ALTER SYSTEM of the setting work_mem",
        since=15,
    ),
    # Tables, columns, sequences; of today and of tomorrow.
    Case("GRANT SELECT ON shop.others TO {login}", "SELECT on shop.others"),
    Case("GRANT SELECT (id) ON shop.others TO {login}", "SELECT on shop.others"),
    Case("GRANT SELECT ON shop.items TO {role}", "SELECT on shop.items, by role {role}", "needed"),
    Case(
        "GRANT SELECT ON shop.items TO {login} WITH GRANT OPTION",
        "SELECT on shop.items with GRANT OPTION",
    ),
    Case("GRANT UPDATE (name) ON shop.items TO {login}", "UPDATE on shop.items"),
    Case(
        "GRANT {role2} TO {role}; GRANT INSERT ON shop.items TO {role2}",
        "INSERT on shop.items, by role {role2}",
    ),
    Case(
        "GRANT DELETE ON shop.items TO PUBLIC",
        "DELETE on shop.items, which PUBLIC has",
        "note",
        undo="REVOKE DELETE ON shop.items FROM PUBLIC",
    ),
    Case(
        "GRANT SELECT ON shop.items TO PUBLIC",
        "SELECT on shop.items, which PUBLIC has",
        "needed",
        undo="REVOKE SELECT ON shop.items FROM PUBLIC",
    ),
    Case(
        "CREATE TABLE shop.mine (); ALTER TABLE shop.mine OWNER TO {login}", "owns table shop.mine"
    ),
    Case("GRANT SELECT ON pg_authid TO {role}", "SELECT on pg_catalog.pg_authid, by role {role}"),
    Case(
        "GRANT SELECT ON pg_authid TO PUBLIC",
        "SELECT on pg_catalog.pg_authid, which PUBLIC has",
        "note",
        undo="REVOKE SELECT ON pg_authid FROM PUBLIC",
    ),
    Case("GRANT USAGE ON SEQUENCE shop.numbers TO {login}", "USAGE on sequence shop.numbers"),
    Case(
        "ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT INSERT ON TABLES TO {role}",
        "INSERT on every table that postgres will make in schema shop, by role {role}",
    ),
    Case(
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
        "SELECT on every table that postgres will make, which PUBLIC has",
        "note",
        undo="ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC",
    ),
    # All other objects.
    Case(
        "GRANT EXECUTE ON FUNCTION shop.plain TO {login}",
        "EXECUTE on function shop.plain()",
        "needed",
    ),
    Case(
        "GRANT EXECUTE ON FUNCTION shop.definer TO {login}",
        "EXECUTE on SECURITY DEFINER function shop.definer()",
    ),
    Case(
        "GRANT EXECUTE ON FUNCTION shop.definer TO PUBLIC",
        "EXECUTE on SECURITY DEFINER function shop.definer(), which PUBLIC has",
        "note",
        undo="REVOKE EXECUTE ON FUNCTION shop.definer FROM PUBLIC",
    ),
    Case(
        "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {role}",
        "EXECUTE on untrusted function pg_read_file(text), by role {role}",
    ),
    Case(
        "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO PUBLIC",
        "EXECUTE on untrusted function pg_read_file(text), which PUBLIC has",
        "note",
        undo="REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM PUBLIC",
    ),
    Case("GRANT UPDATE ON LARGE OBJECT 77 TO {role}", "UPDATE on 1 large object, by role {role}"),
    Case(
        "GRANT USAGE ON FOREIGN DATA WRAPPER wrapper TO {login}",
        "USAGE on foreign-data wrapper wrapper",
    ),
    Case("GRANT USAGE ON FOREIGN SERVER elsewhere TO {login}", "USAGE on foreign server elsewhere"),
    # Other databases.
    Case(
        "CREATE TABLE mine (id int); ALTER TABLE mine OWNER TO {role}",
        "owns 1 object of database {db2}, by role {role}",
        elsewhere=True,
    ),
    Case(
        "CREATE TABLE theirs (id int); GRANT INSERT ON theirs TO {login}",
        "has privileges on 1 object of database {db2}",
        elsewhere=True,
    ),
]


@dataclass(frozen=True)
class Site:
    """A database with a login that has what the script of grants gives."""

    legacy: OfPostgreSQL
    other: OfPostgreSQL
    release: int
    names: dict[str, str]

    @property
    def engine(self) -> Engine:
        return connect(
            self.legacy.server.url(self.names["login"], self.names["db"]), None, Limits()
        )

    def named(self, text: str) -> str:
        return text.format(**self.names)

    def privileges(self) -> set[Privilege]:
        return set(self.engine.privileges([ITEMS]))


@pytest.fixture(scope="module")
def databases(postgresql: PostgreSQL) -> Iterator[tuple[OfPostgreSQL, OfPostgreSQL]]:
    legacy, other = OfPostgreSQL(postgresql), OfPostgreSQL(postgresql)
    legacy.run(*(sql.format(db=legacy.database) for sql in SETUP))
    yield legacy, other
    legacy.close()
    other.close()


@pytest.fixture
def site(databases: tuple[OfPostgreSQL, OfPostgreSQL]) -> Iterator[Site]:
    legacy, other = databases
    mark = uuid.uuid4().hex[:8]
    names = {"login": f"l{mark}", "role": f"r{mark}", "role2": f"s{mark}"}
    roles = list(names.values())
    legacy.granted(legacy.connect().grants([ITEMS], login=roles[0], connections=6), roles[0])
    legacy.run(
        f"CREATE ROLE {roles[1]}", f"CREATE ROLE {roles[2]}", f"GRANT {roles[1]} TO {roles[0]}"
    )
    with legacy.server.superuser() as admin:
        release = admin.info.server_version // 10_000
    yield Site(legacy, other, release, names | {"db": legacy.database, "db2": other.database})
    other.run(*(f"DROP OWNED BY {role}" for role in roles))
    legacy.run(*(f"DROP OWNED BY {r}" for r in roles), *(f"DROP ROLE {r}" for r in roles))


def weight(privilege: Privilege) -> str:
    return "note" if privilege.is_note else "EXCESS" if privilege.excess else "needed"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_a_right_is_a_line(site: Site, case: Case) -> None:
    if case.since > site.release:
        pytest.skip(f"since PostgreSQL {case.since}")
    before = site.privileges()
    (site.other if case.elsewhere else site.legacy).run(site.named(case.grant))
    try:
        found = {p.what: weight(p) for p in site.privileges() - before}
    finally:
        site.legacy.run(*(site.named(sql) for sql in [case.undo] if sql))
    assert found.get(site.named(case.line)) == case.weight, found


def test_what_the_script_grants_is_needed_and_the_catalogue_says_nothing(site: Site) -> None:
    found = {p.what: weight(p) for p in site.privileges()}
    assert found == {
        site.named("CONNECT on database {db}"): "needed",
        "USAGE on schema shop": "needed",
        "SELECT on shop.items": "needed",
    }


def test_each_predefined_role_and_each_privilege_of_this_release(site: Site) -> None:
    """Ask the server what there is, so that a new release brings its own cases."""
    with site.legacy.server.superuser(site.names["db"]) as admin:
        sql = (
            "SELECT rolname FROM pg_roles WHERE rolname ~ '^pg_' AND rolname <> 'pg_database_owner'"
        )
        roles = {name for (name,) in admin.execute(sql)}
        sql = "SELECT privilege_type FROM aclexplode(acldefault('r', 10))"
        privileges = {name for (name,) in admin.execute(sql)}
    assert "pg_write_server_files" in roles
    assert "pg_maintain" in roles or site.release < 17
    assert {"TRUNCATE", *(["MAINTAIN"] if site.release >= 17 else [])} <= privileges
    site.legacy.run(*(site.named(f"GRANT {name} TO {{role}}") for name in roles))
    site.legacy.run(site.named(f"GRANT {', '.join(privileges)} ON shop.others TO {{role}}"))
    excess = {p.what for p in site.privileges() if p.excess}
    assert {f"membership of {name}" for name in roles} <= excess
    assert {site.named(f"{name} on shop.others, by role {{role}}") for name in privileges} <= excess


def test_many_owned_objects_are_counted(site: Site) -> None:
    """A login that owns the schema's tables is told so, and not by a thousand lines."""
    tables = [
        f"CREATE TABLE shop.t{i} (); ALTER TABLE shop.t{i} OWNER TO {{login}}" for i in range(25)
    ]
    site.legacy.run(*map(site.named, tables))
    owned = [p.what for p in site.engine.privileges([ITEMS]) if p.what.startswith("owns")]
    assert len(owned) == 21
    assert owned[-1] == "owns 5 objects more"


def test_queries_may_need_any_table(site: Site) -> None:
    site.legacy.run(site.named("GRANT SELECT, INSERT ON shop.others TO {login}"))
    relation = Relation("q", query="SELECT id FROM shop.others", key=("id",))
    found = {p.what: weight(p) for p in site.engine.privileges([relation])}
    assert found["SELECT on shop.others"] == "needed"
    assert found["INSERT on shop.others"] == "EXCESS"
