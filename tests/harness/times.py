"""Tables of what the tests took: `tests/run --times`, or `python -m tests.harness.times FILE`.

FILE has a line of JSON for each test of one run (`tests/fixtures/starts.py`). Prints the rooms and
the files that took longest, with what they start, and writes the seconds of each file, by which the
next runs begin with the longest.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fixtures.selection import SECONDS

FILES_SHOWN = 25
SHORT_S = 1.0  # files below need no place in the order
KINDS = ("agent", "process", "server", "JVM")


@dataclass
class Took:
    """Sum of some tests: how many, their seconds, and what they start by kind."""

    tests: int = 0
    seconds: float = 0.0
    starts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Took) -> None:
        self.tests += other.tests
        self.seconds += other.seconds
        self.starts.update(other.starts)


def read(file: Path) -> dict[str, Took]:
    """Return the sums of each file of tests. A property that ran twice is one test."""
    found: dict[str, Took] = {}
    names: set[str] = set()
    for line in file.read_text().splitlines():
        test = json.loads(line)
        took = Took(test["test"] not in names, test["seconds"], Counter(test["starts"]))
        names.add(test["test"])
        found.setdefault(test["test"].partition("::")[0], Took()).add(took)
    return found


def by_room(files: dict[str, Took]) -> dict[str, Took]:
    """Return the sums of each folder."""
    rooms: dict[str, Took] = {}
    for name, took in files.items():
        rooms.setdefault(str(Path(name).parent), Took()).add(took)
    return rooms


def table(title: str, sums: dict[str, Took], most: int) -> list[str]:
    """Return lines of Markdown, the longest first, and a line for all others."""
    total = sum(took.seconds for took in sums.values())
    ordered = sorted(sums.items(), key=lambda one: -one[1].seconds)
    rest = Took()
    for _, took in ordered[most:]:
        rest.add(took)
    shown = [*ordered[:most], *([("others", rest)] if rest.tests else [])]
    lines = [f"| {title} | tests | seconds | share | {' | '.join(KINDS)} |", "|---" * 8 + "|"]
    for name, took in shown:
        kinds = " | ".join(str(took.starts[kind] or "") for kind in KINDS)
        share = took.seconds / total
        lines.append(f"| {name} | {took.tests} | {took.seconds:.1f} | {share:.1%} | {kinds} |")
    return lines


def main(file: str) -> None:
    files = read(Path(file))
    print("\n".join(table("room", by_room(files), len(files))), end="\n\n")
    print("\n".join(table("file", files, FILES_SHOWN)))
    long = {name: round(took.seconds) for name, took in files.items() if took.seconds >= SHORT_S}
    SECONDS.write_text(json.dumps(long, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
