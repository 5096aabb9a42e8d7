"""Driftline as somebody gets it: archives built from this tree, and the wheel in an environment.

The environment sees the packages of this one, and nothing of this tree: its path is a line of a
`.pth` file, behind which the `.pth` file of an editable installation is not followed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from tests.harness.absent import absent

RELEASE_MODULES = ("build", "hatchling", "twine", "cyclonedx_py")  # of the extra `release`
WHEEL_MODULES = ("build", "hatchling")  # those that make a wheel


@dataclass(frozen=True)
class Release:
    """What `deploy/release` left in a folder."""

    folder: Path
    said: str

    @property
    def wheel(self) -> Path:
        (found,) = self.folder.glob("*.whl")
        return found

    @property
    def sdist(self) -> Path:
        (found,) = self.folder.glob("*.tar.gz")
        return found


def unpack(release: Release, folder: Path) -> Path:
    """Unpack the sdist into a folder, with the wheel in `dist/`, as the pages say; return its
    root."""
    with tarfile.open(release.sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4
        archive.extractall(folder)
    (root,) = folder.glob("driftline-*")
    (root / "dist").mkdir()
    shutil.copy2(release.wheel, root / "dist")
    return root


def build(folder: Path) -> Release:
    """Run `deploy/release` into a folder, with this interpreter."""
    _require(RELEASE_MODULES)
    done = subprocess.run(
        [ROOT / "deploy" / "release", folder],
        env={**os.environ, "VENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Release(folder, done.stdout)


def build_wheel(tree: Path, folder: Path) -> Path:
    """Build the wheel of a tree into a folder, by the tree's own build backend; asks no index."""
    _require(WHEEL_MODULES)
    words = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    done = subprocess.run([*words, folder, tree], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def _require(modules: Sequence[str]) -> None:
    """Skip the test, or fail in CI, if a module of the extra `release` is missing."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        reason = f"the extra `release` is not installed: no {', '.join(missing)}"
        absent("RELEASE TOOLS", reason, is_required_in_ci=True)


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel, and a Python of its own."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, *words: str | Path, cwd: Path, status: int = 0) -> str:
        """Run a program of the environment; return its stdout."""
        done = subprocess.run(
            [self.program(str(words[0])), *words[1:]],
            cwd=cwd,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def install(
    wheel: Path,
    folder: Path,
    *,
    interpreter: str = sys.executable,
    packages: Sequence[str] | None = None,
) -> Installation:
    """Install the wheel, and no other package, into a new environment; asks no index.

    Args:
        packages: the folders of all other packages, by default those of this environment.
    """
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    (ours,) = folder.glob("lib/python*/site-packages")
    if packages is None:
        packages = [path for path in sys.path if path.endswith("-packages")]
    (ours / "packages-of-the-tests.pth").write_text("".join(f"{path}\n" for path in packages))
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
    ]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    # What this environment has under the same name is not to be uninstalled, or counted as there.
    subprocess.run([*pip, *quiet, "--ignore-installed", wheel], check=True)
    return Installation(folder)


def clean_environment(**more: str) -> dict[str, str]:
    """The variables of a user who has no checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VENV", "PYTHONHOME")}
    return {**kept, **more}
