"""`driftline init`: the file that it writes is what a real source serves, and loads.

The source is the real agent over mutual TLS, around an SQLite database with relations that can be
published and such that cannot; names that only a hostile or careless DBA would choose are among
them.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from source_agent.config.file import load as load_source
from source_agent.enrolment import enroll
from source_agent.server.service import Server, start
from tests.warehouse_agent.cli.test_main import Ended
from warehouse_agent import config as configure
from warehouse_agent.cli import init, main
from warehouse_agent.config import Source
from warehouse_agent.inspection.first_configuration import (
    OfferedRelation,
    fragment_name,
    proposed,
)

Driftline = Callable[..., Ended]

RELATIONS = """
[relations.orders]
table = "orders"
[relations."legacy.Order Lines/2024"]
table = "lines"
key = ["id", "line"]
[relations."LEGACY_order lines/2024"]
table = "orders"
[relations.keyless]
table = "log"
[relations.'_driftline"']
table = "orders"
[relations.payroll]
table = "orders"
allow = ["somebody.else"]
"""


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    enroll(folder, source_names=["127.0.0.1"])
    return folder


@pytest.fixture
def source(tmp_path: Path, certs: Path) -> Iterator[Server]:
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        connection.execute("CREATE TABLE lines (id INT NOT NULL, line INT NOT NULL, note TEXT)")
        connection.execute("CREATE TABLE log (said TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, 'x')", [(i,) for i in range(1234)])
        connection.execute("ANALYZE")
        connection.commit()
    path = tmp_path / "source.toml"
    path.write_text(
        f'[database]\nurl = "sqlite:///{tmp_path}/erp.db"\n[server]\nlisten = "127.0.0.1:0"\n'
        f'certificate = "{certs}/source.pem"\nkey = "{certs}/source.key"\n'
        f'client_ca = "{certs}/ca.pem"\naudit_file = "audit.jsonl"\n' + RELATIONS
    )
    server = start(load_source(path))
    yield server
    server.stop()


@pytest.fixture
def driftline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Driftline:
    """The warehouse agent's command line, in this process."""

    def run(*words: str, config: Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["driftline", "--config", str(config), *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)

    return run


def words(port: int, certs: Path, *more: str) -> list[str]:
    """A command line of `init` with the certificates of a folder."""
    files = [f"--ca={certs}/ca.pem", f"--certificate={certs}/warehouse.pem"]
    files.append(f"--key={certs}/warehouse.key")
    return ["init", "--source", f"127.0.0.1:{port}", *files, *more]


@pytest.mark.starts
def test_every_relation_that_is_published_to_us(
    driftline: Driftline, source: Server, certs: Path
) -> None:
    file = certs.parent / "warehouse.toml"
    ended = driftline(*words(source.port, certs, "--name", "erp"), config=file)
    assert ended.code == 0, ended.err
    assert "with 4 of 5 relations of 127.0.0.1:" in ended.err
    assert "keyless: " in ended.err
    text, config = file.read_text(), configure.load(file)
    erp = config.sources["erp"]
    assert (erp.ca, erp.key) == (certs / "ca.pem", certs / "warehouse.key")
    assert 'ca = "certs/ca.pem"' in text, "the file and its folder can be moved together"
    assert {f.name: f.relation for f in config.fragments.values()} == {
        "orders": "orders",
        "legacy.Order_Lines_2024": "legacy.Order Lines/2024",
        "LEGACY_order_lines_2024": "LEGACY_order lines/2024",
        "relation_driftline_": '_driftline"',
    }
    assert "# keyless cannot be refreshed. " in text
    assert "# [fragments.keyless]" in text
    assert "payroll" not in text
    assert all(f.timing is not None and f.timing.is_asked for f in config.fragments.values()), "due"
    assert "[fragments.orders]  # about 1,234 rows, key (id)\n" in text
    # What was written is what the other commands need.
    planned = driftline("plan", "orders", "--json", config=file)
    assert planned.code == 0, planned.err
    assert planned.lines[0]["source_error"] is None


@pytest.mark.starts
def test_a_file_of_somebody_stays_as_it_is(
    driftline: Driftline, source: Server, certs: Path
) -> None:
    file = certs.parent / "warehouse.toml"
    file.write_text("mine")
    ended = driftline(*words(source.port, certs), config=file)
    assert (ended.code, file.read_text()) == (2, "mine")
    assert "warehouse.toml: It is not TOML" in ended.err
    ended = driftline("init", config=file)
    assert (ended.code, file.read_text()) == (2, "mine")
    assert "exists already" in ended.err
    assert driftline(*words(source.port, certs, "--force"), config=file).code == 0
    assert list(configure.load(file).sources) == ["local"]


@pytest.mark.starts
def test_what_an_existing_file_lacks_is_printed(
    driftline: Driftline, source: Server, certs: Path
) -> None:
    """A second source, then a new relation of it: what is printed is added, and is refreshed."""
    file = certs.parent / "warehouse.toml"
    own = (
        '# mine\n[warehouse]\npath = "lake"\n[sources.erp]\naddress = "erp.example:7443"\n'
        'ca = "a"\ncertificate = "b"\nkey = "c"\n[fragments.orders]\nsource = "erp"\n'
    )
    file.write_text(own)
    ended = driftline(*words(source.port, certs, "--name", "shop"), config=file)
    assert (ended.code, file.read_text()) == (0, own)
    assert f"{file} exists and stays as it is. Add what is printed above, 4 of 5" in ended.err
    assert "keyless: " in ended.err
    file.write_text(f"{own}\n{ended.out}")
    config = configure.load(file)
    assert config.fragments["orders"].source.name == "erp"
    assert {f.relation for f in config.fragments.values() if f.source.name == "shop"} == {
        "orders", "legacy.Order Lines/2024", "LEGACY_order lines/2024", '_driftline"',
    }  # fmt: skip
    planned = driftline("plan", "orders_2", "--json", config=file)
    assert planned.lines[0]["source_error"] is None, planned.err
    # The same source again, by its address alone: the file has its certificates.
    address = ["init", "--source", f"127.0.0.1:{source.port}"]
    again = driftline(*address, config=file)
    assert again.code == 0, again.err
    assert "1 relation of" in again.err, "the one that cannot be refreshed"
    assert all(line.startswith("#") for line in again.out.splitlines())
    file.write_text(file.read_text().replace("[fragments.orders_2]", "[fragments.other]"))
    other = "legacy.Order_Lines_2024"
    text = file.read_text()
    file.write_text(text[: text.index(f'[fragments."{other}"]')])
    again = driftline(*address, config=file)
    assert again.code == 0, again.err
    assert f'[fragments."{other}"]' in again.out
    assert "[sources." not in again.out, "the file has it"
    file.write_text(file.read_text() + again.out)
    assert configure.load(file).fragments[other].source.name == "shop"
    taken = driftline(*words(source.port, certs, "--name", "erp"), config=file)
    assert taken.code == 2
    assert "another source 'erp'" in taken.err
    assert "--name" in taken.err


def test_nothing_is_written_when_nothing_can_be_asked(driftline: Driftline, certs: Path) -> None:
    file = certs.parent / "warehouse.toml"
    ended = driftline(*words(9, certs), config=file)  # the discard port: nobody listens
    assert ended.code == 4
    assert "Nothing answers at 127.0.0.1:9" in ended.err
    assert not file.exists()


@pytest.mark.starts
def test_certificates_of_another_authority(
    driftline: Driftline, source: Server, certs: Path
) -> None:
    file, foreign = certs.parent / "warehouse.toml", certs.parent / "foreign"
    enroll(foreign, source_names=["127.0.0.1"])
    ended = driftline(*words(source.port, foreign), config=file)
    assert ended.code == 5
    assert "--server-name here" in ended.err, "there is no file yet that has settings"
    assert "Traceback" not in ended.err
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ca", "ca.pem"], "'ca.pem' does not exist"),
        (["--insecure"], "--insecure has an effect with --source alone"),
        (["--source", "erp.example"], "is not an address"),
        (["--source", "127.0.0.1:0", "--insecure"], "is not an address"),
        (["--source", "erp.example:7443"], "needs --ca, --certificate, --key"),
        (["--source", "erp.example:7443", "--insecure"], "loopback only"),
        (["--source", "127.0.0.1:7443", "--insecure", "--server-name", "x"], "has no effect"),
        (["--source", "127.0.0.1:7443", "--insecure", "--name", "a/b"], "cannot name a source"),
    ],
)
def test_options_that_do_not_fit_together(
    driftline: Driftline, tmp_path: Path, options: list[str], said: str
) -> None:
    file = tmp_path / "warehouse.toml"
    ended = driftline("init", *options, config=file)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert not file.exists()


@given(st.lists(st.text(max_size=200), unique=True, max_size=8))
def test_any_names_become_fragments(names: list[str]) -> None:
    taken: set[str] = set()
    for name in names:
        found = fragment_name(name, taken)
        assert configure.is_fragment_name(found)
        assert not found.lower().startswith(configure.RESERVED)
        assert found.lower() not in taken
        taken.add(found.lower())


@given(st.text(min_size=1).filter(lambda name: len(name.encode()) < 1024), st.text())
def test_any_words_of_a_source_leave_a_file_that_loads(
    tmp_path_factory: pytest.TempPathFactory, name: str, note: str
) -> None:
    file = tmp_path_factory.mktemp("any") / "warehouse.toml"
    source = Source("erp", "127.0.0.1:7443", insecure=True)
    described = pb.Description(
        columns=[pb.ColumnDescription(name=note, type="int8")], key_columns=1, notes=[note]
    )
    offered = [OfferedRelation(name, described), OfferedRelation(f"not {name}", None, note)]
    text = init.text_of(file, proposed(source, offered, None))
    file.write_text(text, encoding="utf-8", newline="")
    (fragment,) = configure.load(file).fragments.values()
    assert (fragment.relation, fragment.source) == (name, source)
