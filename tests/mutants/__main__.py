"""Mutants of the product against its tests: which tests reach each one, and does one fail?

    python -m tests.mutants observe FOLDER [PYTEST'S ARGUMENTS]
    python -m tests.mutants kill FOLDER [ROOM...] [--known FILE] [--tree TREE] [--share 1/2]

`observe` runs the tests in a copy of the tree in which the place of each mutant says when it is
reached (a third of an hour), and writes `reached.json`: mutant to the tests that reached it. `kill`
runs these tests for one mutant after the other, until the first failure: those that start nothing
first, then the files that take least. It adds a line for each mutant to `outcomes.jsonl`. With the
`--known` outcomes of an earlier time the test that failed then comes first. `--tree` names another
checkout whose tests run, with the same product. What died must die again: after tests were cut, and
after a move, for which `known.jsonl` beside this file is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import click

from tests import ROOT
from tests.harness.pair import environment
from tests.mutants import _probe
from tests.mutants.mutant import Mutant, mutants

REACHED, OUTCOMES, TIMES = "reached.json", "outcomes.jsonl", "times.jsonl"
KNOWN = Path(__file__).with_name("known.jsonl")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*cache*", "__pycache__")
TEST_S_MAX = 180  # a mutant may wait for what never comes


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """Return a copy of a checkout, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="driftline-mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(tree, copy, ignore=_LEFT_OUT, symlinks=True)
        shared = ROOT.parent / "shared"
        if shared.is_dir():
            copy.with_name("shared").symlink_to(shared)
        yield copy


def pytest(tree: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a tree."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=tree,
        env=environment(tree, **variables),
        capture_output=True,
        text=True,
        check=False,
    )


@click.group()
def main() -> None:
    """Try mutants."""


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
def observe(folder: Path, arguments: Sequence[str]) -> None:
    """Run the tests once, and note which of them reach each mutant."""
    places = folder.absolute() / "places"
    places.mkdir(parents=True, exist_ok=True)
    places.chmod(0o777)  # servers and services run as others
    times = folder.absolute() / TIMES
    with copy_of(ROOT) as tree:
        shutil.copy2(Path(_probe.__file__), tree / "proto/driftline/_probe.py")
        for file in {mutant.file for mutant in mutants()}:
            here = [mutant for mutant in mutants() if mutant.file == file]
            (tree / file).write_text(observed(here))
        beside = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
        words = ["-m", "not (alone or soak)", *beside, *arguments, f"--times={times}"]
        done = pytest(tree, *words, **{_probe.VARIABLE: str(places)})
        (folder / "log").write_text(done.stdout + done.stderr)
    (folder / REACHED).write_text(json.dumps(reached(times, places), indent=1) + "\n")


def observed(here: Sequence[Mutant]) -> str:
    """Return the text of a file in which the places of its mutants say that they are reached."""
    lines = here[0].source.splitlines(keepends=True)
    for mutant in sorted(here, key=Mutant.line_observed, reverse=True):
        at = mutant.line_observed() - 1
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        call = f'__import__("driftline._probe")._probe.reached("{mutant.id}")'
        lines.insert(at, f"{indent}{call}\n")
    return "".join(lines)


def reached(times: Path, places: Path) -> dict[str, list[str]]:
    """Return for each mutant the tests that ran when its place was reached."""
    found: dict[str, set[str]] = {mutant.id: set() for mutant in mutants()}
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for line in times.read_text().splitlines():
        test = json.loads(line)
        spans.setdefault(test["process"], []).append((test["begin"], test["end"], test["test"]))
    for file in places.iterdir():
        moments = sorted((float(at), who) for who, at in map(str.split, file.open()))
        tests = iter(sorted(spans.get(file.name, [])))
        begin, end, name = next(tests)
        for at, mutant in moments:
            while at > end and (following := next(tests, None)) is not None:
                begin, end, name = following
            if begin <= at <= end:
                found[mutant].add(name)
    return {mutant: sorted(names) for mutant, names in found.items()}


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("rooms", nargs=-1)
@click.option("--known", type=click.Path(path_type=Path), default=KNOWN)
@click.option("--tree", type=click.Path(path_type=Path, exists=True), default=ROOT)
@click.option("--share", default="1/1", help="which part of the mutants: 1/2, 2/2")
@click.option("--minutes", default=10.0, help="for one mutant; it lives if none failed by then")
def kill(
    folder: Path, rooms: Sequence[str], known: Path, tree: Path, share: str, minutes: float
) -> None:
    """Run the tests that reach each mutant until one fails."""
    tests = json.loads((folder / REACHED).read_text())
    cost = {
        test["test"]: (bool(test["starts"]), test["seconds"]) for test in lines_of(folder / TIMES)
    }
    noticed = {line["mutant"]: line["by"] for line in lines_of(known) if line["by"]}
    number, count = map(int, share.split("/"))
    outcomes = folder / OUTCOMES
    done = {line["mutant"] for line in lines_of(outcomes)}
    chosen = [one for one in mutants() if not rooms or one.room in rooms][number - 1 :: count]
    with copy_of(tree) as copy:
        for mutant in chosen:
            if mutant.id in done:
                continue
            first = noticed.get(mutant.id)
            chosen_tests = ordered(tests[mutant.id], cost, mutant.file)
            chosen_tests.sort(key=partial(ne, first))  # stable
            said = attempt(copy, mutant, chosen_tests, minutes * 60)
            with outcomes.open("a") as lines:
                lines.write(json.dumps({"mutant": mutant.id, **said}) + "\n")
            print(mutant.id, said, flush=True)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def ordered(tests: Sequence[str], cost: dict[str, tuple[bool, float]], changed: str) -> list[str]:
    """Sort tests by their files: those that start nothing first; then those whose names have most
    in common with that of the changed file; then those that take least.
    """
    files: dict[tuple[bool, int, str], float] = {}
    keys = {}
    for test in tests:
        starts, seconds = cost.get(test, (True, 1.0))
        file = test.partition("::")[0]
        keys[test] = (starts, -len(words_of(file) & words_of(changed)), file)
        files[keys[test]] = files.get(keys[test], 0.0) + seconds
    return sorted(tests, key=lambda test: (keys[test][:2], files[keys[test]], keys[test], test))


def words_of(path: str) -> set[str]:
    return set(re.split(r"\W|_", path.removesuffix(".py")))


def attempt(tree: Path, mutant: Mutant, tests: Sequence[str], within_s: float) -> dict[str, object]:
    """Run tests with a fault in the product; return which one failed, and after how long."""
    if not tests:
        return {"outcome": "not reached"}
    place = tree / mutant.file
    began = time.monotonic()
    place.write_text(mutant.changed())
    arguments = tree / "mutant.tests"
    arguments.write_text("\n".join(tests))
    words = ["-x", "-q", f"--timeout={TEST_S_MAX}", "-m", "not soak", "-rfE", f"@{arguments}"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    try:
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=tree, env=environment(tree), stdout=output, stderr=output
            )
            try:
                code = process.wait(within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
            output.seek(0)
            text = output.read()
    finally:
        place.write_text(mutant.source)
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", text, re.MULTILINE)
    outcomes = {0: "lived", None: "lived so far"}
    return {
        "outcome": "died" if failed else outcomes.get(code, f"pytest: {code}: {text[-300:]}"),
        "by": failed[1] if failed else None,
        "tests": len(tests),
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    os.environ.setdefault("CI", "true")  # what could be installed must be there
    main()
