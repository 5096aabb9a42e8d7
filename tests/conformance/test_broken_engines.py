"""An engine that is wrong fails the suite by the name of the test; the suite runs by `--pyargs`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import ROOT
from tests.conformance.broken_engines import BROKEN

SUITE = "source_agent.engines.conformance"
FAILED = {
    "sound": set(),
    "rounds": {"test_floats_are_not_rounded", "test_reads_are_what_the_driver_returns"},
    "pads": {
        "test_text_is_neither_padded_nor_trimmed",
        "test_text_of_a_column_is_what_was_written",
        "test_reads_are_what_the_driver_returns",
    },
    "decodes": {
        "test_text_of_a_column_is_what_was_written",
        "test_reads_are_what_the_driver_returns",
    },
    "reads_text_from_bytes": {"test_bytes_are_what_was_written"},
    "reads_fifteen_digits": {
        "test_floats_are_not_rounded",
        "test_reads_are_what_the_driver_returns",
    },
    "reads_trimmed_text": {
        "test_text_is_neither_padded_nor_trimmed",
        "test_text_of_a_column_is_what_was_written",
        "test_reads_are_what_the_driver_returns",
        "test_rows_are_found_by_a_key_of_text",
    },
    "misses_the_snapshot": {
        "test_a_snapshot_stays_while_a_writer_writes",
        "test_two_scans_of_a_session_are_of_one_instant",
    },
    "ignores_interrupt": {"test_an_interrupted_session_reads_no_more"},
    "lacks_what_shapes_promise": {"test_shapes_promise_what_the_session_can"},
}


@pytest.mark.starts
def test_each_mistake_fails_the_test_of_its_name(tmp_path: Path) -> None:
    assert set(FAILED) == set(BROKEN)
    report = tmp_path / "report.xml"
    # Explaining how a thousand rows differ takes minutes where CI is set: there nothing is cut.
    command = [sys.executable, "-m", "pytest", "--assert=plain", "--pyargs"]
    command += [
        f"{SUITE}.{module}" for module in ("test_values", "test_snapshots", "test_own_values")
    ]
    command += ["-p", "tests.conformance.broken_engines", f"--junit-xml={report}"]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "proto")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    failed: dict[str, set[str]] = defaultdict(set)
    passed: dict[str, int] = defaultdict(int)
    for case in ElementTree.parse(report).iter("testcase"):
        name, _, parameters = case.attrib["name"].partition("[")
        engine = next(kind for kind in BROKEN if parameters.startswith(kind))
        assert case.find("error") is None, case.attrib
        assert case.find("skipped") is None, case.attrib
        if case.find("failure") is not None:
            failed[engine].add(name)
        else:
            passed[engine] += 1
    for engine, names in FAILED.items():  # others may fail, too, of one that is broken
        assert names <= failed[engine], engine
    assert not failed["sound"]
    assert passed["sound"] >= 20
