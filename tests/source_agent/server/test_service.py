"""The source agent over real mutual TLS, on a real SQLite file: what it answers and what it never
does. Totals and row bytes are computed here from the protocol's text, not by the product."""

from __future__ import annotations

import functools
import json
import logging
import random
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import grpc
import numpy as np
import pytest
import zstandard
from blake3 import blake3
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError
from driftline.limits import PROTOCOL_VERSION
from driftline.reconciliation.ranges import RangeSums, strata, uniform
from driftline.rows import frames
from driftline.rows.columns import join
from driftline.rows.digests import Digest, mix
from driftline.rows.fingerprints import hasher
from driftline.wire_pb2_grpc import SourceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from source_agent.budgets.budget import Governor
from source_agent.config.file import SourceConfig, load
from source_agent.enrolment import enroll
from source_agent.server import service, transport
from source_agent.server.catalogue import Client
from source_agent.server.service import Server, start
from tests.harness.agents import (
    FRAGMENT_KEY,
    SALT,
    Peer,
    Recorded,
    channel,
    configuration,
    make_orders,
    opening,
)
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.starts

ROWS = [(n, None if n % 7 == 0 else f"comment {n * n}") for n in range(-20, 500)]
M64, M128 = (1 << 64) - 1, (1 << 128) - 1


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    enroll(folder, source_names=["localhost", "127.0.0.1"], warehouse_name="lake")
    return folder


class Agent:
    """A running agent, its engine and its folder."""

    def __init__(self, server: Server, engine: Recorded, folder: Path) -> None:
        self.server, self.engine, self.folder = server, engine, folder

    def audit(self) -> list[dict[str, object]]:
        """Its lines; all of them are written once it is stopped."""
        self.server.stop()
        return [json.loads(x) for x in (self.folder / "audit.jsonl").read_text().splitlines()]


Start = Callable[..., Agent]


@pytest.fixture
def running(tmp_path: Path, certs: Path) -> Iterator[Start]:
    """Starts an agent on a database of ROWS; stops it, and finds every session closed."""
    database = tmp_path / "erp.db"
    make_orders(database, ROWS)
    with ExitStack() as stack:

        def begin(
            more: str = "",
            *,
            relations: str = "",
            tls: bool = True,
            govern: Callable[[SourceConfig], Governor] | None = None,
            **options: float,
        ) -> Agent:
            config = configuration(
                tmp_path, database, certs=certs if tls else None, more=more, relations=relations
            )
            engine = Recorded(config)
            governor = None if govern is None else govern(config)
            server = start(config, engine=engine, governor=governor, **options)
            stack.callback(_stopped, server, engine)
            return Agent(server, engine, tmp_path)

        yield begin


def _stopped(server: Server, engine: Recorded) -> None:
    server.stop()
    for _ in range(engine.opened):
        assert engine.closed.acquire(timeout=5), "a session was not closed"


@contextmanager
def peer(agent: Agent, certs: Path | None) -> Iterator[Peer]:
    with channel(agent.server.port, certs) as over, Peer(over) as found:
        yield found


def described(agent: Agent, certs: Path | None, relation: str = "orders") -> pb.DescribeReply:
    with channel(agent.server.port, certs) as over:
        request = pb.DescribeRequest(protocol=1, relation=relation)
        return SourceStub(over).Describe(request, timeout=10)


# The protocol's sections 3, 5 and 6, written again.


def row_bytes(row: tuple[int, str | None]) -> bytes:
    text = None if row[1] is None else row[1].encode()
    value = b"\xff\xff\xff\xff" if text is None else struct.pack(">i", len(text)) + text
    return struct.pack(">hiq", 2, 8, row[0]) + value


def xxh64(value: int, seed: int) -> int:
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def rotl(x: int, r: int) -> int:
        return (x << r | x >> 64 - r) & M64

    h = (seed + p5 + 8) & M64
    h ^= rotl(value * p2 & M64, 31) * p1 & M64
    h = (rotl(h, 27) * p1 + p4) & M64
    h = (h ^ h >> 33) * p2 & M64
    h = (h ^ h >> 29) * p3 & M64
    return h ^ h >> 32


