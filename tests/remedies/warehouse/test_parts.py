"""Remedies of a fragment that is compared in part or in tiles: with what each says, it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from driftline.limits import KEY_BYTES_MAX

from source_agent.engines.interface import Capabilities
from source_agent.engines.sqlite.session import SqliteSession
from source_agent.scan.reader import Reader
from tests.remedies.site import Site
from tests.remedies.told import told
from warehouse_agent.methods.groups import key_parts
from warehouse_agent.planning import group_selection
from warehouse_agent.planning import group_shards as planning
from warehouse_agent.transport import channel

pytestmark = pytest.mark.starts

PART = 'require = "fuzzy"\nread_at_most = {}'
TILES = 'require = "fuzzy"\nincremental = {{ rows = {}, pause_s = 0.001 }}'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


def serve(site: Site, key: str, expression: str, *lines: str) -> None:
    """Serve a table `t` of 3,000 rows, whose key is an expression over `x`, and load it."""
    site.sql(f"CREATE TABLE t (k {key}, v INTEGER)")
    site.sql("WITH RECURSIVE i(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i WHERE x < 3000)"
             f" INSERT INTO t SELECT {expression}, 0 FROM i")  # fmt: skip
    site.serve("\n".join(('table = "t"', 'key = ["k"]', *lines)))
    well(site, "")


def well(site: Site, fragment: str) -> None:
    """Refresh with these lines of the fragment, which must go well."""
    site.keep(fragment)
    ended = site.refresh()
    assert ended.code == 0, ended


def test_keys_without_an_order(site: Site) -> None:
    serve(site, "REAL PRIMARY KEY NOT NULL", "x / 7.0")
    site.keep(PART.format(1000) + '\nproof = "part"')
    told(site.fault(), 'Remove `read_at_most` and `proof = "part"` from the fragment.')
    well(site, "")
    site.keep(TILES.format(1000))
    told(site.fault(), "Remove `incremental` from the fragment.")
    well(site, "")
    site.keep('method = "group"')
    with mock.patch.object(group_selection, "GROUPED_KEYS_MAX", 100):
        told(site.fault(), "Change `method` of the fragment: a sketch has no such limit.")
        well(site, 'method = "sketch"')


def test_keys_without_an_index(site: Site) -> None:
    serve(site, "TEXT NOT NULL", "printf('n%04d', x)")
    site.keep(PART.format(1000))
    remedy = (
        'Remove `proof = "part"` and `read_at_most` from the fragment, or ask the DBA for another'
        " key or an index (docs/dba/budgets.md#hours-for-scans)."
    )
    told(site.fault(), remedy)
    well(site, "")
    site.sql("CREATE UNIQUE INDEX by_key ON t (k)")
    well(site, PART.format(1000))


def test_integers_without_an_index(site: Site) -> None:
    serve(site, "INT NOT NULL", "x")
    site.keep(PART.format(1000))
    told(site.fault(), "Remove `read_at_most` from the fragment, or ask the DBA for an index.")
    well(site, "")
    site.sql("CREATE UNIQUE INDEX by_key ON t (k)")
    well(site, PART.format(1000))


def test_keys_of_too_many_bytes(site: Site) -> None:
    """The limits are made small, not the keys many."""
    serve(site, "TEXT PRIMARY KEY NOT NULL", "printf('n%04d', x)")
    with mock.patch.object(key_parts, "NAMED_BYTES_MAX", 20_000):
        site.keep(PART.format(2900))
        told(site.fault(), "Set `read_at_most` of the fragment to fewer rows.")
        well(site, PART.format(1000))
    site.sql(f"INSERT INTO t VALUES ('{'y' * (KEY_BYTES_MAX + 1)}', 0)")
    site.keep("")
    told(site.fault(), "Publish the relation with a shorter key.")
    site.sql("ALTER TABLE t ADD COLUMN short INT")
    site.sql("UPDATE t SET short = rowid")
    site.serve('table = "t"\nkey = ["short"]\nas_text = ["short"]')
    assert site.refresh("--accept-schema").code == 0


def test_rows_that_no_shard_holds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some keys are far longer than others, and what an exchange may name is made small."""
    for name, value in (("KEYS_MAX", 1000), ("NAMED_BYTES_MAX", 30_000)):
        monkeypatch.setattr(planning, name, value)
    serve(
        site,
        "TEXT PRIMARY KEY NOT NULL",
        "printf('n%04d', x) || CASE WHEN x / 40 = 50 THEN hex(zeroblob(3900)) ELSE '' END",
    )
    fewer = "Set `read_at_most` of the fragment to fewer rows, or change its `method`."
    site.keep('method = "group"')
    told(site.fault(), fewer)
    well(site, 'method = "sketch"')
    site.keep(PART.format(2900))
    told(site.fault(), fewer)
    well(site, PART.format(1000))


