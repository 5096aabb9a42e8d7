"""Who tells when: each way in which refreshes go wrong, and everybody who is to tell of it.

The table is that of docs/operating/running.md#who-tells-when. Refreshes are commands as processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from driftline.errors import named

from tests import ROOT
from tests.fixtures.disk import Mount
from tests.harness.forks import run
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from tests.harness.prometheus import numbers, of_table
from tests.harness.receiver import Receiver, receiving
from tests.warehouse_agent.cli.test_main import Ended, command

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "operating" / "running.md").read_text()
KILLED = """
import os, signal
from warehouse_agent.refresh.job import Job
def killed(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)
Job.commit = killed
from warehouse_agent.cli.main import main
main()
"""
MIB = 8  # of the disk


@dataclass
class Bench:
    """A pair with one table of 300 rows, and a receiver that is told."""

    pair: Pair
    receiver: Receiver
    disk: Path

    @property
    def config(self) -> Path:
        file = self.pair.warehouse_toml()
        hook = f'webhook = "{self.receiver.url}"\nheartbeat = "{self.receiver.url}"\n'
        metrics = f'[metrics]\ntextfile = "{self.textfile}"\n'
        file.write_text(f"{file.read_text()}\n[notify]\n{hook}{metrics}")
        return file

    @property
    def textfile(self) -> Path:
        return self.pair.folder.parent / "tables.prom"

    def refresh(self, *options: str) -> Ended:
        return command("refresh", *options, config=self.config)

    @property
    def messages(self) -> list[dict]:
        """The events of all messages."""
        posts = [one for one in self.receiver.requests if one.method == "POST"]
        return [event for one in posts for event in one.json["events"]]

    @property
    def heartbeats(self) -> int:
        return sum(one.method == "GET" for one in self.receiver.requests)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE a (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO a VALUES (?, ?)", [(key, f"note {key}") for key in range(300)])
    with (
        receiving() as receiver,
        Pair(NoSpark(), legacy, tmp_path / "pair", {"a": 'table = "a"'}) as pair,
    ):
        yield Bench(pair, receiver, tmp_path / "pair" / "warehouse")
    legacy.close()


Break = Callable[[Bench], Callable[[], object]]


def agent_killed(bench: Bench) -> Callable[[], object]:
    port = int(bench.pair.address.rpartition(":")[2])
    bench.pair.stop()
    return lambda: bench.pair.serve(port)


def database_down(bench: Bench) -> Callable[[], object]:
    file = bench.pair.folder.parent / "erp.db"
    file.rename(file.with_suffix(".away"))
    return lambda: file.with_suffix(".away").rename(file)


def schema_changed(bench: Bench) -> Callable[[], object]:
    bench.pair.legacy.execute("ALTER TABLE a ADD COLUMN more INTEGER")
    bench.pair.restart()
    return lambda: bench.refresh("a", "--accept-schema")


def emptied(bench: Bench) -> Callable[[], object]:
    bench.pair.legacy.execute("DELETE FROM a")
    return lambda: bench.refresh("a", "--allow-shrink")


def command_killed(bench: Bench) -> Callable[[], object]:
    bench.pair.legacy.execute("UPDATE a SET note = 'x' WHERE id < 3")
    words = ["--config", str(bench.config), "refresh", "a"]
    done = run(["-c", KILLED, *words], cwd=ROOT, env=environment())
    assert done.returncode == -signal.SIGKILL, done.stderr
    return lambda: None


def disk_full(bench: Bench) -> Callable[[], object]:
    bench.pair.legacy.execute("UPDATE a SET note = 'x' WHERE id < 3")
    ballast = bench.disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(os.urandom(4096))
    return ballast.unlink


HOW: dict[str, Break] = {
    "the source's agent is dead": agent_killed,
    "its database is down": database_down,
    "columns changed": schema_changed,
    "a table was emptied": emptied,
    "the command is killed": command_killed,
    "the disk is full": disk_full,
}
NOTHING_RUNS = "nothing runs any more"
_ROW = re.compile(
    r"^\| ([^|]+) \| (\d)[^|]* \| ([\w ]+)[^|]* \| `(\w+)`[^|]* \| (?:`(\w+)`, (\w+))?", re.M
)


@dataclass(frozen=True)
class Told:
    """A row of the page's table.

    `check`: the exit code of `status --check`; `report`: a kind of trouble in its index; `metric`:
    without its prefix; `event`, `code`: of the notification.
    """

    check: int
    report: str
    metric: str
    event: str
    code: str


def told() -> dict[str, Told]:
    """The page's table."""
    section = PAGE.partition("## Who tells when")[2].partition("\n## ")[0]
    return {row[1]: Told(int(row[2]), *row.groups()[2:]) for row in _ROW.finditer(section)}


