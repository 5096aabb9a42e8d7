"""Each remedy of the sources is carried out by a test, or it is said why none can.

A new remedy needs a test here: the fault, `told(error, REMEDY)`, what the remedy says, a good end.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests import ROOT
from tests.remedies.catalogue import matches, remedies
from tests.remedies.others import CONDITIONS, ELSEWHERE, NOBODY


@cache
def carried_out() -> frozenset[str]:
    """Return the remedies that tests of this room name; `told` checks that they are printed."""
    found = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        if path != Path(__file__):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return frozenset(found) & frozenset(remedies())


def excused() -> list[str]:
    return [
        text for table in (CONDITIONS, ELSEWHERE, NOBODY) for ts in table.values() for text in ts
    ]


def test_each_remedy_is_carried_out_or_said_why_not() -> None:
    new = set(remedies()) - carried_out() - set(excused())
    places = "\n".join(f"{text!r}: {remedies()[text].places}" for text in sorted(new))
    assert not new, f"remedies that no test carries out:\n{places}"


def test_what_is_excused_is_a_remedy_of_today() -> None:
    assert set(excused()) <= set(remedies()), set(excused()) - set(remedies())
    twice = carried_out() & set(excused())
    assert not twice, f"these are carried out: take them off the lists: {twice}"
    assert len(excused()) == len(set(excused()))


def test_the_conditions_and_tests_that_are_named_exist() -> None:
    table = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [A-Z_]+ \| \d+ \| (?:yes|no) \| (.+) \|$", table, re.M)
    assert set(CONDITIONS) <= {condition for row in rows for condition in row.split("; ")}
    for test in ELSEWHERE:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_the_catalogue_finds_each_way_in_which_a_remedy_is_given() -> None:
    for text in (
        "Run: chmod 600 …",  # a call's argument in the place of `remedy`
        "Remove it from `types`.",  # the same, of another module's function
        "Check the name, or ask the DBA to publish it to this certificate.",  # of a class
        "Run PRAGMA integrity_check on it.",  # a row of a table
        "To go on: driftline refresh … --accept-schema",  # a keyword, with a value
        "Did you mean …?",  # what a function returns
        "Order the rows where they are read.",  # a row of a table by its key
        "The next refresh pulls again what the damaged files held.",  # given to an error later
    ):
        assert text in remedies()
    assert matches("Run: chmod 600 …", "Run: chmod 600 ca.key")
    assert not matches("Run: chmod 600 …", "Please run: chmod 600 ca.key")
