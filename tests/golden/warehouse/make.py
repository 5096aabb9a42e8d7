#!/usr/bin/env python3
"""Write a warehouse with the agents of an older commit, as it was on eleven days of March 2024.

    make.py --tree TREE [--folder FOLDER]

TREE is a checkout of cd952ee, the commit before the agents were arranged in packages. Needs a Java,
as Spark does, and a C compiler: `clock.c` gives every command the clock of its day, so that all
times in the warehouse lie in the past wherever it is read. FOLDER is where it is made; delta-rs
notes that place in the first commit of a table.

The source is a SQLite file that the files `source/*.sql` build; SQLite itself is the oracle. Made:

    warehouse/                   the warehouse, exactly as the commands left it
    expected/rows/NAME-N.jsonl   the rows of a fragment at the source when version N was published
    expected/*.jsonl, keys.json  what commands of that commit say of this warehouse, and JSON keys

Both agents speak mutual TLS through an HTTP proxy of this script, so that the warehouse knows the
source by a name and no address of this machine is in it. Certificates are not kept.

orders     versions 0 to 3; a fifth refresh found nothing
customers  by groups, versions 0 to 2
parcels    version 0; then the line was cut in the second of two frames, and stayed down
stock      in tiles, versions 0 and 1; then Ctrl-C after three of six tiles
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOST = "erp.invalid"
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
        for name in ("source.toml", "warehouse.toml"):
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
            env={**os.environ, **clock, "PYTHONPATH": path, **more},
            stdout=subprocess.PIPE,
            text=True,
        )

    def enroll(self) -> None:
        words = ["source_agent.cli", "enroll", "--directory", "certs", "--source-name", HOST]
        assert self.run(1, words).wait() == 0

    @contextlib.contextmanager
    def served(self, day: int, cut_after: int | None = None) -> Iterator[Proxy]:
        """The source agent, behind a proxy."""
        port = self.folder / "source.port"
        port.unlink(missing_ok=True)
        words = ["--config", "source.toml", "serve", "--port-file", "source.port"]
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

    def command(self, day: int, *words: str, proxy: Proxy | None = None, code: int = 0) -> str:
        """Run a command of the warehouse agent; return what it printed."""
        more = {} if proxy is None else {"https_proxy": proxy.url}
        process = self.run(day, ["warehouse_agent.cli", *words], **more)
        said, _ = process.communicate()
        assert process.returncode == code, (words, process.returncode, said)
        return said

    def edit(self, script: str) -> None:
        text = (HERE / "source" / script).read_text(encoding="utf-8")
        with contextlib.closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            connection.executescript(text)

    def published(self, *names: str) -> None:
        """Note the source's rows under the newest version of these fragments."""
        with contextlib.closing(sqlite3.connect(self.folder / "erp.db")) as connection:
            for name in names:
                log = self.folder / "warehouse" / name / "_delta_log"
                version = len(list(log.glob("*.json"))) - 1
                rows = connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
                values = [list(map(told, row)) for row in rows]
                write_lines(self.folder, f"rows/{name}-{version}", values)


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
    for day, script, names in (
        (1, "1-load.sql", ["orders", "customers", "stock", "parcels"]),
        (2, "2-second-day.sql", ["orders", "customers", "stock"]),
        (3, "3-third-day.sql", ["orders"]),
        (5, "4-fourth-day.sql", ["orders", "customers"]),
        (6, None, ["orders"]),
    ):
        if script is not None:
            past.edit(script)
        with past.served(day) as proxy:
            past.command(day, *refresh, *names, proxy=proxy)
        if script is not None:
            past.published(*names)
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


def say(past: Past) -> None:
    """Keep what commands say of the warehouse as it is left, and the keys of their answers."""
    day = 11
    left_at = datetime(2024, 3, 10, 23, tzinfo=UTC).timestamp()
    for path in (past.folder / "warehouse").rglob("*"):
        os.utime(path, (left_at, left_at))  # the kernel has the true clock, which `gc` would see

    def lines(*words: str, proxy: Proxy | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in past.command(day, *words, proxy=proxy).splitlines()]

    write_lines(past.folder, "status", lines("status", "--json"))
    for name in ("orders", "customers", "stock", "parcels"):
        write_lines(past.folder, f"history-{name}", lines("history", name, "--json"))
    found = {"verify": keys(lines("verify", "--all", "--json")[0])}
    gc = lines("gc", "--all", "--keep-hours", "0", "--json")
    write_lines(past.folder, "gc", gc)
    found["gc"] = keys(gc[0])
    with past.served(day) as proxy:
        found["plan"] = {line["name"]: keys(line) for line in lines("plan", "--json", proxy=proxy)}
        found["doctor"] = keys(lines("doctor", "--json", proxy=proxy)[0])
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
    try:
        past = Past.of(given.folder, given.tree)
        make(past)
        shutil.copytree(past.folder / "warehouse", past.folder / "kept")
        say(past)
        for name, made in (("warehouse", "kept"), ("expected", "expected")):
            shutil.rmtree(HERE / name, ignore_errors=True)
            shutil.copytree(past.folder / made, HERE / name)
    finally:
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
