"""The archives with packages from an index, as users install them: pip, pipx and uvx.

Elsewhere the wheel lies beside the packages of the tests, so nothing resolves what it requires.
Here nothing of the tests' environment is seen. Each tool is asked first for one small package:
where it reaches no index, its tests are skipped; what fails after that is a failure.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.harness.absent import absent
from tests.harness.installation import Installation, Release, clean_environment
from tests.harness.legacy import PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, SourceProcess, expect_equal
from tests.harness.processes import having
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SMALL = "click"  # a requirement of ours, 100 kB
PIPX = "pipx==1.18.4"
EXTRA = "postgresql"  # the base install is the source agent; a database's driver comes with it
FAST = ("--quiet", "--no-compile")  # half of the time is for modules that no test imports
ROWS = 300
NO_COMPILE = "--pip-args=--no-compile"
PLACES = "import driftline, source_agent; print(driftline.__file__, source_agent.__file__)"
PROBE_S_MAX = 60
TOOL_S_MAX = 300
DEMO_S_MAX = 3600
MARK = "DRIFTLINE_TEST_UVX"


def pip(*words: str | Path, python: Path | None = None) -> list[str | Path]:
    """A command of this environment's pip, by default for this environment."""
    other = () if python is None else ("--python", python)
    return [sys.executable, "-m", "pip", *other, *words]


