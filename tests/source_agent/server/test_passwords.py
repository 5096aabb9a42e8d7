"""A database's password that changes while the agent runs counts at the next connection."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.limits import PROTOCOL_VERSION
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.server.service import Server, start
from tests.harness.agents import channel
from tests.harness.family import FAMILY
from tests.harness.servers import FamilyServer, PostgreSQL


class Account:
    """A login that may read `orders` of a new database, and how its password is changed."""

    def __init__(self, server: PostgreSQL | FamilyServer) -> None:
        self.server, self.database = server, f"p{uuid.uuid4().hex[:10]}"
        self.login = f"l{self.database}"
        server.create_database(self.database)
        self.password = server.create_login(self.login)
        self.url = server.tcp_url(self.login, self.database)
        self.administer("CREATE TABLE orders (id INT NOT NULL PRIMARY KEY)")
        to = self.login if isinstance(server, PostgreSQL) else f"'{self.login}'@'%'"
        self.administer(f"GRANT SELECT ON orders TO {to}")

    def administer(self, sql: str) -> None:
        if isinstance(self.server, PostgreSQL):
            with self.server.superuser(self.database) as admin:
                admin.execute(sql)
        else:
            with self.server.admin(self.database) as root, root.cursor() as cursor:
                cursor.execute(sql)

    def rotate(self, password: str) -> None:
        """Change the password, as an administrator does; no session is ended."""
        if isinstance(self.server, PostgreSQL):
            self.administer(f"ALTER ROLE {self.login} PASSWORD '{password}'")
        else:
            self.administer(f"ALTER USER '{self.login}'@'%' IDENTIFIED BY '{password}'")

    def drop(self) -> None:
        self.server.drop_database(self.database)
        if isinstance(self.server, PostgreSQL):
            with self.server.superuser() as admin:
                admin.execute(f"DROP ROLE {self.login}")
        else:
            with self.server.admin() as root, root.cursor() as cursor:
                cursor.execute(f"DROP USER '{self.login}'@'%'")


@pytest.fixture(params=["postgresql", *FAMILY])
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    made = Account(request.getfixturevalue(request.param))
    yield made
    made.drop()


def write(secret: Path, text: str) -> None:
    """Write the file beside its name and rename it, as the documents say."""
    new = secret.with_suffix(".new")
    new.touch(0o600)
    new.write_text(text)
    new.replace(secret)


def described(server: Server) -> str:
    """Return the relation's key, or the error's code and text."""
    with channel(server.port, None) as opened:
        asked = pb.DescribeRequest(protocol=PROTOCOL_VERSION, relation="orders")
        try:
            return SourceStub(opened).Describe(asked, timeout=20).description.columns[0].name
        except grpc.RpcError as error:
            return f"{error.code()} {error.details()}"


@pytest.mark.starts
def test_a_new_password_counts_without_a_restart(
    account: Account, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, file = tmp_path / "reader.password", tmp_path / "source.toml"
    write(secret, account.password)
    file.write_text(
        f'[database]\nurl = "{account.url}"\npassword_file = "reader.password"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.orders]\ntable = "orders"\n'
    )
    server = start(load(file))
    try:
        assert described(server) == "id"
        account.rotate("new-one")
        assert "FAILED_PRECONDITION" in described(server)
        write(secret, "new-one\n")
        assert described(server) == "id"
        with caplog.at_level(logging.WARNING):
            server.reload()
            assert "restart" not in caplog.text, "the new password is in use already"
            secret.chmod(0o644)
            assert described(server) == "id", "the last one stays in use"
        assert f"chmod 600 {secret}" in caplog.text
        secret.unlink()
        assert described(server) == "id"
        write(secret, "wrong")
        refused = described(server)
        assert "FAILED_PRECONDITION" in refused
        assert str(secret) not in refused, "the other side learns no name of this machine"
        write(secret, "new-one")
        assert described(server) == "id"
    finally:
        server.stop()
