"""Remedies of the command line: with what each says, the command does its work."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from driftline.errors import DriftlineError

from deploy.demonstration import job, processes
from source_agent.config.file import load
from source_agent.engines.dump.engine import DumpEngine
from source_agent.engines.interface import Limits
from source_agent.enrolment import enroll
from tests.harness.source_commands import source_command
from tests.remedies.told import told
from warehouse_agent.cli.main import cli
from warehouse_agent.config import Source
from warehouse_agent.differential.command import DiffOptions, diff
from warehouse_agent.differential.reading import named
from warehouse_agent.inspection.first_configuration import source_of
from warehouse_agent.transport.certificates import certificates, context_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(folder: Path, *flags: str, **options: str | None) -> None:
    """Run `init` in a folder, which ends with one relation that can be served."""
    given = {"url": "sqlite:///erp.db", "listen": "127.0.0.1:0", **options}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    done = source_command(folder / "source.toml", "init", *words, *flags)
    assert done.exit_code == 0, done
    assert done.stderr.startswith("1 relation can be served\n")


INIT: list[tuple[str, dict[str, str | None], dict[str, str]]] = [
    ("Add --url, such as --url postgresql://reader@localhost/erp.", {"url": None}, {}),
    (
        "Write one such as postgresql://reader@localhost/erp or sqlite:///erp.db.",
        {"url": "erp"},
        {"url": "sqlite:///erp.db"},
    ),
    (
        (
            "Leave it out: `init` prompts for it, or reads --password-file. A TLS key must have no"
            " passphrase. Change the password if others may have seen it."
        ),
        {"url": "sqlite://me:secret@/erp.db"},
        {},
    ),
    ("Write HOST:PORT, such as ….", {"listen": "7443"}, {"listen": "127.0.0.1:7443"}),
    ("Did you mean …?", {"tables": "order"}, {"tables": "orders"}),
    (
        "Check database.url: an absolute path has four slashes, sqlite:////path/to/file.",
        {"url": "sqlite:///erb.db"},
        {"url": "sqlite:////{folder}/erp.db"},
    ),
]


@pytest.mark.parametrize("case", INIT, ids=lambda case: case[0][:40])
def test_a_first_file_of_the_source(
    folder: Path, case: tuple[str, dict[str, str | None], dict[str, str]]
) -> None:
    remedy, fault, mended = case
    with pytest.raises(DriftlineError) as caught:
        init(folder, **fault)
    told(caught.value, remedy)
    at = str(folder).removeprefix("/")
    init(folder, **{name: value.replace("{folder}", at) for name, value in mended.items()})


def test_files_that_init_would_overwrite(folder: Path) -> None:
    init(folder)
    (folder / "source.toml").rename(folder / "source.toml.away")
    text = "Choose another --config, move it away, or add --force."
    for at, *flags in ((folder / "two",), (folder, "--force")):
        with pytest.raises(DriftlineError) as caught:
            init(folder)
        told(caught.value, text)
        init(at, *flags, url=f"sqlite:///{folder}/erp.db")
    for path in ("source.toml", "grants.sh"):
        (folder / path).rename(folder / f"{path}.away")
    init(folder)
    with pytest.raises(DriftlineError) as caught:
        init(folder, url="sqlite:///other.db")
    told(caught.value, "Choose another --config, for a second agent; or, to begin anew, --force.")
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL)")
    other = f"sqlite:///{folder}/other.db"
    init(folder / "three", url=other)
    init(folder, "--force", url=other)


def test_no_tables_and_odd_names(folder: Path) -> None:
    sqlite3.connect(folder / "empty.db").close()
    with pytest.raises(DriftlineError) as caught:
        init(folder, url="sqlite:///empty.db")
    told(caught.value, "Is it the right database?")
    init(folder, url="sqlite:///erp.db")
    with closing(sqlite3.connect(folder / "odd.db")) as connection:
        connection.execute('CREATE TABLE "a\nb" (id INTEGER PRIMARY KEY NOT NULL)')
    file = folder / "source.toml"
    assert source_command(file, "init", "--url=sqlite:///odd.db", "--force").exit_code == 1
    text = "Publish a query under another name."
    assert told(text, text) in file.read_text()
    file.write_text(
        file.read_text()
        + '[relations.ab]\nquery = \'SELECT id FROM "a\\nb"\'\nkey = ["id"]\n'.replace(
            "'", '"""')
    )  # fmt: skip
    assert list(load(file).relations) == ["ab"]


