"""Streams that lack characters get escapes, JSON stays JSON, and a log has visible text alone."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest
from driftline.peer_text import VisibleFormatter, escape_in

HOSTILE = "\x1b[2J\x1b]0;owned\x07\rgood: \u202e0001\u2028\nforged line\n\tat row"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("text", ["é", "😀", "…", "\udcff", "plain"])
def test_every_text_can_be_written(encoding: str, text: str) -> None:
    made = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    escape_in(made, io.StringIO())
    made.write(json.dumps(text, ensure_ascii=False))
    made.seek(0)
    assert json.loads(made.buffer.read().decode(encoding)) == text


def test_an_exception_in_a_log_controls_no_terminal() -> None:
    """Its text may be that of a library, which quotes values of the other side."""
    try:
        try:
            raise ValueError(HOSTILE)
        except ValueError as error:
            raise RuntimeError(HOSTILE) from error
    except RuntimeError as error:
        found = (type(error), error, error.__traceback__)
    record = logging.LogRecord("driftline", logging.ERROR, "", 0, "%s", (HOSTILE,), found)
    first, *others = VisibleFormatter("%(message)s").format(record).split("\n")
    assert first.startswith("\\x1b[2J")
    assert all(line.isprintable() for line in (first, *others))
    assert all(line.startswith("  ") for line in others), "no line like another record"
    assert sum("forged line" in line for line in others) == 3


@pytest.mark.starts
@pytest.mark.parametrize(
    ("module", "words"),
    [("source_agent.cli.main", ["check"]), ("warehouse_agent.cli.main", ["status"])],
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_logs_of_both_agents_are_visible_text(
    module: str, words: list[str], debug: list[str]
) -> None:
    text = (
        f"import logging\nfrom {module} import cli\n"
        f"try: cli.main({[*debug, *words]!r}, standalone_mode=False)\n"
        f"except Exception: logging.getLogger('driftline').error({HOSTILE!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd="/", capture_output=True, timeout=60, check=True
    )
    assert b"forged line" in done.stderr
    lines = done.stderr.decode().splitlines()
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("  forged line") for line in lines)