def reported(bench: Bench) -> str:
    """The index of a report that is made now."""
    output = bench.pair.folder.parent / "report"
    assert command("report", "--output", output, config=bench.config).code == 0
    return (output / "index.html").read_text()


@pytest.fixture
def broken(
    request: pytest.FixtureRequest, bench: Bench, small_disk: Mount
) -> tuple[str, Bench, Callable[[], object]]:
    """A pair that was loaded, and of which something went wrong since."""
    what: str = request.param
    if what == "the disk is full":
        small_disk(MIB, bench.disk)
    assert bench.refresh().code == 0
    assert (bench.messages, bench.heartbeats) == ([], 1)
    return what, bench, HOW[what](bench)


EACH = pytest.mark.parametrize("broken", HOW, indirect=True)


@EACH
def test_a_notification_tells(broken: tuple[str, Bench, Callable[[], object]]) -> None:
    """Once, although the command is run twice; and once more that it is over."""
    what, bench, mend = broken
    kind, code = told()[what].event, told()[what].code
    ended = bench.refresh()
    first = bench.messages[0]
    assert (first["event"], first["code"], first["tables"]) == (kind, code, ["a"])
    assert first["remedy"]
    if code == "RECIPE":
        assert first["changes"] == ["column more (int8) was added"]
    if code == "KILLED":
        assert ended.code == 0
        assert [one["event"] for one in bench.messages] == ["failed", "recovered"]
        return
    assert ended.code
    assert bench.heartbeats == 1, "who misses it is told, too"
    bench.refresh()
    if code != "WAREHOUSE":  # nothing can be noted there
        assert len(bench.messages) == 1
    mend()
    assert bench.refresh().code == 0
    kinds = [one["event"] for one in bench.messages if one["event"] != kind]
    assert kinds == ["recovered"] * (code != "WAREHOUSE")
    accepted = [one for one in bench.messages if one["version"] is not None]
    assert [one["changes"] for one in accepted] == [first["changes"]] * (code == "RECIPE")


@EACH
def test_status_tells(broken: tuple[str, Bench, Callable[[], object]]) -> None:
    what, bench, _mend = broken
    exit_code, code = told()[what].check, told()[what].code
    if code != "KILLED":
        bench.refresh()
    checked = command("status", "--check", config=bench.config)
    assert checked.code == exit_code, checked
    if code == "WAREHOUSE":
        assert checked.out.startswith("CRITICAL: 1 table, 1 to look at: The disk of ")
    else:
        assert f"a: the last refresh failed: {code}" in checked.out
        assert "\na: next: " in command("status", "a", config=bench.config).out


@EACH
def test_the_report_and_metrics_tell(broken: tuple[str, Bench, Callable[[], object]]) -> None:
    what, bench, mend = broken
    row = told()[what]
    if row.code != "KILLED":
        bench.refresh()
    index = reported(bench)
    assert f'<article class="trouble critical" id="{row.report.replace(" ", "-")}">' in index or (
        f'<article class="trouble warning" id="{row.report}">' in index
    )
    if row.code == "WAREHOUSE":
        assert "<h3>" in index
        assert "The disk is nearly full</h3>" in index
    else:
        assert f"failed: {named(row.code)}</h3>" in index
    if row.code == "KILLED":
        assert "was killed after" in index
        bench.refresh()
    found = of_table(numbers(bench.textfile.read_bytes()), "a", row.metric)
    assert found == {(row.code,): 1}
    mend()
    assert bench.refresh().code == 0
    well = numbers(bench.textfile.read_bytes())
    assert of_table(well, "a", "refresh_failures") == {("",): 0}
    assert 'class="trouble' not in reported(bench)


def test_nothing_that_runs_is_told_by_status_the_report_and_what_is_missed(
    bench: Bench,
) -> None:
    bench.pair.fragment_lines["a"] = 'interval_max = "1s"'
    assert bench.refresh().code == 0
    until = time.monotonic() + 60
    while (checked := command("status", "--check", config=bench.config)).code == 0:
        assert time.monotonic() < until
    row = told()[NOTHING_RUNS]
    assert checked.code == row.check
    assert f'<article class="trouble warning" id="{row.report}">' in reported(bench)
    found = numbers(bench.textfile.read_bytes())
    ((_, written),) = ((k, v) for (k, _), v in found.items() if k == f"driftline_{row.metric}")
    limit = of_table(found, "a", "freshness_limit_seconds")[()]
    while time.time() - written <= limit:  # they were written after the refresh had compared
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "a: late: no refresh went well" in checked.out
    assert bench.heartbeats == 1


def test_the_page_has_all() -> None:
    assert [*told()] == [*HOW, NOTHING_RUNS]
