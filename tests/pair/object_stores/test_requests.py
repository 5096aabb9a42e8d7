"""How many requests a refresh makes of an object store, delta-rs's included, as a table gets old.

The bounds depend on the number of data files and of entries since the last checkpoint, and on
nothing else: not on the number of versions, nor on what else lies in the bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.harness.counted_requests import RequestCounter, Requests
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from warehouse_agent.planning.request_cost import CHECKPOINT_VERSIONS
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.opened_table import pinned
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, Snapshot

FILES = 12
AGES = (FILES - 1, 49, 100, 199)  # versions
PRICES = "price_per_1000_reads = 0.0004\nprice_per_1000_writes = 0.005\n"
COMMIT, CHECKPOINT = 5, 20  # requests of a commit, and of a checkpoint beside it
BESIDE = 8  # of locks, the record of a running command, and reading a note that is changed
ROWS = 100  # of each file; one of them changes


@pytest.fixture(scope="module")
def counter(moto: Moto) -> Iterator[RequestCounter]:
    with RequestCounter(moto) as made:
        yield made


@pytest.fixture(scope="module")
def pair(counter: RequestCounter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A table of FILES data files."""
    folder = tmp_path_factory.mktemp("requests")
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as made:
        made.bucket = replace(counter.bucket(), more=PRICES)
        made.fragment_lines["t"] = 'method = "sketch"'
        for first in range(0, FILES * ROWS, ROWS):
            rows = [(key, f"note {key}") for key in range(first, first + ROWS)]
            legacy.many("INSERT INTO t VALUES (?, ?)", rows)
            made.refresh("t")
        yield made
    legacy.close()


def republished(store: Store, head: Snapshot, files: Sequence[DataFile]) -> Snapshot:
    """Publish a version with other files, of which nothing is asked."""
    there, wanted = {*head.files}, {*files}
    new = NewVersion(head, head.layout, [*wanted - there], [*there - wanted], head.record)
    version, pin = formats.commit(store, "t", new), pinned(head)
    pin.update_incremental()
    return replace(head, version=version, pin=pin, files=tuple(files))


def head_of(pair: Pair) -> Snapshot:
    head = formats.head(pair.store, "t")
    assert head is not None
    return head


def heads_max(version: int) -> int:
    """Return the requests that opening a version may take; its base may have a checkpoint."""
    checkpoint = (version - 1) // CHECKPOINT_VERSIONS * CHECKPOINT_VERSIONS
    return 15 + 2 * (version - checkpoint)


def priced(pair: Pair) -> tuple[int, int]:
    """Return what `plan` says: requests if nothing changed, and if all files change."""
    requests = json.loads(pair.said("plan", "t", "--json"))["requests_expected"]
    reads, writes = 0.0004, 0.005  # as the file says
    assert reads * requests["unchanged"] / 1000 < requests["unchanged_price"]
    assert requests["rewritten_price"] < writes * requests["rewritten"] / 1000
    assert "the object store gets up to" in pair.said("plan", "t")
    return requests["unchanged"], requests["rewritten"]


def counted_refresh(pair: Pair, counter: RequestCounter) -> Requests:
    assert pair.bucket is not None
    with counter.counted(pair.bucket) as found:
        pair.refresh("t")
    pair.check("t")
    return found


@pytest.mark.parametrize("ages", [AGES[:2], pytest.param(AGES[2:], marks=pytest.mark.soak)])
def test_refreshes_cost_what_their_files_do(
    pair: Pair, counter: RequestCounter, ages: Sequence[int]
) -> None:
    head = head_of(pair)
    files = head.files
    assert len(files) == FILES
    for version in ages:
        while head.version < version:
            head = republished(pair.store, head, files)
        pair.refresh("t")  # learns what the next one knows
        unchanged_max, rewritten_max = priced(pair)
        same = counted_refresh(pair, counter)
        pair.legacy.execute(f"UPDATE t SET note = 'at {version}' WHERE id % {ROWS} = 7")
        some = counted_refresh(pair, counter)
        after = head_of(pair)
        assert after.version == version + 1
        rewritten = len({*files} - {*after.files})
        said = f"version {version}: unchanged {same.total} ({same.at('log')} for the log), "
        said += f"{rewritten} files rewritten {some.total} ({some.at('log')} for the log)"
        assert same.at("log") <= heads_max(version), said
        assert same.total <= unchanged_max == 12 + 2 * FILES + heads_max(version) + BESIDE, said
        assert rewritten_max == 20 + 7 * rewritten + heads_max(version) + COMMIT + BESIDE
        beside = CHECKPOINT if version % CHECKPOINT_VERSIONS == 0 else 0
        assert some.total <= rewritten_max + beside, said
        print(said)
        whole = [place for place in (*same.places, *some.places) if place in {"list ", "list /t/"}]
        assert not whole
        pair.legacy.execute(f"UPDATE t SET note = 'note ' || id WHERE id % {ROWS} = 7")
        head = republished(pair.store, after, files)