def test_an_engine_that_looks_up_no_texts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another package may be."""
    serve(site, "TEXT PRIMARY KEY NOT NULL", "printf('n%04d', x)")

    def fewer(session: SqliteSession) -> Capabilities:
        return replace(every.__get__(session), read_keys=None)

    every = SqliteSession.capabilities
    monkeypatch.setattr(SqliteSession, "capabilities", property(fewer))
    site.keep(PART.format(1000))
    told(site.fault(), "Use `incremental`, or ask the DBA for hours in which a scan may begin.")
    well(site, TILES.format(1000))
    well(site, "")


def test_tiles_of_more_rows_than_the_dba_allows(site: Site) -> None:
    serve(site, "INTEGER PRIMARY KEY NOT NULL", "2 * x", "rows_by_key = 1500")
    site.keep(TILES.format(1500))
    remedy = (
        "Set `rows` of `incremental` to less, or refresh it once by a scan, if the source has many"
        " new rows."
    )
    told(site.fault(), remedy)
    well(site, TILES.format(1000))
    site.sql("INSERT INTO t SELECT k + 10000, 0 FROM t")
    told(site.fault(), remedy)
    well(site, "")
    well(site, TILES.format(1000))


def test_a_source_that_says_too_late_what_it_allows(site: Site) -> None:
    """Its DBA changed it after the warehouse asked; else the warehouse refuses such a refresh."""
    serve(site, "INTEGER PRIMARY KEY NOT NULL", "x")
    with mock.patch.object(channel, "allowances", return_value={}):
        site.serve('table = "t"\nscan = "never"')
        told(
            site.fault(),
            "Please …. A first load and a complete refresh need a scan: ask the DBA for hours in"
            " which one may begin.",
        )
        well(site, PART.format(1000))
        well(site, TILES.format(1000))
        site.keep("")
        now = datetime.now().astimezone()
        ahead = [f"{now + timedelta(hours=h):%H:%M}" for h in (2, 3)]
        site.serve(f'table = "t"\nscan = ["{"-".join(ahead)}"]')
        told(site.fault(), "Run the refresh again then, or ….")
        well(site, PART.format(1000))
        open_now = [f"{now + timedelta(hours=h):%H:%M}" for h in (-2, 2)]
        site.serve(f'table = "t"\nscan = ["{"-".join(open_now)}"]')
        well(site, "")
        site.serve('table = "t"\nrows_by_key = 1500')
        site.keep(PART.format(2000))
        remedy = told(site.fault(), "Set `read_at_most` of the fragment to at most ….")
        well(site, PART.format(remedy.rpartition(" ")[2].rstrip(".")))


def test_rows_of_different_instants(site: Site) -> None:
    serve(site, "INTEGER PRIMARY KEY NOT NULL", "x")
    site.sql("UPDATE t SET v = 5 WHERE k = 7")
    with (  # as a source says that did not notice it before it had sent the rows
        mock.patch.object(Reader, "changed", True),
        mock.patch.object(Reader, "check_snapshot", return_value=None),
    ):
        told(site.fault(), "Run the refresh again, at a quieter time, or …")
        well(site, 'require = "fuzzy"')
    site.keep("")
    site.check("t")
    site.url = f"generic+sqlite:///{site.folder / 'erp.db'}"
    site.serve()
    site.sql("UPDATE t SET v = 6 WHERE k = 7")
    told(site.fault("--accept-schema"), "If rows of different instants are good enough, …")
    site.keep('require = "fuzzy"')
    assert site.refresh("--accept-schema").code == 0
