"""A source that lets a warehouse choose columns and rows: what is answered, refused and audited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError
from driftline.limits import DERIVATION_BYTES_MAX, DERIVATION_DEPTH_MAX, DERIVATION_VALUES_MAX
from driftline.relations.derivation_messages import deflated, to_message
from driftline.relations.derivations import (
    FEATURE,
    AndPredicate,
    ColumnPredicate,
    Derivation,
    NotPredicate,
    Operator,
    Predicate,
    canonical,
    text_of,
)
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire.negotiation import DEFLATE
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.server.service import Server, start
from tests.harness.agents import Peer, Recorded, channel, configuration, make_orders, opening

pytestmark = pytest.mark.starts

ROWS = [(n, None if n % 7 == 0 else f"comment {n % 3}") for n in range(100)]
ALL = '[relations.orders]\ntable = "orders"\nderive = ["columns", "rows"]\n'
IS_ONE = ColumnPredicate("comment", Operator.EQUAL, ("comment 1",))
SOME = Derivation(("comment",), IS_ONE)
CHOSEN = [n for n, comment in ROWS if comment == "comment 1"]


class Agent:
    """A running source of one table, and the sessions it opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_orders(folder / "erp.db", ROWS)
        config = configuration(folder, folder / "erp.db", certs=None, relations=ALL)
        self.engine = Recorded(config)
        self.server: Server = start(config, engine=self.engine)

    def reload(self, relations: str) -> None:
        configuration(self.folder, self.folder / "erp.db", certs=None, relations=relations)
        self.server.reload()

    def audit(self) -> list[dict[str, object]]:
        return [json.loads(x) for x in (self.folder / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.server.stop()


def asked(derivation: pb.Derivation | Derivation | None) -> pb.DescribeRequest:
    if isinstance(derivation, Derivation):
        derivation = to_message(derivation)
    return pb.DescribeRequest(protocol=1, relation="orders", derivation=derivation)


def recipe_of(description: pb.Description, derivation: Derivation) -> Recipe:
    columns = tuple(
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in description.columns
    )
    rows = "" if derivation.rows is None else text_of(canonical(derivation.rows))
    return Recipe(columns, description.key_columns, description.fingerprint_version, rows)


def opened(recipe: bytes, derivation: Derivation | None) -> pb.Request:
    request = opening(recipe)
    if derivation is not None:
        request.open.features.append(FEATURE)
        request.open.derivation.CopyFrom(to_message(derivation))
    return request


def test_a_description_says_what_may_be_chosen(agent: Agent) -> None:
    with channel(agent.server.port, None) as over:
        describe = SourceStub(over).Describe
        whole = describe(asked(None), timeout=10)
        assert FEATURE in whole.features
        assert list(whole.description.derive) == ["columns", "rows"]
        found = {c.name: c.comparable for c in whole.description.columns}
        assert found == {"id": "order", "comment": "order"}
        key = describe(asked(Derivation(("id",))), timeout=10).description
        assert [(c.name, c.ordinal) for c in key.columns] == [("id", 0)]
        rows = describe(asked(Derivation(("id",), IS_ONE)), timeout=10).description
        assert [c.name for c in rows.columns] == ["id", "comment"], "what is compared is read"
        assert list(rows.derive) == ["columns", "rows"]


def test_an_exchange_is_about_the_chosen_rows(agent: Agent) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        described = SourceStub(over).Describe(asked(SOME), timeout=10).description
        recipe = recipe_of(described, SOME)
        for _ in range(2):
            peer.send(opened(recipe.id, SOME))
            assert peer.until("finished")[-1].finished.count == len(CHOSEN)
        # Written in another order, it is the same derivation.
        twice = Derivation(("comment",), AndPredicate((IS_ONE, NotPredicate(NotPredicate(IS_ONE)))))
        peer.send(opened(recipe.id, twice))
        assert peer.until("finished")[-1].finished.count == len(CHOSEN)
        peer.send(opened(replace(recipe, rows="").id, None))
        assert peer.until("finished")[-1].finished.count == len(ROWS)


def test_a_recipe_belongs_to_its_derivation(agent: Agent) -> None:
    """One of the whole relation, or of other rows, is refused with the derived description."""
    other = Derivation(("comment",), NotPredicate(IS_ONE))
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        described = SourceStub(over).Describe(asked(SOME), timeout=10).description
        recipe = recipe_of(described, SOME)
        for wrong in (replace(recipe, rows=""), recipe_of(described, other)):
            peer.send(opened(wrong.id, SOME))
            refused = peer.reply().refused
            assert refused.code == "RECIPE"
            assert [c.name for c in refused.description.columns] == ["id", "comment"]
            assert list(refused.description.derive) == ["columns", "rows"]
        peer.send(opened(recipe.id, None))
        assert peer.reply().refused.code == "RECIPE", "nothing is chosen by a recipe alone"


def test_withdrawn_it_is_refused_and_never_widened(agent: Agent) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        describe = SourceStub(over).Describe
        recipe = recipe_of(describe(asked(SOME), timeout=10).description, SOME)
        peer.send(opened(recipe.id, SOME))
        assert peer.until("finished")
        sessions = agent.engine.opened
        for derive, named in (('derive = ["columns"]', "rows"), ("", "columns or rows")):
            agent.reload(f'[relations.orders]\ntable = "orders"\n{derive}\n')
            peer.send(opened(recipe.id, SOME))
            refused = peer.reply().refused
            assert (refused.code, refused.where) == ("DERIVE", "orders"), "over the open stream"
            assert f"does not let a warehouse choose {named} of" in refused.message
            assert "derive" in refused.remedy
            with pytest.raises(grpc.RpcError) as caught:
                describe(asked(SOME), timeout=10)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert agent.engine.opened == sessions, "nothing was read"
        whole = describe(asked(None), timeout=10).description
        assert list(whole.derive) == []
        agent.reload(ALL)
        peer.send(opened(recipe.id, SOME))
        assert peer.until("finished")[-1].finished.count == len(CHOSEN)


def test_a_relation_without_it_does_not_exist_more_than_others(agent: Agent) -> None:
    agent.reload('[relations.orders]\ntable = "orders"\nallow = ["another"]\n')
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(opened(bytes(16), SOME))
        assert peer.reply().refused.code == "NOT_FOUND"


def deep(levels: int) -> pb.Predicate:
    found = pb.Predicate(comparison=pb.Comparison(column="id", operator="IS NULL"))
    for _ in range(levels):
        found = pb.Predicate(negated=found)
    return found


def compared(column: str, operator: str, *values: str) -> pb.Derivation:
    one = pb.Comparison(column=column, operator=operator, values=values)
    return pb.Derivation(rows=pb.Predicate(comparison=one))


HOSTILE = [
    (pb.Derivation(rows=deep(DERIVATION_DEPTH_MAX)), "LIMIT", 0),
    (compared("comment", "=", "x" * DERIVATION_BYTES_MAX), "LIMIT", 0),
    (pb.Derivation(rows=pb.Predicate()), "MALFORMED", 0),
    (compared("id", "= 1 OR 1 ="), "MALFORMED", 0),
    (compared("id", "IN", *map(str, range(DERIVATION_VALUES_MAX + 1))), "LIMIT", 1),
    (compared("id", "=", "1 OR 1=1"), "MALFORMED", 1),
    (compared("id", "=", "1", "2"), "MALFORMED", 1),
    (compared("comment", "=", "a\0"), "MALFORMED", 1),
    (compared('id" OR ""="', "=", "1"), "DERIVE", 1),
    (compared("ID", "=", "1"), "DERIVE", 1),
    (compared("rowid", "=", "1"), "DERIVE", 1),
    (pb.Derivation(columns=["id", "rowid"]), "DERIVE", 1),
    (pb.Derivation(columns=["id", "id"]), "MALFORMED", 1),
    (pb.Derivation(columns=["id; DROP TABLE orders"]), "DERIVE", 1),
    (pb.Derivation(columns=["*"]), "DERIVE", 1),
]


@pytest.mark.parametrize(("message", "code", "sessions"), HOSTILE)
def test_a_hostile_derivation_reads_nothing(
    agent: Agent, message: pb.Derivation, code: str, sessions: int
) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        request = opening(bytes(16))
        request.open.derivation.CopyFrom(message)
        peer.send(request)
        refused = peer.reply().refused
        assert refused.code == code, refused
        assert agent.engine.opened == sessions
        assert refused.message.isprintable()
        assert len(refused.message) < 300
        with pytest.raises(grpc.RpcError):
            SourceStub(over).Describe(asked(message), timeout=10)
    agent.server.stop()
    exchange, description = agent.audit()
    assert exchange["outcome"] == description["outcome"] == code
    assert exchange["scans"] == exchange["rows_read"] == 0


def test_a_compressed_derivation_is_the_same(agent: Agent) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        described = SourceStub(over).Describe(asked(SOME), timeout=10)
        assert DEFLATE in described.features
        request = opening(recipe_of(described.description, SOME).id)
        request.open.features.extend((FEATURE, DEFLATE))
        request.open.deflated = deflated(to_message(SOME))
        peer.send(request)
        assert peer.until("finished")[-1].finished.count == len(CHOSEN)


LARGE = pb.Derivation(columns=["x" * DERIVATION_BYTES_MAX])
NEWER = pb.Derivation.FromString(to_message(SOME).SerializeToString() + b"\x98\x06\x01")  # 99: 1


@pytest.mark.parametrize(
    ("data", "features", "code", "said"),
    [
        (deflated(LARGE), [DEFLATE], "LIMIT", "at most 65,536 bytes"),
        (deflated(NEWER), [DEFLATE], "VERSION", "Derivation.99"),
        (deflated(to_message(SOME))[:-1], [DEFLATE], "MALFORMED", "does not end"),
        (deflated(to_message(SOME)), [], "MALFORMED", "without its feature"),
        (deflated(compared("rowid", "=", "1")), [DEFLATE], "DERIVE", "rowid"),
    ],
    ids=["a bomb", "of a newer release", "cut short", "not asked for", "no column"],
)
def test_a_hostile_compressed_derivation_is_refused(
    agent: Agent, data: bytes, features: list[str], code: str, said: str
) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        request = opening(bytes(16))
        request.open.features.extend(features)
        request.open.deflated = data
        peer.send(request)
        refused = peer.reply().refused
        assert refused.code == code, refused
        assert said in refused.message
        if features:
            request.open.derivation.CopyFrom(to_message(SOME))
            peer.send(request)
            assert "came twice" in peer.reply().refused.message


def test_the_audit_says_what_was_chosen(agent: Agent) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        described = SourceStub(over).Describe(asked(SOME), timeout=10).description
        peer.send(opened(recipe_of(described, SOME).id, SOME))
        assert peer.until("finished")
        many = Derivation(None, ColumnPredicate("id", Operator.IN, tuple(map(str, range(900)))))
        peer.send(opened(bytes(16), many))
        assert peer.reply().refused.code == "RECIPE"
        peer.send(opening(bytes(16)))
        assert peer.reply().refused.code == "RECIPE"
    agent.server.stop()
    first, exchange, long, whole = agent.audit()
    for line in (first, exchange):
        assert line["chosen_columns"] == "comment"
        assert line["chosen_rows"] == "\"comment\" = 'comment 1'"
    assert "chosen_columns" not in long
    assert str(long["chosen_rows"]).startswith("\"id\" IN ('0', '1', '10',")
    assert len(str(long["chosen_rows"])) == 2000
    assert "chosen_rows" not in whole


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('derive = ["column"]', "'column' is not one of columns, rows, joins. Did"),
        ('derive = "columns"', "derive"),
        ("derive = true", "derive"),
        ('derive = ["columns", "joins"]', "Joins choose rows"),
        ('derive = ["columns"]\nfingerprint = "database"', "over all columns"),
    ],
)
def test_what_the_file_cannot_say(tmp_path: Path, written: str, says: str) -> None:
    make_orders(tmp_path / "erp.db", [])
    relations = f'[relations.orders]\ntable = "orders"\n{written}\n'
    with pytest.raises(ConfigurationError, match=says) as caught:
        configuration(tmp_path, tmp_path / "erp.db", certs=None, relations=relations)
    assert "relations.orders.derive" in caught.value.where


