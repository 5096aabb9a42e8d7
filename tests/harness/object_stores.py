"""Servers of S3 on this machine, real ones: SeaweedFS, and moto, which knows more of AWS's answers.

Each makes buckets. `DRIFTLINE_STORE=moto` or `seaweedfs` puts the warehouse of every pair, and of
every site of views, into a bucket of its own: `tests/run tests/pair` then runs on object stores.
A test that is about a disk alone is skipped there, by `on_disk`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
from obstore.store import S3Store

from tests.harness.servers import Server, free_port
from warehouse_agent.config import StorageSettings

ACCESS_KEY, SECRET_KEY = "AKIDRIFTLINETESTS", "not-a-secret-of-anybody"
# Of the same identity, where keys are checked: those that follow.
NEXT_ACCESS_KEY, NEXT_SECRET_KEY = "AKIDRIFTLINENEXT", "nor-is-this-one"
_REGION = "us-east-1"
_FIRST_S_MAX = 60.0  # until there are volumes
_VOLUMES_OF_A_BUCKET = "WEED_MASTER_VOLUME_GROWTH_COPY_1"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a server, the keys to it, and a file with them; `more` lines of [storage]."""

    endpoint: str
    name: str
    credentials: Path
    more: str = ""
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY)

    @property
    def root(self) -> str:
        """Return the path of a warehouse in it."""
        return f"s3://{self.name}/lake"

    @property
    def settings(self) -> StorageSettings:
        return StorageSettings(endpoint=self.endpoint, credentials_file=self.credentials)

    @property
    def toml(self) -> str:
        """Return its table in warehouse.toml."""
        keys = f'credentials_file = "{self.credentials}"\n'
        return f'[storage]\nendpoint = "{self.endpoint}"\n{keys}{self.more}'

    @property
    def store(self) -> S3Store:
        """Return obstore's own view of it."""
        access, secret = self.keys
        return S3Store(
            self.name,
            config={
                "endpoint": self.endpoint,
                "region": _REGION,
                "access_key_id": access,
                "secret_access_key": secret,
            },
            client_options={"allow_http": True},
        )

    @property
    def delta_options(self) -> dict[str, str]:
        """Return what delta-rs needs to read it without the product."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": _REGION,
            "aws_allow_http": "true",
            "aws_access_key_id": self.keys[0],
            "aws_secret_access_key": self.keys[1],
        }


def write_keys(file: Path, access: str, secret: str) -> None:
    """Write a file of credentials, as AWS's programs read it."""
    file.write_text(f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")


def answers(endpoint: str) -> None:
    """Raise ConnectionRefusedError while a server does not answer."""
    try:
        with urllib.request.urlopen(endpoint, timeout=5) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise ConnectionRefusedError from error
    except (urllib.error.URLError, OSError) as error:
        raise ConnectionRefusedError from error


class ObjectStore(Server):
    """A server that speaks S3's protocol on loopback."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def bucket(self) -> Bucket:
        """Make a new, empty bucket."""
        name = f"driftline-{secrets.token_hex(6)}"
        self.make_bucket(name)
        file = self.folder / "credentials"
        write_keys(file, ACCESS_KEY, SECRET_KEY)
        return Bucket(self.endpoint, name, file)

    def make_bucket(self, name: str) -> None:
        """Create a bucket; obstore knows of objects alone."""
        self.client("s3").create_bucket(Bucket=name)

    def client(self, service: str) -> Any:
        """Return AWS's own client of a service."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=_REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )


# moto 5.2.5 looks for an object and then makes it, in threads: two writers of one may succeed.
_ATOMIC_MOTO = """
import threading
from moto.s3.responses import S3Response
from moto.server import main
whole, one_at_a_time = S3Response.put_object, threading.Lock()
def put_object(self):
    with one_at_a_time:
        return whole(self)
S3Response.put_object = put_object
main()
"""


class Moto(ObjectStore):
    """moto's server, in memory. One object is made after the other.

    It takes every key and allows everything, until it is to `enforce` policies.
    """

    def __init__(self) -> None:
        super().__init__("moto")

    def _start(self) -> None:
        command = [sys.executable, "-c", _ATOMIC_MOTO, "-H", self.host, "-p", str(self.port)]
        self._launch(command, lambda: answers(self.endpoint), cwd=self.folder)

    def user(self, bucket: Bucket, rights: Sequence[tuple[Sequence[str], str]]) -> Bucket:
        """Return a bucket as a new user sees it who may do `(actions, on what)`."""
        name, iam = secrets.token_hex(6), self.client("iam")
        iam.create_user(UserName=name)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        allow = [{"Effect": "Allow", "Action": [*what], "Resource": on} for what, on in rights]
        document = json.dumps({"Version": "2012-10-17", "Statement": allow})
        iam.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=document)
        keys = made["AccessKeyId"], made["SecretAccessKey"]
        file = self.folder / name
        write_keys(file, *keys)
        return replace(bucket, credentials=file, keys=keys)

    def enforce(self) -> None:
        """Check signatures and rights of each request from now on; nobody has rights but users."""
        url, plain = f"{self.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(url, b"0", plain), timeout=5) as answer:
            answer.read()


