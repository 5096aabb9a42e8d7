"""Published names are kept: a name that was given never shows the values of another column."""

from __future__ import annotations

from driftline.relations.derivations import Derivation
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse_agent.columns.layout import Layout, derived, from_json, lay_out, to_json

KEY = Column("id", parse_type("int8"), nullable=False)
NAMES = ("net amount", "net_amount", "Net_Amount", "net=amount", "net_amount_2", "_op", "_OP", "x")


def laid_out(names: list[str], before: Layout | None) -> Layout:
    columns = [Column(n, parse_type("text"), ordinal=i + 1) for i, n in enumerate(names)]
    return lay_out(
        Recipe((KEY, *columns), 1),
        {},
        where="t",
        given=None if before is None else before.published_names,
    )


def published(layout: Layout) -> dict[str, str]:
    """Return the published name of each present column."""
    return {c.name: n for c, n in zip(layout.recipe.columns, layout.names, strict=True)}


def test_a_neighbour_that_is_dropped_leaves_its_name() -> None:
    first = laid_out(["net amount", "net_amount"], None)
    assert first.names == ("id", "net_amount", "net_amount_2")
    second = laid_out(["net_amount"], first)
    assert second.names == ("id", "net_amount_2")
    third = laid_out(["net_amount", "net=amount"], from_json(to_json(second)))
    assert third.names == ("id", "net_amount_2", "net_amount_3")
    again = laid_out(["net amount", "net_amount"], third)
    assert again.names == ("id", "net_amount", "net_amount_2")


def test_a_part_keeps_the_names_of_the_whole() -> None:
    whole = laid_out(["net amount", "net_amount"], None)
    part = from_json(to_json(derived(whole, Derivation(("net_amount",)))))
    assert part.names == ("id", "net_amount_2")
    assert derived(laid_out(["net_amount"], part), Derivation(("net_amount",))).names == part.names


def test_layouts_of_older_releases_keep_their_names() -> None:
    body = to_json(laid_out(["net amount", "net_amount"], None))
    assert "withheld" not in body
    assert laid_out(["net_amount"], from_json(body)).names == ("id", "net_amount_2")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1, max_size=8))
def test_a_published_name_is_of_one_column_for_good(history: list[list[str]]) -> None:
    """Columns are added, dropped, renamed and moved; each step is written and read again."""
    layout, owners = None, dict[str, str]()
    for names in history:
        layout = from_json(to_json(laid_out(names, layout)))
        now = published(layout)
        assert len({name.lower() for name in now.values()}) == len(now)
        for source, name in now.items():
            assert owners.setdefault(name.lower(), source) == source
        assert {name.lower() for name in layout.published_names.values()} == owners.keys()