def test_what_the_file_says(tmp_path: Path) -> None:
    make_orders(tmp_path / "erp.db", [])
    relations = (
        '[relations.a]\ntable = "orders"\n[relations.b]\ntable = "orders"\nderive = []\n'
        '[relations.c]\ntable = "orders"\nderive = ["rows"]\nfingerprint = "database"\n'
    )
    configuration(tmp_path, tmp_path / "erp.db", certs=None, relations=relations)
    found = load(tmp_path / "source.toml").relations
    derive = [sorted(part.value for part in r.derive) for r in found.values()]
    assert derive == [[], [], ["rows"]]


def predicate_of_all() -> Predicate:
    """A predicate at every limit that the source must answer."""
    values = tuple(map(str, range(DERIVATION_VALUES_MAX - 63)))
    parts = [ColumnPredicate("id", Operator.IN, values)]
    parts += [ColumnPredicate("id", Operator.GREATER, (str(-n),)) for n in range(1, 64)]
    found: Predicate = AndPredicate(tuple(parts))
    for _ in range(DERIVATION_DEPTH_MAX - 2):
        found = NotPredicate(found)
    return found


def test_a_derivation_at_every_limit_is_answered(agent: Agent) -> None:
    largest = Derivation(None, predicate_of_all())
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        described = SourceStub(over).Describe(asked(largest), timeout=10).description
        peer.send(opened(recipe_of(described, largest).id, largest))
        assert peer.until("finished")[-1].finished.count == len(ROWS)
