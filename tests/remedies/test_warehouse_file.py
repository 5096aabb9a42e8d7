"""Remedies for warehouse.toml and its views: with what each says, the file is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from driftline.errors import ConfigurationError
from driftline.metrics_server import MetricsServer

from tests.remedies.told import told
from warehouse_agent.config.settings import SecretAddress
from warehouse_agent.inspection import watcher_readiness
from warehouse_agent.views.inputs import load
from warehouse_agent.views.query import read_query, resolve

HEAD = '[warehouse]\npath = "w"\n'
ERP = '[sources.erp]\naddress = "127.0.0.1:7443"\ninsecure = true\n'
START = HEAD + ERP
FRAGMENT = START + '[fragments.orders]\nsource = "erp"\n'
FUZZY = FRAGMENT + 'require = "fuzzy"\n'
PART = FUZZY + "read_at_most = 5000\n"
TILES = FUZZY + "incremental = {}\n"
TLS = '[sources.erp]\naddress = "erp.example:7443"\nca = "a"\ncertificate = "b"\nkey = "c"\n'
SPAN = 'Write it like "Mon-Fri 09:00-18:00", "Sat,Sun" or "20:00-06:00".'
HOURS = TLS + "refresh_hours = {}\n"
IN_HOURS = HEAD + HOURS + '[fragments.orders]\nsource = "erp"\nfreshness = "{}"\n'

# The remedy, the file that has the fault, and the file after each thing that the remedy names.
FILES_AFTER: list[tuple[str, str, tuple[str, ...]]] = [
    (
        "End its name in .prom.",
        HEAD + '[metrics]\ntextfile = "lake.txt"',
        (HEAD + '[metrics]\ntextfile = "lake.prom"',),
    ),
    (
        "Write https://HOST/….",
        HEAD + '[notify]\nwebhook = "https://"',
        (HEAD + '[notify]\nwebhook = "https://chat.example.com/hook"',),
    ),
    (
        "Write https://; http:// is for this machine alone, as http://127.0.0.1:PORT/.",
        HEAD + '[notify]\nheartbeat = "http://chat.example.com/"',
        (
            HEAD + '[notify]\nheartbeat = "https://chat.example.com/"',
            HEAD + '[notify]\nheartbeat = "http://127.0.0.1:8080/"',
        ),
    ),
    (
        "Name a program and its arguments.",
        HEAD + "[notify]\ncommand = []",
        (HEAD + '[notify]\ncommand = ["sendmail", "-t"]',),
    ),
    (
        "Add it, or remove the line.",
        HEAD + '[notify]\nformat = "slack"',
        (HEAD + '[notify]\nformat = "slack"\nwebhook_file = "hook"', HEAD + "[notify]\n"),
    ),
    (
        "Remove one of them.",
        HEAD + '[notify]\nheartbeat = "https://beat.example.com/"\nheartbeat_file = "beat"',
        (
            HEAD + '[notify]\nheartbeat = "https://beat.example.com/"',
            HEAD + '[notify]\nheartbeat_file = "beat"',
        ),
    ),
    (
        "Give the … another name.",
        START + '[fragments.driftline_freshness]\nsource = "erp"',
        (START + '[fragments.freshness]\nsource = "erp"\nrelation = "driftline_freshness"',),
    ),
    ("Name a folder whose path has none of ….", '[warehouse]\npath = "a[b]"\n', (HEAD,)),
    (
        "Rename one of them.",
        FRAGMENT + '[fragments.ORDERS]\nsource = "erp"',
        (FRAGMENT + '[fragments.others]\nsource = "erp"',),
    ),
    (
        'Add `require = "fuzzy"`, and leave out `method`.',
        FRAGMENT + 'read_at_most = 5000\nmethod = "range"',
        (PART,),
    ),
    ("Remove `read_at_most`, or `incremental`.", PART + "incremental = {}", (PART, TILES)),
    (
        'Write `proof = "part"` or nothing, or remove `read_at_most`.',
        PART + 'proof = "keys"',
        (PART + 'proof = "part"', PART, FUZZY + 'proof = "keys"'),
    ),
    (
        'If that is good enough: `require = "fuzzy"` in the fragment.',
        FRAGMENT + 'proof = "part"',
        (FUZZY + 'proof = "part"',),
    ),
    (
        'If that is good enough: `require = "fuzzy"` in the fragment.',
        FRAGMENT + "incremental = {}",
        (TILES,),
    ),
    (
        'If the claims are good enough for updates: `proof = "keys"` in the fragment.',
        FRAGMENT + 'method = "since"',
        (FRAGMENT + 'method = "since"\nproof = "keys"',),
    ),
    (
        "Remove `proof`, or `incremental`.",
        TILES + 'proof = "keys"',
        (TILES, FUZZY + 'proof = "keys"'),
    ),
    (
        "Remove `proof`, or `method`.",
        FRAGMENT + 'proof = "keys"\nmethod = "group"',
        (FRAGMENT + 'method = "group"', FRAGMENT + 'proof = "keys"'),
    ),
    (
        "Remove `method`, or `incremental`.",
        TILES + 'method = "sketch"',
        (TILES, FUZZY + 'method = "sketch"'),
    ),
    (
        "Write it like 90s, 15m, 1h30m or 1d.",
        FRAGMENT + 'proof = "keys"\naudit = "week"',
        tuple(
            FRAGMENT + f'proof = "keys"\naudit = "{text}"' for text in ("90s", "15m", "1h30m", "1d")
        ),
    ),
    (
        'Write both: the column, and "creation" or "update", the event it is the time of.',
        FRAGMENT + 'event_time = "changed"',
        (
            FRAGMENT + 'event_time = "changed"\nevent_kind = "update"',
            FRAGMENT + 'event_time = "changed"\nevent_kind = "creation"',
        ),
    ),
    (
        "Use up to … letters, digits, '_', '.' and '-', beginning with a letter, a digit or '_'.",
        START + '[fragments."a b"]\nsource = "erp"',
        (START + '[fragments."a_b.c-1"]\nsource = "erp"',),
    ),
    (
        "Remove one of the two: each is a goal.",
        FRAGMENT + 'freshness = "1h"\nrefreshes_per_day = 9',
        (FRAGMENT + 'freshness = "1h"', FRAGMENT + "refreshes_per_day = 9"),
    ),
    (
        'Write it like "Europe/Vienna" or "UTC".',
        FRAGMENT + 'time_zone = "Wien"',
        (FRAGMENT + 'time_zone = "Europe/Vienna"', FRAGMENT + 'time_zone = "UTC"'),
    ),
    (
        "Remove the line or give it a value.",
        HEAD + HOURS.format("[]"),
        (HEAD + TLS, HEAD + HOURS.format('["20:00-06:00"]')),
    ),
    (
        "Write it like 90s, 15m, 1h30m or 1d.",
        FRAGMENT + 'freshness = "soon"',
        tuple(FRAGMENT + f'freshness = "{text}"' for text in ("90s", "15m", "1h30m", "1d")),
    ),
    (
        SPAN,
        HEAD + HOURS.format('["always"]'),
        tuple(
            HEAD + HOURS.format(f'["{text}"]')
            for text in ("Mon-Fri 09:00-18:00", "Sat,Sun", "20:00-06:00")
        ),
    ),
    (
        "Write each hour of the week once.",
        FRAGMENT + 'weights = { "Mon-Fri" = 4, "Fri 09:00-18:00" = 2 }',
        (FRAGMENT + 'weights = { "Mon-Thu" = 4, "Fri 09:00-18:00" = 2 }',),
    ),
    (
        "Make it shorter, or `interval_max` longer.",
        FRAGMENT + 'interval_min = "2d"',
        (FRAGMENT + 'interval_min = "2h"', FRAGMENT + 'interval_min = "2d"\ninterval_max = "3d"'),
    ),
    (
        "Make it shorter, or `interval_max` longer.",
        FRAGMENT + 'freshness = "2d"',
        (FRAGMENT + 'freshness = "2h"', FRAGMENT + 'freshness = "2d"\ninterval_max = "3d"'),
    ),
    (
        "Set `interval_max` to … or more.",
        FRAGMENT + "refreshes_per_day = 0.3",
        (FRAGMENT + 'refreshes_per_day = 0.3\ninterval_max = "{0}"',),
    ),
    (
        "Make `interval_min` shorter.",
        FRAGMENT + 'refreshes_per_day = 48\ninterval_min = "1h"',
        (FRAGMENT + 'refreshes_per_day = 48\ninterval_min = "30m"',),
    ),
    (
        "Remove one of the two, or use `refreshes_per_day`.",
        FRAGMENT + 'freshness = "1h"\npolicy = "optimal"',
        (
            FRAGMENT + 'freshness = "1h"',
            FRAGMENT + 'policy = "optimal"',
            FRAGMENT + 'refreshes_per_day = 24\npolicy = "optimal"',
        ),
    ),
    (
        "Make it longer, or `interval_min` shorter.",
        FRAGMENT + 'freshness = "1h"\ninterval_min = "2h"',
        (
            FRAGMENT + 'freshness = "2h"\ninterval_min = "2h"',
            FRAGMENT + 'freshness = "1h"\ninterval_min = "1h"',
        ),
    ),
    (
        "Set it to … or more, or open the hours.",
        IN_HOURS.format('["20:00-06:00"]', "1h"),
        (
            IN_HOURS.format('["20:00-06:00"]', "{0}"),
            IN_HOURS.format('["00:00-23:30"]', "1h"),
        ),
    ),
    (
        "Remove `insecure` and name the certificates of `driftline-source enroll`.",
        HEAD + '[sources.erp]\naddress = "erp.example:7443"\ninsecure = true',
        (HEAD + TLS,),
    ),
    (
        "Remove one of the two.",
        START + 'ca = "a"',
        (START, HEAD + TLS.replace("erp.example", "127.0.0.1")),
    ),
    (
        "Write … or less.",
        FRAGMENT + "[views.v]\nquery = 'SELECT id FROM orders'\nmax_lag = '9d'",
        (FRAGMENT + "[views.v]\nquery = 'SELECT id FROM orders'\nmax_lag = '{0}'",),
    ),
    (
        "Did you mean …?",
        FRAGMENT + "[views.v]\nquery = 'SELECT id FROM order'",
        (FRAGMENT + "[views.v]\nquery = 'SELECT id FROM orders'",),
    ),
    (
        "Did you mean …?",
        FRAGMENT + "[views.v]\nquery = 'SELECT id FROM erb.lines'",
        (FRAGMENT + "[views.v]\nquery = 'SELECT id FROM erp.lines'",),
    ),
    (
        "Write the name of the one that is meant.",
        FRAGMENT + '[fragments.other]\nsource = "erp"\nrelation = "orders"\n'
        "[views.v]\nquery = 'SELECT id FROM erp.orders'",
        (
            FRAGMENT + '[fragments.other]\nsource = "erp"\nrelation = "orders"\n'
            "[views.v]\nquery = 'SELECT id FROM other'",
        ),
    ),
    (
        "Add a [fragments.NAME] for the relation …, and write its name.",
        START + "[views.v]\nquery = 'SELECT id FROM erp.`order lines`'",
        (
            START + "[fragments.lines]\nsource = 'erp'\nrelation = 'order lines'\n"
            "[views.v]\nquery = 'SELECT id FROM lines'",
        ),
    ),
    (
        "Rename …, or add a fragment for the relation.",
        FRAGMENT + "[fragments.'erp.lines']\nsource = 'erp'\nrelation = 'x'\n"
        "[views.v]\nquery = 'SELECT id FROM erp.lines'",
        (
            FRAGMENT + "[fragments.lines_x]\nsource = 'erp'\nrelation = 'x'\n"
            "[views.v]\nquery = 'SELECT id FROM erp.lines'",
            FRAGMENT + "[fragments.'erp.lines']\nsource = 'erp'\nrelation = 'x'\n"
            "[fragments.lines]\nsource = 'erp'\n[views.v]\nquery = 'SELECT id FROM erp.lines'",
        ),
    ),
    (
        "Let one of them read the fragments themselves.",
        FRAGMENT + "[views.a]\nquery = 'SELECT id FROM b'\n[views.b]\nquery = 'SELECT id FROM a'",
        (
            FRAGMENT + "[views.a]\nquery = 'SELECT id FROM orders'\n"
            "[views.b]\nquery = 'SELECT id FROM a'",
        ),
    ),
]


def loaded(file: Path, text: str) -> None:
    file.write_text(text)
    assert load(file).path == str(file.parent / "w")


@pytest.mark.parametrize("case", FILES_AFTER, ids=lambda case: case[0][:40])
def test_the_file_is_read(tmp_path: Path, case: tuple[str, str, tuple[str, ...]]) -> None:
    remedy, fault, mended = case
    file = tmp_path / "warehouse.toml"
    with pytest.raises(ConfigurationError) as caught:
        loaded(file, fault)
    printed = told(caught.value, remedy)
    number = next((w for w in printed.split() if w[0].isdigit()), "")
    for text in mended:
        loaded(file, text.replace("{0}", number))


# The remedy of a query, what it refuses, and what it names instead.
JOINED = "SELECT a.id FROM orders AS a JOIN lines AS b ON a.id = b.id"
QUERIES: list[tuple[str, str, str]] = [
    ("Leave one.", "SELECT id FROM orders; SELECT id FROM orders", "SELECT id FROM orders;"),
    ("Write SELECT … FROM ….", "TABLE orders", "SELECT id FROM orders"),
    (
        "Make each part a view of its own.",
        "SELECT id FROM orders UNION SELECT id FROM lines",
        "SELECT id FROM orders",
    ),
    ("Name the tables that it reads.", "SELECT 1 AS a", "SELECT 1 AS a FROM orders"),
    ("Make it a view of its own.", "SELECT id FROM range(3)", "SELECT id FROM ids"),
    ("Write source.relation.", "SELECT id FROM a.erp.orders", "SELECT id FROM erp.orders"),
    (
        "Make a part of it a view of its own.",
        "SELECT a0.id FROM " + ", ".join(f"orders AS a{i}" for i in range(99)),
        "SELECT a0.id FROM orders AS a0, ids AS a1",
    ),
    ("Leave it out.", "SELECT id FROM orders *", "SELECT id FROM orders"),
    ("Leave it out.", "SELECT a COLLATE UTF8_LCASE AS b FROM orders", "SELECT a AS b FROM orders"),
    ("Leave it out.", "SELECT /*+ BROADCAST(orders) */ id FROM orders", "SELECT id FROM orders"),
    (
        "Give the table an alias, and write alias.column.",
        "SELECT erp.orders.id FROM erp.orders",
        "SELECT o.id FROM erp.orders AS o",
    ),
    (
        "Use a text, or a timestamp.",
        "SELECT CAST(a AS TIME) AS t FROM orders",
        "SELECT CAST(a AS STRING) AS t, CAST(a AS TIMESTAMP) AS u FROM orders",
    ),
    (
        "Give one another alias.",
        "SELECT orders.id FROM orders JOIN orders ON 1 = 1",
        "SELECT orders.id FROM orders JOIN orders AS o ON 1 = 1",
    ),
    ("Choose another.", "SELECT 1 AS x FROM orders AS `a``b`", "SELECT 1 AS x FROM orders AS ab"),
    ("Give it one: AS name.", "SELECT a + 1 FROM orders", "SELECT a + 1 AS name FROM orders"),
    ("Use AS.", "SELECT `a b` FROM orders", "SELECT `a b` AS a_b FROM orders"),
    ("Use AS.", "SELECT _version FROM orders", "SELECT _version AS v FROM orders"),
    ("Use AS.", "SELECT a, b AS a FROM orders", "SELECT a, b AS c FROM orders"),
    (
        "Make it simpler.",
        f"SELECT {'-(' * 3000}1{')' * 3000} AS a FROM orders",
        ("SELECT 1 AS a FROM orders"),
    ),
    ("Name the columns.", "SELECT * FROM orders", "SELECT id, a FROM orders"),
    (
        "Make it a view of its own, and join that.",
        "SELECT id FROM orders WHERE id IN (SELECT id FROM lines)",
        "SELECT orders.id FROM orders JOIN ids ON orders.id = ids.id",
    ),
    (
        "Make it a view of its own, and join that.",
        "WITH x AS (SELECT 1) SELECT id FROM orders",
        JOINED,
    ),
    (
        "Write the value.",
        "SELECT id FROM orders WHERE id = ?",
        "SELECT id FROM orders WHERE id = 7",
    ),
    (
        "Write the value.",
        "SELECT id FROM orders WHERE id = :p",
        "SELECT id FROM orders WHERE id = 7",
    ),
    (
        "The rows of a view are as many as its joins give.",
        "SELECT upper(DISTINCT id) AS n FROM orders",
        "SELECT upper(id) AS n FROM orders",
    ),
    (
        "Order the rows where they are read.",
        "SELECT id FROM orders ORDER BY id",
        ("SELECT id FROM orders"),
    ),
    (
        "Write the joins one after the other.",
        "SELECT a.id FROM (orders AS a JOIN lines AS b ON a.id = b.id)",
        JOINED,
    ),
    (
        "Write ON with both columns.",
        "SELECT a.id FROM orders AS a JOIN lines AS b USING (id)",
        JOINED,
    ),
]


def test_a_column_that_two_tables_have() -> None:
    text = "SELECT id FROM orders JOIN lines ON orders.n = lines.m"
    columns = (("id", "n"), ("id", "m"))
    with pytest.raises(ConfigurationError) as caught:
        resolve(read_query(text, where="v"), columns, where="v")
    printed = told(caught.value, "Write which is meant, such as ….….")
    meant = printed.rpartition(" ")[2].rstrip(".")
    resolve(read_query(text.replace("SELECT id", f"SELECT {meant}"), where="v"), columns, where="v")


@pytest.mark.parametrize("case", QUERIES, ids=lambda case: case[1][:40])
def test_the_query_is_read(tmp_path: Path, case: tuple[str, str, str]) -> None:
    remedy, fault, mended = case
    file = tmp_path / "warehouse.toml"
    text = (
        FRAGMENT + "[fragments.lines]\nsource = 'erp'\n"
        "[views.ids]\nquery = 'SELECT id FROM orders'\n[views.v]\nquery = '''{}'''\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        loaded(file, text.format(fault))
    told(caught.value, remedy)
    loaded(file, text.format(mended))


def test_metrics_without_the_package(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text(HEAD + "[metrics]\n")
    with (
        mock.patch.dict(sys.modules, {"prometheus_client": None}),
        pytest.raises(ConfigurationError) as raised,
    ):
        load(file)
    told(raised.value, "Run: pip install 'driftline[metrics]', or remove the table.")
    file.write_text(HEAD)
    load(file)


def test_a_folder_of_the_textfile_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "collector/lake.prom"
    with pytest.raises(ConfigurationError) as raised:
        watcher_readiness._textfile(file)
    told(
        raised.value,
        "Make the folder of node_exporter's textfile collector, and let this login write there.",
    )
    file.parent.mkdir()
    assert watcher_readiness._textfile(file)


def test_a_port_of_metrics_that_is_taken() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: b"")
    port = urlsplit(server.address).port
    assert port is not None
    with pytest.raises(ConfigurationError) as raised:
        MetricsServer("127.0.0.1", port, lambda: b"")
    told(raised.value, "End the program that uses this port, or name another address.")
    server.stop()
    MetricsServer("127.0.0.1", port, lambda: b"").stop()


@pytest.mark.starts
def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        watcher_readiness._program("./tell", tmp_path)
    told(raised.value, "Install it, or write its whole path.")
    file = tmp_path / "tell"
    file.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigurationError) as raised:
        watcher_readiness._program(str(file), tmp_path)
    printed = told(raised.value, "Run: chmod +x …")
    subprocess.run(printed.partition("Run: ")[2].split(), check=True)
    assert watcher_readiness._program(str(file), tmp_path)


def test_a_host_that_is_not_found() -> None:
    with pytest.raises(ConfigurationError) as raised:
        watcher_readiness._address(SecretAddress("https://nobody.invalid/", None, "notify"))
    told(raised.value, "Check its name, and the name servers of this machine.")
    assert watcher_readiness._address(SecretAddress("https://localhost/", None, "notify"))
