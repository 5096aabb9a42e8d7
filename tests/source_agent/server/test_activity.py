"""The call `Activity`, and what an exchange says of it, over real mutual TLS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, NotNow
from driftline.limits import ACTIVITY_RELATIONS_MAX
from driftline.relations.activity import Activity, FlaggedActivity, UnknownActivity
from driftline.relations.activity_messages import from_message
from driftline.wire_pb2_grpc import SourceStub

from source_agent.budgets.budget import Governor
from source_agent.config.file import SourceConfig
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.enrolment import enroll
from source_agent.server.handlers import REFUSED_METADATA
from source_agent.server.service import start
from tests.harness.agents import Peer, Recorded, channel, configuration, opening
from tests.harness.legacies import OfSQLite

pytestmark = pytest.mark.starts

RELATIONS = """
[relations.orders]
table = "orders"
[relations.view]
table = "v"
key = ["id"]
[relations.private]
table = "orders"
activity = false
[relations.forbidden]
table = "orders"
allow = ["spiffe://driftline/warehouse/another"]
"""
NOBODYS = UnknownActivity("no relation of this name is published to this certificate")
SWITCHED_OFF = UnknownActivity("the source's DBA has switched it off")


class Agent:
    """An agent over a file in rollback-journal mode, and a clock that tests move."""

    def __init__(self, folder: Path, stack: ExitStack, limits: str = "") -> None:
        self.legacy = OfSQLite(folder / "erp.db", journal="delete")
        self.legacy.run(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL)",
            "CREATE VIEW v AS SELECT * FROM orders",
        )
        self.certs, self.now = folder / "certs", 0.0
        enroll(self.certs, source_names=["127.0.0.1"])
        more = f"[limits]\n{limits}"
        self.config: SourceConfig = configuration(
            folder, folder / "erp.db", certs=self.certs, more=more, relations=RELATIONS
        )
        self.engine = Recorded(self.config)
        governor = Governor(
            self.config.budget,
            clock=lambda: self.now,
            wall=lambda: datetime(2026, 1, 1, 12, 0),  # noqa: DTZ001 - local time
        )
        self.server = start(self.config, engine=self.engine, governor=governor)
        stack.callback(self.server.stop)
        over = stack.enter_context(channel(self.server.port, self.certs))
        self.over, self.stub = over, SourceStub(over)

    def ask(self, *names: str, protocol: int = 1) -> dict[str, Activity]:
        request = pb.ActivityRequest(protocol=protocol, relations=names)
        reply = self.stub.Activity(request, timeout=20)
        return dict(zip(names, map(from_message, reply.activities), strict=True))

    def refused(self, *names: str, protocol: int = 1) -> pb.Refused:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(*names, protocol=protocol)
        call = cast("grpc.Call", caught.value)
        sent = [value for key, value in call.trailing_metadata() if key == REFUSED_METADATA]
        assert isinstance(sent[0], bytes)
        return pb.Refused.FromString(sent[0])

    def audit(self) -> list[dict[str, Any]]:
        lines = (self.certs.parent / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def finished(self, relation: str = "orders") -> pb.Finished:
        """What an exchange with a warehouse that holds nothing ends with."""
        published = self.config.relations[relation].relation
        with closing(connect(self.legacy.url, None, Limits()).open()) as session:
            recipe = session.describe(published).recipe
        with Peer(self.over) as peer:
            peer.send(opening(recipe.id, relation=relation))
            return peer.until("finished")[-1].finished


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    with ExitStack() as stack:
        yield lambda limits="": Agent(tmp_path, stack, limits)


def test_one_session_answers_for_every_relation(agent: Callable[..., Agent]) -> None:
    made = agent()
    found = made.ask("orders", "view", "private", "forbidden", "nothing", "orders")
    assert made.engine.opened == 1
    assert isinstance(found["orders"], FlaggedActivity)
    assert "view" in str(found["view"])
    assert found["private"] == SWITCHED_OFF
    assert found["forbidden"] == found["nothing"] == NOBODYS
    (line,) = made.audit()
    assert line["outcome"] == "probed"
    assert line["relations"] == 6
    assert line["relation"] == ""
    assert line["rows_read"] == line["scans"] == 0
    assert line["client"].startswith("spiffe://")


def test_what_a_client_may_not_have_costs_no_sql(agent: Callable[..., Agent]) -> None:
    made = agent()
    for _ in range(3):  # nor a turn
        assert set(made.ask("forbidden", "private", "nothing").values()) == {NOBODYS, SWITCHED_OFF}
    assert made.engine.opened == 0


def test_a_client_asks_once_a_minute(agent: Callable[..., Agent]) -> None:
    made = agent()
    made.ask("orders")
    refused = made.refused("orders")
    assert refused.code == NotNow.code
    assert "activity_seconds" in refused.message
    assert made.engine.opened == 1
    made.now = 60.0
    made.ask("orders")
    assert [line["outcome"] for line in made.audit()] == ["probed", "NOT_NOW", "probed"]


def test_the_dba_sets_how_often(agent: Callable[..., Agent]) -> None:
    made = agent("activity_seconds = 2")
    made.ask("orders")
    made.now = 1.9
    assert made.refused("orders").code == NotNow.code
    made.now = 2.0
    made.ask("orders")
    assert made.engine.opened == 2


def test_the_dba_switches_it_off(agent: Callable[..., Agent]) -> None:
    made = agent('activity_seconds = "never"')
    assert made.ask("orders") == {"orders": SWITCHED_OFF}
    assert made.engine.opened == 0
    assert not made.finished().HasField("activity")


def test_the_pause_file_and_quiet_hours_hold(agent: Callable[..., Agent]) -> None:
    made = agent('quiet_hours = ["11:00-13:00"]')
    refused = made.refused("orders")
    assert refused.code == NotNow.code
    assert "quiet_hours" in refused.message
    assert made.engine.opened == 0


@pytest.mark.parametrize("count", [0, ACTIVITY_RELATIONS_MAX + 1])
def test_a_call_names_some_relations_and_not_too_many(
    agent: Callable[..., Agent], count: int
) -> None:
    assert agent().refused(*["orders"] * count).code == "LIMIT"


def test_another_protocol_and_unknown_fields_are_refused(agent: Callable[..., Agent]) -> None:
    made = agent()
    assert made.refused("orders", protocol=9).code == "VERSION"
    request = pb.ActivityRequest.FromString(
        pb.ActivityRequest(protocol=1, relations=["orders"]).SerializeToString() + b"\xa2\x06\x01x"
    )
    with pytest.raises(grpc.RpcError) as caught:
        made.stub.Activity(request, timeout=20)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert made.engine.opened == 0


def test_an_exchange_says_what_was_before_its_snapshot(agent: Callable[..., Agent]) -> None:
    made = agent("activity_seconds = 0.001")
    kept = from_message(made.finished().activity)
    made.now += 1
    assert made.ask("orders") == {"orders": kept}
    made.legacy.run("INSERT INTO orders VALUES (1)")
    made.now += 1
    assert made.ask("orders") != {"orders": kept}
    assert "view" in from_message(made.finished("view").activity).why  # type: ignore[union-attr]
    assert not made.finished("private").HasField("activity")


@pytest.mark.parametrize("setting", ['activity_seconds = "sometimes"', "activity_seconds = 0"])
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configuration(tmp_path, tmp_path / "erp.db", certs=None, more=f"[limits]\n{setting}")
    assert caught.value.where.endswith("limits.activity_seconds")
