"""The rights of docs/operating/s3.md suffice for every command, under a policy that is enforced.

moto 5.2.5 checks signatures and policies, but no conditions of a policy, and wants the right to
delete several objects on the bucket itself, where AWS wants it on each object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from driftline.errors import DriftlineError

from tests import ROOT
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Bucket, Moto
from tests.harness.pair import Pair
from warehouse_agent import at

pytestmark = pytest.mark.starts

ROW = re.compile(r"^\| (?P<actions>`s3:[^|]*) \| (?P<on>[^|]*) \|", re.MULTILINE)


def rights(bucket: str) -> list[tuple[list[str], str]]:
    """Return what the page asks for: actions, and on what."""
    page = (ROOT / "docs" / "operating" / "s3.md").read_text(encoding="utf-8")
    found, on = [], ""
    for row in ROW.finditer(page):
        if (named := re.search(r"`(arn:[^`]*)`", row["on"])) is not None:
            on = named[1].replace("BUCKET", bucket).replace("FOLDER", "lake")
        found.append((re.findall(r"`(s3:\w+)`", row["actions"]), on))
    return found


@pytest.fixture(scope="module")
def moto_with_policies() -> Iterator[Moto]:
    with Moto() as made:
        yield made


@pytest.fixture(scope="module")
def buckets(moto_with_policies: Moto) -> dict[str, Bucket]:
    """One bucket as three users see it: the warehouse, a reader and one who may not list."""
    whole = moto_with_policies.bucket()
    all_rights, on_bucket = rights(whole.name), f"arn:aws:s3:::{whole.name}"
    get = next((["s3:GetObject"], on) for actions, on in all_rights if "s3:GetObject" in actions)
    users = {
        "warehouse": [*all_rights, (["s3:DeleteObject"], on_bucket)],
        "reader": [get, (["s3:ListBucket"], on_bucket)],
        "stranger": [get],
    }
    made = {name: moto_with_policies.user(whole, one) for name, one in users.items()}
    moto_with_policies.enforce()
    return made


@pytest.fixture(scope="module")
def pair(buckets: dict[str, Bucket], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("rights")
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, n INTEGER)")
    legacy.many("INSERT INTO t VALUES (?, 1)", [(i,) for i in range(400)])
    with Pair(NoSpark(), legacy, folder, {"t": 'table = "t"'}) as made:
        made.bucket, made.small_bytes = buckets["warehouse"], None
        made.refresh("t")
        yield made
    legacy.close()


def test_they_suffice(pair: Pair) -> None:
    pair.legacy.execute("UPDATE t SET n = 2 WHERE id % 50 = 0")
    assert pair.refresh("t").version == 1
    assert pair.refresh("t").version == 1
    pair.check("t")
    for words in (["doctor"], ["verify", "t"], ["gc", "t", "--keep-hours", "24", "--yes"]):
        pair.said(*words)
    for words in (["status"], ["history", "t"], ["plan", "t"]):
        pair.said(*words)


def test_a_reader_reads_and_cannot_write(pair: Pair, buckets: dict[str, Bucket]) -> None:
    reader = buckets["reader"]
    warehouse = at(NoSpark(), reader.root, storage=reader.settings)  # type: ignore[arg-type]
    assert warehouse.as_of("t")
    pair.bucket = reader
    try:
        error = pair.error("t")
    finally:
        pair.bucket = buckets["warehouse"]
    assert "AccessDenied" in error["message"]
    assert str(reader.credentials) in error["message"]
    assert reader.keys[1] not in str(error)
    assert pair.refresh("t").version == 1


def test_who_may_not_list_is_told_where_the_rights_stand(buckets: dict[str, Bucket]) -> None:
    bucket = buckets["stranger"]
    with pytest.raises(DriftlineError) as caught:
        at(NoSpark(), bucket.root, storage=bucket.settings).as_of("t")  # type: ignore[arg-type]
    assert "AccessDenied" in caught.value.message
    assert "docs/operating/s3.md" in caught.value.remedy
    assert str(bucket.credentials) in caught.value.message
