"""The archives of a release: what is in them, and that they run without a checkout."""

from __future__ import annotations

import email
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.harness.installation import Installation, Release

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

PACKAGES = {"driftline": "proto", "source_agent": "", "warehouse_agent": ""}  # and their parents
PINNED = ROOT / "deploy" / "source-requirements.txt"
SOURCE_EXTRAS = ("", "postgresql", "mariadb", "enroll", "metrics")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Nothing of a user's: `enroll` and `init` write such files into the folder in which they run.
PRIVATE = re.compile(r"\.(key|pem|password|db|jsonl|env)$|(^|/)(source|warehouse)\.toml$")

_PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[\w.]+) \\\n(?P<hashes>(?: +--hash=.*\n)+)", re.M
)
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})(?: \\)?$")


def in_tree(package: str) -> set[str]:
    """The files that a package must have when installed, by their place in the wheel."""
    root = ROOT / PACKAGES[package]
    kinds = ("*.py", "*.pyi", "*.proto", "*.properties", "*.html", "*.css", "py.typed")
    return {str(p.relative_to(root)) for kind in kinds for p in (root / package).rglob(kind)}


@pytest.fixture(scope="module")
def wheel(release: Release) -> zipfile.ZipFile:
    return zipfile.ZipFile(release.wheel)


def test_the_wheel_has_the_packages_the_schemas_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    schemas = {f"driftline/schemas/{p.name}" for p in (ROOT / "docs/schemas").iterdir()}
    assert names == schemas.union(*map(in_tree, PACKAGES))
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "warehouse_agent/log4j2.properties" in names


def test_the_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    found = email.message_from_bytes(wheel.read(name))
    assert (found["Name"], found["License-Expression"]) == ("driftline", "Apache-2.0")
    assert found["Requires-Python"] == PROJECT["requires-python"]
    assert found["Description-Content-Type"] == "text/markdown"
    assert found["License-File"] == "LICENSE"
    assert (
        wheel.read(name.replace("METADATA", "licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()
    )
    assert found["Keywords"]
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert set(found.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert found.get_all("Project-URL") is None, "the project has no address"


def test_the_source_archive(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers()}
        (license_,) = (archive.extractfile(m) for n, m in members.items() if n == "LICENSE")
        assert license_ is not None
        assert license_.read() == (ROOT / "LICENSE").read_bytes()
    private = {name for name in members if PRIVATE.search(name)}
    assert private == {"deploy/systemd/source.toml", "deploy/systemd/warehouse.toml"}, "examples"
    packages = {f"{PACKAGES[p]}/{n}".lstrip("/") for p in PACKAGES for n in in_tree(p)}
    assert packages <= set(members)
    deploy = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "deploy").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert deploy <= set(members)
    assert members["deploy/setup"].mode & 0o111, "programs stay programs"


def test_the_wheel_of_the_tree_is_that_of_the_archive(release: Release, tmp_path: Path) -> None:
    """The archive lacks nothing, and a build has no time and no machine in it."""
    words = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    subprocess.run([*words, tmp_path, ROOT], check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    assert built.read_bytes() == release.wheel.read_bytes()


def test_what_checks_archives_is_content(release: Release) -> None:
    assert release.said.count("PASSED") == 2, "by twine, with --strict"


def test_sums_of_the_files(release: Release) -> None:
    sums = [line.split() for line in (release.folder / "SHA256SUMS").read_text().splitlines()]
    for expected, name in sums:
        assert hashlib.sha256((release.folder / name).read_bytes()).hexdigest() == expected
    listed = {name for _, name in sums}
    assert listed == {p.name for p in release.folder.iterdir()} - {"SHA256SUMS", ".gitignore"}


# The packages of a source.
def pins() -> dict[str, tuple[str, list[str]]]:
    """Version and hashes by name."""
    text = PINNED.read_text(encoding="utf-8")
    found: dict[str, tuple[str, list[str]]] = {}
    for match in _PIN.finditer(text):
        hashes = [_HASH.search(line.strip()) for line in match["hashes"].splitlines()]
        assert all(hashes), match["name"]
        found[canonicalize_name(match["name"])] = (match["version"], [h[1] for h in hashes if h])
    pinned = re.findall(r"^[^\s#].*$", text, re.M)
    assert len(pinned) == len(found), "a line that is no pin with hashes"
    return found


def source_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    texts = [t for e in SOURCE_EXTRAS for t in (extras[e] if e else PROJECT["dependencies"])]
    return [Requirement(text) for text in texts]


def test_the_pinned_versions_are_those_that_the_project_accepts() -> None:
    found = pins()
    for wanted in source_requirements():
        version, _ = found[canonicalize_name(wanted.name)]
        assert version in wanted.specifier, f"{wanted}: run deploy/pin"


def test_what_the_pinned_packages_need_is_pinned() -> None:
    """Nothing is left to be found at installation, and nothing is there without need."""
    found = pins()
    waiting = [(r.name, frozenset(r.extras)) for r in source_requirements()]
    needed: set[str] = set()
    while waiting:
        name, extras = waiting.pop()
        name = canonicalize_name(name)
        assert name in found, f"{name} is not pinned: run deploy/pin"
        needed.add(name)
        for text in metadata.requires(name) or ():
            wanted = Requirement(text)
            applies = wanted.marker is None or any(
                wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            )
            seen = canonicalize_name(wanted.name) in needed and not wanted.extras
            if applies and not seen:
                waiting.append((wanted.name, frozenset(wanted.extras)))
    assert needed == set(found)


def test_the_bill_of_materials_lists_what_is_pinned(release: Release) -> None:
    bill = json.loads((release.folder / "driftline-source.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "driftline"
    listed = {
        canonicalize_name(c["name"]): (
            c["version"],
            Counter(
                f"sha256:{h['content']}"
                for reference in c["externalReferences"]
                for h in reference.get("hashes", ())
            ),
        )
        for c in bill["components"]
    }
    assert listed == {name: (v, Counter(hashes)) for name, (v, hashes) in pins().items()}


# Without a checkout.
def test_the_packages_are_those_of_the_wheel(installation: Installation, tmp_path: Path) -> None:
    code = f"import {', '.join(PACKAGES)}; print({'.__file__, '.join(PACKAGES)}.__file__)"
    places = installation.run("python", "-c", code, cwd=tmp_path).split()
    assert all(Path(place).is_relative_to(installation.folder) for place in places), places


@pytest.mark.parametrize("program", ["driftline", "driftline-source"])
def test_help_and_version(installation: Installation, tmp_path: Path, program: str) -> None:
    assert "Usage: " in installation.run(program, "--help", cwd=tmp_path)
    expected = f"{program} {PROJECT['version']}\n"
    assert installation.run(program, "--version", cwd=tmp_path) == expected
