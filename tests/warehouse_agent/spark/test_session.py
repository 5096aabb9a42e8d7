"""Why Spark does not start, in one sentence of the [spark] settings, from commands of their own;
and which Python its tasks run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from source_agent.server.service import start
from tests.harness.agents import configuration, make_orders
from tests.harness.pair import environment
from warehouse_agent.spark import session


@pytest.mark.slow  # starts processes, some with a JVM
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('"spark.driver.memory" = "2gg"', "did not start: Invalid maximum heap size: -Xmx2gg."),
        ('"spark.master" = "nonsense"', "did not start: Master must "),
        ('"spark.master" = "local[x]"', "Could not parse Master URL: 'local[x]'."),
    ],
)
def test_spark_that_does_not_start(tmp_path: Path, setting: str, says: str) -> None:
    """Java's and Spark's own reason; each fragment of each source has its report."""
    make_orders(tmp_path / "erp.db", [(1, "x")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    file = tmp_path / "warehouse.toml"
    address = f'address = "127.0.0.1:{server.port}"\ninsecure = true\n'
    file.write_text(
        f'[warehouse]\npath = "{tmp_path}/warehouse"\nsmall_bytes = 0\nsources_at_once = 1\n'
        f"[spark]\n{setting}\n"
        f"[sources.one]\n{address}[sources.two]\n{address}"
        '[fragments.first]\nsource = "one"\nrelation = "orders"\n'
        '[fragments.second]\nsource = "two"\nrelation = "orders"\n'
    )
    words = ["--config", str(file), "refresh", "--all", "--json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "warehouse_agent.cli", *words],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
            check=False,
        )
    finally:
        server.stop()
    assert done.returncode == 2, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["name"] for report in reports] == ["first", "second"], done.stdout
    for report in reports:
        assert report["error"]["code"] == "CONFIGURATION"
        assert report["error"]["where"] == "[spark]"
        assert says in report["error"]["message"]
        assert "\n" not in report["error"]["message"]


LISTENING = """
import json, os, sys
from pathlib import Path
from warehouse_agent.spark import session

spark = session.start({"spark.master": "local[1]", "spark.driver.memory": "512m"})
assert spark.range(10).count() == 10
jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
links = []
for pid in (os.getpid(), jvm):
    links += [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()]
sockets = "".join(Path(f"/proc/net/{f}").read_text() for f in ("tcp", "tcp6"))
lines = map(str.split, sockets.splitlines())
found = [x[1] for x in lines if x[3] == "0A" and f"socket:[{x[9]}]" in links]
print(json.dumps([address.rpartition(":")[0] for address in found]))
"""
SECRET = "not for: the # process=list"
# What every user of the machine reads of the processes, and what Spark has been given.
LISTED = """
import json, sys
from pathlib import Path
from warehouse_agent.spark import session

key, secret = sys.argv[1], sys.stdin.read()
given = {"spark.master": "local[1]", "spark.driver.memory": "512m", key: secret}
for _ in range(2):
    spark = session.start(given)
    commands = [f.read_bytes().decode() for f in Path("/proc").glob("[0-9]*/cmdline")
                if f.parent.joinpath("comm").read_text().strip() == "java"]
    conf = spark.sparkContext.getConf()
    master, memory, name = map(conf.get, ("spark.master", "spark.driver.memory", "spark.app.name"))
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20
    print(json.dumps([secret in "".join(commands), conf.get(key), master, memory, name, heap]))
    spark.stop()
print(list(Path.cwd().iterdir()))
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # as /proc/net writes 127.0.0.1


@pytest.mark.slow
def test_no_setting_of_spark_is_in_the_process_list(tmp_path: Path) -> None:
    """They hold keys of object stores, and passwords of Spark's own connections."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED, "spark.hadoop.fs.s3a.secret.key"],
        input=SECRET,
        capture_output=True,
        text=True,
        env={**environment(), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *starts, left = done.stdout.splitlines()[-3:]
    for found in map(json.loads, starts):
        assert found[:5] == [False, SECRET, "local[1]", "512m", "driftline"]
        assert 400 < found[5] <= 512
    assert ".properties" not in left


@pytest.mark.slow
def test_a_local_spark_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Its ports ask for no password."""
    inherited = {k: v for k, v in environment().items() if k != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING],
        capture_output=True,
        text=True,
        env=inherited,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 3, "of Python's bridge, the driver and its block manager"
    assert set(found) <= LOOPBACK


@pytest.mark.parametrize(
    ("named", "inherited", "used"),
    [
        (None, None, sys.executable),
        (None, "/of/the/environment", "/of/the/environment"),
        ("/of/the/settings", "/of/the/environment", "/of/the/settings"),
        ("/of/the/settings", None, "/of/the/settings"),
    ],
)
@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("PYSPARK_PYTHON", "spark.pyspark.python"),
        ("PYSPARK_DRIVER_PYTHON", "spark.pyspark.driver.python"),
    ],
)
def test_interpreters(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    key: str,
    named: str | None,
    inherited: str | None,
    used: str,
) -> None:
    """The settings win over the environment, which wins over this interpreter."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    if inherited is not None:
        monkeypatch.setenv(variable, inherited)
    session.choose_interpreters({} if named is None else {key: named})
    assert os.environ[variable] == used


@pytest.mark.parametrize("zone", ["Asia/Tokyo"])
def test_a_callers_session_keeps_its_settings(spark: SparkSession, zone: str) -> None:
    key = "spark.sql.session.timeZone"
    before = str(spark.conf.get(key))
    spark.conf.set(key, zone)
    try:
        started = session.start({"spark.sql.shuffle.partitions": "3"})
        assert started.conf.get("spark.sql.shuffle.partitions") == "3"
        for own in (started, session.prepare(spark)):
            assert own is not spark
            assert own.conf.get(key) == "UTC"
        assert spark.conf.get(key) == zone
    finally:
        spark.conf.set(key, before)


@pytest.mark.starts
@pytest.mark.parametrize("is_local", [True, False])
def test_a_jvm_of_a_cluster_inherits_no_secret_of_aws(is_local: bool) -> None:
    """Spark copies them into Hadoop's settings, and sends these to the executors."""
    given = {"AWS_SECRET_ACCESS_KEY": "a", "AWS_SESSION_TOKEN": "b", "AWS_REGION": "c"}
    jvm = session._Start()._popen(
        [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        is_local=is_local,
        env=os.environ | given,
        stdout=subprocess.PIPE,
    )
    found = json.loads(jvm.communicate()[0])
    assert found["AWS_REGION"] == "c"
    assert {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} <= found.keys() or not is_local
    assert is_local or not {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} & found.keys()
