"""Remedies for warehouses in buckets: with what each says, a refresh goes well."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest
from driftline.errors import ConfigurationError, DriftlineError

from tests.harness.object_stores import SECRET_KEY, Bucket, Moto
from tests.remedies.told import told
from warehouse_agent.config import StorageSettings, load
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.disk import Disk
from warehouse_agent.storage.place_trial import try_folder
from warehouse_agent.storage.store import Store

pytestmark = pytest.mark.starts


class Careless(Disk):
    """A place that ignores the condition of a put."""

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        self.write(path, data, private=private)
        return True


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return moto.bucket()


def loaded(folder: Path, path: str, storage: str) -> Store:
    """Return the store of a configuration."""
    file = folder / "warehouse.toml"
    file.write_text(f'[warehouse]\npath = "{path}"\n{storage}')
    return Store.of(load(file))


def refused(folder: Path, path: str, storage: str) -> DriftlineError:
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, path, storage).read("a")
    return caught.value


def works(folder: Path, bucket: Bucket, path: str | None = None) -> None:
    store = loaded(folder, path or bucket.root, bucket.toml)
    store.write(b"one", "a")
    assert store.read("a") == b"one"


@pytest.mark.parametrize("path", ["s3://A", "s3://", "s3://a/b", "s3:///lake"])
def test_a_name_that_no_bucket_has(tmp_path: Path, bucket: Bucket, path: str) -> None:
    told(refused(tmp_path, path, bucket.toml), "Write s3://BUCKET.")
    works(tmp_path, bucket, f"s3://{bucket.name}")


@pytest.mark.parametrize("part", ["a b", "a?", "a#b", "..", "a//b", "%20", "a*"])
def test_a_folder_that_would_not_be_read_literally(
    tmp_path: Path, bucket: Bucket, part: str
) -> None:
    error = refused(tmp_path, f"{bucket.root}/{part}", bucket.toml)
    assert error.where.endswith("warehouse.path")
    told(
        error,
        "Name a folder without blanks, empty parts, `..` and * ? # [ ] { } \\ %.",
    )
    works(tmp_path, bucket, bucket.root.replace("s3://", "s3a://") + "/a-b")


def test_a_disk_with_the_way_to_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    error = refused(tmp_path, "warehouse", bucket.toml)
    told(error, "Remove the table, or name s3://BUCKET/FOLDER as `path`.")
    works(tmp_path, bucket)


@pytest.mark.parametrize(
    ("endpoint", "remedy"),
    [
        ("127.0.0.1:9000", "Write https://HOST[:PORT]."),
        (
            "http://192.0.2.1:9000",
            "Write https://, or set `insecure = true` where that line is trusted.",
        ),
    ],
)
def test_an_endpoint(tmp_path: Path, bucket: Bucket, endpoint: str, remedy: str) -> None:
    lines = f'[storage]\nendpoint = "{endpoint}"\n'
    told(refused(tmp_path, bucket.root, lines), remedy)
    plain = load_of(tmp_path, bucket, lines.replace("127.0.0.1:", "https://127.0.0.1:"))
    assert plain.storage is not None
    assert plain.storage.endpoint is not None
    works(tmp_path, bucket)


def load_of(folder: Path, bucket: Bucket, lines: str) -> Store:
    return loaded(folder, bucket.root, lines + "insecure = true\n")


@pytest.mark.parametrize(
    "text", ["", "[other]\n", "[default]\naws_access_key_id = A\n", "nonsense"]
)
def test_credentials_that_are_not_there(tmp_path: Path, bucket: Bucket, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    lines = bucket.toml.replace(str(bucket.credentials), str(file))
    error = refused(tmp_path, bucket.root, lines)
    told(
        error,
        "Write the keys of that profile into the file, name another `profile` or "
        "`credentials_file`, or remove both: then the environment's or the machine's are used.",
    )
    assert str(file) in error.message
    file.write_text(bucket.credentials.read_text())
    store = loaded(tmp_path, bucket.root, lines)
    store.write(b"one", "a")
    assert store.read("a") == b"one"
    assert SECRET_KEY not in str(error)


def test_a_bucket_without_the_package(tmp_path: Path, bucket: Bucket) -> None:
    known._bucket.cache_clear()
    name = "warehouse_agent.storage.backends.s3"
    with mock.patch.dict(sys.modules, {"obstore": None}):
        sys.modules.pop(name, None)
        error = refused(tmp_path, bucket.root, bucket.toml)
    told(error, "Run: pip install 'driftline[object-stores]'")
    works(tmp_path, bucket)


def test_settings_are_those_of_the_longest_root() -> None:
    near, far = StorageSettings(region="near"), StorageSettings(region="far")
    with mock.patch.dict(known._settings, {"s3://b/a": far, "s3://b/a/b": near}):
        assert known.settings_of("s3://b/a/b/c") == near
        assert known.settings_of("s3://b/a/bc") == far
        assert known.settings_of("s3://b/other") == StorageSettings()


def test_a_secret_for_executors(tmp_path: Path, bucket: Bucket) -> None:
    secret = '"spark.executorEnv.AWS_SECRET_ACCESS_KEY" = "not-to-be-shown"\n'
    cluster = '[spark]\n"spark.master" = "spark://h:1"\n'
    for lines in (cluster, '[spark]\n"spark.remote" = "sc://h"\n'):
        error = refused(tmp_path, bucket.root, bucket.toml + lines + secret)
        told(
            error,
            "Remove it, and give the executors' machines a role or the `credentials_file` of"
            " [storage]; or set … to true, which Spark Connect does not heed.",
        )
        assert "spark.executorEnv.AWS_SECRET_ACCESS_KEY" in error.message
        assert "not-to-be-shown" not in str(error)
    encrypted = '"spark.authenticate" = "true"\n"spark.network.crypto.enabled" = "true"\n'
    file = '"spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE" = "/run/token"\n'
    for lines in (cluster + secret + encrypted, "[spark]\n" + secret, cluster + file):
        assert loaded(tmp_path, bucket.root, bucket.toml + lines).read("a") is None


def test_a_store_that_ignores_the_condition_of_a_put(tmp_path: Path, bucket: Bucket) -> None:
    with (
        mock.patch.object(known, "_disk", Careless),
        pytest.raises(DriftlineError, match="lets two writers of one file succeed") as caught,
    ):
        try_folder(f"file://{tmp_path}")
    told(
        caught.value,
        "Use a server that obeys If-None-Match and If-Match of a PUT, or remove what stands between"
        " and drops these headers.",
    )
    assert not list(tmp_path.rglob("*"))
    try_folder(Store(bucket.root, storage=bucket.settings).uri("a"))
