"""A source that lets a warehouse choose rows by rows that they reference."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.limits import DERIVATION_DEPTH_MAX, REFERENCES_MAX
from driftline.relations.derivation_messages import to_message
from driftline.relations.derivations import (
    FEATURE,
    AndPredicate,
    ColumnPredicate,
    Derivation,
    NotPredicate,
    Operator,
    Predicate,
    ReferencePredicate,
    canonical,
    text_of,
)
from driftline.relations.reference_messages import joinable
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire_pb2_grpc import SourceStub

from source_agent.server.service import Server, start
from tests.harness.agents import Peer, Recorded, channel, configuration, opening

pytestmark = pytest.mark.starts

TABLES = """
CREATE TABLE customer (id INTEGER PRIMARY KEY NOT NULL, country TEXT, salary INT, chief INT
    REFERENCES customer (id));
CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, customer INT REFERENCES customer (id),
    status TEXT, loose INT, text TEXT REFERENCES customer (id),
    private INT REFERENCES private (id));
CREATE TABLE private (id INTEGER PRIMARY KEY NOT NULL, n INT);
INSERT INTO customer VALUES (1, 'CH', 5, NULL), (2, 'DE', 9, 1), (3, 'CH', 7, 1);
INSERT INTO orders VALUES (1, 1, 'O', 1, '1', 1), (2, 2, 'O', 1, '1', 1), (3, NULL, 'O', 1, '1', 1);
INSERT INTO orders VALUES (4, 3, 'F', 1, '1', 1), (5, 3, 'O', 1, '1', 1), (6, 9, 'O', 1, '1', 1);
ANALYZE;
"""
ORDERS = '[relations.orders]\ntable = "orders"\nderive = ["columns", "rows", "joins"]\n'
CUSTOMER = (
    '[relations.customer]\ntable = "customer"\ncolumns = ["id", "country", "chief"]\n'
    'derive = ["rows", "joins"]\n'
)
OPEN = ORDERS.replace(', "joins"', "") + CUSTOMER
TURNED = {"own": "id", "relation": "orders", "referenced": "customer"}
SWISS = ColumnPredicate("country", Operator.EQUAL, ("CH",))
TYPED = (("country", "text"),)


def joined(
    rows: Predicate = SWISS,
    types: tuple[tuple[str, str], ...] = TYPED,
    *,
    own: str = "customer",
    relation: str = "customer",
    referenced: str = "id",
) -> ReferencePredicate:
    return ReferencePredicate((own,), relation, (referenced,), rows, types)


class Agent:
    """A running source of customers and their orders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with closing(sqlite3.connect(folder / "erp.db")) as connection:
            connection.executescript(TABLES)
        config = configuration(
            folder, folder / "erp.db", certs=None, relations=f"{ORDERS}{CUSTOMER}"
        )
        self.engine = Recorded(config)
        self.server: Server = start(config, engine=self.engine)

    def reload(self, relations: str) -> None:
        configuration(self.folder, self.folder / "erp.db", certs=None, relations=relations)
        self.server.reload()

    def described(
        self,
        derivation: Derivation | None = None,
        *,
        relation: str = "orders",
        beside: Sequence[str] = (),
    ) -> pb.Description:
        message = None if derivation is None else to_message(derivation)
        request = pb.DescribeRequest(
            protocol=1, relation=relation, derivation=message, beside=beside
        )
        with channel(self.server.port, None) as over:
            return SourceStub(over).Describe(request, timeout=10).description


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.server.stop()


def opened(
    message: pb.Derivation, recipe: bytes = bytes(16), relation: str = "orders"
) -> pb.Request:
    request = opening(recipe)
    request.open.relation = relation
    request.open.features.append(FEATURE)
    request.open.derivation.CopyFrom(message)
    return request


def test_a_description_says_which_joins_there_are(agent: Agent) -> None:
    found = agent.described()
    assert list(found.derive) == ["columns", "joins", "rows"]
    (one,) = joinable(found)
    assert (one.columns, one.relation, one.referenced) == (("customer",), "customer", ("id",))
    assert [column.name for column in one.known] == ["id", "country", "chief"], "what is published"
    assert one.references == (), "no relation is joined with itself"
    assert [list(r.columns) for r in found.references] == [["text"], ["customer"]]