def expect_index(tool: str, probe: list[str | Path], stdin: str = "") -> None:
    """Skip the test if a tool gets no small package from the index that it is configured for."""
    try:
        done = subprocess.run(
            probe,
            input=stdin,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_S_MAX,
        )
    except subprocess.TimeoutExpired:
        absent("PACKAGE INDEX", f"{tool} had no answer", is_required_in_ci=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        absent(
            "PACKAGE INDEX", f"{tool}: {said[-1] if said else 'failed'}", is_required_in_ci=False
        )


@pytest.fixture(scope="module")
def pip_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What pip is configured for can be reached."""
    folder = tmp_path_factory.mktemp("probe")
    few = ("--no-deps", "--no-cache-dir", "--retries", "1", "--dest", folder)
    expect_index("pip", pip("download", "--quiet", *few, SMALL))


@dataclass(frozen=True)
class Tool:
    """pipx or uvx, with folders of a test."""

    program: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        return clean_environment(**self.variables, **more)

    def run(self, *words: str | Path) -> str:
        """Run it in its folder; return its stdout."""
        done = subprocess.run(
            [self.program, *words],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_S_MAX,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def uvx(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """`uvx` of the extra `release`, with a cache of its own, so that nothing is found there."""
    program = Path(sys.executable).with_name("uvx")
    if not program.exists():
        reason = "the extra `release` is not installed: no uvx"
        absent("RELEASE TOOLS", reason, is_required_in_ci=True)
    uv = program.with_name("uv")
    expect_index("uv", [uv, "--quiet", "--no-cache", "pip", "compile", "-"], SMALL)
    folder = tmp_path_factory.mktemp("uvx")
    # It installs no Python, and takes the one that the tests have.
    python = {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
    return Tool(program, folder, {**python, "UV_CACHE_DIR": str(folder / "cache")})


@pytest.fixture(scope="module")
def pipx(pip_index: None, tmp_path_factory: pytest.TempPathFactory) -> Tool:  # noqa: ARG001
    """`pipx` in an environment of its own, with folders of its own."""
    folder = tmp_path_factory.mktemp("pipx")
    python = bare(folder / "environment")
    subprocess.run(pip("install", *FAST, PIPX, python=python), check=True, env=clean_environment())
    homes = {name: str(folder / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR")}
    # Without uv, which pipx would take where it finds it; most machines have none.
    variables = {**homes, "PIPX_DEFAULT_BACKEND": "pip", "XDG_CACHE_HOME": str(folder / "cache")}
    return Tool(python.with_name("pipx"), folder, variables)


def bare(folder: Path) -> Path:
    """Make an environment with nothing in it; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def specification(wheel: Path, extras: str) -> str:
    """The wheel as a direct reference."""
    return f"driftline[{extras}] @ {wheel.as_uri()}"


# pip.
@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[PostgresLegacy]:
    """A small table that a driver of the extra must read."""
    made = PostgresLegacy(postgresql)
    made.execute("CREATE TABLE orders (id integer PRIMARY KEY, note text, price numeric(9, 2))")
    rows = [(n, None if n % 7 == 0 else f"note {n * n}", n / 4) for n in range(ROWS)]
    made.many("INSERT INTO orders VALUES (?, ?, ?)", rows)
    yield made
    made.close()


@pytest.mark.usefixtures("pip_index")
@pytest.mark.parametrize("archive", ["wheel", "sdist"])
def test_a_source_in_an_empty_environment(
    archive: str, release: Release, legacy: PostgresLegacy, tmp_path: Path
) -> None:
    """pip resolves what the archive requires; `check` and `serve` need no package beside it.

    From the sdist pip builds the wheel first, with the build backend that it gets from the index.
    """
    installation = Installation(tmp_path / "environment")
    python = bare(installation.folder)
    file: Path = getattr(release, archive)
    words = pip("install", *FAST, specification(file, EXTRA), python=python)
    subprocess.run(words, check=True, env=clean_environment(), cwd=tmp_path)
    subprocess.run(pip("check", python=python), check=True, env=clean_environment())
    check_packages(installation, tmp_path)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.small_bytes = 32 << 20  # small tables need no Spark
        pair.stop()
        config = pair.source_toml()
        said = installation.run("driftline-source", "--config", config, "check", cwd=tmp_path)
        assert "orders" in said
        with SourceProcess(config, installation=installation) as source:
            pair.address = source.address
            assert pair.refresh("orders").rows_inserted == ROWS
            expect_equal(published(pair), legacy.rows("orders"))
            legacy.execute("UPDATE orders SET note = 'changed' WHERE id % 50 = 7")
            legacy.execute("DELETE FROM orders WHERE id = 5")
            assert pair.refresh("orders").rows_changed == 7
            expect_equal(published(pair), legacy.rows("orders"))


def check_packages(installation: Installation, folder: Path) -> None:
    """The environment has what the metadata requires, all of it below its own folder."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name: str(d.locate_file('')) for d in m.distributions()}))"
    )
    found = json.loads(installation.run("python", "-c", code, cwd=folder))
    assert all(Path(place).is_relative_to(installation.folder) for place in found.values()), found
    names = {canonicalize_name(name) for name in found}
    optional = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *optional[EXTRA]]
    assert names >= {canonicalize_name(Requirement(text).name) for text in texts} | {"driftline"}
    assert not names & {"pyspark", "pyarrow", "deltalake", "pandas"}, "a source stays thin"


def published(pair: Pair) -> list[tuple[object, ...]]:
    table = DeltaTable(pair.warehouse / "orders").to_pyarrow_table(columns=["id", "note", "price"])
    return [tuple(row.values()) for row in table.to_pylist()]


# uvx and pipx.
def test_uvx_runs_the_wheel(release: Release, uvx: Tool) -> None:
    """By a direct reference, and by a path as on the page."""
    run = ("--from", specification(release.wheel, EXTRA))
    assert uvx.run(*run, "driftline-source", "--version") == version("driftline-source")
    places = uvx.run(*run, "python", "-c", PLACES).split()
    assert all(Path(place).is_relative_to(uvx.folder) for place in places), places
    path = f"{link(release, uvx.folder)}[{EXTRA},enroll]"
    enroll = ("enroll", "--directory", "certs", "--source-name", "erp.example")
    uvx.run("--from", path, "driftline-source", *enroll)  # by a package of an extra
    assert (uvx.folder / "certs" / "source.pem").is_file()


@pytest.mark.soak  # every run has uvx, which makes an environment as well
def test_pipx_runs_the_wheel(release: Release, pipx: Tool) -> None:
    run = ("run", NO_COMPILE, "--spec", specification(release.wheel, EXTRA), "driftline-source")
    assert pipx.run(*run, "--version") == version("driftline-source")


@pytest.mark.soak
def test_pipx_installs_the_wheel(release: Release, pipx: Tool) -> None:
    """By a path as on the page; the program that it leaves is that of the wheel."""
    pipx.run("install", f"{link(release, pipx.folder)}[{EXTRA},enroll]")
    program = Path(pipx.variables["PIPX_BIN_DIR"]) / "driftline-source"
    assert program.resolve().is_relative_to(pipx.folder)
    installed = Tool(program, pipx.folder)
    assert installed.run("--version") == version("driftline-source")
    installed.run("enroll", "--directory", "certs", "--source-name", "erp.example")
    assert (pipx.folder / "certs" / "source.pem").is_file()


def link(release: Release, folder: Path) -> str:
    """Make `dist/` in a folder; return the path of the wheel from there."""
    (folder / "dist").symlink_to(release.folder)
    return f"dist/{release.wheel.name}"


def version(program: str) -> str:
    """What a program prints for `--version`."""
    return f"{program} {PROJECT['version']}\n"


@pytest.mark.soak
def test_the_demonstration_of_the_sdist(release: Release, uvx: Tool, tmp_path: Path) -> None:
    """The whole of it at its usual scale, with all packages from the index: some 700 MB.

    Both agents, an initial load, changes, a refresh and a receipt; nothing is left running.
    """
    with tarfile.open(release.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        [unpacked / "deploy" / "demo", "--directory", "driftline-demo"],
        cwd=uvx.folder,
        env=uvx.environment(**{MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=DEMO_S_MAX)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err
    assert out.count("rows, equal\n") == 3
    assert "equal to the receipt" in out
    assert (uvx.folder / "driftline-demo" / "orders.receipt.json").is_file()
    assert having(MARK, mark) == []
