"""Both TOML files: the examples of the README as they stand, every refusal, every default."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import ConfigurationError, DriftlineError, UsageError

from source_agent.config import file as source
from source_agent.engines.interface import Limits
from source_agent.engines.relations.shapes import Fingerprint, Relation
from warehouse_agent import config as warehouse
from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.timetable.timing import Timing, TimingPolicy

SOURCE = """
[database]
url = "postgresql+psycopg://reader@/erp"
password_file = "reader.password"
[server]
listen = "0.0.0.0:7443"
certificate = "source.pem"
key = "source.key"
client_ca = "ca.pem"
[relations.orders]
table = "public.orders"
key = ["o_orderkey"]
columns = ["o_orderkey", "o_totalprice"]
"""
WAREHOUSE = """
[warehouse]
path = "warehouse"
[spark]
"spark.master" = "local[*]"
[sources.erp]
address = "erp.example:7443"
ca = "ca.pem"
certificate = "warehouse.pem"
key = "warehouse.key"
[fragments.orders]
source = "erp"
relation = "orders"
"""
LOOPBACK = (
    '[database]\nurl = "sqlite:///erp.db"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
)


@pytest.fixture(autouse=True)
def password(tmp_path: Path) -> None:
    path = tmp_path / "reader.password"
    path.touch(0o600)
    path.write_text("hidden\n")


def load_source(tmp_path: Path, text: str) -> source.SourceConfig:
    path = tmp_path / "source.toml"
    path.write_text(text)
    return source.load(path)


def load_warehouse(tmp_path: Path, text: str) -> warehouse.WarehouseConfig:
    path = tmp_path / "warehouse.toml"
    path.write_text(text)
    return warehouse.load(path)


def test_the_dbas_file(tmp_path: Path) -> None:
    config = load_source(tmp_path, SOURCE)
    assert config.database.url == "postgresql+psycopg://reader@/erp"
    assert config.database.password == "hidden"
    assert "hidden" not in repr(config)
    assert config.database.limits == Limits(None, 5.0, 120.0, 10.0)
    assert config.server.address == "0.0.0.0:7443"
    assert config.server.certificates == source.Certificates(
        tmp_path / "source.pem", tmp_path / "source.key", tmp_path / "ca.pem"
    )
    assert config.budget == source.Budget()
    published = config.relations["orders"]
    assert published.scan is None
    assert published.relation == Relation(
        "orders",
        table="public.orders",
        key=("o_orderkey",),
        columns=("o_orderkey", "o_totalprice"),
    )
    assert published.admits(frozenset())


def test_every_setting_of_the_dbas_file(tmp_path: Path) -> None:
    text = """