def test_a_folder_of_dumps_is_not_proposed(folder: Path) -> None:
    (folder / "dumps").mkdir()
    with pytest.raises(DriftlineError) as caught:
        init(folder, url=f"dump:///{folder}/dumps")
    told(
        caught.value,
        "Write source.toml and the formats yourself: docs/dba/dump-files.md.",
    )
    assert DumpEngine(str(folder / "dumps"), Limits()).open()


def test_grants_without_a_login(folder: Path) -> None:
    file = folder / "source.toml"
    file.write_text(
        '[database]\nurl = "postgresql:///erp"\n[server]\nlisten = "[::1]:0"\ninsecure = true\n'
        '[relations.orders]\ntable = "orders"\n'
    )
    with pytest.raises(DriftlineError) as caught:
        source_command(file, "grants")
    told(caught.value, "Add --login NAME.")
    assert "driftline" in source_command(file, "grants", "--login", "driftline").stdout


def test_certificates_of_both_agents(tmp_path: Path) -> None:
    made = tmp_path / "certs"
    for names, remedy in (([], "Add --source-name HOST."), (["http://a"],
            "Give --source-name without scheme and port.")):  # fmt: skip
        with pytest.raises(DriftlineError) as caught:
            enroll(made, source_names=names)
        told(caught.value, remedy)
    assert len(enroll(made, source_names=["a"])) == 6
    with pytest.raises(DriftlineError) as caught:
        enroll(made, source_names=["a"])
    told(caught.value, "Choose another --directory, or move them away first.")
    assert len(enroll(tmp_path / "other", source_names=["a"])) == 6
    made.rename(tmp_path / "away")
    assert len(enroll(made, source_names=["a"])) == 6


def test_an_authority_that_exists(tmp_path: Path) -> None:
    certs, wrong = tmp_path / "certs", tmp_path / "wrong"
    enroll(certs, source_names=["a"])
    enroll(wrong, source_names=["a"])
    both = "Add --source-name HOST for a source, --warehouse-name NAME for a warehouse, or both."
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "b", source_names=[], authority=certs)
    told(caught.value, both)
    assert len(enroll(tmp_path / "b", source_names=["b"], authority=certs)) == 3
    assert len(enroll(tmp_path / "c", source_names=[], warehouse_name="c", authority=certs)) == 3
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "d", source_names=["d"], authority=tmp_path)
    told(caught.value, "Give --authority the folder that has the authority's ca.pem and ca.key.")
    (certs / "ca.key").chmod(0o640 if os.geteuid() else 0o644)
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "d", source_names=["d"], authority=certs)
    printed = told(caught.value, "Run: chmod 600 …")
    Path(printed.rpartition(" ")[2]).chmod(0o600)
    kept = (certs / "ca.pem").read_bytes()
    (certs / "ca.pem").write_bytes((wrong / "ca.pem").read_bytes())
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "d", source_names=["d"], authority=certs)
    told(caught.value, "Give the files of one authority.")
    (certs / "ca.pem").write_bytes(kept)
    assert len(enroll(tmp_path / "d", source_names=["d"], authority=certs)) == 3


@pytest.mark.starts
def test_an_authority_that_cannot_sign(tmp_path: Path) -> None:
    old, locked, unlocked = tmp_path / "old", tmp_path / "locked", tmp_path / "unlocked"
    enroll(old, source_names=["a"], now=datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "b", source_names=["b"], authority=old)
    told(
        caught.value,
        "Make a new one: leave out --authority, and see docs/operating/install.md#certificates.",
    )
    assert len(enroll(tmp_path / "b", source_names=["b"])) == 6
    enroll(locked, source_names=["a"])
    passphrase = ["-aes256", "-passout", "pass:secret"]
    words = ["openssl", "pkey", "-in", "ca.key", "-out", "new.key"]
    subprocess.run([*words, *passphrase], check=True, cwd=locked)
    (locked / "new.key").rename(locked / "ca.key")
    with pytest.raises(DriftlineError) as caught:
        enroll(tmp_path / "c", source_names=["c"], authority=locked)
    printed = told(
        caught.value,
        "Run: openssl pkey -in … -out ca.key, in a folder of its own, and copy ca.pem there.",
    )
    unlocked.mkdir()
    words = printed.removeprefix("Run: ").partition(",")[0].split()
    subprocess.run([*words, "-passin", "pass:secret"], check=True, cwd=unlocked)
    shutil.copy(locked / "ca.pem", unlocked)
    assert len(enroll(tmp_path / "c", source_names=["c"], authority=unlocked)) == 3


