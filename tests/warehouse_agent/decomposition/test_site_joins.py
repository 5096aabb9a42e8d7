"""Views over rows that their sites chose by joins equal views over all rows; without Spark.

The offers are those that a source makes of its catalogue, the rows those that it reads. DuckDB
evaluates the views. The whole way, with Spark, is in `tests/pair/views/test_site_joins.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from driftline import wire_pb2 as pb
from driftline.relations.derivations import AndPredicate, references_in

from source_agent.config.file import SourceConfig, load
from source_agent.config.site_joins import chosen, site_joins
from source_agent.engines.conformance.reads import decoded, flat
from source_agent.engines.interface import Session
from source_agent.engines.registry import connect
from source_agent.server.catalogue import describe, referenced
from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES
from tests.harness.views import insert, served
from tests.pair.views.test_site_joins import ALL, ANALYZE, KEYS, TABLES, random_view, some_rows
from warehouse_agent.columns.layout import derived, lay_out
from warehouse_agent.decomposition.view_needs import DerivationOffer, lacks, united
from warehouse_agent.refresh.derivation import offer_of
from warehouse_agent.refresh.schema_change import recipe_of
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import Query, read_query

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]

NOTHING = AndPredicate(())
Tables = dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]]  # names of columns, and rows


def kept(session: Session, config: SourceConfig, query: Query) -> tuple[Tables, Counter[str]]:
    """What is kept of each relation of the shop, and how often others chose its rows."""
    sites = [(site, name) for site, name in (one.reference for one in query.occurrences)]
    found: Tables = {}
    joined = Counter[str]()
    for name in TABLES:
        numbers = [n for n, site in enumerate(sites) if site == ("shop", name)]
        relation = config.relations[name]
        shape = session.describe(relation.relation)
        wishes = [wish_of("v", query, number, sites) for number in numbers]
        beside = sorted({other for wish in wishes for other in wish.relations})
        joins = site_joins(session, relation, shape, config.relations, beside)
        published = [one.relation for one in config.relations.values()]
        told = referenced(session, shape, published)
        description = describe(shape, config.budget, relation.derive, told, joins)
        layout = lay_out(recipe_of(description), {}, where=name)
        offer = offer_of(pb.DescribeReply(description=description), layout)
        wanted = united(wishes, offer).derivation
        if wanted is not None:
            part = derived(layout, wanted)
            there = DerivationOffer(part.recipe, part.names)
            assert [lacks(wish, wanted, there) for wish in wishes] == [None] * len(wishes)
            shape = chosen(session, relation, shape, wanted, config.relations)
            joined.update(one.relation for one in references_in(wanted.rows or NOTHING))
        names = tuple(column.name for column in shape.recipe.columns)
        rows = [tuple(decoded(row, shape)) for row in flat(session.scan(shape))]
        found[name] = names, rows
    return found, joined


def computed(text: str, tables: Tables, elsewhere: list[tuple[Any, ...]]) -> Counter[Any]:
    """The rows of a view over tables of the shop, and customers of the other site."""
    with duckdb.connect() as db:
        db.execute("CREATE SCHEMA shop; CREATE SCHEMA crm")
        db.execute(f"CREATE TABLE crm.customer ({TABLES['customer']})")
        insert(db, "crm.customer", elsewhere)
        for name, (columns, rows) in tables.items():
            kinds = {"t": "VARCHAR", "code": "VARCHAR", "product": "VARCHAR"}
            ddl = ", ".join(f"{column} {kinds.get(column, 'BIGINT')}" for column in columns)
            db.execute(f"CREATE TABLE shop.{name} ({ddl})")
            insert(db, f"shop.{name}", rows)
        return Counter(db.execute(text).fetchall())


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        *((engine, 0) for engine in ("sqlite", "postgresql", *FAMILY)),
        *(pytest.param("sqlite", s, marks=pytest.mark.soak) for s in range(1, 41)),
        *(pytest.param("postgresql", s, marks=pytest.mark.soak) for s in range(1, 31)),
        *(pytest.param("mariadb", s, marks=pytest.mark.soak) for s in range(1, 31)),
    ],
)
def test_views_over_chosen_rows(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, seed: int
) -> None:
    """Twenty views; those of all seeds are 2,000."""
    rng = random.Random(f"{engine} {seed}")
    values = some_rows(rng, 30)
    legacy = LEGACIES[engine](request, tmp_path)
    with closing(legacy):
        relations = []
        for name, ddl in TABLES.items():
            legacy.execute(f"CREATE TABLE {name} ({ddl}{KEYS.get(name, '')})")
            marks = ", ".join("?" * len(values[name][0]))
            legacy.many(f"INSERT INTO {name} VALUES ({marks})", values[name])
            relations.append(f"[relations.{name}]\n{served(name, ALL)}")
        file = tmp_path / "source.toml"
        secret = tmp_path / "password"
        secret.write_text(legacy.password or "")
        secret.chmod(0o600)
        file.write_text(
            f'[database]\nurl = "{legacy.url}"\npassword_file = "password"\n'
            f'[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n{"".join(relations)}'
        )
        for name in TABLES:
            legacy.execute(ANALYZE[legacy.engine].format(name))
        config = load(file)
        database = config.database
        session = connect(database.url, legacy.password, database.limits).open()
        with closing(session):
            columns = {n: tuple(c.split()[0] for c in _columns(d)) for n, d in TABLES.items()}
            every = {name: (columns[name], values[name]) for name in TABLES}
            number = Counter[str]()
            for _ in range(20):
                text = random_view(rng)
                some, joined = kept(session, config, read_query(text, where="v"))
                number += joined
                expected = computed(text, every, values["customer"])
                assert computed(text, some, values["customer"]) == expected, text
            assert number["line"], "rows are chosen by rows that reference them"
            assert number["customer"] + number["product"] + number["orders"], "and by others"


def _columns(ddl: str) -> list[str]:
    """The definitions of columns in those of a table."""
    return ddl.partition(", PRIMARY KEY")[0].split(", ")
