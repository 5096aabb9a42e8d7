"""The tables of what the tests took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import times

LINES = (
    {"test": "tests/a/test_x.py::test_one", "seconds": 1.0, "starts": {"agent": 1}},
    {"test": "tests/a/test_x.py::test_one", "seconds": 2.0, "starts": {"agent": 1}},  # again
    {"test": "tests/a/test_y.py::test_two[::]", "seconds": 0.25, "starts": {}},
    {"test": "tests/b/test_z.py::test_three", "seconds": 6.75, "starts": {"JVM": 2}},
)


def test_rooms_and_files_and_the_order_of_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A test that ran twice is one, with the seconds of both."""
    file = tmp_path / "times"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    monkeypatch.setattr(times, "SECONDS", tmp_path / "seconds.json")
    times.main(str(file))
    printed = capsys.readouterr().out.splitlines()
    assert printed[2:4] == [
        "| tests/b | 1 | 6.8 | 67.5% |  |  |  | 2 |",
        "| tests/a | 2 | 3.2 | 32.5% | 2 |  |  |  |",
    ]
    assert printed[-1] == "| tests/a/test_y.py | 1 | 0.2 | 2.5% |  |  |  |  |"
    long = json.loads((tmp_path / "seconds.json").read_text())
    assert long == {"tests/a/test_x.py": 3, "tests/b/test_z.py": 7}
