"""Tests, in the folders of what they test. `./tests/run` sets up and runs all of them.

Beside them: `pair` (both agents together), `conformance` (one suite per interface), `faults`,
`wan`, `conditions` (what went wrong, by cause), `project` (the tree and the documents),
`golden` bytes and the slow `reference`; `harness`, `fixtures` and `samples` hold what tests are
made with.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