def test_files_of_the_warehouses_certificate(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    files = (certs / "ca.pem", certs / "warehouse.pem", certs / "warehouse.key")
    source = Source("erp", "a:1", *files)
    with pytest.raises(DriftlineError) as caught:
        certificates(source)
    told(caught.value, "`driftline-source enroll` makes certificates for both sides.")
    enroll(certs, source_names=["a"])
    files[2].chmod(0o644)
    with pytest.raises(DriftlineError) as caught:
        certificates(source)
    printed = told(caught.value, "Run: chmod 600 …")
    Path(printed.rpartition(" ")[2]).chmod(0o600)
    assert certificates(source)
    files[2].write_bytes((certs / "source.key").read_bytes())
    fit = "`driftline-source enroll` makes a set that fits together."
    with pytest.raises(DriftlineError) as caught:
        context_of(source)
    told(caught.value, fit)
    certs.rename(tmp_path / "away")
    enroll(certs, source_names=["a"])
    assert context_of(source)


OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Add --source HOST:PORT.", {"name": "erp"}, {"address": "127.0.0.1:1", "insecure": True}),
    (
        "Write HOST:PORT, such as erp.example:7443.",
        {"address": "erp"},
        {"address": "erp.example:7443", "ca": "ca.pem", "certificate": "w.pem", "key": "w.key"},
    ),
    (
        "Use letters, digits, '_', '.' and '-', beginning with a letter or a digit.",
        {"address": "127.0.0.1:1", "insecure": True, "name": "a b"},
        {"address": "127.0.0.1:1", "insecure": True, "name": "a_b.c-1"},
    ),
    (
        (
            "The DBA makes these files with `driftline-source enroll`. For a source on this machine"
            " that uses plain text: --insecure."
        ),
        {"address": "127.0.0.1:1"},
        {"address": "127.0.0.1:1", "insecure": True},
    ),
    (
        "Name --ca, --certificate and --key.",
        {"address": "erp.example:1", "insecure": True},
        {"address": "erp.example:1", "ca": "ca.pem", "certificate": "w.pem", "key": "w.key"},
    ),
    (
        "Remove one of the two.",
        {"address": "127.0.0.1:1", "insecure": True, "ca": "ca.pem"},
        {"address": "127.0.0.1:1", "insecure": True},
    ),
]


@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case[0][:40])
def test_options_of_a_source(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    remedy, fault, mended = case

    def described(**given: Any) -> Source | None:
        files = {k: given.pop(k, None) for k in ("ca", "certificate", "key")}
        options = {"address": None, "server_name": None, "insecure": False, "name": None, **given}
        return source_of(options.pop("address"), **options, **files)

    with pytest.raises(DriftlineError) as caught:
        described(**fault)
    told(caught.value, remedy)
    assert described(**mended)


def test_a_file_of_the_warehouse_that_exists(tmp_path: Path) -> None:
    def init(file: str, *words: str) -> BaseException | int:
        done = CliRunner().invoke(cli, ["--config", str(tmp_path / file), "init", *words])
        return done.exception or done.exit_code

    assert init("warehouse.toml") == 0
    again = init("warehouse.toml")
    assert isinstance(again, DriftlineError)
    told(
        again,
        "Name a source with --source to see what it lacks, use another --config, or --force to"
        " overwrite it.",
    )
    assert init("other.toml") == 0
    assert init("warehouse.toml", "--force") == 0
    other = init("warehouse.toml", "--source", "127.0.0.1:9", "--insecure", "--name", "erp")
    assert isinstance(other, DriftlineError)
    told(other, "Choose another name for this one with --name.")


DIFF: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Choose another --output.", {"output": "old.csv"}, {}),
    ("Choose another --output.", {"output": "nowhere/x.csv"}, {}),
    ("Name the columns that identify a row: --key id.", {"key": ()}, {"key": ("id",)}),
    ("Name the old file and the new one.", {"files": ("old.csv",) * 3}, {}),
    ("Name the old file as well, or --state of the last run.", {"files": ("new.csv",)}, {}),
    ("Choose the form of the changes by the end of --output.", {"output": "x.txt"}, {}),
    (
        "If that is right: --allow-shrink",
        {"files": ("old.csv", "small.csv")},
        {"files": ("old.csv", "small.csv"), "allow_shrink": True},
    ),
    ("Name columns that identify a row, or deliver the file again.", {"key": ("v",)}, {}),
    ("Name key columns that are never NULL.", {"key": ("w",)}, {}),
    (
        "Take --algorithm …, or leave --state out.",
        {"state": "s", "algorithm": "window"},
        {"algorithm": "window"},
    ),
]


