"""Whatever Firebird lets the login do, `check` has a line of it; each right is granted once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from driftline.errors import DatabaseRefused

from source_agent.engines.interface import Limits, Privilege
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation

if TYPE_CHECKING:
    from tests.harness.legacy_firebird import OfFirebird

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]
ITEMS: Final = Relation("items", table="items")


@dataclass(frozen=True)
class Case:
    """`grant` to READER, or to ROLE1, of which READER is a member, or to PUBLIC."""

    grant: str
    line: str
    weight: str = "EXCESS"
    since: float = 3.0


CASES: Final = [
    Case("GRANT RDB$ADMIN TO USER READER", "everything, by role RDB$ADMIN"),
    Case("GRANT DEFAULT RDB$ADMIN TO USER READER", "everything, by role RDB$ADMIN", since=4.0),
    Case("GRANT ROLE2 TO USER READER WITH ADMIN OPTION", "may grant membership of role ROLE2"),
    Case('GRANT INSERT ON "items" TO ROLE ROLE1', "INSERT on items, by role ROLE1"),
    Case('GRANT UPDATE ("n") ON "items" TO USER READER', "UPDATE on items"),
    Case('GRANT DELETE ON "items" TO PUBLIC', "DELETE on items, which PUBLIC has", "note"),
    Case('GRANT SELECT ON "others" TO USER READER', "SELECT on others"),
    Case('GRANT SELECT ON "items" TO ROLE ROLE1', "SELECT on items, by role ROLE1", "needed"),
    Case(
        'GRANT SELECT ON "items" TO USER READER WITH GRANT OPTION',
        "SELECT on items with GRANT OPTION",
    ),
    Case('GRANT REFERENCES ON "others" TO USER READER', "REFERENCES on others"),
    Case("GRANT EXECUTE ON PROCEDURE P TO ROLE ROLE1", "EXECUTE on procedure P, by role ROLE1"),
    Case("GRANT EXECUTE ON FUNCTION F TO USER READER", "EXECUTE on function F"),
    Case("GRANT USAGE ON SEQUENCE S TO USER READER", "USAGE on sequence S"),
    Case("GRANT CREATE TABLE TO USER READER", "CREATE TABLES"),
    Case("GRANT DROP ANY PROCEDURE TO ROLE ROLE1", "DROP ANY PROCEDURES, by role ROLE1"),
    Case("GRANT ALTER ANY ROLE TO USER READER", "ALTER ANY ROLES"),
    Case("GRANT ROLE2 TO ROLE ROLE1; GRANT INSERT ON \"others\" TO ROLE ROLE2",
         "INSERT on others, by role ROLE2", since=4.0),
    Case(
        "ALTER ROLE ROLE1 SET SYSTEM PRIVILEGES TO MODIFY_ANY_OBJECT_IN_DATABASE, USER_MANAGEMENT",
        "system privilege MODIFY_ANY_OBJECT_IN_DATABASE, by role ROLE1",
        since=4.0,
    ),
]  # fmt: skip


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OfFirebird]:
    if request.getfixturevalue("firebird") is not None:  # asked before the driver is imported
        pytest.skip("the embedded engine alone takes a login without a password")
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path, None)
    made.run(
        'CREATE TABLE "items" ("id" INT NOT NULL PRIMARY KEY, "n" INT)',
        'CREATE TABLE "others" ("id" INT NOT NULL PRIMARY KEY, "n" INT)',
        "CREATE PROCEDURE P AS BEGIN END",
        "CREATE FUNCTION F RETURNS INT AS BEGIN RETURN 1; END",
        "CREATE SEQUENCE S",
        "CREATE ROLE ROLE1",
        "CREATE ROLE ROLE2",
        "GRANT ROLE1 TO USER READER",
    )
    made.granted(made.connect().grants([ITEMS], login="reader", connections=6), "reader")
    yield made
    made.close()


def privileges(legacy: OfFirebird, relation: Relation = ITEMS) -> dict[str, str]:
    url = legacy.url.replace("firebird:///", "firebird://reader@/")
    found: list[Privilege] = connect(url, "pw", Limits()).privileges([relation])
    return {p.what: "note" if p.is_note else "EXCESS" if p.excess else "needed" for p in found}


def test_a_right_is_a_line(legacy: OfFirebird) -> None:
    """One database for all: its cases are granted one after the other."""
    assert privileges(legacy) == {"SELECT on items": "needed"}
    missing = []
    for case in CASES:
        if case.since <= legacy.version:
            legacy.run(*case.grant.split("; "))
            found = privileges(legacy)
            if found.get(case.line) != case.weight:
                missing.append((case.line, found))
    assert missing == []


def test_the_owner_of_an_object_is_named(legacy: OfFirebird) -> None:
    from firebird import driver

    legacy.run("GRANT CREATE TABLE TO USER READER", "GRANT CREATE SEQUENCE TO USER READER")
    path = legacy.url.removeprefix("firebird:///")
    with driver.connect(path, user="READER", charset="UTF8") as connection:
        connection.execute_immediate("CREATE TABLE MINE (ID INT)")
        connection.execute_immediate("CREATE SEQUENCE MY_NUMBERS")
        connection.commit()
    found = privileges(legacy)
    assert found["owns table or view MINE"] == "EXCESS"
    assert found["owns sequence MY_NUMBERS"] == "EXCESS"


def test_a_user_with_the_name_of_a_role_is_not_that_role(legacy: OfFirebird) -> None:
    legacy.run("CREATE ROLE READER2", 'GRANT INSERT ON "items" TO ROLE READER2')
    legacy.run('GRANT DELETE ON "others" TO USER ROLE1')
    assert privileges(legacy) == {"SELECT on items": "needed"}


def test_queries_may_need_any_table(legacy: OfFirebird) -> None:
    legacy.run('GRANT SELECT ON "others" TO USER READER', "GRANT EXECUTE ON FUNCTION F TO READER")
    relation = Relation("q", query='SELECT "id" FROM "others"', key=("id",))
    found = privileges(legacy, relation)
    assert (found["SELECT on others"], found["EXECUTE on function F"]) == ("needed", "needed")


MAPPINGS: Final = {
    "FROM USER READER TO ROLE ROLE1": {
        "INSERT on items, by role ROLE1": "EXCESS",
        "SELECT on items": "needed",
    },
    "FROM ANY USER TO ROLE ROLE1": {
        "INSERT on items, by role ROLE1": "EXCESS",
        "SELECT on items": "needed",
    },
    "FROM USER READER TO USER OTHER": {"UPDATE on items": "EXCESS"},
}


def test_what_a_mapping_gives_is_listed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The login is who the server says it is, with the role that is active."""
    server = request.getfixturevalue("firebird")
    if server is None:
        pytest.skip("the embedded engine maps nobody")
    from tests.harness.legacy_firebird import OfFirebird

    legacy = OfFirebird(tmp_path, server)
    legacy.run(
        'CREATE TABLE "items" ("id" INT NOT NULL PRIMARY KEY)',
        "CREATE ROLE ROLE1",
        "CREATE ROLE ROLE2",
        'GRANT INSERT ON "items" TO ROLE ROLE1',
        'GRANT UPDATE ON "items" TO USER OTHER',
    )
    url = legacy.granted(legacy.connect().grants([ITEMS], login="reader", connections=6), "reader")
    engine = connect(url, "pw", Limits())

    def found() -> dict[str, str]:
        listed = engine.privileges([ITEMS])
        return {p.what: "EXCESS" if p.excess else "needed" for p in listed if not p.is_note}

    try:
        assert found() == {"SELECT on items": "needed"}
        for mapping, expected in MAPPINGS.items():
            legacy.run(f"CREATE MAPPING M USING * {mapping}")
            assert found() == expected, mapping
            legacy.run("DROP MAPPING M")
        legacy.run(
            "CREATE MAPPING M USING * FROM USER READER TO ROLE ROLE1",
            "CREATE MAPPING N USING * FROM ANY USER TO ROLE ROLE2",
        )
        with pytest.raises(DatabaseRefused, match="Multiple maps") as caught:
            engine.open()
        assert "one mapping" in caught.value.remedy
        legacy.run("DROP MAPPING N")
        assert found() == MAPPINGS["FROM USER READER TO ROLE ROLE1"]
    finally:
        legacy.drop_login("reader")
        legacy.close()
