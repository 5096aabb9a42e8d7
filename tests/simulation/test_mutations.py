"""The simulator notices wrong publish steps: each patch in `mutations/` makes one.

A patch that does not apply any more is an error of this test, and is made again for the code as it
is now: `git apply`, edit, `git diff -U2`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.harness.pair import environment

MUTATIONS = sorted((Path(__file__).parent / "mutations").glob("*.patch"))
REFRESHES = 600  # within which each is noticed
# Of those that need a certain world: one with a table of versions, one compared in part, or one
# in which what goes wrong comes early.
NEEDS = {
    "04-flip-before-commit": ("--refreshes", "150", "--delta"),
    "05-begin-from-a-stale-head": ("--refreshes", "300"),
    "06-commit-on-a-base-that-was-not-compared": ("--refreshes", "1500"),
    "11-discard-what-was-committed": ("--refreshes", "300"),
    "13-commit-an-entry-that-cannot-be-read": ("--refreshes", "150", "--delta"),
    "12-note-the-instant-of-a-part": ("--refreshes", "300", "--parts"),
    "14-note-before-the-commit": ("--refreshes", "4000"),
    "15-withdraw-after-the-commit": ("--refreshes", "300", "--lies"),
}
SEED = 5000
_TREES = ("proto", "source_agent", "warehouse_agent", "tests/harness", "tests/reference")


def simulate(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(SEED), *words],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("patch", MUTATIONS, ids=lambda patch: patch.stem)
def test_a_wrong_publish_step_is_noticed(patch: Path, tmp_path: Path) -> None:
    for tree in (*_TREES, "tests/simulation"):
        shutil.copytree(ROOT / tree, tmp_path / tree)
    shutil.copy2(ROOT / "tests/__init__.py", tmp_path / "tests")
    # It applies to a folder in no repository, wherever the temporary folders are.
    here = environment(GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, env=here, check=True)
    done = simulate(tmp_path, *NEEDS.get(patch.stem, ("--refreshes", str(REFRESHES))))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Violation: " in done.stderr, done.stderr


def test_there_are_ten() -> None:
    assert len(MUTATIONS) >= 10
