"""Mutated files of settings: what is wrong in one is told as the file's mistake.

A valid file is changed in its values, its keys or its bytes, and read as the agents read it, with
the engine that its URL names. Nothing is raised but errors of ours, and never the one for our own
mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from driftline.errors import DriftlineError, InternalError

from source_agent.config.file import load as load_source
from source_agent.engines.dump.choice import pattern
from source_agent.engines.dump.formats import load as load_format
from source_agent.engines.registry import connect
from warehouse_agent.views.inputs import load as load_warehouse

FILES, SOAK_FILES = 250, 30_000  # of each agent
SEED = 20261129
URLS = (
    "sqlite:////tmp/no.db", "postgresql://u@h/d", "mariadb://u@h:3306/d", "dump:////srv/in",
    "firebird://u@h//f.fdb", "generic+sqlite:///x.db", "nonsense://x", "sqlite://", "://", "",
    "postgresql://u@[::1/d", "mariadb://h:x/d", "generic+nothing://x", "postgresql://u@h/d?a=b",
    "sqlite:///\\u0000", "mariadb://u@h/d?ssl_ca=\\u0000",
)  # fmt: skip
VALUES = (
    '""', '"\\u0000"', '"~nobody/x"', '"é…😀"', '"' + "x" * 5000 + '"', "0", "-1", "9" * 400,
    "1e400", "nan", "-inf", "0x10", "true", "2026-01-01", "2026-01-01T00:00:00Z",
    "03:04:05", "[]", "[[]]",
    '["a", "a"]', "[1, 2]", "{}", "{ a = { b = 1 } }", '"{%Y%Y}"', '"*"', '"../x"',
    '"127.0.0.1:99999"',
    '"::1:7"', '"a..b:1"', '"\\ud7ff:1"', '"always"', '"02:00-25:00"', '"Mo 1:00-2:00"',
    '"SELECT 1"',
    '"SELECT"', '"1h"', '"auto"', '"[x"', '"a.b.c.d"', "'\"'",
    *(f'"{url}"' for url in URLS),
)  # fmt: skip
SOURCE = """[database]
url = "sqlite:////tmp/no.db"
lock_timeout_s = 1
statement_timeout_s = 5.0
[server]
listen = "127.0.0.1:0"
insecure = true
audit_file = "audit.jsonl"
[limits]
scans_at_once = 2
rows_per_second = 1000
quiet_hours = ["02:00-03:00"]
pause_file = "pause"
[relations.orders]
table = "orders"
key = ["id"]
columns = ["id", "note"]
where = "id > 0"
allow = ["warehouse"]
derive = ["rows"]
scan = ["22:00-05:00"]
marker = { column = "at", late = "1h" }
[relations.asked]
query = "SELECT a.id FROM a JOIN b ON a.id = b.id"
key = ["id"]
"""
DUMP = """[database]
url = "dump:////srv/in"
[server]
listen = "127.0.0.1:0"
insecure = true
[relations.files]
files = "x-{%Y%m%d}.csv"
format = "x.toml"
complete = "{file}.done"
key = ["id"]
"""
FORMAT = """separator = ";"
quote = '"'
encoding = "cp1252"
null = ""
decimal = ","
header = true
[columns]
id = "int8"
name = "text"
balance = "numeric(15,2)"
"""
WAREHOUSE = """[warehouse]
path = "warehouse"
small_bytes = 0
[spark]
"spark.master" = "local[1]"
[sources.erp]
address = "127.0.0.1:7443"
insecure = true
objective = "bytes"
[fragments.orders]
source = "erp"
relation = "orders"
method = "range"
require = "fuzzy"
freshness = "1h"
incremental = { rows = 40, pause_s = 0.3 }
carriers = { note = "string" }
[views.open]
query = "SELECT o.id, o.note FROM orders o WHERE o.id > 3"
max_lag = "1h"
[notify]
webhook = "https://chat.example.com/hook"
format = "slack"
"""


def mutated(text: str, rng: random.Random) -> bytes:
    """Change one to three places of a file."""
    lines = text.splitlines()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        name, equals, _ = lines[at].partition(" = ")
        match rng.randrange(6):
            case 0 | 1 | 2 if equals:
                lines[at] = f"{name} = {rng.choice(VALUES)}"
            case 3:
                lines.insert(at, rng.choice(lines))
            case 4 if len(lines) > 1:
                del lines[at]
            case _:
                lines[at] = rng.choice(("[x]", '["\\u0000"]', "a.b = 1", f"{name}x = 1", "=", "[["))
    data = bytearray("\n".join(lines).encode())
    if rng.random() < 0.1 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def read_source(path: Path) -> None:
    config = load_source(path)
    database = config.database
    connect(database.url, database.password, database.limits)
    for served in config.relations.values():
        if served.relation.files is not None:
            pattern(served.relation.files, served.relation.name)


def _fuzz(path: Path, text: str, read: Callable[[Path], object], tries: int) -> None:
    rng, refused = random.Random(SEED), 0
    for number in range(tries):
        data = mutated(text, rng)
        path.write_bytes(data)
        error = _error(read, path)
        refused += error is not None
        is_ours = isinstance(error, DriftlineError) and not isinstance(error, InternalError)
        assert error is None or is_ours, f"try {number}: {error!r}\n{data.decode(errors='replace')}"
        assert error is None or "datetime." not in str(error)
    assert tries // 2 < refused < tries


def _error(read: Callable[[Path], object], path: Path) -> Exception | None:
    try:
        read(path)
    except Exception as error:
        return error
    return None


AGENTS = pytest.mark.parametrize(
    ("text", "read"),
    [
        (SOURCE, read_source),
        (DUMP, read_source),
        (FORMAT, load_format),
        (WAREHOUSE, load_warehouse),
    ],
    ids=["source", "dump", "format", "warehouse"],
)


@AGENTS
def test_a_wrong_file(tmp_path: Path, text: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    read(path)
    _fuzz(path, text, read, FILES)


@pytest.mark.soak
@AGENTS
def test_many_wrong_files(tmp_path: Path, text: str, read: Callable[[Path], object]) -> None:
    _fuzz(tmp_path / "agent.toml", text, read, SOAK_FILES)