def test_rows_are_chosen_by_those_that_they_reference(agent: Agent) -> None:
    is_open = ColumnPredicate("status", Operator.EQUAL, ("O",))
    chosen = Derivation(("id",), AndPredicate((joined(), is_open)))
    names = [column.name for column in agent.described(chosen).columns]
    assert names == ["id", "customer", "status"], "what is compared is read"
    assert counted(agent, chosen, "orders") == 2


def test_rows_are_chosen_by_those_that_reference_them(agent: Agent) -> None:
    """Also where foreign keys are NULL, or lead to no row because nothing enforces them."""
    agent.reload(OPEN)
    (one,) = agent.described(relation="customer", beside=["orders", "private", "nothing"]).referring
    assert (list(one.columns), one.relation, list(one.referenced)) == (
        ["id"],
        "orders",
        ["customer"],
    )
    assert one.joined.rows_expected == 6
    assert not one.joined.referring, "nothing is joined with itself"
    assert not agent.described(relation="customer").referring, "nobody asked"
    assert not agent.described(relation="customer", beside=["customer"]).referring
    names = REFERENCES_MAX * ["orders"]
    assert agent.described(relation="customer", beside=names).referring
    with pytest.raises(grpc.RpcError) as caught:
        agent.described(relation="customer", beside=[*names, "orders"])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    is_open = ColumnPredicate("status", Operator.EQUAL, ("O",))
    for status, count in ((is_open, 3), (replace(is_open, values=("F",)), 1)):
        rows = joined(status, (("status", "text"),), **TURNED)
        assert counted(agent, Derivation(None, rows), "customer") == count


def counted(agent: Agent, chosen: Derivation, relation: str) -> int:
    """The rows that a source compares of a derivation."""
    description = agent.described(chosen, relation=relation)
    columns = tuple(
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in description.columns
    )
    assert chosen.rows is not None
    recipe = Recipe(
        columns,
        description.key_columns,
        description.fingerprint_version,
        text_of(canonical(chosen.rows)),
    )
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(opened(to_message(chosen), recipe.id, relation))
        return peer.until("finished")[-1].finished.count


@pytest.mark.parametrize(
    "relations",
    [
        pytest.param(OPEN.replace('"rows", "joins"', '"rows"'), id="joins are not allowed"),
        pytest.param(
            CUSTOMER + ORDERS.replace(', "rows", "joins"', ""), id="nor rows of the other"
        ),
        pytest.param(CUSTOMER + ORDERS + 'scan = "never"\n', id="the other is not scanned"),
        pytest.param(CUSTOMER + ORDERS + 'allow = ["another"]\n', id="the other is another's"),
        pytest.param(
            CUSTOMER + ORDERS.replace("derive", 'columns = ["id", "status"]\nderive'),
            id="the foreign key is not published",
        ),
        pytest.param(
            CUSTOMER
            + ORDERS.replace('table = "orders"', 'query = "SELECT * FROM orders"\nkey = ["id"]'),
            id="a query",
        ),
        pytest.param(CUSTOMER, id="the other is not published"),
    ],
)
def test_what_that_references_is_not_offered(agent: Agent, relations: str) -> None:
    agent.reload(relations.replace('["columns", "rows", "joins"]', '["rows"]'))
    assert not agent.described(relation="customer", beside=["orders"]).referring
    rows = joined(ColumnPredicate("status", Operator.IS_NULL), (("status", "text"),), **TURNED)
    with pytest.raises(grpc.RpcError) as caught:
        agent.described(Derivation(None, rows), relation="customer")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    "relations",
    [
        pytest.param(ORDERS.replace(', "joins"', "") + CUSTOMER, id="joins are not allowed"),
        pytest.param(ORDERS + CUSTOMER.replace('"rows", "joins"', ""), id="nor rows of the other"),
        pytest.param(ORDERS + CUSTOMER + 'scan = "never"\n', id="the other is not scanned"),
        pytest.param(ORDERS + CUSTOMER + 'allow = ["another"]\n', id="the other is another's"),
        pytest.param(
            ORDERS + CUSTOMER.replace('"id", ', "", 1) + 'key = ["country"]\n',
            id="its key is not published",
        ),
        pytest.param(
            ORDERS.replace("derive", 'columns = ["id", "status"]\nderive') + CUSTOMER,
            id="the foreign key is not published",
        ),
        pytest.param(
            ORDERS.replace('table = "orders"', 'query = "SELECT * FROM orders"\nkey = ["id"]')
            + CUSTOMER,
            id="a query",
        ),
        pytest.param(ORDERS, id="the other is not published"),
    ],
)
def test_what_is_not_offered(agent: Agent, relations: str) -> None:
    agent.reload(relations)
    assert not any(one.HasField("joined") for one in agent.described().references)
    with pytest.raises(grpc.RpcError) as caught:
        agent.described(Derivation(None, joined()))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def deep(levels: int) -> Predicate:
    found: Predicate = SWISS
    for _ in range(levels):
        found = joined(found, ())
    return found


