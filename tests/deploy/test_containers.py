"""The container files: hadolint's rules, our own, and that their programs are there.

Our rules are about what hadolint lets pass: a base without a registry or a full version, a secret,
a whole folder that is copied, a user without a number. No builder of images is assumed: where one
works, soak builds both images and looks into them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.harness.absent import absent
from tests.harness.image_builder import Builder, builder, line_is_said
from tests.harness.installation import Installation, Release, unpack

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

FILES = sorted((ROOT / "deploy" / "containers").glob("*.Containerfile"))
KNOWN = {
    "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "STOPSIGNAL", "USER", "VOLUME",
    "WORKDIR",
}  # fmt: skip
BASE = re.compile(r"[\w.-]+\.[a-z]+/[\w./-]+:\d+\.\d+\.\d+[\w.-]*")  # registry/name:version
USER = "65532"
# Names of keys and certificates, and contents of keys: a line of a text, not a string in a program.
NAMED_LIKE_KEYS = r"find / -xdev -type f | grep -E '[.](pem|key|crt|cer|der|p12|pfx|jks|password)$'"
KEYS = "grep -rIlE --exclude-dir=proc --exclude-dir=sys '^-----BEGIN [A-Z ]*PRIVATE KEY-----' /"
# Authorities that packages bring, to verify others: no certificate of ours.
OF_PACKAGES = ("certifi/cacert.pem", "grpc/_cython/_credentials/roots.pem")
SECRETS = (
    "ca.key", "certs/source.key", "certs/source.pem", "database.password", "deploy/warehouse.key",
    "dist/warehouse.pem",
)  # fmt: skip
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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    bases = {
        rest.partition(" AS ")[0]
        for file in FILES
        for name, rest in parse(file.read_text(encoding="utf-8"))
        if name == "FROM"
    }
    with builder(tmp_path_factory.mktemp("images"), sorted(bases)) as found:
        yield found


@pytest.mark.soak
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_an_image_is_built(file: Path, images: Builder, release: Release, tmp_path: Path) -> None:
    """From the unpacked sdist, beside the secrets that the walks of the page leave there: none of
    them is in the image, and its program runs as a user who is not root."""
    context = unpack(release, tmp_path)
    for place in SECRETS:
        (context / place).parent.mkdir(exist_ok=True)
        (context / place).write_text("-----BEGIN PRIVATE KEY-----\n")
    instructions = parse(file.read_text(encoding="utf-8"))
    base = instructions[0].rest.partition(" AS ")[0]
    (program,) = json.loads(dict(instructions)["ENTRYPOINT"])
    image = images.build(context / "deploy" / "containers" / file.name, context)
    version = release.wheel.name.split("-")[1]
    assert images.ask(image, "id -u") == [USER]
    assert images.ask(image, f"{program} --version") == [f"{Path(program).name} {version}"]
    for look in (NAMED_LIKE_KEYS, KEYS):
        found = set(images.ask(image, look, as_root=True)) - set(
            images.ask(base, look, as_root=True)
        )
        assert {path for path in found if not path.endswith(OF_PACKAGES)} == set()
    writable = "find /opt /etc /usr -xdev -writable -not -type l"
    assert images.ask(image, writable) == [], "its user changes neither program nor configuration"


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("said:65532", True),
        ("#6 0.213 said:65532", True),
        ("STEP 2/2: RUN { id -u; } | sed 's/^/said:/'", False),
        ("#5 [2/2] RUN { id -u; } | sed 's/^/said:/'", False),
        ("65532", False),
    ],
)
def test_what_an_image_says_is_told_from_its_instructions(line: str, is_said: bool) -> None:
    assert line_is_said(line) == is_said
