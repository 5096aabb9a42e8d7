"""Foreign keys in descriptions, over real mutual TLS: a client learns of nothing but its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.relations.reference_messages import from_description
from driftline.relations.references import OnDelete, Reference
from driftline.wire_pb2_grpc import SourceStub

from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.harness.agents import channel, configuration
from tests.harness.legacies import OfSQLite

RELATIONS = """
[relations.orders]
table = "orders"
[relations.buyers]
table = "customers"
[relations.secrets]
table = "secrets"
allow = ["spiffe://driftline/warehouse/another"]
"""


@pytest.mark.starts
def test_a_client_learns_of_nothing_but_its_own(tmp_path: Path) -> None:
    legacy = OfSQLite(tmp_path / "erp.db")
    legacy.run(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY NOT NULL)",
        "CREATE TABLE secrets (id INTEGER PRIMARY KEY NOT NULL)",
        "CREATE TABLE hidden (id INTEGER PRIMARY KEY NOT NULL)",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL,"
        " customer INT REFERENCES customers ON DELETE CASCADE,"
        " secret INT REFERENCES secrets, hidden INT REFERENCES hidden)",
    )
    certs = tmp_path / "certs"
    enroll(certs, source_names=["127.0.0.1"])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=certs, relations=RELATIONS))
    try:
        with channel(server.port, certs) as line:
            request = pb.DescribeRequest(protocol=1, relation="orders")
            reply = SourceStub(line).Describe(request)
    finally:
        server.stop()
        legacy.close()
    expected = Reference(("customer",), "buyers", ("id",), OnDelete.CASCADE)
    assert from_description(reply.description) == (expected,)
    assert "references" in reply.features
    said = str(reply.description.references)
    assert "secrets" not in said
    assert "hidden" not in said
