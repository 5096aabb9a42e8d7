"""Statistics of staged rows, looked up in lots: the same as at once, whatever the lots."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from driftline.values.types import Recipe

from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, contents, stage
from tests.reference.rows import Row
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import CHANGED, FIRST, UPDATES, lay_out
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import key_lookup, scan, staging
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staging import RowsBefore, write_staged
from warehouse_agent.tasks.steps import Steps

KINDS: dict[str, tuple[Recipe, Callable[[int, str], Row]]] = {
    "integer": (
        recipe(["int4", "text"]),
        lambda key, text: [struct.pack(">i", key), text.encode()],
    ),
    "composite": (
        recipe(["text", "int2", "text"], 2),
        lambda key, text: [f"ä{key}".encode(), struct.pack(">h", key % 7), text.encode()],
    ),
}
FIRST_STAMP = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
STAMP = StatisticsStamp(1, 1e9 + 60, 60.0, VersionClock().after(0, 1e9), 1, 0.1)
ROWS = 700  # 0 to 599 are published; every third comes again, every sixth of them changed


@pytest.mark.parametrize("lot_rows", [1, 64, 250, 600, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_lots_find_what_one_lookup_finds(
    tmp_path: Path, kind: str, lot_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, row_of = KINDS[kind]
    layout, store = lay_out(made, {}, where="t"), Store(str(tmp_path))
    store.write(KEY, PRIVATE, "keys", "t.key", private=True)
    steps = Steps(NoSpark(), small_bytes=1 << 30)

    def put(name: str, keys: Sequence[int], text: Callable[[int], str]) -> str:
        return stage(tmp_path / "staged", name, [row_of(k, text(k)) for k in keys], made)

    def written(part: str, uris: list[str], *before: DataFile) -> list[DataFile]:
        place, key = DataFolder(store, "t", part), KeyFile(store.uri(PRIVATE, "keys", "t.key"))
        stamp = STAMP if before else FIRST_STAMP
        return write_staged(steps, place, uris, layout, key, stamp, RowsBefore(before, 100))

    loaded = [put(f"load-{at}", range(at, at + 200), str) for at in (0, 200, 400)]
    published = written("load", loaded)
    came = [put(f"came-{at}", range(at, ROWS, 9), _changed) for at in (0, 3, 6)]
    at_once = contents(written("at-once", came, *published), layout)
    monkeypatch.setattr(key_lookup, "ROWS_MAX", lot_rows)
    monkeypatch.setattr(scan, "DIGEST_ROWS", 7)
    monkeypatch.setattr(staging, "AT_ONCE_ROWS", 0)
    in_lots = contents(written("in-lots", came, *published), layout)
    assert in_lots == at_once
    assert counted(in_lots) == {
        (0, 0, 0): 100,  # came as they were
        (0, 1, 1): 100,
        (1, 0, 1): 34,
    }


def _changed(key: int) -> str:
    return f"{key} again" if key % 6 == 0 else str(key)


def counted(rows: list[dict[str, Any]]) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for row in rows:
        at = tuple(row[name] for name in (FIRST, UPDATES, CHANGED))
        found[at] = found.get(at, 0) + 1
    return found
