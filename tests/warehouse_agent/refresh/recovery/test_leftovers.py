"""Rows that cut exchanges staged: the newest of each key, its statistics, and no file too many."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import FrameDamaged
from driftline.values.types import Recipe
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, contents, frames_of
from tests.reference.rows import Row
from tests.samples.exchanges import ORDERS
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import CHANGED, FIRST, UPDATES, lay_out
from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.notes import Notes
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.recovery import leftovers
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.rewrites import replaced_rows
from warehouse_agent.tasks.rewrites.replaced_rows import rewrite_without
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.steps import Steps

Rows = dict[int, str]
RowOf = Callable[[int, str], Row]
KINDS: dict[str, tuple[Recipe, RowOf]] = {
    "integer": (
        recipe(["int8", "text"]),
        lambda key, text: [struct.pack(">q", key), text.encode()],
    ),
    "composite": (
        recipe(["text", "int2", "text"], 2),
        lambda key, text: [f"ä{key}".encode(), struct.pack(">h", key % 7), text.encode()],
    ),
}
FIRST_STAMP = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
STAMP = StatisticsStamp(1, 1e9 + 60, 60.0, VersionClock().after(0, 1e9), 1, 0.1)
PUBLISHED: list[Rows] = [dict.fromkeys(range(at, at + 200), "old") for at in (0, 200, 400)]
OLDER = dict.fromkeys((5, 6, 250, 1000, 1001), "older")
NEWER = dict.fromkeys((6, 7, 1001, 1002), "newer")


@pytest.fixture(params=["driver", "spark", "lots"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Steps:
    if request.param == "driver":
        return Steps(NoSpark(), small_bytes=1 << 30)
    if request.param == "lots":
        monkeypatch.setattr(replaced_rows, "ROWS_MAX", 1)
    spark: SparkSession = request.getfixturevalue("spark")
    return Steps(spark)


def job_in(folder: Path, steps: Steps) -> Job:
    store = Store(str(folder))
    store.write(KEY, PRIVATE, "keys", "t.key", private=True)
    fragment = Fragment("t", Source("erp", "127.0.0.1:1"), "t")
    return Job(steps, store, fragment, Options(), Report("t"), Notes())


def put(job: Job, rows: list[Row], made: Recipe) -> str:
    """Stage an exchange; return its folder."""
    writer = job.staging.begin(ORDERS)
    for frame in frames_of(rows, made):
        writer.add(frame)
    writer.flush()
    return writer.folder


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_row_of_a_key_stays(steps: Steps, tmp_path: Path, kind: str) -> None:
    made, row_of = KINDS[kind]
    layout, job = lay_out(made, {}, where="t"), job_in(tmp_path, steps)

    def staged(rows: Rows) -> str:
        return put(job, [row_of(*row) for row in rows.items()], made)

    published = []
    for number, rows in enumerate(PUBLISHED):
        uris = job.staging.uris(staged(rows))
        published += job.write_staged(f"load-{number}", uris, layout, FIRST_STAMP)
    folders = [staged(OLDER), staged(NEWER)]
    found = leftovers.merge(job, published, layout, folders, STAMP)

    expected: dict[int, tuple[str, tuple[int, int, int]]] = {}
    for rows in PUBLISHED:
        expected |= {key: (text, (0, 0, 0)) for key, text in rows.items()}
    for rows in (OLDER, NEWER):
        for key, text in rows.items():
            counts = (0, 1, 1) if key in range(600) else (1, 0, 1)
            expected[key] = (text, counts)
    assert keyed(contents(found, layout), kind) == expected
    assert published[2] in found, "it holds no row that was replaced"
    # A first load that was cut twice: nothing is published.
    alone = leftovers.merge(job, (), layout, folders, FIRST_STAMP)
    merged = {key: (text, (0, 0, 0)) for key, text in (OLDER | NEWER).items()}
    assert keyed(contents(alone, layout), kind) == merged


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.integers(0, 40), st.sampled_from("ab")), max_size=3),
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), max_size=12, unique=True),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(sorted(KINDS)),
)
@settings(max_examples=40, deadline=None)
def test_a_key_has_the_rows_of_its_newest_folder(
    tables: list[Rows], folders: list[list[tuple[int, str]]], kind: str
) -> None:
    """All of them, where keys are not unique; the working copy may hold a key in two files."""
    made, row_of = KINDS[kind]
    layout, text = lay_out(made, {}, where="t"), "c1" if kind == "integer" else "c2"
    with tempfile.TemporaryDirectory() as folder:
        job = job_in(Path(folder), Steps(NoSpark(), small_bytes=1 << 30))

        def staged(rows: Iterable[tuple[int, str]]) -> str:
            return put(job, [row_of(*row) for row in rows], made)

        published = []
        for number, rows in enumerate(tables):
            uris = job.staging.uris(staged(rows.items()))
            published += job.write_staged(f"load-{number}", uris, layout, FIRST_STAMP)
        found = leftovers.merge(job, published, layout, [staged(rows) for rows in folders], STAMP)
        rows_found = contents(found, layout)

    model: list[tuple[int, str]] = [row for rows in tables for row in rows.items()]
    for came in folders:
        taken = {key for key, _ in came}
        model = [row for row in model if row[0] not in taken] + came
    keys = [row["c0"] if kind == "integer" else int(row["c0"][1:]) for row in rows_found]
    texts = [row[text] for row in rows_found]
    assert sorted(zip(keys, texts, strict=True)) == sorted(model)
    known = {key for rows in tables for key in rows}
    assert [row[FIRST] == 0 for row in rows_found] == [key in known for key in keys]


def test_the_working_copy_is_written_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, row_of = KINDS["integer"]
    layout, job = lay_out(made, {}, where="t"), job_in(tmp_path, Steps(NoSpark(), 1 << 30))
    written: list[int] = []

    def counted(*place: Any) -> Any:
        written.append(sum(f.rows for f in place[2]))
        return rewrite_without(*place)

    def staged(keys: Iterable[int], text: str) -> str:
        return put(job, [row_of(key, text) for key in keys], made)

    monkeypatch.setattr(leftovers, "rewrite_without", counted)
    uris = job.staging.uris(staged(range(1000), "old"))
    published = job.write_staged("load", uris, layout, FIRST_STAMP)
    folders = [staged(range(at, 1000, 100), f"new {at}") for at in range(12)]
    found = leftovers.merge(job, published, layout, folders, STAMP)
    assert sum(row["c1"] != "old" for row in contents(found, layout)) == 120
    assert written == [1000]


def keyed(rows: list[dict[str, Any]], kind: str) -> dict[int, tuple[str, tuple[int, int, int]]]:
    """Return the text and the statistics of each row; no key is there twice."""
    text = "c1" if kind == "integer" else "c2"
    found = {}
    for row in rows:
        key = row["c0"] if kind == "integer" else int(row["c0"][1:])
        assert key not in found
        found[key] = (row[text], (row[FIRST], row[UPDATES], row[CHANGED]))
    return found


@pytest.mark.spark
def test_what_was_staged_is_verified(steps: Steps, tmp_path: Path) -> None:
    made, row_of = KINDS["integer"]
    job = job_in(tmp_path, steps)
    folder = put(job, [row_of(1, "x")], made)
    file = Path(job.staging.uris(folder)[0].removeprefix("file://"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(FrameDamaged):
        leftovers.merge(job, (), lay_out(made, {}, where="t"), [folder], STAMP)
