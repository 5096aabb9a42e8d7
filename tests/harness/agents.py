"""A source agent of a test, and a peer that speaks the protocol to it by hand.

The agent is the real one: gRPC over loopback, mutual TLS from `enroll`, a SQLite file that a test
made. `Peer` sends what a test tells it and returns what comes, so that a test can be wrong in any
way a warehouse could be. `Recorded` counts the sessions of a real engine and changes nothing.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from driftline import wire_pb2 as pb
from driftline.limits import PROTOCOL_VERSION, STRATUM_CELLS
from driftline.reconciliation.ranges import Partition, strata_of, uniform
from driftline.rows.digests import Digest, Salt
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import SourceConfig, load
from source_agent.engines.interface import Engine, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation

FRAGMENT_KEY = bytes(range(32))
SALT = Salt(0x0123456789ABCDEF, 0xFEDCBA9876543210)
REPLY_S_MAX = 20.0


def make_orders(path: Path, rows: Sequence[tuple[int, str | None]]) -> None:
    """A WAL database with `orders(id INTEGER PRIMARY KEY, comment TEXT)`, and `private`."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, comment TEXT)")
        connection.execute("CREATE TABLE private (id INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)
    connection.close()


def configuration(
    folder: Path, database: Path, *, certs: Path | None, more: str = "", relations: str = ""
) -> SourceConfig:
    """source.toml of a test: `more` are tables before the relations, which default to `orders`."""
    tls = (
        "insecure = true"
        if certs is None
        else f'certificate = "{certs}/source.pem"\nkey = "{certs}/source.key"\n'
        f'client_ca = "{certs}/ca.pem"'
    )
    path = folder / "source.toml"
    path.write_text(
        f'[database]\nurl = "sqlite:///{database}"\n[server]\nlisten = "127.0.0.1:0"\n{tls}\n'
        f'audit_file = "audit.jsonl"\n{more}\n'
        + (relations or '[relations.orders]\ntable = "orders"\n')
    )
    return load(path)


class Recorded:
    """An engine that says when its sessions were opened and closed."""

    def __init__(self, config: SourceConfig) -> None:
        database = config.database
        self._engine: Engine = connect(database.url, database.password, database.limits)
        self.opened = 0
        self.closed = threading.Semaphore(0)

    def open(self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()) -> Session:
        self.opened += 1
        session = self._engine.open(probed, named)
        close = session.close

        def closing() -> None:
            close()
            self.closed.release()

        session.close = closing  # type: ignore[method-assign]
        return session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@contextmanager
def channel(
    port: int, certs: Path | None, options: Sequence[tuple[str, int]] = ()
) -> Iterator[grpc.Channel]:
    """As the warehouse of `certs`; in plain text without."""
    target = f"127.0.0.1:{port}"
    if certs is None:
        opened = grpc.insecure_channel(target, options)
    else:
        parts = [(certs / f).read_bytes() for f in ("ca.pem", "warehouse.key", "warehouse.pem")]
        opened = grpc.secure_channel(target, grpc.ssl_channel_credentials(*parts), options)
    with opened:
        yield opened


def opening(
    recipe: bytes,
    *,
    relation: str = "orders",
    ours: Digest | None = None,
    partition: Partition | None = None,
    strata: bytes | None = None,
    protocol: int = PROTOCOL_VERSION,
) -> pb.Request:
    """An `Open`; by default of a warehouse that holds nothing."""
    ours, partition = ours or Digest(), partition or uniform(4)
    pairs = zip((0, *partition.starts), partition.starts, strict=False)
    steps = [(b - a + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in pairs]
    return pb.Request(
        open=pb.Open(
            protocol=protocol,
            relation=relation,
            recipe=recipe,
            fragment_key=FRAGMENT_KEY,
            salt=SALT.to_bytes(),
            count=ours.count,
            sum=ours.sum_bytes(),
            start_steps=steps,
            shifts=bytes(partition.shifts),
            strata=bytes(strata_of(partition.ranges) * STRATUM_CELLS) if strata is None else strata,
            level=3,
        )
    )


class Peer:
    """One exchange stream, by hand. A context manager: leaving it ends the stream."""

    def __init__(self, over: grpc.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self._requests: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        requests = iter(self._requests.get, None)
        self.call = SourceStub(over).Exchange(requests, timeout=60, metadata=metadata)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.call.cancel()

    def send(self, request: pb.Request) -> None:
        self._requests.put(request)

    def finish(self) -> None:
        """No more requests."""
        self._requests.put(None)

    def end(self) -> None:
        """No more requests, and wait until the source has ended the stream.

        A stream that is cancelled counts at the source until its handler has noticed.
        """
        self.finish()
        assert not list(self.call)

    def reply(self, *, progress: bool = False) -> pb.Reply:
        """The next one; `Progress` only when asked for."""
        for found in self.call:
            if progress or found.WhichOneof("message") != "progress":
                return found
        raise AssertionError("the source ended the stream")

    def until(self, last: str) -> list[pb.Reply]:
        """All replies up to and with the one called `last`."""
        found = [self.reply()]
        while found[-1].WhichOneof("message") != last:
            assert found[-1].WhichOneof("message") != "refused", found[-1]
            found.append(self.reply())
        return found
