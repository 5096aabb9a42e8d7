"""Engines of other packages: which are used, and what is said about those that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from driftline.errors import ConfigurationError

from source_agent.engines import plug_ins
from source_agent.engines.interface import Limits
from source_agent.engines.registry import KINDS, connect
from source_agent.engines.relations.shapes import Relation
from tests import ROOT

DUCKDB = "tests.source_agent.engines.duckdb_engine:from_url"
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with these engines, as pip leaves it: `install(acme, duckdb=...)`."""

    def made(package: str, code: str = "", **engines: str) -> Path:
        folder = tmp_path / package
        info = folder / f"{package}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {value}" for name, value in engines.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{plug_ins.GROUP}]", *lines]))
        (folder / f"{package}.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        return folder

    return made


def database(tmp_path: Path) -> str:
    """A file with one table; returns its URL."""
    with duckdb.connect(str(tmp_path / "erp.duckdb")) as owner:
        owner.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY NOT NULL, note TEXT)")
        owner.execute("INSERT INTO orders VALUES (1, 'first'), (2, NULL)")
    return f"duckdb:///{tmp_path}/erp.duckdb"


def test_an_engine_of_another_package_is_read(install: Install, tmp_path: Path) -> None:
    url = database(tmp_path)
    with pytest.raises(ConfigurationError, match="'duckdb' is not supported"):
        connect(url, None, Limits())
    install("acme", duckdb=DUCKDB)
    session = connect(url, None, Limits()).open()
    try:
        shape = session.describe(Relation("orders", table="orders"))
        assert [column.name for column in shape.recipe.columns] == ["id", "note"]
        assert sum(len(rows) for rows in session.scan(shape)) == 2
    finally:
        session.close()
    with pytest.raises(ConfigurationError) as caught:
        connect("oracle://u@h/d", None, Limits())
    assert caught.value.remedy.endswith("dump or duckdb.")


@pytest.mark.starts
def test_the_command_line_finds_it(install: Install, tmp_path: Path) -> None:
    folder = install("acme", duckdb=DUCKDB, sqlite="acme:never")
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "{database(tmp_path)}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[relations.orders]\ntable = "orders"\n'
    )
    path = os.pathsep.join(map(str, (folder, ROOT, ROOT / "proto")))
    found = subprocess.run(
        [sys.executable, "-m", "source_agent.cli", "--config", tmp_path / "source.toml", "check"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 of 1 relation can be served" in found.stdout, found.stderr
    assert "engine   duckdb" in found.stdout
    assert (
        "note     the engine 'sqlite' of acme 1.2 is not used: the name is Driftline's own"
        in found.stdout
    )


def test_only_the_engine_of_the_url_is_imported(install: Install) -> None:
    install("acme", "raise RuntimeError('imported')", broken="acme:connect")
    assert connect("postgresql://u@h/d", None, Limits()).name == "postgresql"
    assert "acme" not in sys.modules
    with pytest.raises(ConfigurationError, match=r"'broken' of acme 1\.2 cannot be imported.*imp"):
        connect("broken://h/d", None, Limits())


def test_a_name_of_driftline_is_not_a_plug_ins(install: Install) -> None:
    install("acme", "raise RuntimeError('imported')", postgresql="acme:connect")
    assert connect("postgresql://u@h/d", None, Limits()).name == "postgresql"
    [said] = plug_ins.refused(KINDS)
    assert said.startswith("the engine 'postgresql' of acme 1.2 is not used")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ENGINE_API = 1\ndef connect(url, password, limits): ...", "version 1 of the interface"),
        ("ENGINE_API = 2\ndef connect(url, password, limits): ...", "version 2 .* this is 3"),
        ("def connect(url, password, limits): ...", "version None of the interface"),
        ("ENGINE_API = 3", "cannot be imported"),
    ],
)
def test_what_cannot_be_used_is_named(install: Install, code: str, told: str) -> None:
    package = f"other{abs(hash(code))}"
    install(package, code, other=f"{package}:connect")
    with pytest.raises(ConfigurationError, match=told) as caught:
        connect("other://h/d", None, Limits())
    assert f"'other' of {package} 1.2" in caught.value.message


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("acme", duckdb=DUCKDB)
    install("beta", duckdb=DUCKDB)
    with pytest.raises(ConfigurationError, match=r"acme 1\.2 and beta 1\.2 both have"):
        connect("duckdb:///x", None, Limits())
