"""`many` and `against` of `benchmarks.refreshes` at their smallest sizes, and their lines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.refreshes.against import lines
from benchmarks.refreshes.many import Ran, text_of
from tests import ROOT
from tests.harness.pair import environment


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak  # every run has it with one table: test_commands
def test_commands_on_many_tables() -> None:
    words = ["--tables", "2", "--rows", "60", "--changed", "3", "--rounds", "1"]
    found = run("benchmarks.refreshes.many", *words).splitlines()
    kinds = [line[:28].strip() for line in found[1:]]
    assert kinds == [
        "load",
        "nothing changed, first",
        "nothing changed",
        "3 changed, 1",
        "3 changed",
        "status",
        "--help",
    ]
    assert "apply: driver, prove: driver" in found[4]  # beside `list`, or not, by the line
    for line in found[1:]:
        fields = line[28:].split()
        wall, cpu, source, peak = (float(fields[i]) for i in (1, 4, 7, 10))
        assert wall > 0
        assert cpu > 0
        assert 0 <= source < cpu
        assert 1 < peak < 1000


@pytest.mark.soak  # every run has it without Spark: test_commands
def test_a_checkout_against_itself() -> None:
    words = ["--rows", "300", "--rounds", "1", "--small-bytes", "0"]
    found = run("benchmarks.refreshes.against", str(ROOT), *words).splitlines()
    assert len(found) == 1 + 2 * 5
    assert all("ratio" in line for line in found if "wall" in line or "bytes" in line)


def test_a_line_has_the_median_and_what_is_around_it() -> None:
    places = ({"places": {"reduce": "driver"}}, {"places": {"reduce": "spark"}})
    runs = [Ran(wall, 1.0, 0.5, 10_000_000, places) for wall in (3.0, 1.0, 2.0)]
    assert text_of("nothing changed", runs) == (
        "nothing changed              wall    2.00 (1.00-3.00) s, processor    1.00 (1.00-1.00) s, "
        "source    0.50 (0.50-0.50) s, driver 10 MB  reduce: driver+spark"
    )


def test_ratios_are_of_pairs() -> None:
    """A machine that gets slower changes medians, not ratios."""
    pairs = [({"wall, s": t}, {"wall, s": t * 1.5}) for t in (1.0, 2.0, 4.0)]
    (line,) = lines("1 % changed", pairs)
    assert " ".join(line.split()) == (
        "1 % changed wall, s there 2.000 here 3.000 ratio 1.500 (1.500-1.500) of 3"
    )
