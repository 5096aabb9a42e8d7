"""A builder of container images, if this machine has one: podman, buildah or docker.

Nothing is started for it. Where there is none, or where it cannot get a base image or a package
index, `builder` says why and skips. podman and buildah need no daemon; in a container, they may
need `STORAGE_DRIVER=vfs`. What is asked of an image is asked by instructions of a file that begins
with it, because that works alike with all three.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.absent import absent

PROGRAMS = ("podman", "buildah", "docker")
BUILD_S_MAX = 1800.0
SAID_MAX = 500  # characters of what a program said, in the reason of a skip
ASKED_MAX = 3  # times, because a builder may lose what a process prints just before it ends
_MARK = "said:"
_END = "end of the answer"


@dataclass(frozen=True)
class Builder:
    """One program, and the images that it made, which are removed in the end."""

    program: str
    folder: Path  # for files that it reads
    made: list[str] = field(default_factory=list)

    def build(self, file: Path, context: Path) -> str:
        """Build an image, and return its name. Raises AssertionError: it cannot be built."""
        name = f"localhost/driftline-test-{uuid.uuid4().hex[:12]}"
        done = self._build(file, context, name)
        assert done.returncode == 0, done.stdout
        return name

    def ask(self, image: str, command: str, *, as_root: bool = False) -> list[str]:
        """Run a command of a shell in an image, as its user; return the lines that it prints.

        Raises AssertionError: what it printed did not arrive as a whole, also not when asked again.
        """
        marked = f"{{ {command}; echo {_END}; }} | sed 's/^/{_MARK}/'"
        for _ in range(ASKED_MAX):
            said = self.run(image, f"RUN {marked}", *(["USER 0"] if as_root else []))
            lines = [line.split(_MARK, 1)[1] for line in said.splitlines() if line_is_said(line)]
            if lines and lines.pop() == _END:
                return lines
        raise AssertionError(f"{command}: no end of its answer in {said}")

    def run(self, image: str, instruction: str, *before: str) -> str:
        """Follow instructions in an image, and return what the builder says."""
        file = self.folder / f"ask-{uuid.uuid4().hex[:12]}"
        file.write_text("\n".join([f"FROM {image}", *before, instruction, ""]), encoding="utf-8")
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        name = f"localhost/driftline-test-{uuid.uuid4().hex[:12]}"
        done = self._build(file, empty, name)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def why_no_base(self, base: str) -> str:
        """Return why a base cannot be used, in the words of a program; empty: it can."""
        have = ["inspect", "--type", "image"] if self.program == "buildah" else ["image", "inspect"]
        if self._call(*have, base).returncode != 0:
            pulled = self._call("pull", base)
            if pulled.returncode != 0:
                return f"{self.program} cannot pull {base}: {pulled.stdout.strip()[-SAID_MAX:]}"
        try:
            self.run(
                base, "RUN python3 -m pip download --no-deps --dest /tmp/probe typing-extensions"
            )
        except AssertionError as error:
            said = str(error)[-SAID_MAX:]
            return f"{self.program} builds no image whose pip reaches a package index: {said}"
        return ""

    def remove(self) -> None:
        """Remove what was made, the newest first."""
        words = ["rmi"] if self.program == "buildah" else ["image", "rm", "--force"]
        for name in reversed(self.made):
            self._call(*words, name)

    def _build(self, file: Path, context: Path, name: str) -> subprocess.CompletedProcess[str]:
        # Each answer is needed, so no layer may come from a cache.
        words = ["--no-cache", "--file", str(file), "--tag", name]
        if self.program == "docker":
            words.append("--progress=plain")
        else:  # as in a container, where no namespaces can be had
            words += ["--isolation=chroot", "--format=docker", "--layers=false"]
        done = self._call("build", *words, str(context))
        if done.returncode == 0:
            self.made.append(name)
        return done

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=BUILD_S_MAX,
        )


def line_is_said(line: str) -> bool:
    """Return True for a line that `ask` marked, and False for the command that a builder repeats.

    docker puts a number and a time before each line.
    """
    before, mark, _ = line.partition(_MARK)
    return bool(mark) and all(word.startswith("#") or _is_number(word) for word in before.split())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@contextmanager
def builder(folder: Path, bases: Sequence[str]) -> Iterator[Builder]:
    """The first builder that works, with all of these base images; `folder` is empty."""
    reasons = []
    for program in PROGRAMS:
        if shutil.which(program) is None:
            reasons.append(f"no {program}")
            continue
        found = Builder(program, folder)
        info = found._call("info")
        if info.returncode != 0:
            reasons.append(f"{program} info: {info.stdout.strip()[-SAID_MAX:]}")
            continue
        try:
            if why := next(filter(None, map(found.why_no_base, bases)), ""):
                reasons.append(why)
                continue
            yield found
            return
        finally:
            found.remove()
    absent("BUILDER OF IMAGES", "; ".join(reasons), is_required_in_ci=False)
