"""What views read, which relations are kept for them, and what a command works on."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import ConfigurationError, UsageError
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent import config as configure
from warehouse_agent.config import WarehouseConfig
from warehouse_agent.storage.store import Store
from warehouse_agent.views import component_graph
from warehouse_agent.views.inputs import inputs_of, load
from warehouse_agent.views.selection import TableSelection, of_fragments, select

HEAD = """
[warehouse]
path = "warehouse"
[sources.erp]
address = "127.0.0.1:5433"
insecure = true
[sources.crm]
address = "127.0.0.1:5434"
insecure = true
[fragments.orders]
source = "erp"
[fragments.plain]
source = "erp"
"""
VIEWS = {
    "v": "SELECT o.id FROM erp.orders o JOIN crm.customer c ON c.id = o.id",
    "w": "SELECT a.id FROM v a JOIN orders b ON a.id = b.id",
    "x": "SELECT id FROM crm.other",
}


def loaded(folder: Path, views: dict[str, str], more: str = "") -> WarehouseConfig:
    file = folder / "warehouse.toml"
    parts = [f'[views.{name}]\nquery = """{text}"""\n' for name, text in views.items()]
    file.write_text(HEAD + more + "\n".join(parts))
    return load(file)


def test_inputs_and_kept_relations(tmp_path: Path) -> None:
    config = loaded(tmp_path, VIEWS)
    assert inputs_of(config.views) == {
        "v": ("orders", "crm.customer"),
        "w": ("v", "orders"),
        "x": ("crm.other",),
    }
    kept = {name: f.relation for name, f in config.fragments.items() if f.is_kept}
    assert kept == {"crm.customer": "customer", "crm.other": "other"}
    store = Store.of(config)
    root = str(tmp_path / "warehouse")
    assert store.table("crm.customer") == f"{root}/_driftline/kept/crm.customer"
    assert store.uri("crm.customer", "a") == f"file://{root}/_driftline/kept/crm.customer/a"
    assert store.table("orders") == f"{root}/orders"
    store.write(b"x", "crm.customer", "f")
    assert (tmp_path / "warehouse/_driftline/kept/crm.customer/f").read_bytes() == b"x"
    assert [f.place for f in store.walk("crm.customer")] == [("crm.customer", "f")]


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ({"v": "SELECT id FROM nope"}, "no fragment or view called 'nope'"),
        ({"v": "SELECT id FROM order"}, "orders"),
        ({"v": "SELECT id FROM epr.orders"}, "There is no .sources.epr."),
        ({"v": "SELECT id FROM v"}, "circle: v reads v"),
        ({"v": "SELECT id FROM w", "w": "SELECT id FROM v"}, "circle: v reads w reads v"),
        ({"orders": "SELECT id FROM plain"}, "A fragment and a view are called 'orders'"),
        ({"Orders": "SELECT id FROM plain"}, "differ only in case"),
        ({"crm.customer": VIEWS["v"]}, "'crm.customer'"),
        ({"v": "SELECT id FROM crm.`a/b`"}, "cannot be the name of a folder"),
        ({"v": "SELECT * FROM orders"}, "views.v.query, line 1, column 8"),
        ({"_driftline": "SELECT id FROM orders"}, "Driftline's own"),
    ],
)
def test_refused(tmp_path: Path, views: dict[str, str], why: str) -> None:
    quoted = {f'"{name}"' if "." in name else name: text for name, text in views.items()}
    with pytest.raises(ConfigurationError, match=why):
        loaded(tmp_path, quoted)


def test_a_relation_of_two_fragments(tmp_path: Path) -> None:
    twice = '[fragments.again]\nsource = "erp"\nrelation = "orders"\n'
    with pytest.raises(ConfigurationError, match="several fragments: orders, again"):
        loaded(tmp_path, {"v": "SELECT id FROM erp.orders"}, twice)
    config = loaded(tmp_path, {"v": "SELECT id FROM again"}, twice)
    assert config.views["v"].inputs == ("again",)


def names(found: TableSelection) -> tuple[list[str], list[str], list[str]]:
    return (
        sorted(f.name for f in found.fragments),
        [v.name for v in found.views],
        [v.name for v in found.left_out],
    )


def test_selection(tmp_path: Path) -> None:
    config = loaded(tmp_path, VIEWS)
    assert names(select(config, ["plain"], False)) == (["plain"], [], [])
    assert names(select(config, ["orders"], False)) == (["orders"], ["v", "w"], [])
    assert names(select(config, ["w"], False)) == (["crm.customer", "orders"], ["v", "w"], [])
    assert names(select(config, ["crm.*"], False)) == (
        ["crm.customer", "crm.other"],
        ["v", "w", "x"],
        [],
    )
    assert names(select(config, [], True, ["v"]))[1:] == (["x"], ["v", "w"])
    assert names(select(config, ["plain"], False, ["v"])) == (["plain"], [], [])
    found = select(config, ["orders"], False).components
    assert [(c.fragments, c.views) for c in found] == [(("crm.customer", "orders"), ("v", "w"))]
    with pytest.raises(UsageError, match="there is no view"):
        select(config, [], True, ["orders"])
    with pytest.raises(UsageError, match="matches 'nope'"):
        select(config, ["nope"], False)


def test_views_that_are_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, VIEWS)
    for patterns, named in ((["orders"], ""), (["w"], "w"), (["[vx]"], "vx"), (["*"], "vwx")):
        assert select(config, patterns, False).named == {*named}, patterns
    assert select(config, [], True).named == frozenset(), "all of the file are not named"
    assert select(config, ["v", "w"], False, ["w"]).named == {"v"}
    # A view over another fragment of the component is left out as well.
    found = select(config, ["crm.other"], False, ["v"])
    assert names(found) == (["crm.other"], ["x"], [])


KNOBS = "SELECT id FROM orders"


@pytest.mark.parametrize(
    ("lines", "max_lag_s", "chunk_rows"),
    [
        ("", 0, None),
        ('max_lag = "0s"\nchunk_rows = "auto"', 0, None),
        ('max_lag = "1h30m"\nchunk_rows = 5000', 5400, 5000),
        ('max_lag = "7d"', 604_800, None),
    ],
)
def test_staleness_of_a_view(
    tmp_path: Path, lines: str, max_lag_s: int, chunk_rows: int | None
) -> None:
    view = loaded(tmp_path, {"v": KNOBS}, f"[views.u]\nquery = '{KNOBS}'\n{lines}\n").views["u"]
    assert (view.max_lag_s, view.chunk_rows) == (max_lag_s, chunk_rows)


@pytest.mark.parametrize(
    ("line", "key", "why"),
    [
        ('max_lag = "soon"', "max_lag", "'soon' is no duration. Write it like 90s"),
        ('max_lag = ""', "max_lag", "It is empty"),
        ('max_lag = "-1h"', "max_lag", "is no duration"),
        ("max_lag = 60", "max_lag", "a string"),
        ('max_lag = "8d"', "max_lag", "at most 7 days"),
        ("chunk_rows = -1", "chunk_rows", "at least 1"),
        ("chunk_rows = 0", "chunk_rows", "at least 1"),
        ("chunk_rows = 1.5", "chunk_rows", "an integer"),
        ('chunk_rows = "many"', "chunk_rows", 'neither a number of rows nor "auto"'),
    ],
)
def test_staleness_that_is_refused(tmp_path: Path, line: str, key: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        loaded(tmp_path, {"v": KNOBS}, f"[views.u]\nquery = '{KNOBS}'\n{line}\n")
    assert f"views.u.{key}" in str(refused.value)


GRAPHS = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        *(
            st.lists(
                st.sampled_from(["a", "b", "c", "d", *(f"v{i}" for i in range(k))]), min_size=1
            )
            for k in range(n)
        )
    )
)


@given(GRAPHS, st.sets(st.sampled_from("abcd")))
def test_components(reads: tuple[list[str], ...], some: set[str]) -> None:
    inputs = {f"v{i}": names for i, names in enumerate(reads)}
    order = component_graph.in_order(inputs)
    assert sorted(order) == sorted(inputs)
    for view, names_ in inputs.items():
        assert all(order.index(n) < order.index(view) for n in names_ if n in inputs)
    found = component_graph.components(inputs)
    members = [n for c in found for n in (*c.fragments, *c.views)]
    assert len(members) == len(set(members))
    assert set(members) == {*inputs, *(n for ns in inputs.values() for n in ns)}
    for component in found:
        together = {*component.fragments, *component.views}
        for view in component.views:
            assert set(inputs[view]) <= together
            assert component_graph.below([view], inputs) <= together
    over = component_graph.above(some, inputs)
    assert over == {v for v in inputs if component_graph.below([v], inputs) & some}


def test_fragments_bring_their_views(tmp_path: Path) -> None:
    """Whoever names fragments, not patterns, moves the views over them, too."""
    config = loaded(tmp_path, VIEWS)
    orders = config.fragments["orders"]
    assert of_fragments(config, [orders]) == select(config, ["orders"], False)
    unread = configure.load(config.file)
    with pytest.raises(ConfigurationError) as caught:
        of_fragments(unread, [orders])
    assert caught.value.remedy == "Read the file by `warehouse_agent.views.inputs.load`."
    (tmp_path / "warehouse.toml").write_text(HEAD)
    plain = configure.load(config.file)
    assert of_fragments(plain, [orders]) == TableSelection((orders,))