def independent_total(rows: list[tuple[int, str | None]]) -> Digest:
    key = blake3(b"driftline fingerprint 1\0int8\0text\0", key=FRAGMENT_KEY).digest()
    total = 0
    for row in rows:
        hi, lo = struct.unpack("<QQ", blake3(row_bytes(row), key=key).digest(16))
        m0 = xxh64(lo, xxh64(hi, xxh64(SALT.s0, 42)))
        m1 = xxh64(hi, xxh64(lo, xxh64(SALT.s1, 42)))
        total += (m0 << 64) + m1
    return Digest(len(rows), total & M128)


def recipe_id(*columns: tuple[str, str]) -> bytes:
    parts = [b"1\x001\x00"] + [f"{len(n)}:{n}{t}\0".encode() for n, t in columns]
    return blake3(b"".join(parts)).digest(16)


RECIPE = recipe_id(("id", "int8"), ("comment", "text"))


def shipped(replies: list[pb.Reply]) -> list[bytes]:
    """The row bytes in all frames among the replies."""
    found = []
    for reply in replies:
        if reply.WhichOneof("message") == "rows":
            found += join(frames.decode(reply.rows.frame).columns).rows()
    return found


# Describe.


def test_describe(running: Start, certs: Path) -> None:
    agent = running()
    assert list(described(agent, certs, "").relations) == ["orders"]
    assert agent.engine.opened == 0
    reply = described(agent, certs)
    columns = [(c.name, c.type, c.nullable, c.ordinal) for c in reply.description.columns]
    assert columns == [("id", "int8", False, 0), ("comment", "text", True, 1)]
    assert reply.description.key_columns == 1
    assert reply.description.vouched
    assert reply.agent.startswith("driftline-source ")
    assert reply.database


def test_unknown_unpublished_and_forbidden_answer_alike(running: Start, certs: Path) -> None:
    relations = (
        '[relations.orders]\ntable = "orders"\nallow = ["spiffe://driftline/warehouse/other"]\n'
        '[relations.mine]\ntable = "orders"\nallow = ["spiffe://driftline/warehouse/lake"]\n'
        '[relations.by_cn]\ntable = "orders"\nallow = ["lake"]\n'
    )
    agent = running(relations=relations)
    assert list(described(agent, certs, "").relations) == ["mine"]
    errors = []
    for name in ("orders", "by_cn", "private", "nothing"):
        with pytest.raises(grpc.RpcError) as caught:
            described(agent, certs, name)
        with peer(agent, certs) as conversation:
            conversation.send(opening(RECIPE, relation=name))
            refused = conversation.reply().refused
        trailing = {m.key: m.value for m in caught.value.trailing_metadata()}
        whole = pb.Refused.FromString(trailing["driftline-refused-bin"])
        assert whole == refused
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert str(trailing["driftline-code"]) == "NOT_FOUND"
        errors.append((refused.code, refused.message.replace(name, "X"), refused.remedy))
    assert len(set(errors)) == 1
    assert agent.engine.opened == 0, "a look at the file is all it may cost"
    outcomes = [line["outcome"] for line in agent.audit()]
    assert outcomes == ["described", *["NOT_FOUND"] * 8]


def test_a_name_that_is_too_long_and_another_version(running: Start, certs: Path) -> None:
    agent = running()
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, relation="o" * 1025))
        assert conversation.reply().refused.code == "LIMIT"
        conversation.send(opening(RECIPE, protocol=2))
        refused = conversation.reply().refused
        assert (refused.code, dict(refused.details)) == ("VERSION", {"versions": "1"})
    assert agent.engine.opened == 0


# Who gets in.