HOSTILE = [
    (joined(relation="private"), "DERIVE", 1),
    (joined(own="private", relation="private"), "DERIVE", 1),
    (joined(relation="no such relation"), "DERIVE", 1),
    (joined(relation='customer" WHERE 1=1 --'), "DERIVE", 1),
    (joined(own="loose"), "DERIVE", 1),
    (joined(own="text"), "DERIVE", 1),
    (joined(own="id) OR (1=1"), "DERIVE", 1),
    (joined(referenced="salary"), "DERIVE", 1),
    (joined(ColumnPredicate("salary", Operator.EQUAL, ("5",)), (("salary", "int8"),)), "DERIVE", 1),
    (joined(ColumnPredicate("rowid", Operator.EQUAL, ("5",)), (("rowid", "int8"),)), "DERIVE", 1),
    (joined(types=(("country", "int8"),)), "DERIVE", 1),
    (joined(types=()), "MALFORMED", 1),
    (joined(types=(*TYPED, *TYPED)), "MALFORMED", 1),
    (joined(ColumnPredicate("country", Operator.EQUAL, ("a\0",))), "MALFORMED", 1),
    (NotPredicate(joined()), "MALFORMED", 1),
    (joined(joined(own="chief"), ()), "DERIVE", 1),
    (deep(DERIVATION_DEPTH_MAX), "LIMIT", 0),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "code", "sessions"), HOSTILE)
def test_a_hostile_join_reads_nothing(
    agent: Agent, rows: Predicate, code: str, sessions: int
) -> None:
    message = to_message(Derivation(None, rows))
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(opened(message))
        refused = peer.reply().refused
        assert refused.code == code, refused
        assert agent.engine.opened == sessions
        assert refused.message.isprintable()


def test_whether_a_relation_exists_is_not_told(agent: Agent) -> None:
    said = []
    for name in ("private", "unheard"):
        with channel(agent.server.port, None) as over, Peer(over) as peer:
            peer.send(opened(to_message(Derivation(None, joined(relation=name)))))
            said.append(peer.reply().refused.message.replace(name, "…"))
    assert len({*said}) == 1, said


@pytest.mark.parametrize(
    "message",
    [
        pb.Referenced(
            columns=["customer"], relation="customer", rows=pb.Predicate(comparison=pb.Comparison())
        ),
        pb.Referenced(columns=["customer"], referenced=["id"], relation="customer"),
        pb.Referenced(
            columns=["customer"],
            referenced=["id"],
            names=["country"],
            rows=pb.Predicate(comparison=pb.Comparison(column="country", operator="IS NULL")),
        ),
        pb.Referenced(),
    ],
)
def test_a_malformed_join(agent: Agent, message: pb.Referenced) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(opened(pb.Derivation(rows=pb.Predicate(referenced=message))))
        assert peer.reply().refused.code == "MALFORMED"
        assert agent.engine.opened == 0
