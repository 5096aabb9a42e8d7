"""Remedies for tables, logs and versions of the warehouse: with what each says, they are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from driftline.errors import DriftlineError

from tests.harness.nobody import NOBODY, as_nobody, give, only_root, open_folder
from tests.remedies.site import Site, rewrite
from tests.remedies.told import told
from tests.warehouse_agent.visible_versions.test_members import fragment
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.inspection import readiness
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.storage import delta_log, formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion
from warehouse_agent.table_maintenance import verification
from warehouse_agent.visible_versions import freshness_table, warehouse_versions
from warehouse_agent.visible_versions.members import moved

pytestmark = pytest.mark.starts

FIRST_LOAD = "Move the table's folder away for a new first load."


@pytest.fixture(scope="module")
def template() -> Iterator[Site]:
    """A site that was loaded, and refreshed once more after a change."""
    with open_folder() as folder:
        made = Site(folder)
        made.serve()
        assert made.refresh().code == 0
        change(made)
        assert made.refresh().code == 0
        shutil.copytree(folder / "warehouse", folder / "kept")
        yield made
        made.stop()


@pytest.fixture
def site(template: Site) -> Site:
    """The site, its warehouse as it was after the second refresh."""
    shutil.rmtree(template.folder / "warehouse")
    shutil.copytree(template.folder / "kept", template.folder / "warehouse")
    template.keep("", "")
    return template


def change(site: Site) -> None:
    site.sql("UPDATE orders SET n = n + 1 WHERE id = 7")


def store_of(site: Site) -> Store:
    return Store(str(site.folder / "warehouse"))


def away(site: Site) -> None:
    shutil.rmtree(site.table)
    site.check()


def test_a_table_of_another_program(site: Site) -> None:
    rows = DeltaTable(str(site.table)).to_pyarrow_table()
    shutil.rmtree(site.table)
    write_deltalake(str(site.table), rows)
    told(site.fault(), FIRST_LOAD)
    away(site)
    DeltaTable(str(site.table)).delete("id = 9")
    with pytest.raises(DriftlineError) as caught:
        formats.head(store_of(site), "orders", version=1)
    told(caught.value, "Read another one (`driftline history`).")
    listed = json.loads(site.driftline("history", "orders", "--json").out.splitlines()[0])
    assert formats.head(store_of(site), "orders", version=listed["version"]) is not None


def test_a_version_that_the_log_lost(site: Site) -> None:
    DeltaTable(str(site.table)).create_checkpoint()
    (site.log / f"{0:020}.json").unlink()
    with pytest.raises(DriftlineError) as caught:
        formats.head(store_of(site), "orders", version=0)
    told(
        caught.value,
        "Read a newer version. If a view holds the table back, mend the view and refresh.",
    )
    assert formats.head(store_of(site), "orders", version=1) is not None


def test_a_table_of_another_kind(site: Site) -> None:
    with pytest.raises(DriftlineError) as caught:
        formats.view_head(store_of(site), "orders")
    told(
        caught.value,
        "Rename one of them, or move the table's folder away for a new first load.",
    )
    assert formats.view_head(store_of(site), "orders_of_view") is None
    shutil.rmtree(site.table)
    assert formats.view_head(store_of(site), "orders") is None


def test_a_feature_of_a_table_that_files_alone_do_not_tell(site: Site) -> None:
    kept = site.folder / "backup"
    shutil.copytree(site.table, kept)
    entry = site.log / f"{0:020}.json"
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry.write_text("\n".join(map(json.dumps, lines)))
    remedy = "Restore a version that Driftline wrote, or move the folder away to load anew."
    told(site.fault(), remedy)
    shutil.rmtree(site.table)
    shutil.copytree(kept, site.table)
    site.check()
    shutil.rmtree(kept)


def test_a_log_that_is_shortened_while_it_is_read(site: Site) -> None:
    history, times = DeltaTable.history, []

    def shortened(table: DeltaTable, *most: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            raise DeltaError("no such file")
        return history(table, *most)

    with mock.patch.object(DeltaTable, "history", shortened):
        ended = site.driftline("history", "orders")
        assert ended.code
        assert told("Run it again.", "Run it again.") in ended.err
        assert site.driftline("history", "orders").code == 0


@only_root
def test_entries_of_a_log_that_may_not_be_removed(site: Site) -> None:
    table = DeltaTable(str(site.table))
    table.create_checkpoint()
    old = site.log / f"{0:020}.json"
    os.utime(old, (0, 0))
    with as_nobody(), pytest.raises(DriftlineError) as caught:
        delta_log.shorten_log(table, "orders")
    told(caught.value, "Check permissions. All versions can be read.")
    assert formats.head(store_of(site), "orders", version=0) is not None
    delta_log.shorten_log(table, "orders")
    assert not old.exists()


def test_a_path_that_no_storage_has(site: Site) -> None:
    file = site.folder / "warehouse.toml"
    text = file.read_text()
    file.write_text(text.replace('path = "warehouse"', 'path = "nowhere://bucket/warehouse"'))
    ended = site.refresh()
    assert ended.code
    remedy = "Name a folder of a disk, or s3://BUCKET/FOLDER (package: driftline[object-stores])."
    assert told(remedy, remedy) in ended.out + ended.err
    file.write_text(text)
    site.check()


def test_a_disk_with_little_space(site: Site) -> None:
    with mock.patch.object(readiness, "FREE_BYTES_MIN", 1 << 62):
        with pytest.raises(DriftlineError) as caught:
            readiness._writable(store_of(site))
        told(caught.value, "Free space, or remove old versions with `driftline gc --all`.")
    assert site.driftline("gc", "--all").code == 0
    assert "writable" in readiness._writable(store_of(site))


def test_a_table_that_is_gone_when_it_was_committed(site: Site) -> None:
    (site.log / f"{1:020}.json").unlink()
    with mock.patch.object(formats, "head", side_effect=heads_then_none(1)):
        remedy = site.fault("--accept-restored")
    told(remedy, "Find out what removes files of the warehouse, then run the refresh again.")
    assert site.refresh("--accept-restored").code == 0
    site.check()


def heads_then_none(count: int) -> Any:
    head, times = formats.head, []

    def found(*given: Any, **options: Any) -> Any:
        times.append(1)
        return head(*given, **options) if len(times) <= count else None

    return found


def test_files_with_other_rows_than_their_version(site: Site) -> None:
    entry = site.log / f"{1:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    (info,) = (line["commitInfo"] for line in lines if "commitInfo" in line)
    noted = json.loads(info["driftline"])
    info["driftline"] = json.dumps({**noted, "rows": noted["rows"] + 1})
    good = entry.read_bytes()
    entry.write_text("\n".join(map(json.dumps, lines)))
    remedy = "Restore the table from a backup, or move its folder away for a new first load."
    ended = site.driftline("verify", "orders", "--json")
    told(ended.error["remedy"], remedy)
    entry.write_bytes(good)
    assert site.driftline("verify", "orders").code == 0
    shutil.rmtree(site.table)
    site.check()
    assert site.driftline("verify", "orders").code == 0


def test_a_commit_that_another_agent_overtook(site: Site) -> None:
    store = store_of(site)
    base = formats.head(store, "orders")
    assert base is not None
    change(site)
    assert site.refresh().code == 0
    late = NewVersion(base, base.layout, (), (), base.record)
    with pytest.raises(DriftlineError) as caught:
        formats.commit(store, "orders", late)
    told(caught.value, "Run the refresh again.")
    site.check()


def test_flips_that_are_overtaken(tmp_path: Path) -> None:
    store, version = Store(str(tmp_path)), 0

    def flip(*, others: bool) -> None:
        def change(before: Any) -> Any:
            nonlocal version
            if others:
                version += 1
                number = version
                warehouse_versions.flip(store, lambda b: moved(b, [fragment("b", number)]))
            return moved(before, [fragment("a", 7)])

        warehouse_versions.flip(store, change)

    with (
        mock.patch.object(warehouse_versions, "TRIES_MAX", 2),
        pytest.raises(DriftlineError) as caught,
    ):
        flip(others=True)
    told(caught.value, "Run the command again.")
    flip(others=False)
    newest = warehouse_versions.newest(store)
    assert newest is not None
    assert newest.members["a"].version == 7


@only_root
def test_a_table_of_versions_that_may_not_be_written() -> None:
    with open_folder() as folder:
        store, place = Store(str(folder)), folder / "_driftline" / "warehouse"

        def flip(version: int) -> None:
            warehouse_versions.flip(store, lambda before: moved(before, [fragment("a", version)]))

        flip(0)
        os.chown(place, NOBODY, NOBODY)  # but not its log
        with as_nobody(), pytest.raises(DriftlineError) as caught:
            flip(1)
        told(
            caught.value,
            "Check space and permissions. What was committed of each table stays, readers keep the"
            " version before, and the next refresh goes on from there.",
        )
        assert warehouse_versions.at_version(store, 0) == warehouse_versions.newest(store)
        give(place)
        with as_nobody():
            flip(1)
        assert warehouse_versions.at_version(store, 1).members["a"].version == 1


def test_versions_that_cannot_be_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    folder = tmp_path / "_driftline" / "warehouse"
    for number in range(3):
        warehouse_versions.flip(
            store,
            lambda before, number=number: moved(before, [fragment("a", number)]),  # type: ignore[misc]
        )
    shutil.copytree(folder, tmp_path / "backup")
    next(folder.glob(f"{0:010d}-*.parquet")).unlink()
    with pytest.raises(DriftlineError) as caught:
        warehouse_versions.at_version(store, 0)
    told(caught.value, "Pin a newer one.")
    assert warehouse_versions.at_version(store, 1).members["a"].version == 1
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(DriftlineError) as caught:
        warehouse_versions.newest(store)
    told(
        caught.value,
        "Restore the folder from a backup; or move it away: the next refresh of a view makes a new"
        " one from the newest version of every table.",
    )
    shutil.rmtree(folder)
    assert warehouse_versions.newest(store) is None, "as the next refresh of a view finds it"
    (tmp_path / "backup").rename(folder)
    newest = warehouse_versions.newest(store)
    assert newest is not None
    assert newest.number == 2


@only_root
def test_a_table_of_freshness_that_may_not_be_written() -> None:
    with open_folder() as folder:
        store, place = Store(str(folder)), folder / FRESHNESS
        row = freshness_table.FreshnessRow("orders", "fragment", 0)
        freshness_table.replace(store, lambda _: {"orders": row})
        os.chown(place, NOBODY, NOBODY)  # but not its log
        newer = replace(row, version=1)
        with as_nobody(), pytest.raises(DriftlineError) as caught:
            freshness_table.replace(store, lambda _: {"orders": newer})
        told(caught.value, "Check space and permissions.")
        give(place)
        with as_nobody():
            freshness_table.replace(store, lambda _: {"orders": newer})


@only_root
def test_a_file_that_the_storage_does_not_let_be_read(site: Site) -> None:
    give(site.folder / "warehouse")
    path = Path(DeltaTable(str(site.table)).file_uris()[0])
    path.chmod(0o600)
    os.chown(path, 0, 0)
    with as_nobody():
        ended = site.driftline("verify", "orders", "--json")
    told(
        ended.error["remedy"],
        "Check the disk and its permissions. If the disk can no longer read the file, remove the"
        " file: the next refresh pulls its rows again.",
    )
    path.chmod(0o644)
    with as_nobody():
        assert site.driftline("verify", "orders").code == 0
    path.unlink()
    change(site)
    site.check()
    assert site.driftline("verify", "orders").code == 0


def test_damage_that_could_not_be_noted(site: Site) -> None:
    path = Path(DeltaTable(str(site.table)).file_uris()[0])
    data = bytearray(path.read_bytes())
    data[40:99] = bytes(59)
    path.write_bytes(data)
    with mock.patch.object(verification, "NOTE_WAIT_S", 0.01), store_of(site).lock("orders"):
        ended = site.driftline("verify", "orders", "--json")
    remedy = told(
        ended.error["remedy"],
        "This could not be noted: … Run `driftline verify … --repair`: it pulls their rows again.",
    )
    assert site.run_as_printed(remedy).code == 0
    assert site.driftline("verify", "orders").code == 0
    site.check()


AGAIN = "Run the command again; `driftline verify` names files that are missing or damaged."
CHANGES: list[Callable[[pa.Table], pa.Table]] = [
    lambda rows: rows.slice(1),
    lambda rows: rows.set_column(0, "id", pc.add(rows["id"], pa.scalar(100_000, pa.int64()))),
    lambda rows: rows.drop_columns(["_driftline_hi"]),
]


@pytest.mark.parametrize("change_of", CHANGES, ids=["fewer", "out of bounds", "no column"])
def test_a_data_file_that_is_not_as_it_was_written(
    site: Site, change_of: Callable[[pa.Table], pa.Table]
) -> None:
    rewrite(site.table, change_of)
    change(site)
    with mock.patch.object(repair, "find_damage", return_value={}):  # as when the disk reads again
        told(site.fault(), AGAIN)
    ended = site.driftline("verify", "orders", "--json")
    assert "Data file" in ended.error["message"]
    shutil.rmtree(site.folder / "warehouse" / "_driftline" / "fragments")  # what verify noted
    ended = site.refresh()
    (first,) = json.loads(ended.out)["retried"]
    told(first["remedy"], "The next refresh pulls again what the damaged files held.")
    assert ended.code == 0, "a second attempt was the next refresh"
    site.check()