[database]
url = "sqlite:///data/erp.db"
statement_timeout_s = 600
lock_timeout_s = 1.5
idle_timeout_s = 60
connect_timeout_s = 3
[server]
listen = "[::1]:7443"
insecure = true
audit_file = "audit.jsonl"
[limits]
scans_at_once = 1
readers = 3
rows_per_second = 1000
bytes_per_second = 1e6
pause_file = "pause"
quiet_hours = ["08:00-18:00", "22:30-06:00", "18:00-24:00"]
snapshot_seconds = 300
[relations."o 1"]
query = "SELECT 1 AS a"
key = ["a"]
as_text = ["b"]
types = {a = "int8", c = "numeric(15,2)"}
fingerprint = "database"
scan = ["22:00-05:00", "12:00-13:00"]
rows_by_key = 50000
allow = ["spiffe://driftline/warehouse/lake"]
"""
    config = load_source(tmp_path, text)
    assert config.database.url == f"sqlite:///{tmp_path}/data/erp.db"
    assert config.database.limits == Limits(600.0, 1.5, 60.0, 3.0)
    assert config.server.certificates is None
    assert config.server.address == "[::1]:7443"
    assert config.server.audit_file == tmp_path / "audit.jsonl"
    budget = config.budget
    assert (budget.scans_at_once, budget.rows_per_second, budget.bytes_per_second) == (1, 1000, 1e6)
    assert (budget.readers, source.Budget().readers) == (3, 1)
    assert (budget.pause_file, budget.snapshot_s) == (tmp_path / "pause", 300)
    hours = [str(span) for span in budget.quiet_hours]
    assert hours == ["08:00-18:00", "22:30-06:00", "18:00-24:00"]
    published = config.relations["o 1"]
    assert published.relation.types == (("a", "int8"), ("c", "numeric(15,2)"))
    assert published.relation.fingerprint is Fingerprint.DATABASE
    assert published.relation.as_text == ("b",)
    assert published.relation.rows_by_key == 50_000
    assert published.scan is not None
    assert str(published.scan) == "22:00-05:00, 12:00-13:00"
    assert not published.admits(frozenset({"spiffe://driftline/warehouse/other"}))
    assert published.admits(frozenset({"x", "spiffe://driftline/warehouse/lake"}))


def test_a_pooler_is_declared_for_postgresql_alone(tmp_path: Path) -> None:
    rest = '[server]\nlisten = "127.0.0.1:1"\ninsecure = true\n'
    for pooler in (True, False):
        text = f'[database]\nurl = "postgresql://a@b/c"\npooler = {str(pooler).lower()}\n{rest}'
        assert load_source(tmp_path, text).database.pooler is pooler
    with pytest.raises(ConfigurationError, match="for PostgreSQL only") as caught:
        load_source(tmp_path, f'[database]\nurl = "mysql://a@b/c"\npooler = true\n{rest}')
    assert caught.value.where == "source.toml: database.pooler"


_JOINED = 'query = "SELECT a.x AS x FROM a JOIN b ON a.x = b.x'


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        ('listen = "0.0.0.0:1"\ninsecure = true', "server.insecure", "loopback only"),
        ('listen = "localhost:1"\ninsecure = true\nkey = "k"', "server.key", "no effect"),
        ('listen = "127.0.0.1:1"\ncertificate = "a"\nkey = "b"', "server.client_ca", "missing"),
        ('listn = "127.0.0.1:1"', "server.listn", "'listen'"),
        ('listen = "127.0.0.1"', "server.listen", "HOST:PORT"),
    ],
)
def test_the_server_table(tmp_path: Path, change: str, where: str, says: str) -> None:
    text = f'[database]\nurl = "sqlite:///x.db"\n[server]\n{change}\n'
    with pytest.raises(ConfigurationError) as caught:
        load_source(tmp_path, text)
    assert caught.value.where == f"source.toml: {where}"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("line", "where", "says"),
    [
        ("", "relations.r", "none is given"),
        ('table = "t"\nquery = "SELECT 1"', "relations.r", "table and query are given"),
        ('files = "t-*"\nquery = "SELECT 1"', "relations.r", "query and files are given"),
        ('files = "t-*"\nformat = "t.toml"', "relations.r.complete", "none is given"),
        (
            'files = "t-*"\nformat = "t.toml"\ncomplete = "{file}.done"\nsettle_s = 3',
            "relations.r.complete",
            "both are given",
        ),
        ('files = "t-*"\nsettle_s = 3', "relations.r.format", "missing"),
        ('files = "t-*"\nformat = "t.toml"\nsettle_s = 0', "relations.r.settle_s", "more than 0"),
        (
            'files = "t-*"\nformat = "t.toml"\nsettle_s = 3',
            "relations.r.files",
            "sqlite has tables and queries",
        ),
        ('table = "t"\nsettle_s = 3', "relations.r.settle_s", "for `files` only"),
        ('query = "SELECT 1"\nwhere = "x"', "relations.r.where", "for `table` only"),
        ('table = "t"\nkey = []', "relations.r.key", "empty list"),
        ('table = "t"\nkey = ["ident"]\ncolumns = ["idents"]', "relations.r.key", "'idents'"),
        ('table = "t"\ntypes = {a = "integer"}', "relations.r.types.a", "declared type"),
        ('table = "t"\nfingerprint = "databse"', "relations.r.fingerprint", "'database'"),
        ('table = "t"\nallowed = ["x"]', "relations.r.allowed", "'allow'"),
        ('table = "t"\nscan = []', "relations.r.scan", "empty list"),
        ('table = "t"\nscan = "nevr"', "relations.r.scan", '"never"'),
        ('table = "t"\nscan = true', "relations.r.scan", "must be a list"),
        ('table = "t"\nscan = [5]', "relations.r.scan", "Item 1 must be a string"),
        ('table = "t"\nscan = ["22-5"]', "relations.r.scan", "'22-5' is not a time span"),
        ('table = "t"\nscan = ["22:00-22:00"]', "relations.r.scan", "not a time span"),
        (
            'table = "t"\nscan = ["22:00-05:00", "04:59-06:00"]',
            "relations.r.scan",
            "22:00-05:00 and 04:59-06:00 overlap",
        ),
        ('table = "t"\nscan = ["00:00-12:00", "12:00-24:00"]', "relations.r.scan", "whole day"),
        ('table = "t"\nrows_by_key = 0', "relations.r.rows_by_key", "at least 1000"),
        ('table = "t"\nrows_by_key = "all"', "relations.r.rows_by_key", "an integer"),
        ('table = "t"\nmarker = "at"', "relations.r.marker", "a table"),
        ('table = "t"\nmarker = {}', "relations.r.marker.column", "missing"),
        ('table = "t"\nmarker = { colum = "at" }', "relations.r.marker.colum", "'column'"),
        ('table = "t"\nmarker = { column = "at", late = "0s" }', "relations.r.marker.late", "15m"),
        ('table = "t"\nmarker = { column = "at", late = 5 }', "relations.r.marker.late", "string"),
        ('table = "t"\nmarker = { column = "at", zone = "No" }', "relations.r.marker.zone", "UTC"),
        ('table = "t"\nmarker = { xmin = true, late = "1m" }', "relations.r.marker.late", "beside"),
        ('table = "t"\nmarkers = { t = { column = "at" } }', "relations.r.markers", "query"),
        (f'{_JOINED} LEFT JOIN c ON true"\nmarkers = {{}}', "relations.r.markers", "LEFT"),
        (f'{_JOINED}"\nmarkers = {{ a = {{ column = "x" }} }}', "relations.r.markers", "'b'"),
        (
            f'{_JOINED}"\nmarkers = {{ c = {{ column = "x" }} }}',
            "relations.r.markers.c",
            "no such table",
        ),
        (
            f'{_JOINED}"\nmarkers = {{ a = {{ column = "x" }}, b = {{ column = "x" }} }}',
            "relations.r.markers.b.column",
            "plain column of b",
        ),
        (
            f'{_JOINED}"\nmarkers = {{ a = {{ column = "x", xmin = true }}, b = {{}} }}',
            "relations.r.markers.a.xmin",
            "'xmin'",
        ),
        (
            'table = "t"\nmarker = { checksum = "sum", late = "1m" }',
            "relations.r.marker.late",
            "beside",
        ),
        (
            'table = "t"\nmarker = { versioned = true, column = "at" }',
            "relations.r.marker.column",
            "beside",
        ),
        ("[limits]\nscans_at_once = 0", "limits.scans_at_once", "at least 1"),
        ("[limits]\nreaders = 0", "limits.readers", "at least 1"),
        ('[limits]\nquiet_hours = ["8-18"]', "limits.quiet_hours", "08:00-18:00"),
        ('[limits]\nquiet_hours = ["08:00-08:00"]', "limits.quiet_hours", "not a time span"),
        ('[limits]\nquiet_hours = ["08:00-25:00"]', "limits.quiet_hours", "not a time span"),
        ("[limit]\nrows_per_second = 1", "limit", "'limits'"),
    ],
)
def test_refusals_of_the_dbas_file(tmp_path: Path, line: str, where: str, says: str) -> None:
    header = "" if line.startswith("[") else "[relations.r]\n"
    with pytest.raises(ConfigurationError) as caught:
        load_source(tmp_path, LOOPBACK + header + line)
    assert caught.value.where == f"source.toml: {where}"
    assert says in str(caught.value)


def test_a_url_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a database URL"):
        load_source(tmp_path, LOOPBACK.replace("sqlite:///erp.db", "erp"))


def test_the_data_engineers_file(tmp_path: Path) -> None:
    config = load_warehouse(tmp_path, WAREHOUSE)
    assert config.path == str(tmp_path / "warehouse")
    assert (config.ahead, config.sources_at_once) == (4, 4)
    assert config.spark == {"spark.master": "local[*]"}
    for holder in (config, DeferredSession.of(config)):
        assert "local[*]" not in repr(holder), "settings of Spark may hold keys of a store"
    erp = warehouse.Source(
        "erp",
        "erp.example:7443",
        ca=tmp_path / "ca.pem",
        certificate=tmp_path / "warehouse.pem",
        key=tmp_path / "warehouse.key",
    )
    assert config.sources == {"erp": erp}
    assert config.fragments == {"orders": warehouse.Fragment("orders", erp, "orders")}


def test_every_setting_of_the_data_engineers_file(tmp_path: Path) -> None:
    text = """
