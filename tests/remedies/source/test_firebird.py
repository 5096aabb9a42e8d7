"""Remedies for databases of Firebird: with what each says, they are opened, and rows are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driftline.errors import DriftlineError

from source_agent.engines.conformance.reads import Read, rows_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.remedies.told import told

if TYPE_CHECKING:
    from tests.harness.legacy_firebird import OfFirebird

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]
T = Relation("t", table="t")


@pytest.fixture(scope="module")
def legacy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfFirebird]:
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path_factory.mktemp("firebird"), server)
    made.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY,'
        ' "v" BLOB SUB_TYPE TEXT CHARACTER SET WIN1252)'
    )
    made.insert("t", [(1, "é")])
    made.run('CREATE TABLE "o" ("id" INT NOT NULL PRIMARY KEY)')
    yield made
    made.close()


def rows(url: str, password: str | None, relation: Relation = T) -> list[Read]:
    with closing(connect(url, password, Limits()).open()) as session:
        return rows_of(session, session.describe(relation))


def test_a_url_that_leads_nowhere(legacy: OfFirebird) -> None:
    file = Path(legacy.url.rpartition("/")[2])
    with pytest.raises(DriftlineError) as caught:
        rows(legacy.url.replace(file.name, "none.fdb"), legacy.password)
    told(caught.value, "Check the URL, the server and the account's rights.")
    assert rows(legacy.url, legacy.password) == [["1", "é"]]


def test_a_login_that_may_not_read(legacy: OfFirebird) -> None:
    url = legacy.granted('GRANT SELECT ON "o" TO USER NOBODY_YET;', "nobody_yet")
    with pytest.raises(DriftlineError) as caught:
        rows(url, "pw")
    told(caught.value, "GRANT SELECT on it to the login.")
    legacy.run('GRANT SELECT ON "t" TO USER NOBODY_YET')
    assert rows(url, "pw") == [["1", "é"]]


def test_a_password_that_is_wrong(legacy: OfFirebird) -> None:
    if legacy.password is None:
        pytest.skip("the embedded engine knows no passwords")
    with pytest.raises(DriftlineError) as caught:
        rows(legacy.url, "not it")
    told(caught.value, "Check the user and password.")
    assert rows(legacy.url, legacy.password) == [["1", "é"]]
