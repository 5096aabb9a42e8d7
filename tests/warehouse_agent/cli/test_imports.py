"""What a command of either agent imports: nothing that it does not use.

Imports are most of the time of a short command. A process is asked for its modules when it ends, so
the tests hold what `-X importtime` showed, without a clock.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import SourceProcess, environment

pytestmark = pytest.mark.slow  # starts a process for each command

WAREHOUSE, SOURCE = "warehouse_agent.cli.main", "source_agent.cli.main"
ARROW = {"numpy", "pyarrow", "deltalake"}
TALK = {"grpc", "driftline.wire_pb2"}
NO_VIEWS = {"pyspark", "pandas", "sqlglot"}  # of tables that are small and under no view


def imported(main: str, folder: Path, *words: str) -> set[str]:
    """Run a command, which must succeed; return the modules that its process imported."""
    file = folder / "modules.txt"
    file.unlink(missing_ok=True)
    program = (
        "import atexit, sys\n"
        "from pathlib import Path\n"
        f"atexit.register(lambda: Path({str(file)!r}).write_text('\\n'.join(sys.modules)))\n"
        f"from {main} import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=environment(JAVA_HOME=str(folder / "no java")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(file.read_text().splitlines())


@pytest.mark.parametrize("words", [["--help"], ["refresh", "--help"], ["--version"]])
def test_help_of_the_warehouse_imports_no_package_but_click(tmp_path: Path, words: list[str]):
    found = imported(WAREHOUSE, tmp_path, *words)
    assert "click" in found
    assert not found & (ARROW | TALK | {"pyspark", "pandas", "rich", "tenacity"})


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"]])
def test_help_of_the_source_imports_no_package_but_click(tmp_path: Path, words: list[str]):
    found = imported(SOURCE, tmp_path, *words)
    assert "click" in found
    assert not found & (TALK | {"numpy", "sqlalchemy"})


def test_commands_on_small_tables_import_no_spark(tmp_path: Path):
    """Load, compare, change, plan and look at a small table, on a machine without Java."""
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, f"order {i * i}") for i in range(300)])
    dba = tmp_path / "source.toml"
    dba.write_text(
        f'[database]\nurl = "{legacy.url}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[relations.orders]\ntable = "orders"\n'
    )
    found = imported(SOURCE, tmp_path, "check")
    assert not found & {"psycopg", "pymysql", "sqlalchemy.dialects.sqlite"}
    with SourceProcess(dba, is_forked=True) as source:
        (tmp_path / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n[sources.erp]\naddress = "{source.address}"\n'
            'insecure = true\n[fragments.orders]\nsource = "erp"\n'
        )
        for change in (None, None, "UPDATE orders SET note = 'new' WHERE id % 100 = 7"):
            if change is not None:
                legacy.execute(change)
            found = imported(WAREHOUSE, tmp_path, "refresh")
            assert "grpc" in found
            assert not found & {"pyspark", "py4j", "pandas", "sqlglot"}
        for command in ("plan", "gc", "verify"):
            words = [] if command == "plan" else ["orders"]
            assert not imported(WAREHOUSE, tmp_path, command, *words) & NO_VIEWS
    assert not imported(WAREHOUSE, tmp_path, "receipt", "orders") & NO_VIEWS
    for command in ("status", "history"):
        words = ["orders"] if command == "history" else []
        found = imported(WAREHOUSE, tmp_path, command, *words)
        assert "deltalake" in found
        assert not found & (TALK | NO_VIEWS | {"rich", "tenacity"})
    legacy.close()
