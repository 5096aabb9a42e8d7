"""The units: how tight systemd calls them, and both walks of docs/operating/deployment.md on a
machine that systemd has booted, from an unpacked sdist to a published table."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests import ROOT
from tests.harness.absent import absent, could_be_installed, set_up
from tests.harness.booted import INTERPRETER, Machine, boot
from tests.harness.installation import Release, unpack
from tests.harness.servers import PostgreSQL
from tests.project.test_docs import scenario

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

UNITS = sorted((ROOT / "deploy" / "systemd").glob("driftline-*"))
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
EXPOSURE_MAX = 20  # tenths, of 100
ROWS = 500  # of the table, as it is made
SOURCE, REFRESH = "driftline-source.service", "driftline-refresh.service"
TIMER = "driftline-refresh.timer"
DRIFTLINE = "/opt/driftline/bin/driftline --config /etc/driftline/warehouse.toml"
LIBRARY = f"LD_LIBRARY_PATH={INTERPRETER}/lib"  # of an interpreter built for another prefix
DUE_S_MAX = 60.0

# Not run as written: the packages come from the tests' environment, and not from an index.
ELSEWHERE = re.compile(r"^python3 -m venv |/pip install ")
# What the reader is told to edit.
OURS = {
    "/etc/driftline-source/source.toml": {
        "postgresql://driftline@localhost/erp": "sqlite:////srv/erp.db",
        "0.0.0.0:7443": "127.0.0.1:7443",
    },
    "/etc/driftline/warehouse.toml": {
        '"erp.example:7443"': '"127.0.0.1:7443"\nserver_name = "erp.example"',
        'interval_max = "1h"': 'interval_max = "1s"',
    },
}


def analyze(*words: str | Path) -> str:
    set_up("systemd")
    if shutil.which("systemd-analyze") is None:
        absent("SYSTEMD", "no systemd-analyze", is_required_in_ci=could_be_installed())
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("user", "raised"), [(0, pytest.fail), (1000, pytest.skip)])
def test_what_could_be_installed_must_be_there_in_ci(
    user: int, raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", {"apt-get": "/usr/bin/apt-get"}.get)
    with pytest.raises(raised.Exception, match="no systemd-analyze"):
        analyze("--version")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_is_tight(unit: Path) -> None:
    said = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", unit)
    exposure = re.search(r"Overall exposure level for .*: ([\d.]+) ", said)
    assert exposure is not None
    page = (ROOT / "docs" / "operating" / "deployment.md").read_text(encoding="utf-8")
    assert f"`systemd-analyze security` says {exposure[1]}" in page


def test_units_are_well_formed(tmp_path: Path) -> None:
    """A key that systemd does not know is a warning at most: nothing may be said at all."""
    for unit in UNITS:  # the programs are not installed here
        text = unit.read_text(encoding="utf-8").replace("/opt/driftline/bin/", "/bin/sh #")
        (tmp_path / unit.name).write_text(re.sub(r"(?m)^(ExecStart=/bin/sh) .*", r"\1", text))
    said = analyze("verify", "--man=no", *(tmp_path / unit.name for unit in UNITS))
    # It reads the machine's own units too, and says what it thinks of them.
    assert not [line for line in said.splitlines() if "/lib/systemd/system/" not in line]


@dataclass
class Site:
    """A machine on which both walks were followed, and what their commands said."""

    machine: Machine
    folder: Path  # of the test, with a copy of the database
    said: dict[str, str] = field(default_factory=dict)
    timer: str = ""  # its state after the walk,
    looks: str = ""  # and when it looks

    @property
    def database(self) -> Path:
        return self.folder / "erp.db"

    def change(self, *statements: str) -> None:
        """Change the database that the source reads."""
        with closing(sqlite3.connect(self.database)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        shutil.copyfile(self.database, self.machine.path("/srv/erp.db"))

    def rows(self, name: str = "orders") -> list[tuple[int, str]]:
        """Published rows."""
        copy = self.folder / "published"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.machine.path(f"/var/lib/driftline/warehouse/{name}"), copy)
        table = DeltaTable(str(copy)).to_pyarrow_table(columns=["id", "note"])
        return sorted((row["id"], row["note"]) for row in table.to_pylist())

    def rows_there(self) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute("SELECT id, note FROM orders ORDER BY id").fetchall()

    def driftline(self, words: str) -> str:
        """Run a command of the warehouse as its user, which needs no key."""
        return self.machine.run(f"{LIBRARY} runuser -u driftline -- {DRIFTLINE} {words}")

    def wait_until_due(self) -> None:
        deadline = time.monotonic() + DUE_S_MAX
        while '"due": false' in (said := self.driftline("schedule --json")):
            assert time.monotonic() < deadline, said

    def refresh(self) -> None:
        self.wait_until_due()
        self.machine.run(f"systemctl start {REFRESH} || (journalctl -u {REFRESH}; false)")


def follow(machine: Machine, name: str, folder: Path, wheel: Path) -> dict[str, str]:
    """Follow a walk of the page in a folder; return what its commands printed."""
    said = {}
    for command in scenario(name):
        if ELSEWHERE.search(command):
            if not machine.path("/opt/driftline").exists():
                machine.install(wheel)
            continue
        said[command] = machine.run(f"export {LIBRARY}\n{command}", cwd=folder)
        for place, edits in OURS.items():
            if command.startswith("cp ") and Path(place).name in command:
                file = machine.path(place)
                text = file.read_text(encoding="utf-8")
                for old, new in edits.items():
                    assert old in text
                    text = text.replace(old, new)
                file.write_text(text, encoding="utf-8")
    return said


@pytest.fixture(scope="module")
def site(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("machine")
    (folder / "log").mkdir()
    unpacked = unpack(release, folder)
    (unpacked / "database.password").write_text("not needed by SQLite\n")
    with boot(folder / "log") as machine:
        site = Site(machine, folder)
        site.change(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)",
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
            " INSERT INTO orders SELECT i, 'note ' || i FROM n",
        )
        for unit in (SOURCE, REFRESH):
            drop_in = machine.path(f"/etc/systemd/system/{unit}.d/test.conf")
            drop_in.parent.mkdir()
            drop_in.write_text(f"[Service]\nEnvironment={LIBRARY}\n")
        site.said |= follow(machine, "deploy-source", unpacked, release.wheel)
        given = "cp /etc/driftline-source/certs/{ca.pem,warehouse.pem,warehouse.key} ."
        machine.run(given, cwd=unpacked)
        site.said |= follow(machine, "deploy-warehouse", unpacked, release.wheel)
        site.looks = machine.property(TIMER, "TimersCalendar")
        site.timer = machine.property(TIMER, "ActiveState")
        machine.run(f"systemctl stop {TIMER} {REFRESH}")  # from here on, tests alone refresh
        yield site


def test_the_walks_lead_to_a_published_table(site: Site) -> None:
    (check,) = (text for command, text in site.said.items() if command.endswith(" check"))
    assert "1 of 1 relation can be served" in check
    assert site.rows() == site.rows_there()
    assert len(site.rows()) == ROWS
    assert site.timer == "active"
    assert "OnCalendar=*-*-* *:00/5:00" in site.looks
    (schedule,) = (text for command, text in site.said.items() if command.endswith(" schedule"))
    assert schedule.startswith("orders: ")
    assert "never" not in schedule, "the example is refreshed, and was loaded"


def test_the_timer_starts_a_refresh(site: Site) -> None:
    """By itself: only the moment is changed, with a drop-in."""
    site.change("INSERT INTO orders VALUES (10001, 'by the timer')")
    site.wait_until_due()
    earlier = site.machine.property(REFRESH, "InvocationID")
    drop_in = site.machine.path(f"/etc/systemd/system/{TIMER}.d/test.conf")
    drop_in.parent.mkdir()
    soon = "OnCalendar=\nOnActiveSec=100ms\nAccuracySec=1ms\nRandomizedDelaySec=0\n"
    drop_in.write_text(f"[Timer]\n{soon}")
    site.machine.run(f"systemctl daemon-reload && systemctl start {TIMER}")
    deadline = time.monotonic() + DUE_S_MAX
    while (
        site.machine.property(REFRESH, "InvocationID") == earlier
        or site.machine.property(REFRESH, "ActiveState") == "activating"
    ):
        assert time.monotonic() < deadline, site.machine.run(f"systemctl status {TIMER} || true")
    site.machine.run(f"systemctl stop {TIMER}")
    assert site.machine.property(REFRESH, "Result") == "success"
    assert (10_001, "by the timer") in site.rows()
    assert site.rows() == site.rows_there()
    assert " refresh --due --json " in site.machine.property(REFRESH, "ExecStart")


def test_a_change_is_refreshed(site: Site) -> None:
    site.change(
        "UPDATE orders SET note = 'changed' WHERE id % 100 = 7", "DELETE FROM orders WHERE id = 5"
    )
    site.refresh()
    assert site.rows() == site.rows_there()
    assert "orders" in site.driftline("status")


def test_the_source_has_no_rights(site: Site) -> None:
    pid = site.machine.property(SOURCE, "MainPID")
    status = dict(
        line.split(":\t", 1)
        for line in site.machine.run(f"cat /proc/{pid}/status").splitlines()
        if ":\t" in line
    )
    assert "0" not in status["Uid"].split()
    assert "0" not in status["Gid"].split()
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), "filtered system calls"


@pytest.mark.parametrize("place", ["/etc", "/srv", "/usr", "/opt/driftline", "/var/lib/driftline"])
def test_what_the_source_sees_cannot_be_written(site: Site, place: str) -> None:
    """Not even by root, in the mounts that the unit has."""
    pid = site.machine.property(SOURCE, "MainPID")
    refused = f"! nsenter -t {pid} -m touch {place}/new 2>&1"
    assert "Read-only file system" in site.machine.run(refused)


def test_what_the_source_writes(site: Site) -> None:
    places = site.machine.run("find /var/log/private/driftline-source -type f -printf '%P %m\\n'")
    assert places.split() == ["audit.jsonl", "600"]
    assert '"outcome": "sent"' in site.machine.run("cat /var/log/driftline-source/audit.jsonl")


def test_secrets_are_for_their_service_alone(site: Site) -> None:
    said = site.machine.run(f"find /run/credentials/{SOURCE} -type f -printf '%f %m '")
    assert sorted(said.split()) == ["400", "400", "database.password", "source.key"]
    for place in ("/etc/driftline/warehouse.key", "/etc/driftline-source/certs/source.key"):
        assert site.machine.run(f"stat -c '%U %a' {place}").split() == ["root", "600"]
    user = "setpriv --reuid=driftline --regid=driftline --clear-groups"
    secret = f"/run/credentials/{SOURCE}/source.key"
    assert "Permission denied" in site.machine.run(f"! {user} cat {secret} 2>&1")


def test_a_reload_is_heard_and_a_stop_is_clean(site: Site) -> None:
    limits = (
        "sed -i 's/^pause_file.*/&\\nrows_per_second = 100000/' /etc/driftline-source/source.toml"
    )
    site.machine.run(f"{limits} && systemctl reload {SOURCE}")
    pid = site.machine.property(SOURCE, "MainPID")
    site.refresh()
    assert site.machine.property(SOURCE, "MainPID") == pid, "it was not started again"
    site.machine.run(f"systemctl stop {SOURCE}")
    assert site.machine.property(SOURCE, "Result") == "success"
    site.wait_until_due()
    said = site.machine.run(f"systemctl start {REFRESH} 2>&1", status=1)
    assert "failed" in said
    assert site.machine.property(REFRESH, "ExecMainStatus") == "4", "UNREACHABLE"


def test_two_processes_read_a_postgresql(site: Site, postgresql: PostgreSQL) -> None:
    """In the sandbox: the driver, its socket, and a reader process with its pipe."""
    database = postgresql.create_database("sandbox")
    with postgresql.superuser(database) as admin:
        admin.execute("CREATE TABLE wide (id INT PRIMARY KEY, note TEXT)")
        admin.execute(
            "INSERT INTO wide SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 20000) n"
        )
    postgresql.folder.chmod(0o755)
    drop_in = site.machine.path(f"/etc/systemd/system/{SOURCE}.d/socket.conf")
    drop_in.write_text(f"[Service]\nBindReadOnlyPaths={postgresql.folder}:/run/postgresql\n")
    file = site.machine.path("/etc/driftline-source/source.toml")
    text = file.read_text(encoding="utf-8")
    url = f"postgresql://postgres@/{database}?host=/run/postgresql&port={postgresql.port}"
    text = text.replace("sqlite:////srv/erp.db", url).replace('"orders"', '"wide"')
    file.write_text(text.replace("[limits]", "[limits]\nreaders = 2"), encoding="utf-8")
    warehouse = site.machine.path("/etc/driftline/warehouse.toml")
    added = '[fragments.wide]\nsource = "erp"\nrelation = "orders"\ninterval_max = "1s"\n'
    fragments = warehouse.read_text(encoding="utf-8")
    warehouse.write_text(fragments.split("[fragments.")[0] + added, encoding="utf-8")
    site.machine.run(f"systemctl daemon-reload && systemctl restart {SOURCE}")
    site.refresh()
    with postgresql.superuser(database) as admin:
        admin.execute("UPDATE wide SET note = 'changed' WHERE id % 1000 = 7")
        expected = admin.execute("SELECT id, note FROM wide ORDER BY id").fetchall()
    site.refresh()
    assert site.rows("wide") == expected
    group = site.machine.property(SOURCE, "ControlGroup")
    processes = site.machine.run(f"cat /sys/fs/cgroup{group}/cgroup.procs").split()
    assert len(processes) == 2, "the agent and a reader"
    site.machine.run(f"systemctl stop {SOURCE}")
    postgresql.drop_database(database)