class SeaweedFS(ObjectStore):
    """SeaweedFS, one process of all its parts, with one identity."""

    def __init__(self) -> None:
        super().__init__("weed")

    def _start(self) -> None:
        pairs = ((ACCESS_KEY, SECRET_KEY), (NEXT_ACCESS_KEY, NEXT_SECRET_KEY))
        keys = [{"accessKey": access, "secretKey": secret} for access, secret in pairs]
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = {"identities": [{"name": "tests", "credentials": keys, "actions": rights}]}
        (self.folder / "s3.json").write_text(json.dumps(identities))
        (self.folder / "data").mkdir()
        master, volume, filer = free_port(), free_port(), free_port()
        command = [
            str(Path(sys.executable).parent / "weed"),
            *("server", "-dir=data", f"-ip={self.host}", f"-ip.bind={self.host}"),
            *(f"-master.port={master}", f"-master.port.grpc={free_port()}"),
            *(f"-volume.port={volume}", f"-volume.port.grpc={free_port()}", "-volume.max=5000"),
            *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={free_port()}"),
            *("-s3", f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-s3.config=s3.json", "-master.volumeSizeLimitMB=32", "-master.telemetry=false"),
        ]
        # Each bucket has volumes of its own, by default seven.
        environment = {**os.environ, "HOME": str(self.folder), _VOLUMES_OF_A_BUCKET: "1"}
        self._launch(command, lambda: answers(self.endpoint), cwd=self.folder, env=environment)

    def make_bucket(self, name: str) -> None:
        """Make a bucket by the first object in it; the server has volumes when that succeeds."""
        super().make_bucket(name)
        store = Bucket(self.endpoint, name, self.folder / "credentials").store
        until = time.monotonic() + _FIRST_S_MAX
        while True:
            try:
                obstore.put(store, "first", b"")
            except obstore.exceptions.BaseError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return obstore.delete(store, "first")


SWITCH = "DRIFTLINE_STORE"
STORES: dict[str, Callable[[], ObjectStore]] = {"moto": Moto, "seaweedfs": SeaweedFS}


@functools.cache
def _server(kind: str) -> ObjectStore:
    """Return the server of this process."""
    server = STORES[kind]()
    atexit.register(server.close)
    return server


def chosen_bucket() -> Bucket | None:
    """Return a new bucket of the server that the switch names; None: warehouses lie on disks."""
    kind = os.environ.get(SWITCH)
    return _server(kind).bucket() if kind else None


def on_disk(what: str) -> None:
    """Skip a test that needs a warehouse on a disk where the switch put it into a bucket."""
    if kind := os.environ.get(SWITCH):
        pytest.skip(f"{what}: the warehouse lies on {kind}")
