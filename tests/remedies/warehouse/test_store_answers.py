"""What an object store answers that does not serve: one line and a remedy, from each command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from driftline.errors import DriftlineError, WarehouseUnavailable

from tests.harness.careless_proxy import Fault, proxied
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import ACCESS_KEY, SECRET_KEY, Bucket, Moto, SeaweedFS
from tests.harness.pair import Pair
from tests.harness.scripted_store import scripted_store
from tests.remedies.told import told
from warehouse_agent.cli.main import cli
from warehouse_agent.config import StorageSettings
from warehouse_agent.inspection.readiness import examine
from warehouse_agent.storage.backends.interface import StoreError
from warehouse_agent.storage.backends.s3 import PART_BYTES, S3
from warehouse_agent.storage.store import Store

KEYS = (
    "Correct the keys there; or name another `profile` or `credentials_file` in [storage], or "
    "remove both for those of the environment or the machine."
)
BUSY = "Run the command again when the store is well; the last published version is untouched."
REGION = "Set `region` in [storage] to the one in which the bucket is."
RIGHTS = "Give these credentials the rights that docs/operating/s3.md lists."
SILENT = "Is the store up, and `endpoint` in [storage] its address? Run the command again."
# What AWS answers that no server here does: status, code and message; the remedy.
SCRIPTED = {
    "clock": (
        (403, "RequestTimeTooSkewed", "The difference between the times is too large."),
        "Set this machine's clock: the store compares it with its own.",
    ),
    "region": ((400, "AuthorizationHeaderMalformed", "The region is wrong."), REGION),
    "redirect": ((301, "", ""), REGION),
    "right": ((403, "AccessDenied", "Access Denied"), RIGHTS),
    "status alone": ((403, "", ""), RIGHTS),
    "error": ((501, "InternalError", "We encountered an internal error."), BUSY),
    "expired": ((400, "ExpiredToken", "The provided token has expired."), KEYS),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("errors")
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, n INTEGER)")
    with Pair(NoSpark(), legacy, folder, {"t": 'table = "t"'}) as made:
        made.small_bytes = None
        yield made
    legacy.close()


def commands(pair: Pair, bucket: Bucket) -> list[tuple[str, str]]:
    """Return message and remedy from `doctor`, `refresh` and `status`."""
    pair.bucket = bucket
    file = pair.warehouse_toml()
    (_, check) = (c for _, c in zip(range(2), examine(file), strict=False))
    assert check.error is not None
    found = [(check.error.message, check.error.remedy)]
    for words in (["refresh", "--all", "--json"], ["status", "--json"]):
        ended = CliRunner().invoke(cli, ["--config", str(file), *words])
        assert ended.exit_code == 1, ended.output
        if isinstance(error := ended.exception, DriftlineError):  # before any table is looked at
            found.append((error.message, error.remedy))
            continue
        line = json.loads(ended.stdout.splitlines()[-1])
        found.append((line["error"]["message"], line["error"]["remedy"]))
    return found


def refused(pair: Pair, bucket: Bucket, remedy: str, says: str) -> None:
    for message, printed in commands(pair, bucket):
        told(printed, remedy)
        assert says in message
        assert len(message) < 400
        assert not {"\n", "<", "\x1b", "↳"} & set(message)
        assert "space" not in printed
        assert SECRET_KEY not in message + printed


def test_no_such_bucket(pair: Pair, moto: Moto) -> None:
    bucket = moto.bucket()
    remedy = "Make the bucket, or correct `path` in [warehouse]."
    refused(pair, replace(bucket, name="driftline-nowhere"), remedy, "NoSuchBucket: The specified")
    assert Store(bucket.root, storage=bucket.settings).files() == []


@pytest.mark.parametrize("key", ["NOBODY", ACCESS_KEY])
def test_keys_that_are_refused(pair: Pair, seaweedfs: SeaweedFS, tmp_path: Path, key: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = wrong\n")
    bucket = seaweedfs.bucket()
    source = f"(with the profile 'default' of {file})"
    refused(pair, replace(bucket, credentials=file), KEYS, source)
    file.write_text(bucket.credentials.read_text())
    assert Store(bucket.root, storage=replace(bucket, credentials=file).settings).files() == []


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "https://nowhere.invalid"])
def test_nothing_answers(pair: Pair, moto: Moto, endpoint: str) -> None:
    says = f"{endpoint} does not answer ("
    refused(pair, replace(moto.bucket(), endpoint=endpoint), SILENT, says)


@pytest.mark.parametrize("case", SCRIPTED)
def test_what_aws_answers(pair: Pair, moto: Moto, case: str) -> None:
    (status, code, message), remedy = SCRIPTED[case]
    with ExitStack() as stack:
        endpoint = stack.enter_context(scripted_store(status, code, message))
        refused(pair, replace(moto.bucket(), endpoint=endpoint), remedy, code)


def test_each_request_says_whose_keys_have_expired(moto: Moto) -> None:
    """Also a head, whose answer has no body."""
    with proxied(moto.bucket(), lambda _: Fault.EXPIRED) as bucket:
        backend, path = S3(bucket.name, bucket.settings), f"{bucket.name}/lake/a"

        def upload(size: int) -> None:
            file = backend.begun(path)
            file.out.write(bytes(size))
            file.finish()

        asks: list[Callable[[], object]] = [
            lambda: backend.read(path),
            lambda: backend.info(path),
            lambda: backend.opened(path).__enter__(),
            lambda: backend.part("lake/a", 0, 1, None),
            lambda: backend.write(path, b"", private=False),
            lambda: backend.write_new(path, b"", private=False),
            lambda: backend.change(path, lambda _: b""),
            lambda: backend.listed(path, recursive=True),
            lambda: backend.listed(path, recursive=False),
            lambda: backend.sizes(bucket.name, ["lake/a"]),
            lambda: backend.remove_file(path, 0),
            lambda: backend.remove_folder(path),
            lambda: upload(1),
            lambda: upload(3 * PART_BYTES),
        ]
        for ask in asks:
            with pytest.raises(StoreError, match="ExpiredToken: ") as caught:
                ask()
            assert f"(with the profile 'default' of {bucket.credentials})" in str(caught.value)
            assert caught.value.remedy == KEYS


@pytest.mark.parametrize("key", ["//x", "/./x", "/../x", "/a\x01"])
def test_an_object_with_a_name_that_no_list_has(moto: Moto, key: str) -> None:
    bucket = moto.bucket()
    moto.client("s3").put_object(Bucket=bucket.name, Key=f"lake/t{key}", Body=b"")
    store = Store(bucket.root, storage=bucket.settings)
    asks: list[Callable[[], object]] = [
        lambda: store.files("t"),
        lambda: store.walk("t"),
        lambda: store.sizes("t", ["-"]),
    ]
    for ask in asks:
        with pytest.raises(WarehouseUnavailable, match='has an object with the name "lake/t') as of:
            ask()
        told(
            of.value,
            "Remove that object, or give it another name: Driftline makes none like it.",
        )
    assert store.files("tt") == []


def test_no_credentials(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a machine does not answer: it is asked at an address that has nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    bucket = moto.bucket()
    for settings in (StorageSettings(bucket.endpoint), bucket.settings):
        store = Store(bucket.root, storage=settings)
        if settings.credentials_file is None:
            with pytest.raises(WarehouseUnavailable) as caught:
                store.read("a")
            told(
                caught.value,
                "Name a `profile` or a `credentials_file` in [storage], or give this machine a"
                " role.",
            )
    assert store.read("a") is None
