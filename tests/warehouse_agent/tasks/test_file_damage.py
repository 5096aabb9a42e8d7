"""Where data files are examined: by the bytes of their rows, also if a footer is damaged."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError

from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, stage
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import file_damage
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_rows import write_staged
from warehouse_agent.tasks.steps import Steps

MADE = recipe(["int8", "text"])
LAYOUT = lay_out(MADE, {}, where="t")
ROWS = [[struct.pack(">q", i), b"x" * 1000] for i in range(200)]


def test_the_place_follows_the_bytes_of_the_rows(tmp_path: Path) -> None:
    """200 kB of one value are few compressed bytes."""
    store = Store(str(tmp_path))
    store.write(KEY, PRIVATE, "keys", "t.key", private=True)
    key = KeyFile(store.uri(PRIVATE, "keys", "t.key"))
    staged = stage(tmp_path / "staged", "1.frames", ROWS, MADE)
    stamp = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
    here = Steps(NoSpark(), 1 << 20)
    (file,) = write_staged(here, DataFolder(store, "t", "data"), [staged], LAYOUT, key, stamp)
    assert file.size < 50_000

    def examined(steps: Steps, one: DataFile) -> dict[str, str]:
        return file_damage.examine(steps, store, "t", LAYOUT, [one])

    assert examined(here, file) == {}
    with pytest.raises(ConfigurationError) as caught:
        examined(Steps(NoSpark(), 50_000), file)
    assert "for a step of" in caught.value.details["Spark is needed"]

    path = Path(file.uri.removeprefix("file://"))
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for number, byte in enumerate((b"\0", b"\xff", b"")):
        bad = path.with_name(f"bad-{number}.parquet")
        bad.write_bytes(data[:begin] + byte * (len(data) - 8 - begin) + data[-8:])
        damaged = replace(file, path=f"data/{bad.name}", uri=f"file://{bad}")
        assert [*examined(Steps(NoSpark(), 50_000), damaged)] == [damaged.path]
