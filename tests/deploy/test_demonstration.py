"""The demonstration: it runs from its command, tells the truth, and leaves nothing running."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from driftline.errors import ConfigurationError, UsageError

from deploy.demonstration import job
from deploy.demonstration.source import TABLES, SQLite, Table, change
from tests import ROOT
from tests.harness.pair import environment
from tests.harness.processes import having

MARK = "DRIFTLINE_TEST_DEMO"
WAIT_S_MAX = 60.0
# What a sketch takes is chance (`conftest.pytest_runtest_setup`): the same one in every run.
# Names of sockets stay random: another run of this test on the machine has them, too.
SEEDED = """
import os, random, secrets
secrets.token_hex = lambda count=32: os.urandom(count).hex()
drawn = random.Random("a demonstration")
secrets.randbits, secrets.token_bytes = drawn.getrandbits, drawn.randbytes
"""


def marked(mark: str) -> list[str]:
    """Processes that a demonstration with this mark in its environment started, and itself."""
    return having(MARK, mark)


def start(folder: Path, mark: str, *words: str, path: Path | None = None) -> subprocess.Popen[str]:
    """`path`: of further modules."""
    return subprocess.Popen(
        [str(ROOT / "deploy" / "demo"), "--directory", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(VENV=sys.prefix, PYTHONPATH=str(path or ""), **{MARK: mark}),
        start_new_session=True,
        preexec_fn=heeding_interrupts,  # noqa: PLW1509 - one system call, takes no lock
    )


def heeding_interrupts() -> None:
    """Undo what a shell does to commands in the background, such as these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_steps_on_spark_are_named() -> None:
    small = {"places": {"reduce": "driver"}}
    large = {"places": {"reduce": "driver", "apply": "spark", "prove": "spark"}}
    assert job.on_spark({"a": small}) == "none"
    found = job.on_spark({"a": small, "b": large, "c": large})
    assert found == "b (apply, prove), c (apply, prove)"


@pytest.mark.spark
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="sqlite", marks=pytest.mark.soak),  # its load is interrupted below
        pytest.param(("--postgres",), id="postgresql"),
    ],
)
def test_the_main_job(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder, mark = tmp_path / "demo", secrets.token_hex(8)
    seeded = tmp_path / "seeded"
    seeded.mkdir()
    (seeded / "sitecustomize.py").write_text(SEEDED)
    process = start(folder, mark, "--scale", "0.002", *words, path=seeded)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    for table in TABLES:
        assert f"{table.name}: " in out
        assert f"  {table.name} " in out, "its line in the table"
    assert out.count("rows, equal\n") == 3
    assert "equal to the receipt" in out
    assert "Round trips of a refresh: 2; with nothing changed: 1." in out
    assert "Steps of the load on Spark: open_orders (evaluate).\n" in out
    assert "Steps of the last refresh on Spark: none.\n" in out
    assert marked(mark) == []
    assert (folder / "orders.receipt.json").is_file()
    assert not list(folder.rglob("*.key.tmp"))


@pytest.mark.spark
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_an_interrupted_one_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    mark = secrets.token_hex(8)
    process = start(tmp_path / "demo", mark, "--scale", "0.005")  # its view needs Spark
    log = tmp_path / "demo" / "log" / "load.log"
    deadline = time.monotonic() + WAIT_S_MAX
    # Both agents are running, Spark's Java too.
    while not (log.exists() and any("SparkSubmit" in line for line in marked(mark))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate()
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert process.returncode == expected[number]
    deadline = time.monotonic() + WAIT_S_MAX
    while number is signal.SIGKILL and marked(mark):  # the kernel ends them, in its own time
        assert time.monotonic() < deadline, marked(mark)
        time.sleep(0.05)
    assert marked(mark) == []


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="was not made by the demonstration"):
        job.run(theirs, postgres=False, scale=0.01)
    assert (theirs / "thesis.tex").read_text() == "years of work"
    with pytest.raises(UsageError, match="was not made by the demonstration"):
        job.run(theirs / "thesis.tex", postgres=False, scale=0.01)


def test_its_own_folder_is_made_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / job.MARKER).write_text("")
    (ours / "old").write_text("")
    monkeypatch.setattr("deploy.demonstration.source.shutil.which", lambda *_, **__: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'driftline\[demo\]'"):
        job.run(ours, postgres=False, scale=0.01)
    assert not (ours / "old").exists()
    assert (ours / job.MARKER).exists()


@pytest.mark.starts
def test_help_needs_nothing() -> None:
    command = [str(ROOT / "deploy" / "demo"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--postgres" in done.stdout


def rows(*values: tuple[str, str]) -> pa.Table:
    columns = zip(*values, strict=True)
    return pa.table({name: list(column) for name, column in zip("ab", columns, strict=True)})


@pytest.mark.parametrize(
    ("spoil", "equal"),
    [
        (lambda: rows(("2", "y"), ("1", "x"), ("1", "x")), True),
        (lambda: rows(("1", "x"), ("2", "y")), False),
        (lambda: rows(("1", "x"), ("2", "y"), ("2", "y")), False),
        (lambda: rows(("1", "x"), ("1", "x"), ("2", "z")), False),
        (lambda: rows(("1", "x"), ("1", "x"), ("2", "y"), ("2", "y")), False),
    ],
)
def test_the_second_opinion(spoil: Callable[[], pa.Table], equal: bool) -> None:
    source = rows(("1", "x"), ("2", "y"), ("1", "x"))
    assert job.are_same_rows(spoil(), source) is equal


@pytest.fixture
def legacy(tmp_path: Path) -> SQLite:
    """A thousand rows a table, with keys as TPC-H has them: 8 of each 32 orders, up to 7 lines."""
    made = SQLite(tmp_path)
    values = {"INTEGER": "7", "DECIMAL(15,2)": "1.5", "DATE": "1996-01-02"}
    keys = {
        "orders": lambda n: {"o_orderkey": n // 8 * 32 + n % 8},
        "lineitem": lambda n: {"l_orderkey": n // 7, "l_linenumber": n % 7 + 1},
        "customer": lambda n: {"c_custkey": n + 1},
    }
    for table in TABLES:
        with (tmp_path / "data.csv").open("w", encoding="utf-8") as out:
            print(",".join(table.names), file=out)
            for n in range(1000):
                row = {name: values.get(kind, "é") for name, kind in table.columns}
                row |= {name: str(key) for name, key in keys[table.name](n).items()}
                print(",".join(row.values()), file=out)
        made.load(table, tmp_path / "data.csv")
    return made


def test_a_days_work(legacy: SQLite) -> None:
    before = {table.name: lines(legacy, table) for table in TABLES}
    counts = change(legacy)
    for table in TABLES:
        after = lines(legacy, table)
        inserted, updated, deleted = counts[table.name]
        assert (inserted + updated + deleted, updated) == (10, 8)
        assert len(after) == 1000 + inserted - deleted
        keys = [name in table.key for name in table.names]

        def keyed(row: tuple[str, ...], keys: list[bool] = keys) -> tuple[str, ...]:
            return tuple(value for value, is_key in zip(row, keys, strict=True) if is_key)

        old, new = ({keyed(row): row for row in found} for found in (before[table.name], after))
        assert len(new.keys() - old.keys()) == inserted
        assert len(old.keys() - new.keys()) == deleted
        assert sum(old[key] != new[key] for key in old.keys() & new.keys()) == updated


def lines(legacy: SQLite, table: Table) -> list[tuple[str, ...]]:
    columns = legacy.texts(table).to_pydict()
    return list(zip(*columns.values(), strict=True))
