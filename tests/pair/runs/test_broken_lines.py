"""Lines that break while a load comes: what is said of it, and that it ends.

Each frame is a staged file of its own here, so that small tables have many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from source_agent.scan import frame_builder
from tests.harness.legacy import LEGACIES
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.relay import Relay
from warehouse_agent.events import RowsRead
from warehouse_agent.storage.staged_files import StagedRows, staged_of_load
from warehouse_agent.tasks import staging

ROWS = 4000
LOAD_BYTES = 145_000  # of frames, about


@pytest.fixture(params=["sqlite"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setattr(staging, "FILE_BYTES", 1000)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", 10_000)
    random = Random(5)
    with closing(LEGACIES[request.param](request, tmp_path)) as legacy:
        legacy.execute("CREATE TABLE t (code VARCHAR(9) PRIMARY KEY, note TEXT, n INTEGER)")
        rows = [(f"k{i * 7919 % ROWS}", random.randbytes(30).hex(), i) for i in range(ROWS)]
        legacy.many("INSERT INTO t VALUES (?, ?, ?)", rows)
        legacy.execute("ANALYZE")
        with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
            made.small_bytes = 64 << 20
            yield made


@pytest.fixture
def relay(pair: Pair) -> Iterator[Relay]:
    with Relay(pair.address) as made:
        pair.address = made.address
        yield made


def staged(pair: Pair) -> StagedRows:
    found = staged_of_load(pair.store, "t")
    assert found is not None
    return found


@pytest.mark.parametrize("pair", ["sqlite", "postgresql"], indirect=True)
def test_a_load_that_was_cut_is_said_to_go_on(pair: Pair, relay: Relay) -> None:
    """`status`, `plan`, `gc` and the progress of the next attempt say how far it is."""
    relay.cut_after(down=LOAD_BYTES // 2)
    assert pair.error("t")["code"] == "UNREACHABLE"
    found = staged(pair)
    assert found.rows is not None
    assert 0.2 * ROWS < found.rows < 0.8 * ROWS
    (line,) = pair.said("status", "--json").splitlines()
    assert json.loads(line)["staged"] == {
        "rows": found.rows,
        "rows_expected": found.rows_expected,
        "bytes": found.bytes,
        "at": found.at,
    }
    share = f"{found.rows:,} rows" if found.rows_expected is None else f"{found.rows / ROWS:.0%}"
    said = f"t         first load, {share} staged, last tried just now"
    assert pair.said("status").splitlines()[1] == said
    planned = f"{found.rows:,} rows ({found.bytes:,} bytes) of earlier attempts are staged"
    assert f"  {planned}" in pair.said("plan", "t")
    kept = f"  {found.bytes:,} bytes are staged, and kept until"
    assert kept in pair.said("gc", "t", "--keep-hours", "0", "--yes")
    heard = pair.heard("t")
    rows = [event for event in heard.events if isinstance(event, RowsRead)]
    assert rows[0].rows == rows[0].rows_before == found.rows, "it begins where it stood"
    assert {event.rows_before for event in rows if event.phase == "ship"} == {found.rows}
    pair.check("t")
    (line,) = pair.said("status", "--json").splitlines()
    assert json.loads(line)["staged"] is None


def test_files_of_an_older_release_go_on(pair: Pair, relay: Relay) -> None:
    """Their names tell no rows, and their note no estimate."""
    relay.cut_after(down=LOAD_BYTES // 2)
    pair.error("t")
    place = pair.warehouse / "_driftline" / "staging" / "t"
    for file in list(place.rglob("*.frames")):
        file.rename(file.with_name(f"{file.name.partition('-')[0]}.frames"))
    (note,) = place.rglob("exchange.json")
    body = json.loads(note.read_text())
    del body["rows_expected"]
    note.write_text(json.dumps(body))
    found = staged(pair)
    assert (found.rows, found.rows_expected) == (None, None)
    assert f"first load, {found.bytes:,} bytes staged" in pair.said("status")
    received = relay.down_bytes
    heard = pair.heard("t")
    assert all(not e.rows_before for e in heard.events if isinstance(e, RowsRead))
    assert relay.down_bytes - received < 0.9 * LOAD_BYTES, "what was staged did not come again"
    pair.check("t")
