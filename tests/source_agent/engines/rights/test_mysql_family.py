"""Whatever MariaDB or MySQL lets the login do, `check` has a line of it.

Each right is granted once. What the products have in common is one table of cases.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pymysql
import pytest

from source_agent.engines.interface import Limits, Privilege
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.rights import mysql_family as rights
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfMySQL, of_family
from tests.harness.servers import FamilyServer

ITEMS: Final = Relation("items", table="items")


@dataclass(frozen=True)
class Case:
    """`grant` to {login}, or to {role} or {default}, of which {login} is a member, or to PUBLIC."""

    grant: str
    line: str
    weight: str = "EXCESS"
    undo: str = ""  # of what DROP USER and DROP ROLE do not take back


# Of both products. {role}, {default}: granted to {login}, the second as its default role.
SHARED: Final = [
    Case("GRANT FILE ON *.* TO {login}", "FILE on everything"),
    Case("GRANT USAGE ON *.* TO {login} WITH GRANT OPTION", "GRANT OPTION on everything"),
    Case("GRANT SUPER ON *.* TO {role}", "SUPER on everything, by role {role}"),
    Case("GRANT SUPER ON *.* TO {default}", "SUPER on everything, by role {default}"),
    Case("GRANT {deep} TO {login} WITH ADMIN OPTION", "may grant membership of role {deep}"),
    Case("GRANT PROXY ON root TO {login}", "PROXY on account root@%"),
    Case("GRANT SELECT ON {db}.* TO {login}", "SELECT on every table of {db}"),
    Case("GRANT INSERT ON {db}.* TO {default}", "INSERT on every table of {db}, by role {default}"),
    Case("GRANT ALL ON {db}.* TO {role}", "ALL PRIVILEGES on every table of {db}, by role {role}"),
    Case("GRANT SELECT ON {db}.others TO {login}", "SELECT on {db}.others"),
    Case("GRANT SELECT (id), UPDATE (n) ON {db}.others TO {login}", "UPDATE on {db}.others"),
    Case(
        "GRANT UPDATE (n) ON {db}.others TO {login}; GRANT SELECT (id) ON {db}.others TO {role}",
        "SELECT on {db}.others, by role {role}",
    ),
    Case("GRANT UPDATE ON *.* TO {login}; GRANT DELETE ON *.* TO {role}", "UPDATE on everything"),
    Case(
        "GRANT SELECT ON {db}.items TO {login} WITH GRANT OPTION",
        "SELECT on {db}.items with GRANT OPTION",
    ),
    Case("GRANT DELETE ON {db}.items TO {role}", "DELETE on {db}.items, by role {role}"),
    Case(
        "GRANT EXECUTE ON PROCEDURE {db}.p TO {role}", "EXECUTE on procedure {db}.p, by role {role}"
    ),
    Case("GRANT EXECUTE ON FUNCTION {db}.f TO {login}", "EXECUTE on function {db}.f"),
    Case(
        "CREATE ROLE `a @ b`; GRANT SUPER ON *.* TO `a @ b`; GRANT `a @ b` TO {login}",
        "SUPER on everything, by role a @ b",
        undo="DROP ROLE `a @ b`",
    ),
    Case(
        "CREATE USER ''@'%'; GRANT INSERT ON {db2}.* TO ''@'%'",
        "sees database {db2}, which no grant shown to it names: look for an anonymous account"
        " (mysql.db), whose grants count for every login",
        "note",
        "DROP USER ''@'%'",
    ),
]
OF_MARIADB: Final = [
    Case("GRANT ALL ON *.* TO {login}", "ALL PRIVILEGES on everything"),
    Case(
        "GRANT {deep} TO {role}; GRANT BINLOG ADMIN ON *.* TO {deep}",
        "BINLOG ADMIN on everything, by role {deep}",
    ),
    Case("GRANT SELECT ON {db}.items TO {role}", "SELECT on {db}.items, by role {role}", "needed"),
    Case(
        "GRANT CREATE TEMPORARY TABLES ON {db}.* TO PUBLIC",
        "CREATE TEMPORARY TABLES on every table of {db}, which PUBLIC has",
        "note",
        "REVOKE ALL ON {db}.* FROM PUBLIC",
    ),
    Case(
        "GRANT UPDATE (n) ON {db}.items TO PUBLIC",
        "UPDATE on {db}.items, which PUBLIC has",
        "note",
        "REVOKE ALL ON {db}.items FROM PUBLIC",
    ),
    Case(
        "GRANT SELECT ON mysql.global_priv TO {role}", "SELECT on mysql.global_priv, by role {role}"
    ),
]
_PARTIAL: Final = "SET GLOBAL partial_revokes = ON"
_WHOLE: Final = "REVOKE ALL ON *.* FROM {login}, {role}; SET GLOBAL partial_revokes = OFF"
_MANDATORY: Final = "SET GLOBAL mandatory_roles = 'none,{deep}@`%`'"
_NO_MANDATORY: Final = "SET GLOBAL mandatory_roles = ''"
OF_MYSQL: Final = [
    Case("GRANT ALL ON *.* TO {login}", "CREATE USER on everything"),
    Case("GRANT ALL ON *.* TO {role}", "BACKUP_ADMIN on everything, by role {role}"),
    Case(
        "GRANT {deep} TO {role}; GRANT BACKUP_ADMIN ON *.* TO {deep}",
        "BACKUP_ADMIN on everything, by role {role}",
    ),
    Case(
        "GRANT {deep} TO {role} WITH ADMIN OPTION",
        "may grant membership of role {deep}, by role {role}",
    ),
    Case(
        "GRANT ROLE_ADMIN ON *.* TO {default} WITH GRANT OPTION",
        "ROLE_ADMIN on everything with GRANT OPTION, by role {default}",
    ),
    Case(
        "REVOKE SELECT ON {db}.items FROM {login}; GRANT SELECT ON {db}.items TO {default}",
        "SELECT on {db}.items, by role {default}",
        "needed",
        "GRANT SELECT ON {db}.items TO {login}",
    ),
    Case(
        "CREATE ROLE {deep}@'10.%'; GRANT SUPER ON *.* TO {deep}@'10.%';"
        " GRANT {deep}@'10.%' TO {login}",
        "SUPER on everything, by role {deep}@10.%",
        undo="DROP ROLE {deep}@'10.%'",
    ),
    Case("GRANT SELECT ON mysql.user TO {role}", "SELECT on mysql.user, by role {role}"),
    Case(
        f"{_PARTIAL}; GRANT UPDATE ON *.* TO {{login}}; REVOKE UPDATE ON mysql.* FROM {{login}};"
        " REVOKE UPDATE ON {db2}.* FROM {login}",
        "UPDATE on everything but {db2}, mysql",
        undo=_WHOLE,
    ),
    Case(
        f"{_PARTIAL}; GRANT UPDATE ON *.* TO {{login}}; REVOKE UPDATE ON mysql.* FROM {{login}};"
        " GRANT UPDATE ON *.* TO {role}",
        "UPDATE on everything, by role {role}",
        undo=_WHOLE,
    ),
    Case(
        f"{_PARTIAL}; GRANT UPDATE ON *.* TO {{login}}; REVOKE UPDATE ON mysql.* FROM {{login}};"
        " GRANT UPDATE ON mysql.* TO {role}",
        "UPDATE on everything, by role {role}",
        undo=_WHOLE,
    ),
    Case(
        f"GRANT DELETE ON {{db}}.items TO {{deep}}; {_MANDATORY}",
        "DELETE on {db}.items, by role {deep}, which is mandatory",
        "note",
        _NO_MANDATORY,
    ),
    Case(
        f"GRANT {{role}} TO {{deep}} WITH ADMIN OPTION; {_MANDATORY}",
        "may grant membership of role {role}, by role {deep}, which is mandatory",
        "note",
        _NO_MANDATORY,
    ),
    Case(
        f"GRANT {{deep}} TO {{login}} WITH ADMIN OPTION; {_MANDATORY}",
        "may grant membership of role {deep}",
        undo=_NO_MANDATORY,
    ),
]
CASES: Final = [
    *(pytest.param(name, case, id=f"{name}-{case.line}") for name in FAMILY for case in SHARED),
    *(
        pytest.param(name, case, id=f"{name}-{case.line}", marks=marks)
        for name, cases, marks in (
            ("mariadb", OF_MARIADB, [pytest.mark.mariadb_alone]),
            ("mysql", OF_MYSQL, []),
        )
        for case in cases
    ),
]


@dataclass(frozen=True)
class Site:
    """A database with a login that has what the script of grants gives, and a password."""

    legacy: OfMariaDB
    url: str
    names: dict[str, str]

    def named(self, text: str) -> str:
        return text.format(**self.names)

    def run(self, text: str) -> None:
        self.legacy.run(*(sql for sql in self.named(text).split("; ") if sql))

    def login(self) -> pymysql.Connection[Any]:
        socket = str(self.legacy.server.socket)
        login = self.names["login"]
        return pymysql.connect(unix_socket=socket, user=login, password="pw", ssl_disabled=True)

    def privileges(self) -> set[Privilege]:
        return set(connect(self.url, "pw", Limits()).privileges([ITEMS]))


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Callable[[str], tuple[OfMariaDB, OfMariaDB]]]:
    """Two databases of a product, made at their first use, the first with tables and routines."""
    found: dict[str, tuple[OfMariaDB, OfMariaDB]] = {}

    def databases(name: str) -> tuple[OfMariaDB, OfMariaDB]:
        if name not in found:
            server: FamilyServer = request.getfixturevalue(name)
            found[name] = of_family(server), of_family(server)
            found[name][0].run(
                "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
                "CREATE TABLE others (id INT PRIMARY KEY, n INT)",
                "CREATE PROCEDURE p() SELECT 1",
                "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 1",
            )
        return found[name]

    yield databases
    for legacy in (legacy for pair in found.values() for legacy in pair):
        legacy.close()


@pytest.fixture(params=FAMILY)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(name: str, made: Callable[[str], tuple[OfMariaDB, OfMariaDB]]) -> Iterator[Site]:
    legacy, other = made(name)
    mark = uuid.uuid4().hex[:8]
    names = {"login": f"l{mark}", "role": f"r{mark}", "default": f"d{mark}", "deep": f"s{mark}"}
    login, *roles = names.values()
    script = legacy.connect().grants([ITEMS], login=login, connections=6)
    url = legacy.granted(script, login)
    names |= {"db": legacy.database, "db2": other.database}
    site = Site(legacy, url, names)
    site.run("CREATE ROLE {role}; CREATE ROLE {default}; CREATE ROLE {deep}")
    site.run("GRANT {role} TO {login}; GRANT {default} TO {login}")
    to = "TO" if isinstance(legacy, OfMySQL) else "FOR"
    site.run(f"SET DEFAULT ROLE {{default}} {to} {{login}}")
    yield site
    legacy.run(f"DROP USER {login}", *(f"DROP ROLE {role}" for role in roles))


def weight(privilege: Privilege) -> str:
    return "note" if privilege.is_note else "EXCESS" if privilege.excess else "needed"


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_right_is_a_line(site: Site, case: Case) -> None:
    before = site.privileges()
    try:
        site.run(case.grant)
        found = {p.what: weight(p) for p in site.privileges() - before}
    finally:
        site.run(case.undo)
    assert found.get(site.named(case.line)) == case.weight, found


def test_what_a_login_has_itself_is_no_right_of_its_roles(site: Site) -> None:
    """MySQL shows both as one: a role that adds DELETE shows UPDATE again."""
    site.run("GRANT UPDATE ON {db}.items TO {login}; GRANT DELETE ON {db}.items TO {role}")
    assert {p.what for p in site.privileges()} == {
        site.named("SELECT on {db}.items"),
        site.named("UPDATE on {db}.items"),
        site.named("DELETE on {db}.items, by role {role}"),
    }


def test_what_the_script_grants_is_needed_and_nothing_else_is_said(site: Site) -> None:
    found = {p.what: weight(p) for p in site.privileges()}
    assert found == {site.named("SELECT on {db}.items"): "needed"}


def test_each_privilege_of_this_release_by_a_role(site: Site) -> None:
    """Ask the server what there is, so that a new release brings its own cases."""
    names = privileges_of_release(site)
    assert {"SUPER", "FILE"} <= names
    assert {"BINLOG ADMIN", "DELETE HISTORY"} <= names or {"BINLOG_ADMIN", "SHOW_ROUTINE"} <= names
    for name in names:
        site.run(f"GRANT {name} ON *.* TO {{role}}")
    excess = {p.what for p in site.privileges() if p.excess}
    all_ = site.named("ALL PRIVILEGES on everything, by role {role}")
    told = {site.named(f"{name} on everything, by role {{role}}") for name in names}
    assert all_ in excess or told <= excess, told - excess


def test_a_database_is_explained_by_a_right_that_shows_it(site: Site) -> None:
    """A right on everything that shows no database hides no note of one."""
    shown = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '{db2}'"
    showing = set()
    for name in sorted(privileges_of_release(site)):
        site.run(f"GRANT {name} ON *.* TO {{login}}")
        with site.login() as login, login.cursor() as cursor:
            cursor.execute(site.named(shown))
            if cursor.fetchone() == (1,):
                showing.add(name)
        site.run(f"REVOKE {name} ON *.* FROM {{login}}")
    assert {"SELECT", "SHOW DATABASES"} <= showing <= rights.SHOWING
    assert not rights.SHOWING & (privileges_of_release(site) - showing)


def privileges_of_release(site: Site) -> set[str]:
    with site.legacy.server.admin() as admin, admin.cursor() as cursor:
        cursor.execute("SHOW PRIVILEGES")
        names = {str(row[0]).upper() for row in cursor.fetchall()}
    names -= {"USAGE", "PROXY", "GRANT OPTION"}
    return {name.replace("DELETE VERSIONING ROWS", "DELETE HISTORY") for name in names}


def test_a_name_in_a_grant_may_hold_anything() -> None:
    given, roles = rights.parse(
        "GRANT SELECT (`a`, `b) ON c`), UPDATE ON `x`` TO `.`t.\"u` TO `us'er`@`%`"
        " IDENTIFIED BY PASSWORD '*WITH GRANT OPTION' WITH MAX_USER_CONNECTIONS 6"
    )
    assert ([right.name for right in given], roles) == (["SELECT", "UPDATE"], [])
    for right in given:
        assert right.place == ("x` TO ", 't."u')
        assert (right.role, right.is_public, right.is_grantable) == ("", False, False)
    assert rights.parse("SET DEFAULT ROLE `r` FOR `u`@`%`") == ([], [])
    _, roles = rights.parse("GRANT `a @ b`@`%`,`o`@`10.%` TO `u`@`%`")
    assert roles == [("a @ b", "%"), ("o", "10.%")]


def test_a_password_is_not_printed(site: Site) -> None:
    assert not any("*" in p.what or "PASSWORD" in p.what for p in site.privileges())