[warehouse]
path = "s3a://lake/erp"
ahead = "all"
sources_at_once = 9
[sources.erp]
address = "[::1]:7443"
insecure = true
[fragments."a.b-c_1"]
source = "erp"
carriers = {price = "string", day = "native"}
method = "full"
require = "fuzzy"
priority = -3
"""
    config = load_warehouse(tmp_path, text)
    assert config.path == "s3://lake/erp"
    assert (config.ahead, config.sources_at_once) == (None, 9)
    fragment = config.fragments["a.b-c_1"]
    assert fragment.relation == "a.b-c_1"
    assert fragment.priority == -3
    assert fragment.carriers == {"price": Carrier.STRING, "day": Carrier.NATIVE}
    assert (fragment.method, fragment.require) == (Method.FULL, warehouse.Require.FUZZY)
    assert fragment.source == warehouse.Source("erp", "[::1]:7443", insecure=True)
    assert fragment.incremental is None
    assert fragment.staging_at_most is None
    tiled = text.replace("full", "range")
    config = load_warehouse(tmp_path, f"{tiled}staging_at_most = 3000000\n")
    assert config.fragments["a.b-c_1"].staging_at_most == 3_000_000
    for value, expected in (
        ("{}", PassSettings(100_000, 0.5)),
        ("{rows = 5000, pause_s = 2}", PassSettings(5000, 2)),
        ('{pause_s = "auto"}', PassSettings(100_000, 0.5, adapts=True)),
    ):
        config = load_warehouse(tmp_path, f"{tiled}incremental = {value}\n")
        assert config.fragments["a.b-c_1"].incremental == expected


def test_the_weakest_proof(tmp_path: Path) -> None:
    assert [*warehouse.Proof] == sorted(warehouse.Proof)
    part, keys, total = warehouse.Proof.PART, warehouse.Proof.KEYS, warehouse.Proof.TOTAL
    for lines, expected in (
        ("", total),
        ('require = "fuzzy"', total),
        ('proof = "total"', total),
        ('proof = "keys"', keys),
        ('proof = "keys"\naudit = "12h"\nmethod = "since"', keys),
        ('require = "fuzzy"\nproof = "part"', part),
        ('require = "fuzzy"\nread_at_most = 5000', part),
        ('require = "fuzzy"\nread_at_most = 5000\nproof = "part"', part),
    ):
        config = load_warehouse(tmp_path, f"{WAREHOUSE}{lines}\n")
        assert config.fragments["orders"].proof is expected, lines


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ('source = "erp"', 'source = "erb"', "fragments.orders.source", "'erp'"),
        ('source = "erp"', "", "fragments.orders.source", "missing"),
        ("[fragments.orders]", '[fragments."../x"]', 'fragments."../x"', "cannot name"),
        ("[fragments.orders]", '[fragments."-x"]', "fragments.-x", "cannot name"),
        ("[fragments.orders]", "[fragments._Driftline]", "fragments._Driftline", "own"),
        ('relation = "orders"', 'method = "rang"', "fragments.orders.method", "'range'"),
        ('relation = "orders"', 'require = "x"', "fragments.orders.require", "exact, fuzzy"),
        ('relation = "orders"', "read_at_most = 5000", "fragments.orders.read_at_most", "fuzzy"),
        ('relation = "orders"', 'proof = "parts"', "fragments.orders.proof", "part, keys, total"),
        ('relation = "orders"', 'proof = "part"', "fragments.orders.proof", 'require = "fuzzy"'),
        (
            'relation = "orders"',
            'read_at_most = 5000\nrequire = "fuzzy"\nproof = "keys"',
            "fragments.orders.proof",
            "only the rows that it compared",
        ),
        (
            'relation = "orders"',
            'read_at_most = 5000\nrequire = "fuzzy"\nmethod = "range"',
            "fragments.orders.read_at_most",
            "leave out",
        ),
        (
            'relation = "orders"',
            'read_at_most = 10\nrequire = "fuzzy"',
            "fragments.orders.read_at_most",
            "1000",
        ),
        ('relation = "orders"', "carriers = {a = 1}", "fragments.orders.carriers.a", "a string"),
        ('relation = "orders"', "staging_at_most = 1000", "fragments.orders.staging_at_most",
         "1048576"),
        ('relation = "orders"', "incremental = {}", "fragments.orders.incremental", "instants"),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = true',
         "fragments.orders.incremental", "a table"),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = {row = 9}',
         "fragments.orders.incremental.row", "'rows'"),
        ('relation = "orders"', 'audit = "7d"', "fragments.orders.audit", "keys"),
        ('relation = "orders"', 'method = "since"', "fragments.orders.method", "keys"),
        ('relation = "orders"', 'proof = "keys"\naudit = "week"', "fragments.orders.audit",
         "no duration"),
        ('relation = "orders"', 'proof = "keys"\nmethod = "group"', "fragments.orders.proof",
         "Groups compare every row"),
        ('relation = "orders"', 'require = "fuzzy"\nproof = "keys"\nincremental = {}',
         "fragments.orders.proof", "tiles"),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = {rows = 0}',
         "fragments.orders.incremental.rows", "at least 1"),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = {pause_s = -1}',
         "fragments.orders.incremental.pause_s", "more than 0"),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = {pause_s = "slow"}',
         "fragments.orders.incremental.pause_s", '"auto"'),
        ('relation = "orders"', 'require = "fuzzy"\nincremental = {}\nmethod = "sketch"',
         "fragments.orders.method", "by ranges"),
        (
            'relation = "orders"', 'carriers = {a = "text"}', "fragments.orders.carriers.a",
            "native, string",
        ),
        ('key = "warehouse.key"', "insecure = true", "sources.erp.insecure", "loopback only"),
        ("erp.example:7443", "erp.example:0", "sources.erp.address", "Port 0"),
        ('path = "warehouse"', 'path = "w"\nsmall_bytes = -1', "warehouse.small_bytes",
         "at least 0"),
        ('path = "warehouse"', 'path = "w"\nsmall_bytes = "1M"', "warehouse.small_bytes",
         "must be an integer"),
        ('path = "warehouse"', 'path = "w"\nahead = 0', "warehouse.ahead", "at least 1"),
        ('path = "warehouse"', 'path = "w"\nahead = 1.5', "warehouse.ahead", "must be an integer"),
        ('path = "warehouse"', 'path = "w"\nahead = true', "warehouse.ahead", "must be an integer"),
        ('path = "warehouse"', 'path = "w"\nahead = "most"', "warehouse.ahead",
         """'most' is neither a number of fragments nor "all".""" ),
        ('path = "warehouse"', 'path = "w"\nsources_at_once = 0', "warehouse.sources_at_once",
         "at least 1"),
        ('path = "warehouse"', 'path = "w"\nsources_at_once = "all"', "warehouse.sources_at_once",
         "must be an integer"),
        ('path = "warehouse"', 'path = "w"\nexecutors_wait_s = 0', "warehouse.executors_wait_s",
         "more than 0"),
        ('path = "warehouse"', 'path = "w"\nexecutors_wait_s = "2m"', "warehouse.executors_wait_s",
         "must be a number"),
        ('relation = "orders"', 'priority = "high"', "fragments.orders.priority",
         "must be an integer"),
        ('relation = "orders"', 'priority = 1.0', "fragments.orders.priority",
         "must be an integer"),
        ('path = "warehouse"', 'pth = "w"', "warehouse.pth", "'path'"),
        ('path = "warehouse"', 'path = "lake[1]"', "warehouse.path", "lake[1] holds [ ]"),
        ('path = "warehouse"', 'path = "s3a://lake/a%20b"', "warehouse.path", "part 'a%20b'"),
        ("[warehouse]\npath", "[spark.x]\npath", "", "[warehouse]"),
        ('"local[*]"', "4", 'spark.spark.master', "a string"),
        ("[fragments.orders]", '[fragments.ORDERS]\nsource="erp"\n[fragments.orders]', "fragments",
         "differ only in case"),
    ],
)  # fmt: skip
def test_refusals_of_the_data_engineers_file(
    tmp_path: Path, old: str, new: str, where: str, says: str
) -> None:
    assert old in WAREHOUSE
    with pytest.raises(ConfigurationError) as caught:
        load_warehouse(tmp_path, WAREHOUSE.replace(old, new))
    assert caught.value.where == ": ".join(p for p in ("warehouse.toml", where) if p)
    assert says in str(caught.value)


BUCKET = WAREHOUSE.replace('"warehouse"', '"s3://lake"') + "[storage]\nendpoint = '{}'\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (WAREHOUSE.replace('"warehouse"', '"s3a://key:hidden@lake/erp"'), "warehouse.path"),
        (WAREHOUSE.replace('"warehouse"', '"s3://hidden@lake"'), "warehouse.path"),
        (BUCKET.format("https://key:hidden@store.example"), "storage.endpoint"),
        (BUCKET.format("https://:hidden@store.example"), "storage.endpoint"),
        (BUCKET.format("ftp://key:hidden@store.example"), "storage.endpoint"),
        (BUCKET.format("https://store.example/?secret=hidden"), "storage.endpoint"),
        (WAREHOUSE.replace("erp.example:7443", "me:hidden@erp:7443"), "sources.erp.address"),
        (WAREHOUSE + '[metrics]\nlisten = "me:hidden@127.0.0.1:1"\n', "metrics.listen"),
    ],
)
def test_no_error_shows_a_secret_of_an_address(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_warehouse(tmp_path, text)
    assert caught.value.where == f"warehouse.toml: {where}"
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["https://[store", "https://store:99999", "https://store:0"])
def test_an_endpoint_that_is_no_address(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        load_warehouse(tmp_path, BUCKET.format(endpoint))


TIMED = WAREHOUSE.replace(
    'address = "erp.example:7443"',
    """address = "erp.example:7443"
