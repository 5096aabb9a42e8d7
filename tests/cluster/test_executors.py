"""Clusters whose executors do not come, do not stay, or lack what our tasks need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from driftline.errors import SparkLost

from tests.harness.absent import absent
from tests.harness.cluster import Cluster
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import SECRET_KEY, Moto
from tests.harness.pair import Pair, environment
from tests.harness.processes import is_alive
from tests.harness.warm_jvm import warm_jvm
from warehouse_agent.spark import session
from warehouse_agent.spark.cluster import watch
from warehouse_agent.spark.executors import Batches, driver_errors
from warehouse_agent.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.spark]

LOCAL = {"spark.master": "local[1]", "spark.driver.host": "127.0.0.1"}
END_S_MAX = 300.0  # of a command, on a busy machine
IN_ENVIRONMENT = "of-the-environment-of-a-driver"
COMMAND = ("-m", "warehouse_agent.cli")
# A command that gives a driver so long to start, on top of what it gives the master.
STARTING = """
from warehouse_agent.cli.main import main
from warehouse_agent.spark import cluster
cluster._START_S = {start_s}
main()
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as made:
        yield made


@contextmanager
def pair_in(folder: Path) -> Iterator[Pair]:
    """A source with one small table, and a warehouse whose commands are processes."""
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, comment TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, 'x')", [(i,) for i in range(100)])
    with Pair(NoSpark(), legacy, folder, {"orders": 'table = "orders"'}) as made:
        made.small_bytes = 0
        yield made
    legacy.close()


@pytest.fixture(scope="module")
def master() -> Iterator[Cluster]:
    """A master without workers: a test adds its own."""
    ensure_java()
    with Cluster(workers=0) as made:
        yield made


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """Another Python for executors: it notes its starts in `starts`, and looks in `packages`."""
    path = tmp_path / "python of executors"
    path.write_text(
        f'#!/bin/sh\necho >>"{tmp_path}/starts"\n'
        f'PYTHONPATH="{tmp_path}/packages:$PYTHONPATH" exec "{sys.executable}" "$@"\n'
    )
    path.chmod(0o755)
    return path


def command(pair: Pair, name: str, settings: dict[str, str], more: str = "") -> list[Any]:
    """Run a command with `[spark]` settings in a JVM that is there; return its lines of JSON.

    No command's context, and so no executor, outlives it.
    """
    try:
        return process(pair, name, settings, more, **warm_jvm())
    finally:
        warm_jvm()


