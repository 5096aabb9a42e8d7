"""The container files: hadolint's rules, our own, and that their programs are there.

Our rules are about what hadolint lets pass: a base without a registry or a full version, a secret,
a whole folder that is copied, a user without a number. No builder of images is assumed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.harness.absent import absent
from tests.harness.installation import Installation, Release

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

FILES = sorted((ROOT / "deploy" / "containers").glob("*.Containerfile"))
KNOWN = {
    "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "STOPSIGNAL", "USER", "VOLUME",
    "WORKDIR",
}  # fmt: skip
BASE = re.compile(r"[\w.-]+\.[a-z]+/[\w./-]+:\d+\.\d+\.\d+[\w.-]*")  # registry/name:version
SECRET = re.compile(r"passw|secret|token|credential|\.key\b|\.pem\b|-----BEGIN", re.I)


class Instruction(NamedTuple):
    """One instruction, its lines joined."""

    name: str
    rest: str


def parse(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def problems(text: str) -> set[str]:
    """What a container file must not do."""
    found = set()
    instructions = parse(text)
    stages: set[str] = set()
    for name, rest in instructions:
        if name not in KNOWN:
            found.add(f"{name} is not used here")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            if base not in stages and not BASE.fullmatch(base):
                found.add(f"{base} has no registry or no full version")
            stages.add(stage)
        if SECRET.search(rest):
            found.add(f"{name} holds a secret")
        if name == "COPY" and any(PurePosixPath(p) == PurePosixPath() for p in rest.split()):
            found.add("a whole folder is copied")
        if name in ("ENTRYPOINT", "CMD") and not rest.startswith("["):
            found.add(f"{name} goes through a shell, which takes signals")
        if name == "RUN" and "pip install" in rest and "--no-cache-dir" not in rest:
            found.add("a cache stays in the image")
    last = [name for name, _ in instructions]
    users = [rest for name, rest in instructions if name == "USER"]
    if not users or re.match(r"(0|root)(:|$)", users[-1]) or not users[-1][0].isdigit():
        found.add("the user is root, or a name that an orchestrator cannot check")
    elif "RUN" in last[last.index("USER") :]:
        found.add("RUN after USER")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_file_is_clean(file: Path) -> None:
    assert problems(file.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    program = shutil.which("hadolint", path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    if program is None:
        absent("HADOLINT", "the extra `release` is not installed", is_required_in_ci=True)
    done = subprocess.run(
        [program, "--failure-threshold", "style", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.13.9-slim-bookworm", "latest"),
        ("3.13.9-slim-bookworm", "3"),
        ("docker.io/library/", ""),
        ("USER 65532:65532", "USER root"),
        ("USER 65532:65532", "USER 0"),
        ("USER 65532:65532\n", ""),
        ("COPY dist/driftline-*.whl /build/", "COPY . /build/"),
        ("COPY dist", "ADD dist"),
        ("EXPOSE 7443", "ENV DRIFTLINE_PASSWORD_DATABASE=x"),
        ("EXPOSE 7443", "COPY certs/source.key /etc/"),
        (' ["serve"]', " serve"),
        (" --no-cache-dir", ""),
    ],
)
def test_what_is_not_clean_is_found(old: str, new: str) -> None:
    (file,) = (f for f in FILES if f.stem == "source")
    text = file.read_text(encoding="utf-8")
    assert old in text
    assert problems(text.replace(old, new))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_what_is_copied_is_in_the_archive(file: Path, release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    there.add(f"dist/{release.wheel.name}")
    for name, rest in parse(file.read_text(encoding="utf-8")):
        if name == "COPY" and not rest.startswith("--from=build "):
            for pattern in rest.split()[:-1]:
                assert any(fnmatch(path, pattern) for path in there), pattern


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_its_program_and_command_are_there(
    file: Path, installation: Installation, tmp_path: Path
) -> None:
    found = dict(parse(file.read_text(encoding="utf-8")))
    (program,) = json.loads(found["ENTRYPOINT"])
    words = json.loads(found["CMD"])
    assert "Usage: " in installation.run(Path(program).name, *words, "--help", cwd=tmp_path)
