"""No name crosses the border to a client that may not know it, whatever happens to a relation.

The agent is real and listens on loopback. A peer asks it for everything about relations that are
hidden, dropped, renamed, locked or wrong in the DBA's file, and keeps all that it receives:
replies, statuses and metadata. None of it may hold SECRET, which the names of all else have.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import REFERENCE
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.engines.conformance.legacy import Legacy
from source_agent.server import handlers
from source_agent.server.service import start
from tests.conformance.border_cases import SECRET, Case, beside, cases
from tests.harness.agents import Peer, channel, opening
from tests.harness.family import spelled_as
from tests.harness.legacies import KINDS, OfMariaDB, OfPostgreSQL, OfSQLite

pytestmark = pytest.mark.starts

LOCK_S = 1


class Heard:
    """All bytes that a client received, and the refusals among them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.refused: list[pb.Refused] = []

    def keep(self, message: pb.Reply | pb.DescribeReply | pb.ActivityReply) -> None:
        self.parts.append(message.SerializeToString())
        if isinstance(message, pb.Reply) and message.HasField("refused"):
            self.refused.append(message.refused)

    def end(self, error: grpc.RpcError) -> None:
        self.parts += [str(error).encode(), str(error.details()).encode()]
        metadata: Any = error.trailing_metadata()
        for key, value in metadata:
            self.parts += [key.encode(), value if isinstance(value, bytes) else value.encode()]
            if key == "driftline-refused-bin":
                self.refused.append(pb.Refused.FromString(value))

    def ask(self, port: int, name: str) -> None:
        """Describe a relation, exchange it, and ask for its activity."""
        with channel(port, None) as line:
            stub = SourceStub(line)
            recipe = bytes(32)
            try:
                reply = stub.Describe(pb.DescribeRequest(protocol=1, relation=name))
                self.keep(reply)
                recipe = _recipe(reply)
            except grpc.RpcError as error:
                self.end(error)
            for said in dict.fromkeys((recipe, bytes(32))):
                with Peer(line) as peer:
                    peer.send(opening(said, relation=name))
                    peer.finish()
                    try:
                        for found in peer.call:
                            self.keep(found)
                    except grpc.RpcError as error:
                        self.end(error)
            try:
                self.keep(stub.Activity(pb.ActivityRequest(protocol=1, relations=[name])))
            except grpc.RpcError as error:
                self.end(error)


def _recipe(reply: pb.DescribeReply) -> bytes:
    found = reply.description
    columns = tuple(
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in found.columns
    )
    return Recipe(columns, found.key_columns, found.fingerprint_version).id


def _configured(folder: Path, url: str, relations: dict[str, str]) -> Path:
    path = folder / "source.toml"
    path.write_text(
        f'[database]\nurl = "{url}"\nlock_timeout_s = {LOCK_S}\nstatement_timeout_s = 20\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\naudit_file = "audit.jsonl"\n'
        + "".join(f"[relations.{name}]\n{toml}\n" for name, toml in relations.items())
    )
    return path


def _check(heard: Heard, more: Sequence[str] = ()) -> None:
    for part in heard.parts:
        for secret in (SECRET, *more):
            assert secret.encode() not in part.lower(), part.decode("latin-1")
    assert not [r for r in heard.refused if r.code == "INTERNAL"], heard.refused


@pytest.fixture(params=[*KINDS, "firebird"])
def legacy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Legacy]:
    if request.param == "sqlite":
        made: Legacy = OfSQLite(tmp_path / f"{SECRET}.sqlite", journal="delete")
    elif request.param == "firebird":
        server = request.getfixturevalue("firebird")
        from tests.harness.legacy_firebird import OfFirebird

        made = OfFirebird(tmp_path, server)
        if made.password is not None:  # of a version with a server
            monkeypatch.setenv("DRIFTLINE_PASSWORD_DATABASE", made.password)
    else:
        made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def _made(legacy: Legacy) -> list[Case]:
    release = legacy.server.release if isinstance(legacy, OfPostgreSQL) else 0
    found = cases(spelled_as(legacy.name), release)
    legacy.run(*beside(), *(sql for case in found for sql in case.made))
    for number in (1, 2):
        legacy.run(f"INSERT INTO {SECRET}_kept VALUES ({number}, 'n', 5)")
    return found


def _reader(legacy: Legacy, stack: ExitStack, served: Sequence[Case]) -> str:
    """Return the URL of a login that may read the tables that are served, and no other."""
    if not isinstance(legacy, OfPostgreSQL | OfMariaDB):
        return legacy.url
    login = f"reader_{legacy.database}"[:30]
    stack.callback(legacy.drop_login, login)
    tables = [c for c in served if c.made and f'table = "{c.name}"' in c.toml]
    script = legacy.connect().grants([], login=login, connections=4)
    url = legacy.granted(script, login)
    who = login if isinstance(legacy, OfPostgreSQL) else f"'{login}'@'%'"
    legacy.run(*(f"GRANT SELECT ON {case.name} TO {who}" for case in tables))
    return url


