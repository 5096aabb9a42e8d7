"""`driftline-source` as a DBA meets it: stdout, stderr, exit codes, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.relations.derivation_json import to_json
from driftline.relations.derivations import ColumnPredicate, Derivation, Operator
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import hasher, row_key
from driftline.values.send_format import string_encoder
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire_pb2_grpc import SourceStub

from source_agent.checks.grants import grants
from source_agent.cli.main import cli
from source_agent.config.file import load
from source_agent.engines.registry import connect
from source_agent.printable import printable_row
from tests.harness import forks
from tests.harness.agents import configuration, make_orders
from tests.harness.forks import SOURCE, Fork
from tests.harness.pair import environment
from tests.reference.rows import row_bytes

pytestmark = pytest.mark.slow  # starts a process for each command

ROWS = [(n, f"comment {n}") for n in range(1, 101)]
RECIPE = Recipe((Column("id", parse_type("int8")), Column("comment", parse_type("text"))), 1)
ENCODE_NUMBER = string_encoder(parse_type("int8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_orders(tmp_path / "erp.db", ROWS)
    configuration(tmp_path, tmp_path / "erp.db", certs=None)
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*SOURCE, *arguments], cwd=folder, env=environment(), timeout=60)


def failed(folder: Path, code: int, *arguments: str) -> str:
    done = command(folder, *arguments)
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def receipt(folder: Path, **changes: object) -> Path:
    """What the warehouse writes for ROWS; its total is computed here."""
    key, salt = bytes(range(32)), bytes(range(16))
    rows = [row_bytes([ENCODE_NUMBER(str(number)), text.encode()]) for number, text in ROWS]
    digest = mix(Salt.from_bytes(salt), *hasher(row_key(key, RECIPE))(rows)).digest()
    facts: dict[str, object] = {
        "relation": "orders",
        "columns": [[c.name, str(c.type)] for c in RECIPE.columns],
        "key_columns": 1,
        "as_of": "2026-01-01T00:00:00Z",
        "version": 3,
        "count": digest.count,
        "sum": digest.sum_bytes().hex(),
        "fragment_key": key.hex(),
        "salt": salt.hex(),
    }
    path = folder / "receipt.json"
    path.write_text(json.dumps(facts | changes))
    return path


def test_check(folder: Path) -> None:
    done = command(folder, "check")
    assert done.returncode == 0, done
    for expected in ("orders", "every certificate", "id", "comment", "int8", "read-only", "a scan"):
        assert expected in done.stdout
    done = command(folder, "check", "--json")
    report = json.loads(done.stdout)
    assert report["ok"]
    (orders,) = report["relations"]
    assert [c["name"] for c in orders["columns"] if c["key"]] == ["id"]
    assert orders["scan_cost"]


def test_check_reports_what_cannot_be_served_and_goes_on(folder: Path) -> None:
    with (folder / "source.toml").open("a") as file:
        file.write('[relations.a]\ntable = "absent"\n[relations.z]\ntable = "orders"\n')
    done = command(folder, "check", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [r["error_code"] for r in report["relations"]] == [None, "CONFIGURATION", None]
    assert "FAILED" in command(folder, "check").stdout


def test_grants_and_explain(folder: Path) -> None:
    done = command(folder, "grants")
    assert done.returncode == 0, done
    assert done.stdout.strip()
    done = command(folder, "explain")
    assert done.returncode == 0, done
    assert "SELECT" in done.stdout
    assert "orders" in done.stdout
    assert "INSERT" not in done.stdout


def test_total_of_a_receipt(folder: Path) -> None:
    path = receipt(folder)
    done = command(folder, "total", "--receipt", str(path))
    assert (done.returncode, done.stderr) == (0, ""), done
    stated = json.loads(path.read_text())["sum"]
    line = f"orders: 100 rows, total {stated}, equal to the receipt of 2026-01-01T00:00:00Z\n"
    assert done.stdout == line
    with sqlite3.connect(folder / "erp.db") as writer:
        writer.execute("UPDATE orders SET comment = 'x' WHERE id = 7")
    writer.close()
    done = command(folder, "total", "--receipt", str(path))
    assert done.returncode == 1
    assert "differs from the receipt" in done.stdout
    assert stated in done.stdout
    assert done.stdout.count("\n") == 1


def test_what_a_warehouse_may_choose(folder: Path) -> None:
    with (folder / "source.toml").open("a") as file:
        file.write('derive = ["columns", "rows"]\n')
    done = command(folder, "check")
    assert "a warehouse may choose columns and rows" in done.stdout
    assert "rows by id, comment" in done.stdout
    (orders,) = json.loads(command(folder, "check", "--json").stdout)["relations"]
    assert orders["derive"] == ["columns", "rows"]
    assert {c["name"]: c["comparable"] for c in orders["columns"]} == {
        "id": "order",
        "comment": "order",
    }
    said = command(folder, "explain").stdout
    for line in (
        (
            "-- {columns}: any of these expressions, in this order; none without the comma\n"
            "--   `comment`\n"
        ),
        "--   `comment` COLLATE BINARY {operator} ?\n",
        "--   `id` IN (?)\n",
        'SELECT `id`, {columns}\nFROM main."orders";\n',
        'SELECT `id`, {columns}\nFROM main."orders"\nWHERE ({rows});\n',
    ):
        assert line in said, said


def derived_receipt(folder: Path, derivation: object, **changes: object) -> Path:
    """What the warehouse writes for the ids below 7."""
    key, salt = bytes(range(32)), bytes(range(16))
    recipe = Recipe(RECIPE.columns[:1], 1)
    rows = [row_bytes([ENCODE_NUMBER(str(number))]) for number, _ in ROWS if number < 7]
    digest = mix(Salt.from_bytes(salt), *hasher(row_key(key, recipe))(rows)).digest()
    return receipt(
        folder,
        columns=[["id", "int8"]],
        count=digest.count,
        sum=digest.sum_bytes().hex(),
        derivation=derivation,
        **changes,
    )


BELOW_7 = Derivation(("id",), ColumnPredicate("id", Operator.LESS, ("7",)))


def test_total_of_a_derived_receipt(folder: Path) -> None:
    """Also without `derive`: the DBA herself asks."""
    path = derived_receipt(folder, to_json(BELOW_7))
    done = command(folder, "total", "--receipt", str(path))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("orders: 6 rows, total ")
    other = to_json(Derivation(("id",), ColumnPredicate("id", Operator.LESS, ("8",))))
    done = command(folder, "total", "--receipt", str(derived_receipt(folder, other)))
    assert done.returncode == 1
    assert "orders: 7 rows" in done.stdout


@pytest.mark.parametrize(
    ("derivation", "code", "says"),
    [
        ({"columns": ["id", "remark"]}, 6, "no column 'remark'"),
        ({"columns": "id"}, 2, "no receipt"),
        ({"rows": {"negated": {}}}, 2, "no receipt"),
        ({"rows": {"comparison": {"column": "id", "operator": "=", "values": ["x"]}}}, 1, "type"),
        ({"columns": ["comment"]}, 6, "comment text here"),
        (None, 6, "comment text here"),
    ],
)
def test_derived_receipts_that_are_refused(
    folder: Path, derivation: object, code: int, says: str
) -> None:
    path = derived_receipt(folder, derivation)
    assert says in failed(folder, code, "total", "--receipt", str(path))


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"columns": [["id", "int8"], ["remark", "text"]]}, 6, "remark text at the warehouse"),
        ({"columns": [["id", "int8"]]}, 6, "nothing at the warehouse, comment text here"),
        ({"key_columns": 2}, 6, "2 key columns"),
        ({"key_columns": 3}, 2, "no recipe"),
        ({"columns": [["id", "integer"]]}, 2, "declared type"),
        ({"columns": ["id"]}, 2, "[name, type]"),
        ({"salt": "00"}, 2, "'salt' is not 16 bytes"),
        ({"count": -1}, 2, "'count'"),
        ({"relation": "order"}, 1, "Did you mean 'orders'?"),
    ],
)
def test_receipts_that_are_refused(
    folder: Path, changes: dict[str, object], code: int, says: str
) -> None:
    assert says in failed(folder, code, "total", "--receipt", str(receipt(folder, **changes)))


def test_files_that_are_no_receipts(folder: Path) -> None:
    assert "cannot be read" in failed(folder, 2, "total", "--receipt", "absent.json")
    (folder / "bad.json").write_text("{")
    assert "no receipt" in failed(folder, 2, "total", "--receipt", "bad.json")
    (folder / "bad.json").write_text("[]")
    assert "no receipt" in failed(folder, 2, "total", "--receipt", "bad.json")


def test_errors_are_a_line_and_a_code(folder: Path) -> None:
    says = failed(folder, 2, "--config", "absent.toml", "check")
    assert says.startswith("error CONFIGURATION: There is no file absent.toml.")
    (folder / "source.toml").write_text("[databse]\n")
    assert "Did you mean 'database'?" in failed(folder, 2, "serve")
    for words in (("--debug", "serve"), ("serve", "--debug")):
        assert "Traceback" in command(folder, *words).stderr
    assert failed(folder, 2, "chek").startswith("Usage:")


def test_a_database_that_is_not_there(folder: Path) -> None:
    (folder / "erp.db").unlink()
    assert failed(folder, 4, "check").startswith("error DATABASE_UNAVAILABLE")


def test_version(folder: Path) -> None:
    done = command(folder, "--version")
    assert done.stdout.startswith("driftline-source ")


def test_enroll(folder: Path) -> None:
    arguments = ("enroll", "--directory", "certs", "--source-name", "localhost")
    done = command(folder, *arguments)
    assert done.returncode == 0, done
    assert len(done.stdout.splitlines()) == 6
    assert "would be overwritten" in failed(folder, 2, *arguments)
    assert "--source-name" in failed(folder, 2, "enroll")


BOTH = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("asked", [BOTH[:1], BOTH[1:], BOTH * 300], ids=["TERM", "INT", "burst"])
def test_serve_says_where_it_listens_and_ends_on_sigterm(
    folder: Path, asked: list[signal.Signals]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "source_agent.cli", "serve", "--port-file", "port"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        port = (folder / "port").read_text().strip()
        assert said == f"listening on 127.0.0.1:{port}\n"
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            reply = SourceStub(channel).Describe(pb.DescribeRequest(protocol=1), timeout=10)
        assert list(reply.relations) == ["orders"]
        for number in asked:  # it may be in the midst of hearing the one before
            process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("place", ["supervisor", "@driftline-supervisor-{}"])
def test_serve_tells_its_supervisor_when_it_listens(folder: Path, place: str) -> None:
    """The datagram of sd_notify(3), on a socket with a path or an abstract one."""
    address = place.format(os.getpid()) if place.startswith("@") else str(folder / place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address.replace("@", "\0", 1) if place.startswith("@") else address)
        supervisor.settimeout(60)
        process = Fork(
            [*SOURCE, "serve", "--port-file", "port"],
            cwd=folder,
            env=environment(NOTIFY_SOCKET=address),
            stderr=subprocess.DEVNULL,
        )
        try:
            assert supervisor.recv(100) == b"READY=1"
            port = int((folder / "port").read_text())
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_a_key_is_printed_short_and_harmless() -> None:
    columns = (Column("n", parse_type("int8")), Column("t", parse_type("text")))
    row = row_bytes([ENCODE_NUMBER("-3"), ("a\n\u202e\x1b[1m'" + "x" * 100).encode()])
    shown = printable_row(row, Recipe(columns, 2))
    assert shown.startswith("n=-3, t=")
    assert shown.isprintable()
    assert len(shown) < 120
    row = row_bytes([None, b"\xff\xfe"])
    assert printable_row(row, Recipe(columns, 2)) == "n=NULL, t=0xfffe"


def test_grants_of_a_file_name_an_account(tmp_path: Path) -> None:
    """An SQLite URL has no login: the script is complete all the same."""
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "sqlite:///{tmp_path / "erp.db"}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.orders]\ntable = "orders"\n'
    )
    sqlite3.connect(tmp_path / "erp.db").close()
    config = load(tmp_path / "source.toml")
    engine = connect(config.database.url, None, config.database.limits)
    script = grants(config, engine)
    assert "driftline-readers" in script
    assert "''" not in script


@pytest.mark.parametrize("words", [("check",), ("check", "--json"), ("explain",), ("grants",)])
def test_a_terminal_in_ascii(tmp_path: Path, words: tuple[str, ...]) -> None:
    """What its encoding lacks is escaped; JSON stays JSON."""
    make_orders(tmp_path / "é😀.db", ROWS)
    relation = '[relations."größe"]\ntable = "orders"\n'
    configuration(tmp_path, tmp_path / "é😀.db", certs=None, relations=relation)
    variables = environment() | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, *SOURCE, *words],
        cwd=tmp_path, env=variables, timeout=60, capture_output=True, check=False,
    )  # fmt: skip
    assert b"INTERNAL" not in done.stderr, done
    assert done.returncode in {0, 1}, done
    if "--json" in words:
        assert json.loads(done.stdout)["relations"][0]["name"] == "größe"


def test_every_command_takes_debug() -> None:
    for name, found in cli.commands.items():
        assert any("--debug" in option.opts for option in found.params), name