time_zone = "Europe/Vienna"
refresh_hours = ["20:00-06:00", "Sat,Sun 06:00-20:00"]""",
)


def test_every_setting_of_timing(tmp_path: Path) -> None:
    text = """
interval_max = "2d"
interval_min = "15m"
policy = "optimal"
weights = { "Mon-Fri 09:00-18:00" = 4, "Sat,Sun" = 0.5 }
weights_by_change = { update = 0.2, delete = 5 }
time_zone = "Asia/Tokyo"
"""
    view = '[views.v]\nquery = "SELECT 1"\nfreshness = "1h"\n'
    config = load_warehouse(tmp_path, f"{TIMED}refreshes_per_day = 2{text}{view}")
    source, timing = config.sources["erp"], config.fragments["orders"].timing
    assert source.time_zone == "Europe/Vienna"
    assert [str(span) for span in source.refresh_hours] == [
        "Mon,Tue,Wed,Thu,Fri,Sat,Sun 20:00-06:00", "Sat,Sun 06:00-20:00",
    ]  # fmt: skip
    assert timing is not None
    assert timing.policy is TimingPolicy.OPTIMAL
    assert [(str(span), w) for span, w in timing.weights] == [
        ("Mon,Tue,Wed,Thu,Fri 09:00-18:00", 4), ("Sat,Sun", 0.5),
    ]  # fmt: skip
    assert timing.by_change == (1.0, 0.2, 5.0)
    assert (timing.by, timing.zone, timing.refreshes_per_day) == ("orders", "Asia/Tokyo", 2)
    assert (timing.interval_min_s, timing.interval_max_s) == (900, 172_800)
    assert config.fragments["orders"].time_zone == "Asia/Tokyo"
    assert config.views["v"].timing == Timing("v", freshness_s=3600, zone="")
    plain = load_warehouse(tmp_path, TIMED)
    assert plain.fragments["orders"].timing is None
    assert plain.fragments["orders"].time_zone == "Europe/Vienna"
    daily = load_warehouse(tmp_path, f'{TIMED}freshness = "14h"\n').fragments["orders"]
    assert daily.timing == Timing("orders", freshness_s=14 * 3600, zone="Europe/Vienna")


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ('freshness = "1x"', "freshness", "no duration"),
        ('freshness = "0s"', "freshness", "no duration"),
        ('freshness = "20h"\nrefreshes_per_day = 2', "refreshes_per_day", "beside `freshness`"),
        ('freshness = "2d"', "freshness", "longer than `interval_max`, 1d"),
        ('freshness = "15h"\ninterval_min = "16h"', "freshness", "`interval_min` is 16h"),
        ('freshness = "13h"', "freshness", "closed for 14h"),
        ('freshness = "20h"\npolicy = "optimal"', "policy", "`freshness` has none"),
        ("refreshes_per_day = 0.5", "refreshes_per_day", "Set `interval_max` to 2d"),
        ('refreshes_per_day = 30\ninterval_min = "1h"', "refreshes_per_day", "one every 1h"),
        ("refreshes_per_day = 0", "refreshes_per_day", "more than 0"),
        ("refresh_worth = -1", "refresh_worth", "more than 0"),
        ('interval_min = "2d"', "interval_min", "longer than `interval_max`, 1d"),
        ('policy = "optimum"', "policy", "'optimal'"),
        ('weights = { "Mon-Fri" = 4, "Fri 09:00-10:00" = 2 }', "weights", "overlap"),
        ('weights = { "weekdays" = 4 }', "weights", "no hours of the week"),
        ('weights = { "Mon" = "x" }', "weights.Mon", "a number"),
        ("weights_by_change = { update = -0.2 }", "weights_by_change.update", "more than 0"),
        ("weights_by_change = { delete = 0 }", "weights_by_change.delete", "more than 0"),
        ('weights_by_change = { insert = "1" }', "weights_by_change.insert", "a number"),
        (
            "weights_by_change = { upsert = 1 }",
            "weights_by_change.upsert",
            "no setting",
        ),
        ("weights_by_change = 5", "weights_by_change", "a table"),
        ('distance = { column = "price", scale = 0 }', "distance.scale", "more than 0"),
        ('distance = { column = "price", scale = -1.5 }', "distance.scale", "more than 0"),
        ('distance = { column = "price", scale = nan }', "distance.scale", "more than 0"),
        ("distance = { scale = 2 }", "distance.column", "missing"),
        ("distance = { column = 3 }", "distance.column", "a string"),
        ('distance = "price"', "distance", "a table"),
        ('time_zone = "Mars/Olympus"', "time_zone", "no time zone"),
        ('time_zone = "../x"', "time_zone", "no time zone"),
        ('event_time = "created_at"', "event_time", "without `event_kind`"),
        ('event_kind = "update"', "event_kind", "without `event_time`"),
        ('event_time = "at"\nevent_kind = "created"', "event_kind", "'creation'"),
    ],
)
def test_refusals_of_timing(tmp_path: Path, line: str, key: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_warehouse(tmp_path, f"{TIMED}{line}\n")
    assert caught.value.where == f"warehouse.toml: fragments.orders.{key}"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"Sat,Sun 06:00-20:00"', '"Sun 05:00-20:00"', "overlap"),
        ('"Sat,Sun 06:00-20:00"', '"never"', "no hours of the week"),
        ('["20:00-06:00", "Sat,Sun 06:00-20:00"]', "[]", "empty"),
    ],
)
def test_refusals_of_refresh_hours(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_warehouse(tmp_path, TIMED.replace(old, new))
    assert caught.value.where == "warehouse.toml: sources.erp.refresh_hours"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("patterns", "all_", "names"),
    [
        (["b"], False, ["b"]),
        (["b", "a1"], False, ["a1", "b"]),
        (["a*", "a1"], False, ["a1", "a2"]),
        (["a[2-9]"], False, ["a2"]),
        ([], True, ["a1", "a2", "b"]),
    ],
)
def test_select(tmp_path: Path, patterns: list[str], all_: bool, names: list[str]) -> None:
    assert [f.name for f in warehouse.select(three(tmp_path), patterns, all_)] == names


@pytest.mark.parametrize(
    ("patterns", "all_", "says"),
    [
        (["a3"], False, "Did you mean"),
        (["a1", "z*"], False, "'z*'"),
        ([], False, "--all"),
        (["a1"], True, "--all"),
    ],
)
def test_select_refuses(tmp_path: Path, patterns: list[str], all_: bool, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        warehouse.select(three(tmp_path), patterns, all_)
    assert says in str(caught.value)
    assert isinstance(caught.value, DriftlineError)


def three(tmp_path: Path) -> warehouse.WarehouseConfig:
    head = WAREHOUSE.split("[fragments", maxsplit=1)[0]
    tables = "".join(f'[fragments.{n}]\nsource = "erp"\n' for n in ("a1", "a2", "b"))
    return load_warehouse(tmp_path, head + tables)


def test_a_silence_that_no_warehouse_waits_for(tmp_path: Path) -> None:
    text = """
[database]
url = "sqlite:///erp.db"
silence_timeout_s = {}
[server]
listen = "127.0.0.1:0"
insecure = true
[relations.o]
table = "o"
"""
    assert load_source(tmp_path, text.format(3600)).database.limits.silence_s == 3600
    with pytest.raises(ConfigurationError, match="silence_timeout_s"):
        load_source(tmp_path, text.format(3601))
