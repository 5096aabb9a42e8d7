"""A source behind an HTTP proxy: gRPC's rules for one, and both agents with one in between."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.connect_proxy import ConnectProxy
from tests.harness.legacy import SqliteLegacy
from tests.harness.tls_pair import TlsPair
from warehouse_agent.config import select
from warehouse_agent.inspection.readiness import examine_source
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.transport.handshake import proxy_of

NAMES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
URL = "http://proxy:3128"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No proxy in the environment."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "host", "proxy"),
    [
        ({}, "db.example", None),
        ({"grpc_proxy": URL, "https_proxy": "http://other:1"}, "db.example", "proxy:3128"),
        ({"https_proxy": "http://me:secret@proxy:3128/"}, "db.example", "proxy:3128"),
        ({"http_proxy": URL}, "db.example", "proxy:3128"),
        ({"HTTPS_PROXY": URL}, "db.example", None),
        ({"grpc_proxy": "", "https_proxy": URL}, "db.example", None),
        ({"https_proxy": "https://proxy:3128"}, "db.example", None),
        ({"https_proxy": "proxy:3128"}, "db.example", None),
        ({"https_proxy": "http://[proxy"}, "db.example", None),
        ({"https_proxy": URL, "no_proxy": "other, EXAMPLE"}, "db.example", None),
        ({"https_proxy": URL, "no_proxy": "*"}, "db.example", "proxy:3128"),
        ({"https_proxy": URL, "no_proxy": "example", "no_grpc_proxy": ""}, "db.example", URL[7:]),
        ({"https_proxy": URL, "no_proxy": "10.0.0.0/8"}, "10.1.2.3", None),
        ({"https_proxy": URL, "no_proxy": "10.0.0.0/8"}, "11.1.2.3", "proxy:3128"),
        ({"https_proxy": URL, "no_proxy": "10.0.0.0/8,fd00::/8"}, "fd00::1", None),
    ],
)
def test_the_rules_of_grpc(
    bare: pytest.MonkeyPatch, environment: dict[str, str], host: str, proxy: str | None
) -> None:
    for name, value in environment.items():
        bare.setenv(name, value)
    assert proxy_of(host) == proxy


def test_a_source_behind_a_proxy(
    bare: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    """Its name is known to the proxy alone: nothing that is tried by hand may refuse it."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.execute("INSERT INTO orders VALUES (1, 'x')")
    with contextlib.closing(legacy), TlsPair(spark, legacy, tmp_path / "pair") as pair:
        port = int(pair.address.rpartition(":")[2])
        with ConnectProxy(port) as proxy:
            bare.setenv("https_proxy", proxy.url)
            pair.dial("db.invalid:7443", more=['server_name = "127.0.0.1"'])
            config = pair.config()
            runner = Runner(DeferredSession({}, spark), config, attempts=1)
            (report,) = runner.refresh(select(config, ["orders"], False), Options())
            assert report.error is None
            pair.check("orders")
            found = list(examine_source(config.sources["erp"]))
        assert set(proxy.asked) == {"CONNECT db.invalid:7443 HTTP/1.1"}
        assert [look.error for look in found] == [None, None, None]
        assert f"through the proxy {proxy.url.removeprefix('http://')}" in found[0].found
        assert "orders" in found[-1].found
