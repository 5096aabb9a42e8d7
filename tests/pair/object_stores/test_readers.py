"""Readers of a warehouse in a bucket: they are told the way to it, or find it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from driftline.errors import ConfigurationError, DriftlineError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import SECRET_KEY, Bucket, Moto
from tests.harness.pair import Pair
from warehouse_agent import at, read
from warehouse_agent.cli.main import cli
from warehouse_agent.config import StorageSettings
from warehouse_agent.storage import formats
from warehouse_agent.storage.backends import known
from warehouse_agent.visible_versions.readers import Storage, open_store


@pytest.fixture(scope="module")
def pair(moto: Moto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A table that was published in a bucket."""
    folder = tmp_path_factory.mktemp("readers")
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, n INTEGER)")
    legacy.many("INSERT INTO t VALUES (?, 1)", [(i,) for i in range(100)])
    with Pair(NoSpark(), legacy, folder, {"t": 'table = "t"'}) as made:
        made.bucket, made.small_bytes = moto.bucket(), None
        assert made.refresh("t").version == 0
        made.warehouse_toml()
        yield made
    legacy.close()


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process knows of no bucket, and stands in an empty folder."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(known._settings, clear=True):
        yield


def as_of(pair: Pair, storage: Storage | None, path: str | None = None) -> str:
    assert pair.bucket is not None
    warehouse = at(NoSpark(), path or pair.bucket.root, storage=storage)  # type: ignore[arg-type]
    return warehouse.as_of("t")


def bucket_of(pair: Pair) -> Bucket:
    assert pair.bucket is not None
    return pair.bucket


def test_the_way_is_told(pair: Pair) -> None:
    bucket = bucket_of(pair)
    told = as_of(pair, bucket.settings)
    for path in (bucket.root + "/", bucket.root.replace("s3://", "s3a://")):
        known._settings.clear()
        assert as_of(pair, pair.folder / "warehouse.toml", path) == told
    assert as_of(pair, None) == told, "once told, it is known"


def test_the_way_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.folder)
    assert as_of(pair, None)


def test_the_file_of_another_warehouse_is_not_the_way(pair: Pair, tmp_path: Path) -> None:
    text = (pair.folder / "warehouse.toml").read_text()
    root = bucket_of(pair).root
    (tmp_path / "warehouse.toml").write_text(text.replace(root, root + "/other"))
    assert open_store(root).storage is None


def test_a_disk_has_none(tmp_path: Path) -> None:
    assert open_store("lake").root == str(tmp_path / "lake")
    assert open_store(f"file://{tmp_path}/lake").is_local


@pytest.mark.parametrize("path", ["hdfs://lake", "s3://bucket/a b", "s3://bucket/..", "gs://a"])
def test_a_path_that_nobody_serves(path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(path)
    assert caught.value.where == "path"


def test_keys_that_are_refused(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("[default]\naws_access_key_id = A\n")
    settings = StorageSettings(bucket_of(pair).endpoint, credentials_file=tmp_path / "keys")
    with pytest.raises(DriftlineError) as caught:
        as_of(pair, settings)
    assert str(tmp_path / "keys") in caught.value.message
    assert SECRET_KEY not in str(caught.value)


@pytest.mark.spark
@pytest.mark.parametrize("what", ["gone", "cut"])
def test_a_file_that_a_task_cannot_read(pair: Pair, spark: SparkSession, what: str) -> None:
    """The reader's own query ends with Spark's exception, which says cause and remedy in words."""
    bucket = bucket_of(pair)
    head = formats.head(pair.store, "t")
    assert head is not None
    backend, (file,) = pair.store.backend, head.files
    path = backend.path(file.uri)
    whole = backend.read(path) or b""
    rows = read(spark, bucket.root, "t", storage=bucket.settings)
    if what == "gone":
        backend.remove_file(path, 0)
    else:
        backend.write(path, whole[:-9], private=False)
    try:
        with pytest.raises(PySparkException) as caught:
            rows.count()
    finally:
        backend.write(path, whole, private=False)
    words = [one for one in str(caught.value).splitlines() if "cannot be read" in one]
    assert words, str(caught.value)
    assert "Run the command again; `driftline verify` names files" in words[0]
    assert rows.count() == 100


def test_a_report_of_a_bucket(pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--config", str(pair.warehouse_toml()), "report", "--output", str(tmp_path / "out")]
    cli.main(words, standalone_mode=False)
    assert capsys.readouterr().out.endswith("1 table, none to look at\n")
    page = (tmp_path / "out/tables/t.html").read_text()
    assert "1 refresh went well, none failed" in page
    assert '<svg role="img"' in page
