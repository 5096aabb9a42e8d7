"""Whatever MariaDB lets the login do, `check` has a line of it; each right is granted once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from source_agent.engines.interface import Limits, Privilege
from source_agent.engines.registry import connect
from source_agent.engines.rights.mysql_family import parse
from source_agent.engines.shapes import Relation
from tests.harness.legacies import OfMariaDB
from tests.harness.servers import MariaDB

ITEMS: Final = Relation("items", table="items")


@dataclass(frozen=True)
class Case:
    """`grant` to {login}, or to {role} or {default}, of which {login} is a member, or to PUBLIC."""

    grant: str
    line: str
    weight: str = "EXCESS"
    undo: str = ""  # of what DROP USER and DROP ROLE do not take back


CASES: Final = [
    Case("GRANT FILE ON *.* TO {login}", "FILE on everything"),
    Case("GRANT ALL ON *.* TO {login}", "ALL PRIVILEGES on everything"),
    Case("GRANT USAGE ON *.* TO {login} WITH GRANT OPTION", "GRANT OPTION on everything"),
    Case("GRANT SUPER ON *.* TO {role}", "SUPER on everything, by role {role}"),
    Case("GRANT SUPER ON *.* TO {default}", "SUPER on everything, by role {default}"),
    Case(
        "GRANT {deep} TO {role}; GRANT BINLOG ADMIN ON *.* TO {deep}",
        "BINLOG ADMIN on everything, by role {deep}",
    ),
    Case("GRANT {deep} TO {login} WITH ADMIN OPTION", "may grant membership of role {deep}"),
    Case("GRANT PROXY ON root TO {login}", "PROXY on account root@%"),
    Case("GRANT SELECT ON {db}.* TO {login}", "SELECT on every table of {db}"),
    Case("GRANT INSERT ON {db}.* TO {default}", "INSERT on every table of {db}, by role {default}"),
    Case(
        "GRANT CREATE TEMPORARY TABLES ON {db}.* TO PUBLIC",
        "CREATE TEMPORARY TABLES on every table of {db}, which PUBLIC has",
        "note",
        "REVOKE ALL ON {db}.* FROM PUBLIC",
    ),
    Case("GRANT SELECT ON {db}.others TO {login}", "SELECT on {db}.others"),
    Case("GRANT SELECT (id), UPDATE (n) ON {db}.others TO {login}", "UPDATE on {db}.others"),
    Case("GRANT SELECT ON {db}.items TO {role}", "SELECT on {db}.items, by role {role}", "needed"),
    Case(
        "GRANT SELECT ON {db}.items TO {login} WITH GRANT OPTION",
        "SELECT on {db}.items with GRANT OPTION",
    ),
    Case("GRANT DELETE ON {db}.items TO {role}", "DELETE on {db}.items, by role {role}"),
    Case(
        "GRANT UPDATE (n) ON {db}.items TO PUBLIC",
        "UPDATE on {db}.items, which PUBLIC has",
        "note",
        "REVOKE ALL ON {db}.items FROM PUBLIC",
    ),
    Case(
        "GRANT EXECUTE ON PROCEDURE {db}.p TO {role}", "EXECUTE on procedure {db}.p, by role {role}"
    ),
    Case("GRANT EXECUTE ON FUNCTION {db}.f TO {login}", "EXECUTE on function {db}.f"),
    Case(
        "GRANT SELECT ON mysql.global_priv TO {role}", "SELECT on mysql.global_priv, by role {role}"
    ),
    Case(
        "CREATE USER ''@'%'; GRANT INSERT ON {db2}.* TO ''@'%'",
        "sees database {db2}, which no grant shown to it names: look for an anonymous account"
        " (mysql.db), whose grants count for every login",
        "note",
        "DROP USER ''@'%'",
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

    def privileges(self) -> set[Privilege]:
        return set(connect(self.url, "pw", Limits()).privileges([ITEMS]))


pytestmark = pytest.mark.mariadb_alone  # roles of MySQL have other statements


@pytest.fixture(scope="module")
def databases(mariadb: MariaDB) -> Iterator[tuple[OfMariaDB, OfMariaDB]]:
    legacy, other = OfMariaDB(mariadb), OfMariaDB(mariadb)
    legacy.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE others (id INT PRIMARY KEY, n INT)",
        "CREATE PROCEDURE p() SELECT 1",
        "CREATE FUNCTION f() RETURNS INT RETURN 1",
    )
    yield legacy, other
    legacy.close()
    other.close()


@pytest.fixture
def site(databases: tuple[OfMariaDB, OfMariaDB]) -> Iterator[Site]:
    legacy, other = databases
    mark = uuid.uuid4().hex[:8]
    names = {"login": f"l{mark}", "role": f"r{mark}", "default": f"d{mark}", "deep": f"s{mark}"}
    login, *roles = names.values()
    script = legacy.connect().grants([ITEMS], login=login, connections=6)
    url = legacy.granted(script, login)
    names |= {"db": legacy.database, "db2": other.database}
    site = Site(legacy, url, names)
    site.run("CREATE ROLE {role}; CREATE ROLE {default}; CREATE ROLE {deep}")
    site.run("GRANT {role} TO {login}; GRANT {default} TO {login}")
    site.run("SET DEFAULT ROLE {default} FOR {login}")
    yield site
    legacy.run(f"DROP USER {login}", *(f"DROP ROLE {role}" for role in roles))


def weight(privilege: Privilege) -> str:
    return "note" if privilege.is_note else "EXCESS" if privilege.excess else "needed"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_a_right_is_a_line(site: Site, case: Case) -> None:
    before = site.privileges()
    site.run(case.grant)
    try:
        found = {p.what: weight(p) for p in site.privileges() - before}
    finally:
        site.run(case.undo)
    assert found.get(site.named(case.line)) == case.weight, found


def test_what_the_script_grants_is_needed_and_nothing_else_is_said(site: Site) -> None:
    found = {p.what: weight(p) for p in site.privileges()}
    assert found == {site.named("SELECT on {db}.items"): "needed"}


def test_each_privilege_of_this_release_by_a_role(site: Site) -> None:
    """Ask the server what there is, so that a new release brings its own cases."""
    with site.legacy.server.admin() as admin, admin.cursor() as cursor:
        cursor.execute("SHOW PRIVILEGES")
        names = {str(row[0]).upper() for row in cursor.fetchall()} - {
            "USAGE",
            "PROXY",
            "GRANT OPTION",
        }
        names = {name.replace("DELETE VERSIONING ROWS", "DELETE HISTORY") for name in names}
    assert {"SUPER", "FILE", "BINLOG ADMIN", "DELETE HISTORY"} <= names
    for name in names:
        site.run(f"GRANT {name} ON *.* TO {{role}}")
    excess = {p.what for p in site.privileges() if p.excess}
    all_ = site.named("ALL PRIVILEGES on everything, by role {role}")
    told = {site.named(f"{name} on everything, by role {{role}}") for name in names}
    assert all_ in excess or told <= excess, told - excess


def test_a_name_in_a_grant_may_hold_anything() -> None:
    grant = parse(
        "GRANT SELECT (`a`, `b) ON c`), UPDATE ON `x`` TO `.`t.\"u` TO `us'er`@`%`"
        " IDENTIFIED BY PASSWORD '*WITH GRANT OPTION' WITH MAX_USER_CONNECTIONS 6"
    )
    assert grant is not None
    assert (grant.rights, grant.place) == (("SELECT", "UPDATE"), ("x` TO ", 't."u'))
    assert (grant.role, grant.is_public, grant.is_grantable) == ("", False, False)
    assert parse("SET DEFAULT ROLE `r` FOR `u`@`%`") is None


def test_a_password_is_not_printed(site: Site) -> None:
    assert not any("*" in p.what or "PASSWORD" in p.what for p in site.privileges())
