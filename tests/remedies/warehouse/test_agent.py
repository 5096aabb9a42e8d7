"""Remedies of the warehouse agent's commands, of its line and of Spark: with each, they go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import grpc
import pytest
from click.testing import CliRunner, Result
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, DriftlineError
from pyspark.sql import SparkSession

from source_agent.config.file import load as source_config
from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.fixtures.disk import Mount
from tests.harness.raw_server import served
from tests.remedies.site import Site
from tests.remedies.told import told
from warehouse_agent.cli.main import cli
from warehouse_agent.config import Source
from warehouse_agent.inspection import readiness
from warehouse_agent.spark import executors, session
from warehouse_agent.tasks import scan
from warehouse_agent.transport import channel, frame_admission
from warehouse_agent.transport.throughput import ProgressCheck
from warehouse_agent.views.inputs import load

pytestmark = pytest.mark.starts


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


def test_models_of_changes(site: Site) -> None:
    site.sql("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, at TIMESTAMP, n INT)")
    site.sql("INSERT INTO t SELECT id, datetime('2026-01-01', id || ' hours'), 0 FROM orders")
    site.serve('table = "t"\ntypes = { at = "timestamp" }')
    assert site.refresh().code == 0
    site.sql("INSERT INTO t VALUES (999, '2026-02-01 00:00:00', 1)")
    assert site.refresh().code == 0
    claims = 'event_time = "{}"\nevent_kind = "creation"'
    for column, remedy in (
        ("none", "Name one of its columns of type timestamp or timestamptz."),
        ("n", "Name a column of type timestamp or timestamptz, without another carrier."),
    ):
        site.keep(claims.format(column))
        ended = site.driftline("fit", "orders")
        assert ended.code
        assert told(remedy, remedy) in ended.err
    site.keep(claims.format("at"))
    assert site.driftline("fit", "orders").code == 0
    picture = "Name a file in a folder that exists."
    ended = site.driftline("fit", "orders", "--plot", str(site.folder / "none" / "p.svg"))
    assert told(picture, picture) in ended.err
    assert site.driftline("fit", "orders", "--plot", str(site.folder / "p.svg")).code == 0
    assert (site.folder / "p.svg").exists()
    file = site.folder / "warehouse.toml"
    file.write_text(file.read_text() + '[fragments.others]\nsource = "erp"\n')
    one = "Name one of them."
    ended = site.driftline("fit", "o*", "--plot", str(site.folder / "q.svg"))
    assert told(one, one) in ended.err
    assert site.driftline("fit", "orders", "--plot", str(site.folder / "q.svg")).code == 0


def write_first(source: Source, file: Path) -> Result:
    """Run `driftline init` for a source."""
    files = {"ca": source.ca, "certificate": source.certificate, "key": source.key}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    words += ["--source", source.address, "--name", source.name]
    return CliRunner().invoke(cli, ["--config", str(file), "init", *words])


def test_certificates_of_a_place_that_no_file_can_name(site: Site) -> None:
    odd, plain = site.folder / os.fsdecode(b"c\xe9"), site.folder / "certs"
    enroll(plain, source_names=["127.0.0.1"])
    toml = site.folder / "tls.toml"
    toml.write_text(
        '[database]\nurl = "sqlite:///erp.db"\n[server]\nlisten = "127.0.0.1:0"\n'
        'certificate = "certs/source.pem"\nkey = "certs/source.key"\nclient_ca = "certs/ca.pem"\n'
        '[relations.orders]\ntable = "orders"\n'
    )
    server = start(source_config(toml))
    try:
        files = ("ca.pem", "warehouse.pem", "warehouse.key")
        ca, certificate, key = (plain / name for name in files)
        source = Source("erp", f"127.0.0.1:{server.port}", ca, certificate, key)
        plain.rename(odd)
        ca, certificate, key = (odd / name for name in files)
        moved = replace(source, ca=ca, certificate=certificate, key=key)
        refused = write_first(moved, site.folder / "new.toml").exception
        assert isinstance(refused, DriftlineError)
        told(refused, "Rename it.")
        odd.rename(plain)
        assert write_first(source, site.folder / "new.toml").exit_code == 0
        check = "Check this machine's clock. `driftline-source enroll` makes new certificates."
        for days in (-9, 9999):  # of a clock that is wrong
            with pytest.raises(DriftlineError) as caught:
                readiness._ours(source, datetime.now(UTC) + timedelta(days=days))
            told(caught.value, check)
        assert "valid until" in readiness._ours(source, datetime.now(UTC))
        for name in files:
            (plain / name).unlink()
        old = datetime.now(UTC) - timedelta(days=999)
        enroll(site.folder / "old", source_names=["127.0.0.1"], now=old)
        for name in files:
            (site.folder / "old" / name).rename(plain / name)
        with pytest.raises(DriftlineError) as caught:
            readiness._ours(source, datetime.now(UTC))
        told(caught.value, check)
        enroll(site.folder / "again", source_names=["127.0.0.1"])
        for name in files:
            (site.folder / "again" / name).rename(plain / name)
        assert "valid until" in readiness._ours(source, datetime.now(UTC))
    finally:
        server.stop()


def test_a_view_over_nothing(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.toml"
    start_of = '[warehouse]\npath = "w"\n[sources.erp]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    view = "[views.v]\nquery = 'SELECT id FROM {}'\n"
    file.write_text(start_of + view.format("orders"))
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    told(caught.value, "Write source.relation, or the name of a fragment.")
    file.write_text(start_of + view.format("erp.orders"))
    assert load(file).views["v"].inputs == ("erp.orders",)
    file.write_text(start_of + "[fragments.orders]\nsource = 'erp'\n" + view.format("orders"))
    assert load(file).views["v"].inputs == ("orders",)


def test_a_source_that_goes_on_without_a_row(site: Site) -> None:
    site.serve()
    with (
        mock.patch.object(channel, "NO_ADVANCE_S", 0.0),
        mock.patch.object(ProgressCheck, "accepts", return_value=False),
    ):
        told(site.fault(), "Ask its DBA to check the database and silence_timeout_s.")
    site.check()


def test_a_source_whose_places_are_taken() -> None:
    """As one of an older release, of which gRPC counts the calls."""
    refused = [True]

    def describe(_: bytes, context: grpc.ServicerContext) -> bytes:
        if refused:
            refused.pop()
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        return pb.DescribeReply(relations=["orders"], protocols=[1]).SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(describe, None, None)
    with served({"Describe": handler}) as source, channel.SourceChannel(source) as link:
        with pytest.raises(DriftlineError) as caught:
            link.describe("")
        told(caught.value, "Run the command again later.")
        assert list(link.describe("").relations) == ["orders"]


def test_more_rows_than_a_source_counted(site: Site) -> None:
    site.serve()
    assert site.refresh().code == 0
    site.sql("UPDATE orders SET n = n + 1")
    with (
        mock.patch.object(frame_admission, "ANNOUNCED_FACTOR", 0.0),
        mock.patch.object(frame_admission, "FRAME_ROWS_MAX", 10),
    ):
        told(site.fault(), "Check what runs at the source's address; nothing was published.")
    site.check()


def test_a_driver_with_too_little_memory(site: Site) -> None:
    site.serve()
    assert site.refresh().code == 0
    site.sql("UPDATE orders SET n = n + 1")
    with mock.patch.object(scan, "_typed", side_effect=MemoryError):
        told(site.fault(), "Set a smaller `small_bytes` in [warehouse], so that Spark does more.")
    site.keep(warehouse="small_bytes = 1000000")
    site.check()


@pytest.mark.spark
def test_failures_of_spark(spark: SparkSession, tmp_path: Path, small_disk: Mount) -> None:
    rows, disk = spark.range(1_000_000), small_disk(1)
    with pytest.raises(Exception, match="No space left") as problem:
        rows.write.parquet(str(disk / "rows"))
    error = executors.meaning(problem.value)
    assert error is not None
    told(error, "Free space and run the refresh again; the last published version is untouched.")
    small_disk(64)
    rows.write.parquet(str(disk / "again"))
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file") as problem:
        rows.write.parquet(str(tmp_path / "file" / "below"))
    told(
        executors.mistake(problem.value, "orders"),
        "Check `[spark]`, and that Spark may read and write the warehouse; run with --debug for the"
        " whole of Spark's message.",
    )
    rows.write.parquet(str(tmp_path / "folder" / "below"))
    assert spark.read.parquet(str(tmp_path / "folder" / "below")).count() == 1_000_000


@pytest.mark.spark
def test_settings_with_which_spark_does_not_start(spark: SparkSession) -> None:
    remedy = "Correct the settings in [spark]; --debug shows all that it wrote."
    with pytest.raises(Exception, match="banana") as problem:
        spark.newSession().conf.set("spark.sql.shuffle.partitions", "banana")
    told(session._did_not_start(problem.value, 0), remedy)
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    assert own.range(3).count() == 3
