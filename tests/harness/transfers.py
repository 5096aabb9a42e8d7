"""Transfers of an amount between two rows of `t(id, amount, …)`, without a pause, by its owner.

Each transfer is one statement and one transaction, so every moment has the same total. The loops
run in the server, or for a file in a process of its own: a test that sent each statement would be
slower than the rate that it wants, and would slow down the agents, which are in its process.

Invariant: sessions never wait for each other. Each has rows of its own, by the remainder of their
id; a transfer takes from a row of one remainder and gives to one of another.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.harness.legacy import Legacy, MariaLegacy, PostgresLegacy

SESSIONS = 2  # of a server; a file of SQLite has one writer
BATCH = 50  # transfers, of which the test is told at once
END_S_MAX = 60.0

_CLASSES = 2 * SESSIONS
_MOVE = "UPDATE t SET amount = amount + CASE id WHEN a THEN -1 ELSE 1 END WHERE id IN (a, b)"
_PROCEDURES = {
    "postgresql": f"""
        CREATE PROCEDURE transfer(first int, each_class int) LANGUAGE plpgsql AS $$
        DECLARE a int; b int;
        BEGIN
          FOR i IN 1..{BATCH} LOOP
            a := first + {_CLASSES} * floor(random() * each_class)::int;
            b := first + 1 + {_CLASSES} * floor(random() * each_class)::int;
            {_MOVE};
            COMMIT;
          END LOOP;
        END $$""",
    "mariadb": f"""
        CREATE PROCEDURE transfer(first INT, each_class INT)
        BEGIN
          DECLARE a INT; DECLARE b INT; DECLARE i INT DEFAULT 0;
          WHILE i < {BATCH} DO
            SET a = first + {_CLASSES} * FLOOR(RAND() * each_class);
            SET b = first + 1 + {_CLASSES} * FLOOR(RAND() * each_class);
            {_MOVE};
            SET i = i + 1;
          END WHILE;
        END""",
}
_OF_A_FILE = f"""
import random, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout={END_S_MAX}, isolation_level=None)
connection.execute("PRAGMA synchronous=OFF")
each_class = int(sys.argv[2])
while True:
    for _ in range({BATCH}):
        a, b = (one + {_CLASSES} * random.randrange(each_class) for one in (0, 1))
        connection.execute({_MOVE.replace("WHEN a", "WHEN ?1").replace("a, b", "?1, ?2")!r}, (a, b))
    print(flush=True)
"""


@contextmanager
def transferring(legacy: Legacy, rows: int) -> Iterator[Callable[[], int]]:
    """Transfer between the rows with an id below `rows`; yield what counts the transfers so far."""
    each_class = rows // _CLASSES
    if isinstance(legacy, PostgresLegacy | MariaLegacy):
        with _on_a_server(legacy, each_class) as count:
            yield count
    else:
        with _on_a_file(legacy.url.removeprefix("sqlite:///"), each_class) as count:
            yield count


@contextmanager
def _on_a_server(
    legacy: PostgresLegacy | MariaLegacy, each_class: int
) -> Iterator[Callable[[], int]]:
    legacy.execute(_PROCEDURES[legacy.engine])
    ended = threading.Event()
    batches, failed = [0] * SESSIONS, list[Exception]()

    def run(number: int) -> None:
        try:
            with closing(_owner(legacy)) as connection, closing(connection.cursor()) as cursor:
                while not ended.is_set():
                    cursor.execute(f"CALL transfer({2 * number}, {each_class})")
                    batches[number] += 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: BATCH * sum(batches)
    finally:
        ended.set()
        for thread in threads:
            thread.join(END_S_MAX)
    assert not failed, failed
    assert all(batches), batches


def _owner(legacy: PostgresLegacy | MariaLegacy) -> Any:
    if isinstance(legacy, PostgresLegacy):
        return legacy._server.superuser(legacy.database)
    return legacy._server.admin(legacy.database)


@contextmanager
def _on_a_file(path: str, each_class: int) -> Iterator[Callable[[], int]]:
    command = [sys.executable, "-c", _OF_A_FILE, path, str(each_class)]
    lines = [0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def count() -> None:
            assert process.stdout is not None
            for _ in process.stdout:
                lines[0] += 1

        reader = threading.Thread(target=count)
        reader.start()
        try:
            yield lambda: BATCH * lines[0]
            assert process.poll() is None, "the writer has ended"
        finally:
            process.terminate()
            reader.join(END_S_MAX)


def await_more(count: Callable[[], int], more: int, *, within_s: float) -> None:
    """Wait until so many more transfers are committed."""
    least, deadline = count() + more, time.monotonic() + within_s
    while count() < least:
        assert time.monotonic() < deadline, f"{count():,} transfers"
        time.sleep(0.002)