def test_a_broken_relation(
    legacy: Legacy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an administrator, who sees all names, and as a reader, who lacks rights."""
    monkeypatch.setattr(handlers, "_kept", handlers._Kept())  # it has logged nothing yet
    made = _made(legacy)
    secrets = [legacy.database] if isinstance(legacy, OfPostgreSQL | OfMariaDB) else [str(tmp_path)]
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "driftline.source"):
        urls = dict.fromkeys((legacy.url, _reader(legacy, stack, made)))
        relations = {case.name: case.toml for case in made}
        ports = []
        for url in urls:
            server = start(load(_configured(tmp_path, url, relations)))
            stack.callback(server.stop)
            ports.append(server.port)
        before, after = Heard(), Heard()
        for case in made:
            before.ask(ports[0], case.name)
        legacy.run(*(sql for case in made for sql in case.broken))
        for port in ports:
            for name in (*relations, f"{SECRET}_salaries"[4:]):
                after.ask(port, name)
    for heard in (before, after):
        _check(heard, secrets)
    codes = {refused.code for refused in after.refused}
    assert {"CONFIGURATION", "RECIPE", "NOT_FOUND"} <= codes
    kept = [r for r in after.refused if REFERENCE in r.details]
    assert kept
    for refused in kept:  # what the client is not told, the DBA's log has
        assert f"refused, {refused.details[REFERENCE]}: " in caplog.text
    assert SECRET in caplog.text.lower()


def test_a_locked_table(legacy: Legacy, tmp_path: Path) -> None:
    """The lock's holder, and the file, stay at the source."""
    legacy.run(f"CREATE TABLE held (id INT NOT NULL PRIMARY KEY, {SECRET}_note INT)", *beside())
    toml = {"held": 'table = "held"\ncolumns = ["id"]\nkey = ["id"]'}
    heard = Heard()
    with ExitStack() as stack:
        server = start(load(_configured(tmp_path, legacy.url, toml)))
        stack.callback(server.stop)
        _hold(legacy, stack)
        heard.ask(server.port, "held")
    _check(heard)
    if legacy.name != "firebird":  # where readers never wait
        assert {"DATABASE_UNAVAILABLE"} <= {refused.code for refused in heard.refused}


def _hold(legacy: Legacy, stack: ExitStack) -> None:
    if isinstance(legacy, OfPostgreSQL):
        owner = stack.enter_context(legacy.server.superuser(legacy.database))
        owner.autocommit = False
        owner.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
    elif isinstance(legacy, OfMariaDB):
        connection = stack.enter_context(legacy.server.admin(legacy.database))
        connection.cursor().execute("LOCK TABLES held WRITE")
    elif isinstance(legacy, OfSQLite):
        file = sqlite3.connect(legacy.path, isolation_level=None)
        stack.callback(file.close)
        file.execute("BEGIN EXCLUSIVE")


def test_dump_files(tmp_path: Path) -> None:
    """Columns of a file and files that are not published stay at the source."""
    folder = tmp_path / SECRET
    folder.mkdir()
    format = '[columns]\nid = "int8"\nnote = "text"\n'
    (folder / "format.toml").write_text(format)
    files = {
        "headed": b"id,note,zzq_pay\n1,a,2\n",
        "cut": b"id,note\n1,a",
        "valued": b"id,note\nx,a\n",
        "empty": b"",
        "gone": None,
    }
    toml = {}
    for name, data in files.items():
        if data is not None:
            (folder / f"{name}.csv").write_bytes(data)
            (folder / f"{name}.csv.done").touch()
        toml[name] = (
            f'files = "{name}.csv"\nformat = "{folder}/format.toml"\nkey = ["id"]\n'
            'complete = "{file}.done"'
        )
    (folder / f"{SECRET}.csv").write_bytes(b"")
    (folder / "linked.csv.done").touch()
    (folder / "linked.csv").symlink_to(folder / f"{SECRET}.csv")
    toml["linked"] = toml["gone"].replace("gone", "linked")
    toml["twice"] = toml["gone"].replace("gone.csv", "{%Y%Y}.csv")
    other = os.fsdecode(b"other-\xff.csv")  # no UTF-8
    (folder / other).write_bytes(b"id,note\n1,a\n")
    (folder / f"{other}.done").touch()
    toml["other"] = toml["gone"].replace("gone", "other-*")
    heard = Heard()
    server = start(load(_configured(tmp_path, f"dump:///{folder}", toml)))
    try:
        for name in toml:
            heard.ask(server.port, name)
    finally:
        server.stop()
    _check(heard)
    assert len({r.code for r in heard.refused}) > 3
    assert any(b"other-\\udcff.csv" in part for part in heard.parts)