def test_without_the_right_certificate_no_handler_is_reached(
    running: Start, certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []
    client_of = service.client_of

    def noted(context: grpc.ServicerContext) -> Client:
        reached.append(context)
        return client_of(context)

    monkeypatch.setattr(service, "client_of", noted)
    agent = running()
    other = tmp_path / "other"
    enroll(other, source_names=["127.0.0.1"], warehouse_name="lake")
    shutil.copy(certs / "ca.pem", other / "ca.pem")  # it trusts the source, not the other way round
    authority = (certs / "ca.pem").read_bytes()
    target = f"127.0.0.1:{agent.server.port}"
    for stranger in (
        channel(agent.server.port, other),
        channel(agent.server.port, None),
        grpc.secure_channel(target, grpc.ssl_channel_credentials(authority)),
    ):
        with stranger as over, pytest.raises(grpc.RpcError) as caught:
            SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not reached
    described(agent, certs)
    assert len(reached) == 1


def test_a_renewed_certificate_counts_from_the_next_connection_on(
    tmp_path: Path, certs: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(certs, own)
    make_orders(tmp_path / "own.db", ROWS)
    config = configuration(tmp_path, tmp_path / "own.db", certs=own)
    server = start(config)
    try:
        agent = Agent(server, Recorded(config), tmp_path)
        described(agent, certs)
        new = tmp_path / "new"
        enroll(new, source_names=["127.0.0.1"])
        shutil.copy(new / "source.pem", own / "source.pem")  # half of a renewal
        described(agent, certs)
        for name in ("source.key", "ca.pem"):
            shutil.copy(new / name, own / name)
        described(agent, new)
        with pytest.raises(grpc.RpcError):
            described(agent, certs)
    finally:
        server.stop()


def test_new_certificates_are_tried_again_when_no_server_was_made(
    tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, new = tmp_path / "own", tmp_path / "new"
    shutil.copytree(certs, own)
    make_orders(tmp_path / "own.db", ROWS)
    config = configuration(tmp_path, tmp_path / "own.db", certs=own)
    server, serve_ = start(config), transport.Transport._serve
    failed: list[bool] = []

    def once(self: transport.Transport) -> tuple[grpc.Server, str]:
        if not failed:
            failed.append(True)
            raise RuntimeError("no more file descriptors")
        return serve_(self)

    monkeypatch.setattr(transport.Transport, "_serve", once)
    try:
        agent = Agent(server, Recorded(config), tmp_path)
        enroll(new, source_names=["127.0.0.1"])
        for name in ("source.pem", "source.key", "ca.pem"):
            shutil.copy(new / name, own / name)
        described(agent, certs)  # the ones before are still in use
        described(agent, new)
        assert failed
    finally:
        server.stop()


def test_a_stream_outlives_the_certificates_that_it_began_with(
    tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose server is retired at once, and asks its clients to come again."""
    monkeypatch.setattr(transport, "RETIRES_AFTER_S", 0.0)
    own = tmp_path / "own"
    shutil.copytree(certs, own)
    make_orders(tmp_path / "own.db", ROWS)
    config = configuration(tmp_path, tmp_path / "own.db", certs=own, more=SLOW)
    server = start(config, heartbeat_s=0.05)
    try:
        agent = Agent(server, Recorded(config), tmp_path)
        with channel(server.port, certs) as over, Peer(over) as conversation:
            conversation.send(opening(RECIPE, ours=Digest(1, 1)))
            while conversation.reply(progress=True).progress.phase != "scan":
                pass
            new = tmp_path / "new"
            enroll(new, source_names=["127.0.0.1"])
            for name in ("source.pem", "source.key", "ca.pem"):
                shutil.copy(new / name, own / name)
            described(agent, new)
            # Its connection takes no new calls, and another one is refused.
            ask = functools.partial(SourceStub(over).Describe, pb.DescribeRequest(protocol=1))
            with pytest.raises(grpc.RpcError):
                all(ask(timeout=10) for _ in range(100))
            for _ in range(5):
                assert conversation.reply(progress=True).progress.phase == "scan"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        ("[::1]:0", ["::1"]),
        ("0.0.0.0:0", ["127.0.0.1", "::1"]),  # as gRPC takes a wildcard
        ("[::]:0", ["127.0.0.1", "::1"]),
        ("localhost:0", ["localhost"]),
    ],
)
def test_addresses_to_listen_on(tmp_path: Path, certs: Path, listen: str, hosts: list[str]) -> None:
    make_orders(tmp_path / "erp.db", ROWS)
    config = configuration(tmp_path, tmp_path / "erp.db", certs=certs)
    config.path.write_text(config.path.read_text().replace("127.0.0.1:0", listen))
    server = start(load(config.path))
    try:
        for host in hosts:
            with socket.create_connection((host, server.port), 5):
                pass
    finally:
        server.stop()


def test_plain_text_on_loopback_admits_to_what_is_for_all(running: Start) -> None:
    relations = (
        '[relations.orders]\ntable = "orders"\n[relations.x]\ntable = "orders"\nallow = ["x"]\n'
    )
    agent = running(relations=relations, tls=False)
    assert list(described(agent, None, "").relations) == ["orders"]


def test_certificates_that_do_not_fit_and_a_taken_port(tmp_path: Path, certs: Path) -> None:
    make_orders(tmp_path / "erp.db", ROWS)
    broken = tmp_path / "broken"
    shutil.copytree(certs, broken)
    shutil.copy(certs / "ca.key", broken / "source.key")
    with pytest.raises(ConfigurationError, match=r"server\.certificate"):
        start(configuration(tmp_path, tmp_path / "erp.db", certs=broken))
    (broken / "ca.pem").write_text("nothing")
    shutil.copy(certs / "source.key", broken / "source.key")
    with pytest.raises(ConfigurationError, match=r"server\.client_ca"):
        start(configuration(tmp_path, tmp_path / "erp.db", certs=broken))
    config = configuration(tmp_path, tmp_path / "erp.db", certs=certs)
    first = start(config)
    try:
        text = config.path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{first.port}")
        config.path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"server\.listen"):
            start(load(config.path))
    finally:
        first.stop()


def test_health(running: Start, certs: Path) -> None:
    agent = running()
    with channel(agent.server.port, certs) as over:
        stub = health_pb2_grpc.HealthStub(over)
        for name in ("", "driftline.Source"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


# The exchange.


def test_everything_then_nothing_in_one_snapshot(running: Start, certs: Path) -> None:
    agent = running()
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE))
        replies = conversation.until("finished")
        finished = replies[-1].finished
        assert sorted(shipped(replies)) == sorted(map(row_bytes, ROWS))
        total = Digest(finished.count, int.from_bytes(finished.sum, "little"))
        assert total == independent_total(ROWS)
        assert (finished.equal, finished.consistency, finished.scans) == (False, "exact", 1)
        with sqlite3.connect(agent.folder / "erp.db") as writer:
            writer.execute("DELETE FROM orders")
        writer.close()
        conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
        replies = conversation.until("finished")
        assert len(replies) == 1
        assert replies[0].finished.equal
        assert replies[0].finished.as_of == finished.as_of
        conversation.finish()
        with pytest.raises(AssertionError, match="ended"):
            conversation.reply()
    assert agent.engine.opened == 1
    lines = agent.audit()
    assert [line["outcome"] for line in lines] == ["sent", "equal"]
    assert lines[0]["client"] == "spiffe://driftline/warehouse/lake"
    assert (lines[0]["rows_shipped"], lines[1]["rows_shipped"]) == (len(ROWS), 0)
    assert (lines[0]["rows_read"], lines[0]["scans"]) == (len(ROWS), 1)
    assert str(lines[0]["time"]).endswith("+00:00")
    assert FRAGMENT_KEY.hex() not in json.dumps(lines)


def test_a_difference_by_hand(running: Start, certs: Path) -> None:
    """We hold 10 wrongly, 11 in excess of nothing, and lack 12; the source has deleted 500."""
    agent = running()
    ours = {row[0]: row for row in ROWS} | {10: (10, "stale"), 500: (500, "gone")}
    del ours[12]
    held = [row_bytes(row) for row in ours.values()]
    key = blake3(b"driftline fingerprint 1\0int8\0text\0", key=FRAGMENT_KEY).digest()
    mixed = mix(SALT, *hasher(key)(held))
    partition = uniform(64)
    sums = RangeSums(partition.ranges)
    places = partition.indices(np.array(list(ours), np.int64))
    sums.add(places, mixed)
    digests = sums.short_digests()
    with peer(agent, certs) as conversation:
        cells = strata(digests, SALT).tobytes()
        first = opening(
            RECIPE, ours=independent_total(list(ours.values())), partition=partition, strata=cells
        )
        conversation.send(first)
        verdict = conversation.reply().verdict
        assert verdict.count == len(ROWS)
        assert verdict.differing >= 1
        for piece, last in ((digests[:40], False), (digests[40:], True)):
            message = pb.Digests(coarsen=0, digests=piece.astype("<u8").tobytes(), last=last)
            conversation.send(pb.Request(digests=message))
        replies = conversation.until("hashes_end")
        bits = zstandard.decompress(replies[0].mismatch.bitmap)
        differs = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: len(digests)]
        assert set(places[[i for i, n in enumerate(ours) if n in {10, 500}]]) <= set(
            np.flatnonzero(differs)
        )
        theirs = b"".join(r.row_hashes.hashes for r in replies)
        hashes = np.frombuffer(theirs, "<u8")
        wanted = ~np.isin(hashes, mixed.m0)
        bitmap = np.packbits(wanted, bitorder="little").tobytes()
        conversation.send(
            pb.Request(wanted=pb.Wanted(bitmap=zstandard.compress(bitmap), last=True))
        )
        replies += conversation.until("finished")
    removed = differs[places].astype(bool) & ~np.isin(mixed.m0, hashes)
    now = [row for row, gone in zip(held, removed, strict=True) if not gone] + shipped(replies)
    assert sorted(now) == sorted(map(row_bytes, ROWS))
    assert replies[-1].finished.count == len(ROWS)


def test_refusals_end_a_relation_and_not_the_stream(running: Start, certs: Path) -> None:
    relations = (
        '[relations.orders]\ntable = "orders"\n'
        '[relations.nulls]\nquery = "SELECT comment, id FROM orders"\nkey = ["comment"]\n'
        'types = {comment = "text", id = "int8"}\n'
        '[relations.absent]\ntable = "no_such_table"\n'
    )
    agent = running(relations=relations)
    with peer(agent, certs) as conversation:
        conversation.send(opening(b"?" * 16))
        refused = conversation.reply().refused
        assert refused.code == "RECIPE"
        assert [c.name for c in refused.description.columns] == ["id", "comment"]
        # Already on its way when the refusal arrived.
        conversation.send(pb.Request(whole=pb.Whole()))
        other = recipe_id(("comment", "text"), ("id", "int8"))
        conversation.send(opening(other, relation="nulls"))
        refused = conversation.reply().refused
        assert (refused.code, refused.where) == ("NULL_KEY", "nulls")
        assert refused.details
        conversation.send(opening(RECIPE, relation="absent"))
        assert conversation.reply().refused.code == "CONFIGURATION"
        conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
        assert conversation.reply().finished.equal
        conversation.send(pb.Request(whole=pb.Whole()))
        assert conversation.reply().refused.code == "MALFORMED"
        with pytest.raises(AssertionError, match="ended"):
            conversation.reply()


@pytest.mark.parametrize(
    "damage",
    [
        lambda o: o.ClearField("fragment_key"),
        lambda o: o.ClearField("start_steps"),
        lambda o: setattr(o, "strata", b"short"),
        lambda o: setattr(o, "shifts", bytes([0] * len(o.shifts))),
    ],
)
def test_malformed_openings(running: Start, certs: Path, damage: Callable[[pb.Open], None]) -> None:
    agent = running()
    request = opening(RECIPE)
    damage(request.open)
    with peer(agent, certs) as conversation:
        conversation.send(request)
        assert conversation.reply().refused.code == "MALFORMED"


def test_messages_that_lie_about_their_size(running: Start, certs: Path) -> None:
    agent = running()
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        assert conversation.reply().WhichOneof("message") == "verdict"
        conversation.send(pb.Request(digests=pb.Digests(coarsen=200, last=True)))
        assert conversation.reply().refused.code == "MALFORMED"
        ours = RangeSums(uniform(4).ranges).short_digests() + np.uint64(1)
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        conversation.reply()
        digests = ours.astype("<u8").tobytes()
        conversation.send(pb.Request(digests=pb.Digests(digests=digests, last=True)))
        conversation.until("hashes_end")
        bomb = zstandard.compress(bytes(1 << 26))
        conversation.send(pb.Request(wanted=pb.Wanted(bitmap=bomb, last=True)))
        assert conversation.reply().refused.code == "MALFORMED"


def test_a_mistake_of_ours_gets_a_number_and_tells_nothing(
    running: Start, certs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = running()

    def fails(*_: object) -> None:
        raise ZeroDivisionError("hidden")

    monkeypatch.setattr("source_agent.server.conversation.Comparison", fails)
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE))
        refused = conversation.reply().refused
    assert refused.code == "INTERNAL"
    assert "hidden" not in str(refused)
    assert refused.details["reference"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


# Time and budgets. One row a second makes a scan that is not over before the test is.

NOON = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - local time
SLOW = "[limits]\nrows_per_second = 1\n"


def test_heartbeats_do_not_depend_on_the_database(running: Start, certs: Path) -> None:
    agent = running(SLOW, heartbeat_s=0.05)
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        for _ in range(3):
            progress = conversation.reply(progress=True).progress
        assert progress.phase == "scan"


def test_a_client_that_leaves_ends_the_scan_and_the_session(running: Start, certs: Path) -> None:
    agent = running(SLOW, heartbeat_s=0.05)
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        conversation.reply(progress=True)
        while agent.engine.opened == 0:
            conversation.reply(progress=True)
        conversation.call.cancel()
        assert agent.engine.closed.acquire(timeout=3)
        agent.engine.closed.release()
    assert [line["outcome"] for line in agent.audit()] == ["cancelled"]


def test_stopping_the_agent_closes_what_is_running(running: Start, certs: Path) -> None:
    agent = running(SLOW, heartbeat_s=0.05)
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        conversation.reply(progress=True)
        agent.server.stop()
        with pytest.raises(grpc.RpcError):
            conversation.until("finished")


def test_scans_at_once(running: Start, certs: Path) -> None:
    limits = SLOW + "scans_at_once = 1\n"
    agent = running(limits, heartbeat_s=0.05, govern=lambda c: Governor(c.budget, slot_wait_s=0.1))
    with peer(agent, certs) as first, peer(agent, certs) as second:
        first.send(opening(RECIPE, ours=Digest(1, 1)))
        while first.reply(progress=True).progress.phase != "scan":
            pass
        second.send(opening(RECIPE))
        refused = second.reply().refused
        assert refused.code == "NOT_NOW"
        assert "scans_at_once" in refused.message


def test_the_pause_file_and_quiet_hours(running: Start, certs: Path) -> None:
    at = [NOON]
    limits = '[limits]\npause_file = "pause"\nquiet_hours = ["08:00-10:00"]\n'
    agent = running(limits, govern=lambda c: Governor(c.budget, wall=lambda: at[0]))
    (agent.folder / "pause").touch()
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE))
        assert "pause_file" in conversation.reply().refused.message
        (agent.folder / "pause").unlink()
        at[0] = NOON.replace(hour=9)
        conversation.send(opening(RECIPE))
        assert "quiet_hours" in conversation.reply().refused.message
        with pytest.raises(grpc.RpcError) as caught:
            described(agent, certs)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert agent.engine.opened == 0
        at[0] = NOON.replace(hour=10)
        conversation.send(opening(RECIPE))
        conversation.until("finished")


@pytest.mark.parametrize("switch", ["pause", "hours"])
def test_an_exchange_that_waits_for_its_client_is_ended(
    running: Start, certs: Path, switch: str
) -> None:
    """Its snapshot holds back vacuum, also while nothing is read."""
    at = [NOON]
    limits = '[limits]\npause_file = "pause"\nquiet_hours = ["08:00-10:00"]\n'
    agent = running(
        limits, heartbeat_s=0.05, govern=lambda c: Governor(c.budget, wall=lambda: at[0])
    )
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE))
        conversation.until("finished")  # and may ask for another relation
        if switch == "pause":
            (agent.folder / "pause").touch()
        else:
            at[0] = NOON.replace(hour=9)
        assert agent.engine.closed.acquire(timeout=5), "the snapshot was held"
        agent.engine.closed.release()


ENDLESS = """[relations.endless]
key = ["id"]
query = '''SELECT id, comment FROM orders WHERE id = (
    WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 10000000000)
    SELECT sum(x) FROM c)'''
"""


@pytest.mark.parametrize("switch", ["pause", "hours", "age"])
def test_a_statement_from_which_nothing_comes_is_ended(
    running: Start, certs: Path, switch: str
) -> None:
    """Between whose batches the budget is looked at, had it any."""
    at = [NOON]
    age = 0.5 if switch == "age" else 600
    limits = f'[limits]\nsnapshot_seconds = {age}\npause_file = "pause"\n'
    limits += 'quiet_hours = ["08:00-10:00"]\n'
    agent = running(
        limits,
        relations=ENDLESS,
        heartbeat_s=0.05,
        govern=lambda c: Governor(c.budget, wall=lambda: at[0]),
    )
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, relation="endless", ours=Digest(1, 1)))
        while conversation.reply(progress=True).progress.phase != "scan":
            pass
        if switch == "pause":
            (agent.folder / "pause").touch()
        if switch == "hours":
            at[0] = NOON.replace(hour=9)
        refused = conversation.reply().refused
        assert refused.code == ("SNAPSHOT_LOST" if switch == "age" else "NOT_NOW")
        assert agent.engine.closed.acquire(timeout=3), "it is still read"
        agent.engine.closed.release()
    assert [line["outcome"] for line in agent.audit()] == [refused.code]


@contextmanager
def impatient(agent: Agent) -> Iterator[Agent]:
    """Another agent on the same database that waits for its clients for 0.3 s only."""
    path = agent.folder / "source.toml"
    text = path.read_text()
    path.write_text(text.replace("[database]\n", "[database]\nidle_timeout_s = 0.3\n", 1))
    config = load(path)
    engine = Recorded(config)
    server = start(config, engine=engine, heartbeat_s=0.05)
    try:
        yield Agent(server, engine, agent.folder)
    finally:
        server.stop()


def test_a_silent_client_gives_its_snapshot_back(running: Start, certs: Path) -> None:
    with impatient(running()) as agent, peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        assert conversation.reply().WhichOneof("message") == "verdict"
        refused = conversation.reply().refused
        assert refused.code == "LIMIT"
        assert "idle_timeout_s" in refused.message
        assert agent.engine.closed.acquire(timeout=3)


def test_a_client_that_takes_nothing_gives_its_snapshot_back(running: Start, certs: Path) -> None:
    noise = random.Random(7)
    agent = running()
    with sqlite3.connect(agent.folder / "erp.db") as writer:
        many = ((n, noise.randbytes(2_000).hex()) for n in range(1000, 21_000))
        writer.executemany("INSERT INTO orders VALUES (?, ?)", many)
    writer.close()
    with impatient(agent) as agent, peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE))
        assert agent.engine.closed.acquire(timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            conversation.until("finished")
        assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_window_that_stays_closed_gives_the_snapshot_back(running: Start, certs: Path) -> None:
    """The RPC's own thread is held up in gRPC by the first small reply."""
    closed = (("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0))
    with (
        impatient(running()) as agent,
        channel(agent.server.port, certs, closed) as over,
        Peer(over) as conversation,
    ):
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        assert agent.engine.closed.acquire(timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            conversation.until("finished")
        assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_snapshot_that_is_too_old_may_be_taken_again(running: Start, certs: Path) -> None:
    agent = running("[limits]\nsnapshot_seconds = 0.2\n", heartbeat_s=0.05)
    with peer(agent, certs) as conversation:
        conversation.send(opening(RECIPE, ours=Digest(1, 1)))
        assert conversation.reply().WhichOneof("message") == "verdict"
        refused = conversation.reply().refused
        assert refused.code == "SNAPSHOT_LOST"
        assert "snapshot_seconds" in refused.message


@pytest.mark.postgresql
def test_a_session_that_died_between_relations_is_renewed(
    tmp_path: Path, postgresql: PostgreSQL
) -> None:
    database = postgresql.create_database("served")
    config = configuration(tmp_path, tmp_path / "unused", certs=None)
    text = config.path.read_text()
    config.path.write_text(text.replace(config.database.url, postgresql.url("postgres", database)))
    engine = Recorded(load(config.path))
    with postgresql.superuser(database) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id bigint PRIMARY KEY, comment text)")
        cursor.executemany("INSERT INTO orders VALUES (%s, %s)", ROWS)
        server = start(load(config.path), engine=engine)
        try:
            with peer(Agent(server, engine, tmp_path), None) as conversation:
                for _ in range(2):
                    conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
                    assert conversation.reply().finished.equal
                assert engine.opened == 1
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
                conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
                assert conversation.reply().finished.equal
                assert engine.opened == 2
        finally:
            server.stop()
    postgresql.drop_database(database)


@pytest.mark.parametrize("is_exchanged", [False, True])
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_with_debug_the_log_has_the_traceback_of_what_stays_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int, is_exchanged: bool
) -> None:
    make_orders(tmp_path / "orders.db", ROWS)
    # Of its own: what was logged under a reference is not logged again for an hour.
    relations = f'[relations.orders]\ntable = "gone {level} {is_exchanged}"\n'
    config = configuration(tmp_path, tmp_path / "orders.db", certs=None, relations=relations)
    server = start(config)
    try:
        with caplog.at_level(level, "driftline.source"), channel(server.port, None) as line:
            if is_exchanged:
                with Peer(line) as peer:
                    peer.send(opening(bytes(16)))
                    assert peer.reply().refused.code == "CONFIGURATION"
            else:
                with pytest.raises(grpc.RpcError):
                    SourceStub(line).Describe(
                        pb.DescribeRequest(protocol=PROTOCOL_VERSION, relation="orders")
                    )
    finally:
        server.stop()
    # Not caplog's text: once Spark was started in this process, its format is Spark's, in JSON.
    refusals = [record for record in caplog.records if "refused, " in record.getMessage()]
    assert [bool(record.exc_info) for record in refusals] == [level == logging.DEBUG]
