"""What a kept relation has: decided from a description, and refused where it is not offered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DerivationRefused, DriftlineError, RecipeChanged
from driftline.relations.derivations import Derivation

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment, Source
from warehouse_agent.refresh import derivation
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, VersionRecord
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import read_query

TYPES = {"id": "int4", "a": "int4", "t": "text", "note": "text"}
RECORD = VersionRecord(
    as_of="", checked_at="", consistency="exact", proof="total", rows=0, published_at=""
)


def reply(
    types: dict[str, str] = TYPES,
    *,
    derive: tuple[str, ...] = ("columns", "rows"),
    word: str = "order",
) -> pb.DescribeReply:
    columns = [
        pb.ColumnDescription(name=name, type=kind, ordinal=i, comparable=word)
        for i, (name, kind) in enumerate(types.items())
    ]
    description = pb.Description(
        columns=columns, key_columns=1, fingerprint_version=1, derive=derive, rows_expected=7
    )
    return pb.DescribeReply(database="sqlite", description=description)


def kept(*texts: str) -> Fragment:
    wishes = tuple(wish_of("v", read_query(text, where="v"), 0) for text in texts)
    return Fragment("erp.r", Source("erp", "erp:1"), "r", is_kept=True, wishes=wishes)


def published(layout: Layout) -> Snapshot:
    return Snapshot(0, "table", (), layout, RECORD, None)


WANTED = kept("SELECT a FROM erp.r WHERE t = 'x'")


def test_a_kept_relation_has_what_views_need() -> None:
    layout = derivation.described(reply(), WANTED, None)
    assert layout.data_names == ("id", "a", "t")
    assert layout.recipe.rows == "\"t\" = 'x'"
    # A version that has it already stays as it is.
    base = published(replace(layout))
    assert derivation.described(reply(), WANTED, base) is base.layout
    # What the DBA does not allow, what a newer source calls otherwise, and what is configured.
    assert derivation.described(reply(derive=()), WANTED, None).derivation is None
    newer = reply(derive=("columns", "rows", "joins"), word="newer")
    assert derivation.described(newer, WANTED, None).derivation == Derivation(("id", "a", "t"))
    configured = replace(WANTED, is_kept=False)
    assert derivation.described(reply(), configured, None).derivation is None


def test_it_follows_its_views_and_nobody_else() -> None:
    base = published(derivation.described(reply(), WANTED, None))
    more = kept("SELECT a FROM erp.r WHERE t = 'x'", "SELECT note FROM erp.r WHERE a = 1")
    found = derivation.followed(reply(), more, base)
    assert found.data_names == ("id", "a", "t", "note")
    assert found.recipe.rows == "(\"a\" = '1') OR (\"t\" = 'x')"
    # Columns that the version never had are no change.
    other = {"id": "int4", "a": "int4", "t": "text", "extra": "date"}
    assert derivation.followed(reply(other), WANTED, base) is base.layout
    assert derivation.recipe_now(reply(other), WANTED, base).id == base.layout.recipe.id


@pytest.mark.parametrize(
    ("described", "kind", "said"),
    [
        (reply(derive=()), DerivationRefused, "columns and rows"),
        (reply(derive=("columns",)), DerivationRefused, "a choice of rows"),
        (reply(word=""), DerivationRefused, "does not mean the same"),
        (reply({"id": "int4", "t": "text", "note": "text"}), RecipeChanged, "a was dropped"),
        (reply({**TYPES, "a": "int8"}), RecipeChanged, "column a was int4 and is int8"),
        (reply({**TYPES, "t": "date"}), RecipeChanged, "column t was text and is date"),
    ],
)
def test_what_is_withdrawn_is_refused(
    described: pb.DescribeReply, kind: type[DriftlineError], said: str
) -> None:
    base = published(derivation.described(reply(), WANTED, None))
    more = kept("SELECT a FROM erp.r WHERE t = 'x'", "SELECT note FROM erp.r WHERE a = 1")
    for fragment in (WANTED, more):
        with pytest.raises(kind) as caught:
            derivation.followed(described, fragment, base)
        assert said in caught.value.message
        assert caught.value.where == "erp.r"
        assert "driftline refresh erp.r --accept-schema" in caught.value.remedy


def test_a_relation_that_was_whole_is_not_narrowed_over_a_changed_one() -> None:
    base = published(derivation.described(reply(derive=()), WANTED, None))
    with pytest.raises(RecipeChanged, match="column extra"):
        derivation.followed(reply({**TYPES, "extra": "date"}), WANTED, base)
    assert derivation.followed(reply(), WANTED, base).data_names == ("id", "a", "t")


def test_another_choice_with_the_same_columns_is_another_layout() -> None:
    every = kept("SELECT id, a FROM erp.r")
    types = {"id": "int4", "a": "int4"}
    base = published(derivation.described(reply(types), every, None))
    assert base.layout.derivation is None
    found = derivation.described(reply({**types, "extra": "date"}), every, base)
    assert found.derivation == Derivation(("id", "a"))
    assert found.recipe.id == base.layout.recipe.id


def test_the_offer_is_noted(tmp_path: object) -> None:
    store = Store(str(tmp_path))
    assert derivation.noted_offer(store, "erp.r") is None
    derivation.note_offer(store, WANTED, reply())
    assert derivation.noted_offer(store, "erp.r") == reply()
    store.write(b'{"description": 3}', "_driftline", "offers", "erp.r.json")
    assert derivation.noted_offer(store, "erp.r") is None
    derivation.note_offer(store, replace(WANTED, name="r", is_kept=False), reply())
    assert derivation.noted_offer(store, "r") is None


def test_said() -> None:
    layout = derivation.described(reply(), WANTED, None)
    assert derivation.summary(layout) == "3 columns (id, a, t), the rows where \"t\" = 'x'"
    assert derivation.summary(derivation.described(reply(derive=()), WANTED, None)) is None