def process(
    pair: Pair,
    name: str,
    settings: dict[str, str],
    more: str = "",
    words: Sequence[str] = COMMAND,
    **variables: str,
) -> list[Any]:
    """Run a command with `[spark]` settings; return its lines of JSON."""
    ensure_java()
    file = pair.warehouse_toml(more)
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text("\n".join([file.read_text(), "[spark]", *lines]))
    done = subprocess.run(
        [sys.executable, *words, "--config", str(file), name, "--json"],
        capture_output=True,
        text=True,
        env=environment(**variables),
        check=False,
        timeout=END_S_MAX,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def asked(pair: Pair) -> list[str]:
    """What the source was asked for rows, by its audit."""
    lines = (pair.folder / "audit.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["outcome"] != "described"]


def of_executors(pair: Pair, settings: dict[str, str]) -> Any:
    """What `doctor` says of the executors."""
    (found,) = (c for c in command(pair, "doctor", settings) if c["check"] == "Spark executors")
    return found


def test_each_executor_is_checked_and_has_the_python_that_is_named(
    cluster: Cluster, pair: Pair, wrapper: Path
) -> None:
    found = of_executors(pair, cluster.settings() | {"spark.pyspark.python": str(wrapper)})
    assert found["ok"], found
    assert found["found"].startswith("2 on ")
    assert "each reads and writes the warehouse" in found["found"]
    assert len((wrapper.parent / "starts").read_text().splitlines()) >= 2
    assert not list((pair.warehouse / "_driftline" / "executors").rglob("*")), "it tidies up"


def test_another_version_on_executors(pair: Pair, wrapper: Path) -> None:
    info = wrapper.parent / "packages" / "blake3-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blake3\nVersion: 0.0.1\n")
    found = of_executors(pair, LOCAL | {"spark.pyspark.python": str(wrapper)})
    assert found["code"] == "CONFIGURATION"
    assert " has blake3 0.0.1, and the driver " in found["error"]


def test_executors_without_driftline(cluster: Cluster, pair: Pair, wrapper: Path) -> None:
    """Said before the source is asked, and by `doctor`."""
    module = wrapper.parent / "packages" / "warehouse_agent.py"
    module.parent.mkdir()
    module.write_text("raise ModuleNotFoundError(f'No module named {__name__!r}')")
    settings = cluster.settings() | {"spark.pyspark.python": str(wrapper)}
    (report,) = command(pair, "refresh", settings)
    assert report["error"]["code"] == "CONFIGURATION"
    assert "No module named 'warehouse_agent'" in report["error"]["message"]
    assert not asked(pair)


def test_executors_that_never_come(cluster: Cluster, tmp_path: Path) -> None:
    """An error that names the master, and no endless wait; the source is not asked. Two commands
    wait at once: of a master that gives no executor, and of one that does not answer."""

    def never(lacking: dict[str, str], wait_s: int, start_s: float, says: str) -> None:
        words = ["-c", STARTING.format(start_s=start_s)]
        folder = tmp_path / str(wait_s)
        folder.mkdir()
        with pair_in(folder) as pair:
            more = f"executors_wait_s = {wait_s}\n"
            (report,) = process(pair, "refresh", cluster.settings() | lacking, more, words)
            assert report["error"]["code"] == "CONFIGURATION", report
            assert says in report["error"]["message"]
            assert "executors_wait_s" in report["error"]["remedy"]
            assert "Spark is needed" in report["error"]["details"]
            assert not asked(pair)

    silent, master = {"spark.master": "spark://127.0.0.1:1"}, "spark://127.0.0.1:1 does not answer"
    greedy, executor = {"spark.executor.memory": "3g"}, "gave no executor within 2 s"
    with ThreadPoolExecutor() as beside:
        first = beside.submit(never, silent, 3, 1.0, master)
        never(greedy, 2, END_S_MAX, executor)
        first.result()


def test_a_path_that_only_the_driver_reaches(master: Cluster, pair: Pair) -> None:
    """It is refused before the source is asked."""
    pair.warehouse.mkdir()
    try:
        worker = master.add_worker(without=pair.warehouse)
    except RuntimeError as error:
        absent("MOUNT NAMESPACES", str(error).strip(), is_required_in_ci=False)
    (report,) = command(pair, "refresh", master.settings())
    assert report["error"]["code"] == "CONFIGURATION", report
    assert report["error"]["where"] == "warehouse.path"
    assert str(pair.warehouse) in report["error"]["message"]
    assert not asked(pair)
    assert of_executors(pair, master.settings())["code"] == "CONFIGURATION"
    worker.kill()
    worker.wait()


def test_an_executor_without_the_file_of_credentials(
    master: Cluster, pair: Pair, moto: Moto, tmp_path: Path
) -> None:
    """It is named before the source is asked, with its source of credentials and not their values;
    on a driver's machine that has the file all is well, and the secret is in no event log."""
    bucket, folder = moto.bucket(), tmp_path / "keys"
    folder.mkdir()
    (folder / "credentials").write_text(bucket.credentials.read_text())
    pair.bucket = replace(bucket, credentials=folder / "credentials")
    try:
        worker = master.add_worker(without=folder)
    except RuntimeError as error:
        absent("MOUNT NAMESPACES", str(error).strip(), is_required_in_ci=False)
    log = tmp_path / "events"
    log.mkdir()
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{log}"}
    settings = master.settings() | logged
    secret = {"AWS_SECRET_ACCESS_KEY": IN_ENVIRONMENT, "AWS_ACCESS_KEY_ID": "AKIAOFTHEDRIVER"}
    with mock.patch.dict(os.environ, secret):
        (report,) = process(pair, "refresh", settings)
        (found,) = (c for c in process(pair, "doctor", settings) if c["check"] == "Spark executors")
    assert report["error"]["code"] == found["code"] == "CONFIGURATION", (report, found)
    for said in (report["error"]["message"], found["error"]):
        assert "There are no credentials in the profile 'default' of" in said
        assert str(folder / "credentials") in said
    assert report["error"]["remedy"].startswith("Write the keys of that profile into the file")
    assert not asked(pair)
    texts = [path.read_bytes() for path in log.rglob("*") if path.is_file()]
    assert texts
    for text in (*texts, json.dumps([report, found]).encode()):
        assert SECRET_KEY.encode() not in text
        assert IN_ENVIRONMENT.encode() not in text
    worker.kill()
    worker.wait()


def lose_executors(settings: dict[str, str], folder: Path, wait_s: float) -> str:
    """Run a job until its executors are lost; return the error, once another job went well."""
    spark = session.start(settings)
    wait_for_executor(spark)  # however long the first one takes to start
    watch(spark, wait_s)
    begun, ended = str(folder / "begun"), folder / "again"

    def stand_still(batches: Batches) -> Iterator[pa.RecordBatch]:
        import pathlib
        import time

        for _ in batches:
            pathlib.Path(begun).touch()
            time.sleep(600)
        yield pa.RecordBatch.from_pydict({"x": [1]})

    try:
        with driver_errors():
            spark.range(1).mapInArrow(stand_still, "x long").collect()
        said = "it went well"
    except SparkLost as error:
        said = error.message
    (folder / "lost").touch()
    while not ended.exists():
        time.sleep(0.1)
    wait_for_executor(spark)
    assert spark.range(10).count() == 10
    return said


def wait_for_executor(spark: SparkSession) -> None:
    end = time.monotonic() + END_S_MAX
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the driver counts
        assert time.monotonic() < end, "no executor"
        time.sleep(0.1)


def test_executors_that_are_lost_for_good(
    master: Cluster, driver: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """A job in the middle ends with an error; the session serves the next one on new executors."""
    worker = master.add_worker()
    done = driver.submit(lose_executors, master.settings(), tmp_path, 2)
    wait_for(tmp_path / "begun", done)
    (executor,) = master.executors()
    worker.kill()
    worker.wait()
    wait_for(tmp_path / "lost", done)
    assert not is_alive(executor), "it ends with its worker"
    master.add_worker()
    (tmp_path / "again").touch()
    said = done.result(END_S_MAX)
    assert said == f"All executors of {master.master} were lost, and none came back within 2 s."


def wait_for(file: Path, done: Any) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + END_S_MAX
    while not file.exists():
        assert not done.done(), done.result()
        assert time.monotonic() < end, file
        time.sleep(0.05)
