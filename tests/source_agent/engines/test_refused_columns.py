"""Every column that refuses is named at once, with value and key; never one a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError, ValueDoesNotFit, together
from driftline.limits import COLUMNS_NAMED_MAX

from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfMariaDB
from tests.harness.legacy import SqliteLegacy
from tests.harness.servers import MariaDB


def test_values_of_all_columns_are_named_at_the_source(tmp_path: Path) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, a INT, note TEXT, b DATE)")
    legacy.many("INSERT INTO t VALUES (?, ?, ?, ?)", [(1, 1, "n", "2024-02-29"), (7, "x", "n", 3)])
    relation = Relation(name="terms", table="t")
    with (
        closing(legacy),
        closing(connect(legacy.url, None, Limits()).open()) as session,
        pytest.raises(ValueDoesNotFit) as caught,
    ):
        list(session.scan(session.describe(relation)))
    error = caught.value
    assert error.where == "terms"
    assert error.message.count("in the row with key 7.") == 2
    assert "'x'" in error.message
    assert "'3'" in error.message
    assert (
        error.remedy
        == 'Set as_text = ["a", "b"] in source.toml, or publish a query that casts them.'
    )
    assert error.details == {
        "1. value": "x", "1. key": "7", "2. value": "3", "2. key": "7",
    }  # fmt: skip


def test_one_column_keeps_its_place(tmp_path: Path) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, a INT)")
    legacy.execute("INSERT INTO t VALUES (7, 'x')")
    with (
        closing(legacy),
        closing(connect(legacy.url, None, Limits()).open()) as session,
        pytest.raises(ValueDoesNotFit) as caught,
    ):
        list(session.scan(session.describe(Relation(name="terms", table="t"))))
    assert caught.value.where == "terms.a"
    assert caught.value.details == {"value": "x", "key": "7"}


def test_types_of_all_columns_are_refused_at_once(mariadb: MariaDB) -> None:
    with closing(OfMariaDB(mariadb)) as legacy:
        legacy.run(
            "CREATE TABLE t (id int PRIMARY KEY, a varchar(9) CHARACTER SET sjis,"
            " ok int, b varchar(9) CHARACTER SET gbk)"
        )
        with (
            closing(connect(legacy.url, None, Limits()).open()) as session,
            pytest.raises(ConfigurationError) as caught,
        ):
            session.describe(Relation(name="terms", table="t"))
    error = caught.value
    assert error.where == "terms"
    for words in ("'a'", "sjis", "'b'", "gbk"):
        assert words in error.message
    for column in ("a", "b"):
        assert f'as_text = ["{column}"]' in error.remedy


def test_what_one_error_names_is_bounded() -> None:
    errors = [ValueDoesNotFit(f"Column {n}.") for n in range(COLUMNS_NAMED_MAX + 3)]
    message = together(errors).message
    assert message.count("Column") == COLUMNS_NAMED_MAX
    assert message.endswith("And 3 more.")