@pytest.mark.parametrize("case", DIFF, ids=lambda case: case[0][:40])
def test_a_differential(tmp_path: Path, case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    remedy, fault, mended = case
    (tmp_path / "f.toml").write_text('null = "-"\n[columns]\nid = "int8"\nv = "text"\nw = "text"\n')
    for name, text in (
        ("old", "1,x,a\n2,x,-\n3,x,c\n"), ("new", "1,y,a\n2,x,-\n3,x,c\n"), ("small", "1,x,a\n"),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(f"id,v,w\n{text}")

    def run(**options: Any) -> None:
        given = {
            "files": ("old.csv", "new.csv"), "output": "out.csv", "key": ("id",),
            "algorithm": None, "state": None, "allow_shrink": False, **options,
        }  # fmt: skip
        paths = [tmp_path / name for name in given.pop("files")]
        output = tmp_path / given.pop("output")
        state = given.pop("state")
        state, form = state and tmp_path / state, tmp_path / "f.toml"
        diff(
            tmp_path / "warehouse.toml",
            paths,
            DiffOptions(form, output=output, state=state, **given),
        )
        assert output.exists()

    with pytest.raises(DriftlineError) as caught:
        run(**fault)
    told(caught.value, remedy)
    run(**mended)


def test_a_value_that_parquet_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[columns]\nid = "int8"\nd = "date"\n')
    for name, day in (("old", "2026-01-01"), ("new", "infinity")):
        (tmp_path / f"{name}.csv").write_text(f"id,d\n1,{day}\n")

    def run(output: str) -> None:
        files = [tmp_path / "old.csv", tmp_path / "new.csv"]
        options = DiffOptions(tmp_path / "f.toml", ("id",), output=tmp_path / output)
        diff(tmp_path / "w.toml", files, options)

    with pytest.raises(DriftlineError) as caught:
        run("out.parquet")
    told(caught.value, "Write the changes as CSV, which has every value as text.")
    run("out.csv")
    assert "infinity" in (tmp_path / "out.csv").read_text()


def test_a_file_that_is_written_while_it_is_compared(tmp_path: Path) -> None:
    form, file = tmp_path / "f.toml", tmp_path / "a.csv"
    form.write_text('[columns]\nid = "int8"\n')
    file.write_text("id\n1\n")
    snapshot = named(file, form, ("id",))
    file.write_text("id\n1\n2\n")
    with pytest.raises(DriftlineError) as caught:
        list(snapshot.read())
    told(caught.value, "Run the differential again when nothing writes it.")
    assert sum(map(len, named(file, form, ("id",)).read())) == 2


def test_a_folder_of_the_demonstration(tmp_path: Path) -> None:
    other = "Choose another --directory."
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    (tmp_path / "file").touch()
    for place in ("mine", "file/below"):
        with pytest.raises(DriftlineError) as caught:
            job._make_folder(tmp_path / place)
        told(caught.value, other)
    assert (tmp_path / "mine" / "letter").exists()
    job._make_folder(tmp_path / "another")
    assert (tmp_path / "another" / "log").is_dir()


@pytest.mark.starts
def test_a_child_of_the_demonstration_that_fails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", "print(*range(99), sep='\\n'); raise SystemExit(3)"]
    with pytest.raises(DriftlineError) as caught:
        processes.answer(words, log=log)
    printed = told(caught.value, "The whole log: …")
    assert "0" not in caught.value.details.values(), "its end alone"
    whole = Path(printed.removeprefix("The whole log: ")).read_text()
    assert whole.split() == [str(n) for n in range(99)]


def test_a_folder_that_is_no_place_for_a_report(folder: Path) -> None:
    (folder / "warehouse.toml").write_text(
        '[warehouse]\npath = "w"\n[sources.erp]\naddress = "127.0.0.1:7443"\ninsecure = true\n'
        '[fragments.orders]\nsource = "erp"\n'
    )
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("of somebody else")

    def report(output: str) -> None:
        line = ["--config", "warehouse.toml", "report", "--output", output]
        cli.main(line, standalone_mode=False)

    with pytest.raises(DriftlineError) as refused:
        report("site")
    told(refused.value, "Name a new or an empty folder: --output DIR.")
    with pytest.raises(DriftlineError) as refused:
        report("site/index.html/report")
    told(refused.value, "Name another folder, or free space there: --output DIR.")
    report("report")
    assert (folder / "report" / "index.html").exists()
