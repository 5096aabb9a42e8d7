#!/usr/bin/env python3
"""Write a warehouse with the agents of an older commit, as it was on eleven days of March 2024.

    make.py --tree TREE [--folder FOLDER]

TREE is a checkout of 7806bd7, the release before notes and history became typed values. Needs a
Java, as Spark does, and a C compiler: `clock.c` gives every command the clock of its day, so that
all times in the warehouse lie in the past wherever it is read. FOLDER is where it is made; delta-rs
notes that place in the first commit of a table.

The source is a SQLite file that the files `source/*.sql` build; SQLite itself is the oracle. One
relation, with row security, is in a PostgreSQL that `postgresql/*.sql` build. Made:

    warehouse/                   the warehouse, exactly as the commands left it
    expected/rows/NAME-N.jsonl   the rows of a fragment at the source when version N was published
    expected/*.jsonl, keys.json  what commands of that commit say of this warehouse, and JSON keys

Both agents speak mutual TLS through an HTTP proxy of this script, so that the warehouse knows the
source by a name and no address of this machine is in it. Certificates are not kept.

orders     versions 0 to 3; a fifth refresh found nothing
customers  by groups, versions 0 to 2
parcels    version 0; then the line was cut in the second of two frames, and stayed down
stock      in tiles, versions 0 and 1; then Ctrl-C after three of six tiles
ledger     by a marker, versions 0 and 1; a third refresh found nothing, so its mark is in the notes
prices     1,000 of 1,500 rows by key at a time, versions 0 and 1: what it left is in the notes
labels     restored from version 1 to 0, which was accepted: 2 has the rows of 0 again, 3 the row
           that had changed; then a data file was damaged and `verify` noted the damage
kinds      a column more in version 1
visits     row security; other policies without another row are in the notes
cargo      a view of `loads`, `sites` and a kept `erp.trucks` of which columns and rows are chosen;
           a change that it does not show is in its notes
open_bays  a view with `max_lag`: `bays` is ahead of it
ratios     a view that fails on a row of `docks`, and is stale

Then the source was not there, and said that its hours were closed: both are in the histories.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from tests.harness.servers import PostgreSQL  # noqa: E402 - a script finds the tree by its place

HOST = "erp.invalid"
DEAD = "http://127.0.0.1:9"  # a proxy that nobody is
SIMPLE = ("orders", "customers", "stock", "parcels", "ledger", "prices", "labels", "kinds")
COMPONENTS = ("sites", "loads", "erp.trucks", "bays", "docks")
FRAGMENTS = ("sites", "loads", "bays", "docks")  # that have tables of their own
VIEWS = tuple(tomllib.loads((HERE / "warehouse.toml").read_text())["views"])
CUT_AFTER_BYTES = 14_000  # to the warehouse: in the second frame of parcels
TILES_DONE = 3
LONG = 200  # characters; of longer texts the digest is kept


class Proxy:
    """An HTTP proxy that leads every CONNECT to one port. It may cut, and is down from then on."""

    def __init__(self, port: int, cut_after: int | None) -> None:
        self._port, self._left = port, cut_after
        self.is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1 << 14)
            if self.is_cut:
                return
            with socket.create_connection(("127.0.0.1", self._port)) as target:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                up = threading.Thread(target=self._pump, args=(client, target), daemon=True)
                up.start()
                self._pump(target, client, down=True)
                for end in (client, target):
                    end.shutdown(socket.SHUT_RDWR)
                up.join()

    def _pump(self, giver: socket.socket, taker: socket.socket, *, down: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := giver.recv(1 << 14):
                if down and self._left is not None:
                    data = data[: self._left]
                    self._left -= len(data)
                taker.sendall(data)
                if self._left == 0:
                    self.is_cut = True
                    return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@dataclass(frozen=True, slots=True)
class Past:
    """The older agents, in a folder, with a clock of their own."""

    folder: Path
    tree: Path
    clock: Path

    @classmethod
    def of(cls, folder: Path, tree: Path) -> Past:
        """The agents of a tree in a new folder."""
        for name in ("source.toml", "postgresql.toml", "warehouse.toml"):
            shutil.copy(HERE / name, folder)
        clock = folder / "clock.so"
        words = ["cc", "-shared", "-fPIC", "-o", str(clock), str(HERE / "clock.c")]
        subprocess.run(words, check=True)
        return cls(folder, tree, clock)

    def run(self, day: int, words: Sequence[str], **more: str) -> subprocess.Popen[str]:
        """Start a command at six in the morning of a day of March 2024."""
        path = f"{self.tree}{os.pathsep}{self.tree / 'proto'}"
        then = datetime(2024, 3, day, 6, tzinfo=UTC).timestamp()
        clock = {"LD_PRELOAD": str(self.clock), "CLOCK_BACK_S": str(int(time.time() - then))}
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env={
                **os.environ,
                **clock,
                "PYTHONPATH": path,
                "TZ": "UTC",
                "https_proxy": DEAD,
                **more,
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    def enroll(self) -> None:
        words = ["source_agent.cli", "enroll", "--directory", "certs", "--source-name", HOST]
        assert self.run(1, words).wait() == 0

    @contextlib.contextmanager
    def served(
        self, day: int, cut_after: int | None = None, config: str = "source.toml"
    ) -> Iterator[Proxy]:
        """The source agent, behind a proxy."""
        port = self.folder / "source.port"
        port.unlink(missing_ok=True)
        words = ["--config", config, "serve", "--port-file", "source.port"]
        source = self.run(day, ["source_agent.cli", *words])
        while not port.exists():
            assert source.poll() is None, "the source agent ended"
            time.sleep(0.05)
        proxy = Proxy(int(port.read_text()), cut_after)
        try:
            yield proxy
        finally:
            proxy.close()
            source.terminate()
            source.wait()

    def command(
        self, day: int, *words: str, proxy: Proxy | None = None, code: int | None = 0
    ) -> str:
        """Run a command of the warehouse agent; return what it printed.

        code: the exit code that it must have; None: any but 0.
        """
        more = {} if proxy is None else {"https_proxy": proxy.url}
        process = self.run(day, ["warehouse_agent.cli", *words], **more)
        said, _ = process.communicate()
        is_expected = process.returncode == code if code is not None else process.returncode
        assert is_expected, (words, process.returncode, said)
        return said

    def edit(self, script: str) -> None:
        text = (HERE / "source" / script).read_text(encoding="utf-8")
        with contextlib.closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            connection.executescript(text)

    def published(self, *names: str) -> None:
        """Note the source's rows under the newest version of these fragments and views."""
        views = tomllib.loads((HERE / "warehouse.toml").read_text())["views"]
        with contextlib.closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            for name in names:
                query = f"SELECT * FROM {name}"
                if name in views:
                    query = views[name]["query"].replace("erp.", "")
                rows = connection.execute(f"SELECT * FROM ({query}) ORDER BY 1, 2").fetchall()
                self.note_rows(name, rows)

    def version(self, name: str) -> int:
        log = self.folder / "warehouse" / name / "_delta_log"
        return max(int(file.stem) for file in log.glob("*.json"))

    def note_rows(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        values = [list(map(told, row)) for row in rows]
        write_lines(self.folder, f"rows/{name}-{self.version(name)}", values)


def told(value: Any) -> Any:
    """A value as JSON: bytes in hexadecimal digits, long texts by their digest."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, str) and len(value) > LONG:
        return {"sha256": sha256(value.encode()).hexdigest(), "characters": len(value)}
    return value


def write_lines(folder: Path, name: str, values: Sequence[Any]) -> None:
    file = folder / "expected" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    file.write_text("".join(lines), encoding="utf-8")


def keys(value: Any) -> Any:
    """The keys of a JSON value, in their order; of a list those of its first item."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def make(past: Past) -> None:
    refresh = ("refresh", "--json")
    past.enroll()
    for day, script, names, moved in (
        (1, "1-load.sql", [*SIMPLE, *COMPONENTS], [*SIMPLE, *FRAGMENTS, *VIEWS]),
        (
            2,
            "2-second-day.sql",
            ["orders", "customers", "stock", "ledger", "prices", "labels", *COMPONENTS],
            ["orders", "customers", "stock", "ledger", "labels", "loads", "bays", "docks", *VIEWS],
        ),
        (3, "3-third-day.sql", ["orders", "ledger", "sites", "loads", "bays"], ["orders", "sites"]),
        (5, "4-fourth-day.sql", ["orders", "customers", "bays"], ["orders", "customers"]),
        (6, None, ["orders"], []),
    ):
        if script is not None:
            past.edit(script)
        with past.served(day) as proxy:
            past.command(day, *refresh, *names, proxy=proxy)
            if day == 2:
                past.command(day, *refresh, "kinds", "--accept-schema", proxy=proxy)
                past.published("kinds")
            if day == 3:
                past.command(day, *refresh, "docks", proxy=proxy, code=3)
                past.published("docks")
        past.published(*moved)
    cut_and_interrupt(past, refresh)
    visits(past, refresh)
    restore_and_damage(past, refresh)
    fail(past, refresh)


def cut_and_interrupt(past: Past, refresh: Sequence[str]) -> None:
    """Leave an exchange that was cut, and a pass that was interrupted."""
    past.edit("5-parcels.sql")
    with past.served(9, cut_after=CUT_AFTER_BYTES) as proxy:
        past.command(9, *refresh, "parcels", proxy=proxy, code=4)
        assert proxy.is_cut
    past.edit("6-stock.sql")
    staging = past.folder / "warehouse" / "_driftline" / "staging"
    assert [f.name for f in staging.glob("parcels/*/*.frames")] == ["000001.frames"]
    with past.served(10) as proxy:
        words = ["warehouse_agent.cli", *refresh, "stock"]
        process = past.run(10, words, https_proxy=proxy.url)
        while len(list(staging.glob("stock/pass/*.npz"))) < TILES_DONE:
            assert process.poll() is None, "the pass ended"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert len(list(staging.glob("stock/pass/*.npz"))) == TILES_DONE


def visits(past: Past, refresh: Sequence[str]) -> None:
    """Load a relation with row security; change its rows, then its policies."""
    with PostgreSQL() as server:
        server.create_login("reader")
        database = server.create_database("clinic")
        config = past.folder / "postgresql.toml"
        text = config.read_text().replace("DATABASE", server.url("reader", database))
        config.write_text(text)
        for day in (1, 2, 3):
            with server.superuser(database) as connection:
                connection.execute((HERE / "postgresql" / f"{day}.sql").read_text())
                connection.execute("GRANT SELECT ON visits TO reader")
            more = ("--accept-schema",) if day == 3 else ()
            with past.served(day, config="postgresql.toml") as proxy:
                past.command(day, *refresh, "visits", *more, proxy=proxy)
            if day < 3:
                with psycopg.connect(server.uri_of(database, "reader")) as connection:
                    rows = connection.execute("SELECT * FROM visits ORDER BY 1").fetchall()
                past.note_rows("visits", rows)


def restore_and_damage(past: Past, refresh: Sequence[str]) -> None:
    """Take the newest entry from the log of labels, go on, and damage a data file."""
    table = past.folder / "warehouse" / "labels"
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    with past.served(3) as proxy:
        past.command(3, *refresh, "labels", "--accept-restored", proxy=proxy)
    (past.folder / "expected" / "rows" / "labels-1.jsonl").unlink()  # it is gone
    past.published("labels")
    largest = max(map(Path, DeltaTable(table).file_uris()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100] + bytes(100))
    past.command(4, "verify", "labels", "--json", code=1)


def fail(past: Past, refresh: Sequence[str]) -> None:
    """Refresh customers twice without success: nobody answers, and the hours are closed."""
    past.command(7, *refresh, "customers", code=None)
    quiet = (HERE / "source.toml").read_text() + '[limits]\nquiet_hours = ["05:00-08:00"]\n'
    (past.folder / "quiet.toml").write_text(quiet)
    with past.served(8, config="quiet.toml") as proxy:
        past.command(8, *refresh, "customers", proxy=proxy, code=None)


def say(past: Past) -> None:
    """Keep what commands say of the warehouse as it is left, and the keys of their answers."""
    day = 11
    left_at = datetime(2024, 3, 10, 23, tzinfo=UTC).timestamp()
    for path in (past.folder / "warehouse").rglob("*"):
        os.utime(path, (left_at, left_at))  # the kernel has the true clock, which `gc` would see

    def lines(
        *words: str, proxy: Proxy | None = None, code: int | None = 0
    ) -> list[dict[str, Any]]:
        said = past.command(day, *words, proxy=proxy, code=code)
        return [json.loads(line) for line in said.splitlines()]

    write_lines(past.folder, "status", lines("status", "--json"))
    for name in (*SIMPLE, *FRAGMENTS, "visits", *VIEWS):
        write_lines(past.folder, f"history-{name}", lines("history", name, "--json"))
    found = {"verify": keys(lines("verify", "orders", "--json")[0])}
    gc = lines("gc", "--all", "--keep-hours", "0", "--json")
    write_lines(past.folder, "gc", gc)
    found["gc"] = keys(gc[0])
    with past.served(day) as proxy:
        planned = lines("plan", *SIMPLE, "--json", proxy=proxy)
        found["plan"] = {line["name"]: keys(line) for line in planned}
        # Nobody answers for the clinic.
        found["doctor"] = keys(lines("doctor", "--json", proxy=proxy, code=None)[0])
    past.command(day, "receipt", "orders", "--output", "receipt.json")
    found["receipt"] = keys(json.loads((past.folder / "receipt.json").read_text()))
    audited = (past.folder / "audit.jsonl").read_text().splitlines()
    found["audit"] = keys(json.loads(audited[-1]))
    text = json.dumps(found, indent=1)
    (past.folder / "expected" / "keys.json").write_text(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--folder", type=Path, default=Path("/srv/driftline"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    past = Past.of(given.folder, given.tree)
    make(past)
    shutil.copytree(past.folder / "warehouse", past.folder / "kept")
    say(past)
    for name, made in (("warehouse", "kept"), ("expected", "expected")):
        shutil.rmtree(HERE / name, ignore_errors=True)
        shutil.copytree(past.folder / made, HERE / name)
    shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
