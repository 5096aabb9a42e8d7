"""Remedies of a refresh: after what each says, the copy is equal to the source."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable
from driftline.errors import NotFound

from source_agent.server import catalogue
from tests.harness.pair import environment
from tests.remedies.site import Site
from tests.remedies.told import told
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import Store

pytestmark = pytest.mark.starts

SCHEMA = "To go on: driftline refresh … --accept-schema"
SHRANK = "If that is right: driftline refresh … --allow-shrink"
RESTORED = "If that is right, as after a restore: driftline refresh … --accept-restored"
NO_LOG = (
    "Restore the folder `_delta_log`, or move the table's folder away. For a new first load, after"
    " which readers of the change feed must begin again with a whole version: driftline refresh …"
    " --accept-restored"
)
OTHERS = (
    "To go on from version … without what the other program wrote: driftline refresh …"
    " --accept-restored"
)
LOST = (
    "Check that the storage is mounted and complete, or restore the files. If they are lost, run:"
    " driftline verify … --repair"
)
DAMAGED = "Run `driftline verify … --repair`, or the next refresh: it pulls their rows again."


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.serve()
    yield made
    made.stop()


@pytest.fixture
def loaded(site: Site) -> Site:
    assert site.refresh().code == 0
    return site


def test_columns_that_changed(loaded: Site) -> None:
    loaded.sql("ALTER TABLE orders ADD COLUMN more TEXT")
    remedy = told(loaded.fault(), SCHEMA)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()


def test_rows_that_are_gone(loaded: Site) -> None:
    loaded.sql("DELETE FROM orders WHERE id > 9")
    remedy = told(loaded.fault(), SHRANK)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()


def test_a_log_that_lost_its_end(loaded: Site) -> None:
    loaded.sql("UPDATE orders SET note = 'x' WHERE id = 1")
    assert loaded.refresh().code == 0
    (loaded.log / f"{1:020}.json").unlink()
    remedy = told(loaded.fault(), RESTORED)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()


def test_a_log_that_is_gone(loaded: Site) -> None:
    loaded.log.rename(loaded.folder / "elsewhere")
    told(loaded.fault(), NO_LOG)
    (loaded.folder / "elsewhere").rename(loaded.log)  # restored
    loaded.check()
    loaded.log.rename(loaded.folder / "lost")
    remedy = told(loaded.fault(), NO_LOG)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()
    loaded.log.rename(loaded.folder / "lost again")
    told(loaded.fault(), NO_LOG)
    loaded.table.rename(loaded.folder / "away")
    loaded.check()


def test_gc_without_a_log(loaded: Site) -> None:
    loaded.log.rename(loaded.folder / "elsewhere")
    ended = loaded.driftline("gc", "--all")
    assert ended.code
    text = "Restore the folder `_delta_log`, or move the table's folder away."
    assert told(text, text) in ended.err
    (loaded.folder / "elsewhere").rename(loaded.log)
    assert loaded.driftline("gc", "--all").code == 0


def test_another_program_wrote(loaded: Site) -> None:
    DeltaTable(str(loaded.table)).delete("id = 7")
    remedy = told(loaded.fault(), OTHERS)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()


def files(site: Site) -> list[Path]:
    return sorted(
        path for path in site.table.glob("**/*.parquet") if "_change_data" not in str(path)
    )


def test_data_files_that_are_gone(loaded: Site) -> None:
    loaded.sql("UPDATE orders SET note = 'x' WHERE id = 1")
    kept = loaded.folder / "kept"
    shutil.copytree(loaded.table, kept)
    for path in files(loaded):
        path.unlink()
    remedy = told(loaded.fault(), LOST)
    shutil.copytree(kept, loaded.table, dirs_exist_ok=True)  # restored
    loaded.check()
    for path in files(loaded):
        path.unlink()
    loaded.sql("UPDATE orders SET note = 'y' WHERE id = 2")
    remedy = told(loaded.fault(), LOST)
    assert loaded.run_as_printed(remedy).code == 0
    loaded.check()


@pytest.mark.parametrize("way", ["--repair", "refresh"])
def test_a_data_file_that_is_damaged(loaded: Site, way: str) -> None:
    loaded.sql("INSERT INTO orders SELECT id + 300, note, n FROM orders")
    assert loaded.refresh().code == 0
    path = Path(DeltaTable(str(loaded.table)).file_uris()[0])  # not one of a version before
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data) // 2):
        data[at] ^= 0xFF
    path.write_bytes(data)
    ended = loaded.driftline("verify", "orders", "--json")
    assert ended.code
    remedy = told(ended.error["remedy"], DAMAGED)
    if way == "--repair":
        assert loaded.run_as_printed(remedy).code == 0
        assert loaded.driftline("verify", "orders").code == 0
    loaded.check()


def test_a_fragment_key_that_is_gone(loaded: Site) -> None:
    (key,) = (loaded.folder / "warehouse" / "_driftline" / "keys").glob("orders.key")
    kept = key.read_bytes()
    key.unlink()
    told(loaded.fault(), "Restore …, or … for a new first load.")
    with mock.patch("warehouse_agent.spark.java._candidates", list):  # doctor starts no Spark
        shown = loaded.driftline("doctor").out
    assert told(f"Restore file://{key}.", "Restore ….") in shown
    key.write_bytes(kept)
    loaded.check()


def test_a_log_that_cannot_be_read(loaded: Site) -> None:
    entry = loaded.log / f"{0:020}.json"
    kept = entry.read_text()
    entry.write_text("{ no JSON")
    remedy = (
        "Check the folder and `path`. If the log is damaged: restore the table's folder, or move it"
        " away for a new first load."
    )
    told(loaded.fault(), remedy)
    entry.write_text(kept)  # restored
    loaded.check()
    entry.write_text("{ no JSON")
    told(loaded.fault(), remedy)
    loaded.table.rename(loaded.folder / "away")
    loaded.check()


def test_before_the_first_load(site: Site) -> None:
    ended = site.driftline("verify", "orders", "--json")
    remedy = told(ended.error["remedy"], "Run `driftline refresh …`.")
    assert site.run_as_printed(remedy).code == 0
    assert site.driftline("verify", "orders").code == 0


def test_nothing_answers(site: Site) -> None:
    site.stop()
    site.keep()
    told(site.fault(), "Check the address, the firewall and that `driftline-source serve` runs.")
    site.serve()
    site.check()


def test_a_name_that_is_not_served(site: Site) -> None:
    site.keep('relation = "order"')
    told(site.fault(), "Check the name, or ask the DBA to publish it to this certificate.")
    site.keep("")
    site.check()


def test_a_source_that_says_less(site: Site) -> None:
    """As one of another release: its error comes without a remedy."""
    site.keep('relation = "order"')
    with mock.patch.object(catalogue, "NotFound", lambda message, **_: NotFound(message)):
        told(site.fault(), "Check the name.")
    site.keep("")
    site.check()


def test_what_only_the_log_of_the_source_says(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.serve('table = "orders_"')
    remedy = told(
        site.fault(),
        "… the DBA: the log of the source's agent has the reason under ….",
    )
    reference = remedy.rstrip(".").rpartition(" ")[2]
    (line,) = [line for line in caplog.messages if line.startswith(f"refused, {reference}: ")]
    assert "Did you mean 'orders'?" in line
    site.serve('table = "orders"')
    site.check()


def test_a_version_that_there_is_not_yet(loaded: Site) -> None:
    store = Store(str(loaded.folder / "warehouse"))
    with pytest.raises(NotFound) as caught:
        head(store, "orders", version=1)
    told(caught.value, "Read that one, or one that `driftline history` lists.")
    newest = re.search(r"the newest is (\d+)", caught.value.message)
    assert newest is not None
    assert head(store, "orders", version=int(newest[1])) is not None
    listed = json.loads(loaded.driftline("history", "orders", "--json").out.splitlines()[0])
    found = head(store, "orders", version=listed["version"])
    assert found is not None
    assert found.version == listed["version"]


def test_a_paused_source(site: Site) -> None:
    site.serve(limits='pause_file = "PAUSE"')
    (site.folder / "PAUSE").touch()
    told(site.fault(), "Run the refresh again when she has removed the file.")
    (site.folder / "PAUSE").unlink()
    site.check()


def test_quiet_hours(site: Site) -> None:
    site.serve(limits='quiet_hours = ["00:00-12:00", "12:00-24:00"]')
    told(site.fault(), "Run the refresh again outside those hours.")
    site.serve()
    site.check()


def test_a_fragment_that_is_locked(site: Site) -> None:
    with Store(str(site.folder / "warehouse")).lock("orders"):
        told(site.fault(), "Run the command again when it has finished.")
    site.check()


def test_a_carrier_of_no_column(site: Site) -> None:
    site.keep('carriers = { nota = "string" }')
    remedy = told(site.fault(), "Its columns are: ….")
    assert "note" in remedy
    site.keep('carriers = { note = "string" }')
    site.check()


def test_a_value_that_spark_does_not_hold(site: Site) -> None:
    site.sql("CREATE TABLE days (id INTEGER PRIMARY KEY NOT NULL, d DATE)")
    site.sql("INSERT INTO days VALUES (1, '2026-01-01'), (2, 'infinity')")
    site.serve('table = "days"\ntypes = { d = "date" }')
    remedy = told(
        site.fault(),
        "Set carriers = {…} in its section [fragments.…] of warehouse.toml; if it has a version,"
        " refresh it with --accept-schema.",
    )
    site.keep(remedy.removeprefix("Set ").partition(" in its section")[0])
    assert site.refresh().code == 0


def test_a_reserved_column(site: Site) -> None:
    site.serve('query = "SELECT id, note AS _driftline_note FROM orders"\nkey = ["id"]\n'
               'types = { id = "int8", _driftline_note = "text" }')  # fmt: skip
    told(site.fault(), "Ask the DBA to serve it under another name.")
    site.serve('query = "SELECT id, note AS n FROM orders"\nkey = ["id"]\n'
               'types = { id = "int8", n = "text" }')  # fmt: skip
    assert site.refresh().code == 0


def test_a_key_that_is_null_or_twice(site: Site) -> None:
    site.sql("CREATE TABLE loose (a INT, b TEXT)")
    site.sql("INSERT INTO loose VALUES (1, 'x'), (1, 'y'), (NULL, 'z')")
    site.serve('table = "loose"\nkey = ["a"]')
    told(
        site.fault(),
        'Publish the relation with a key that is never NULL, or with a filter (`where = "… IS NOT'
        ' NULL"`).',
    )
    site.serve('table = "loose"\nkey = ["a"]\nwhere = "a IS NOT NULL"')
    told(site.fault(), "Ask the DBA to serve the relation with a key that is unique.")
    site.serve('table = "loose"\nkey = ["b"]')
    assert site.refresh().code == 0


def test_a_relation_that_is_never_scanned(site: Site) -> None:
    site.serve('table = "orders"\nscan = "never"\nrows_by_key = 1000')
    by_key = (
        "Refresh it by key (…). A first load and a complete refresh need a scan: ask the DBA for"
        " hours in which one may begin."
    )
    told(site.fault(), by_key)
    site.sql("INSERT INTO orders SELECT id + 1000, note, n FROM orders")
    site.sql(
        "INSERT INTO orders SELECT id + 2000, note, n FROM orders"
    )  # not all may be read by key
    site.serve('table = "orders"\nscan = ["00:00-12:00", "12:00-23:59"]')  # hours
    assert site.refresh().code == 0
    site.serve('table = "orders"\nscan = "never"\nrows_by_key = 1000')
    remedy = told(site.fault(), by_key)
    assert 'proof = "part"' in remedy
    site.keep('require = "fuzzy"\nproof = "part"\nread_at_most = 5000')
    remedy = told(site.fault(), "Set `read_at_most`, or `rows` of `incremental`, to at most ….")
    most = "".join(c for c in remedy.rpartition("most ")[2] if c.isdigit())
    site.keep(f'require = "fuzzy"\nproof = "part"\nread_at_most = {most}')
    assert site.refresh().code == 0


def test_tiles_and_parts_need_an_index(site: Site) -> None:
    site.sql("CREATE TABLE named (name TEXT NOT NULL, v INT)")
    site.sql("INSERT INTO named VALUES ('a', 1), ('b', 2)")
    site.serve('table = "named"\nkey = ["name"]')
    assert site.refresh().code == 0
    site.keep('require = "fuzzy"\nincremental = {}')
    told(
        site.fault(),
        "Remove `incremental` from the fragment, or ask the DBA for another key or an index"
        " (docs/dba/scans.md#in-tiles).",
    )
    site.keep("")
    assert site.refresh().code == 0
    site.sql("CREATE UNIQUE INDEX by_name ON named (name)")  # the other thing that it names
    site.keep('require = "fuzzy"\nincremental = {}')
    assert site.refresh().code == 0


def test_more_than_may_be_staged(site: Site) -> None:
    site.sql("UPDATE orders SET note = hex(randomblob(4000))")
    site.keep("staging_at_most = 1048576")
    remedy = told(
        site.fault(),
        "If the relation is that large, …; if it is not, check what runs at the source's address."
        " Nothing was published.",
    )
    assert "staging_at_most" in remedy
    site.keep("staging_at_most = 9000000")
    site.check()


def test_a_receipt(loaded: Site) -> None:
    receipt = loaded.folder / "receipt.json"
    assert loaded.driftline("receipt", "orders", "--output", str(receipt)).code == 0
    assert loaded.source("total", "--receipt", str(receipt)).code == 0
    loaded.serve('table = "orders"\ncolumns = ["id", "note"]')
    ended = loaded.source("total", "--receipt", str(receipt))
    text = "Have the warehouse refresh with --accept-schema and make a new receipt."
    assert told(text, text) in ended.err
    assert loaded.refresh("--accept-schema").code == 0
    assert loaded.driftline("receipt", "orders", "--output", str(receipt)).code == 0
    assert loaded.source("total", "--receipt", str(receipt)).code == 0


def test_names_on_the_command_line(loaded: Site) -> None:
    for words, text, mended in (
        (("gc", "--all", "orders"), "Leave out one of the two.", ("gc", "orders")),
        (("gc",), "Name some, or say --all.", ("gc", "--all")),
        (("refresh", "order"), "Did you mean …?", ("refresh", "orders")),
    ):
        ended = loaded.driftline(*words)
        assert ended.code == 2, ended
        shown = text.replace("…", "'orders'")
        assert told(shown, text) in ended.err
        assert loaded.driftline(*mended).code == 0
    file = loaded.folder / "warehouse.toml"
    kept = file.read_text()
    file.write_text(kept.partition("[fragments.orders]")[0])
    ended = loaded.driftline("refresh")
    assert told("Add one.", "Add one.") in ended.err
    file.write_text(kept)
    assert loaded.driftline("refresh").code == 0


def test_a_disk_that_refuses(loaded: Site) -> None:
    loaded.sql("UPDATE orders SET note = 'x' WHERE id = 1")
    if os.geteuid() == 0:  # root writes anywhere: a file stands where a folder is needed
        place = loaded.folder / "warehouse" / "_driftline" / "staging"
        shutil.rmtree(place, ignore_errors=True)
        place.write_text("in the way")
        remedy = told(
            loaded.fault(), "Check space and permissions; the last published version is untouched."
        )
        assert remedy
        place.unlink()
    loaded.check()


def test_a_source_that_serves_nothing_to_us(site: Site) -> None:
    site.serve('table = "orders"\nallow = ["somebody.else"]')
    file = site.folder / "first.toml"
    port = str(site.port)
    words = ("init", "--source", f"127.0.0.1:{port}", "--insecure")
    ended = site.driftline(*words, config=file)
    text = "Ask its DBA: [relations.NAME] and `allow` in source.toml."
    assert told(text, text) in ended.err
    site.serve('table = "orders"')
    words = ("init", "--source", f"127.0.0.1:{site.port}", "--insecure")
    assert site.driftline(*words, config=file).code == 0
    assert "[fragments.orders]" in file.read_text()


def test_a_part_that_is_too_small(loaded: Site) -> None:
    loaded.keep('require = "fuzzy"\nread_at_most = 1000')
    loaded.sql("WITH RECURSIVE i(x) AS (SELECT 301 UNION ALL SELECT x + 1 FROM i WHERE x < 9000)"
               " INSERT INTO orders SELECT x, 'new', 0 FROM i")  # fmt: skip
    remedy = "Raise `read_at_most` of the fragment, or remove it for one complete refresh."
    told(loaded.fault(), remedy)
    loaded.keep('require = "fuzzy"\nread_at_most = 20000')
    assert loaded.refresh().code == 0
    loaded.keep("")
    loaded.check()


def test_a_key_that_cannot_be_looked_up(loaded: Site) -> None:
    loaded.sql("CREATE TABLE coded (code REAL NOT NULL PRIMARY KEY, v INT)")
    loaded.sql("INSERT INTO coded VALUES (0.5, 1), (1.5, 2)")
    loaded.serve('table = "coded"\nscan = "never"')
    remedy = "Remove the setting, or choose a key with a unique index (docs/dba/scans.md#in-tiles)."
    checked = loaded.source("check")
    assert checked.code == 1
    assert told(remedy, remedy) in checked.out + checked.err
    loaded.serve('table = "coded"')
    assert loaded.source("check").code == 0
    loaded.serve('table = "orders"\nscan = "never"')
    assert loaded.source("check").code == 0


@pytest.mark.starts
def test_two_agents_at_one_address(site: Site) -> None:
    file = site.folder / "source.toml"
    text = file.read_text()
    file.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{site.port}"))
    # In a process of its own: it gives way to all others for as long as it lives.
    words = [sys.executable, "-m", "source_agent.cli", "--config", str(file), "serve"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    remedy = "Is another agent running, or is it an address of another machine?"
    assert ended.returncode
    assert told(remedy, remedy) in ended.stderr
    site.stop()
    file.write_text(text)
    site.serve()
    site.check()
