"""Check everything that a refresh needs, in the order in which it is needed (`doctor`).

Each thing is checked by itself: an error says what to do and does not hide later checks, except
those that cannot be made without it. Nothing is changed, but a small file is written to the
warehouse's folder and removed. No row of a source is read.

gRPC would report a refused certificate, a wrong name and a closed port alike, so TCP and TLS are
tried by hand before. Not here: `verify`, which reads every row.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from driftline import wire_pb2 as pb
from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    SourceUnreachable,
    Unauthenticated,
    WarehouseUnavailable,
)
from driftline.peer_text import one_line
from driftline.x509 import read_der

from warehouse_agent.config import Fragment, Source, View, WarehouseConfig
from warehouse_agent.history.forecast_inputs import is_by_key, rows_of_part
from warehouse_agent.history.notes import Notes
from warehouse_agent.inspection import watcher_readiness
from warehouse_agent.inspection.first_configuration import size_and_key
from warehouse_agent.planning.step_places import UNPACKED, written
from warehouse_agent.refresh import derivation, schema_change
from warehouse_agent.report import counted
from warehouse_agent.spark import cluster, java, session
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import conditional_writes, formats, row_security
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.credentials import Credentials
from warehouse_agent.storage.delta_trial import try_delta
from warehouse_agent.storage.place_trial import try_folder
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance.file_checks import check_files
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.certificates import certificates, context_of, validity
from warehouse_agent.transport.channel import SourceChannel, allowances
from warehouse_agent.transport.handshake import connect, diagnose, host_and_port, proxy_between
from warehouse_agent.transport.preflight import reach
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX
from warehouse_agent.views.inputs import load, query_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Newest = Callable[[], Snapshot | None]  # the newest version of a fragment

FREE_BYTES_MIN = 1 << 30  # a refresh writes before it removes
RENEW_DAYS = 30  # before the end of a certificate, doctor asks in capitals to renew it
PACKAGES = (
    "pyspark", "pyarrow", "deltalake", "pandas", "numpy", "grpcio", "protobuf", "blake3",
    "zstandard", "tenacity", "rich",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    """One check: what was checked, and what was found or the error with its remedy."""

    what: str
    found: str
    error: DriftlineError | None = None


def examine(path: Path) -> Iterator[ReadinessCheck]:
    """Make every check and yield it at once."""
    read: list[WarehouseConfig] = []

    def configuration() -> str:
        read.append(load(path))
        sources = counted(len(read[0].sources), "source")
        views = f", {counted(len(read[0].views), 'view')}" if read[0].views else ""
        return f"{sources}, {counted(len(read[0].fragments), 'fragment')}{views}"

    yield check(f"configuration {path}", configuration)
    if not read:
        return
    config = read[0]
    store = Store.of(config)
    yield check(f"warehouse {config.path}", lambda: _writable(store))
    yield check("Python packages of the driver", lambda: _packages(store))
    for what, look in watcher_readiness.checks(config):
        yield check(what, look)
    homes: list[Path] = []
    is_remote = "spark.remote" in config.spark
    if not is_remote:
        yield check("Java", lambda: _java(config, store, homes))
    started: list[SparkSession] = []
    if homes or is_remote:
        yield check("Spark", lambda: _spark(config, started))
    if started:
        yield check("Spark executors", lambda: _executors(started[0], store))
    reachable: dict[str, DriftlineError | None] = {}
    for source in config.sources.values():
        for made in examine_source(source):
            yield made
            reachable[source.name] = reachable.get(source.name) or made.error
    for fragment in config.fragments.values():
        newest = cache(partial(formats.head, store, fragment.name))  # the log is opened once
        error = reachable.get(fragment.source.name)
        if error is None:
            look = partial(_relation, store, fragment, newest)
            yield check(f"fragment {fragment.name}: relation", look)
        else:
            yield ReadinessCheck(f"fragment {fragment.name}: relation", "", error)
        look = partial(_published, store, fragment, newest)
        yield check(f"fragment {fragment.name}: published", look)
    for view in config.views.values():
        yield check(f"view {view.name}", partial(_view, store, view))


def check(what: str, look: Callable[[], str]) -> ReadinessCheck:
    """Make one check; whatever it raises becomes its error."""
    try:
        return ReadinessCheck(what, look())
    except Exception as problem:
        return ReadinessCheck(what, "", mistake(problem, what))


def _writable(store: Store) -> str:
    """Try the folder: only this finds quotas, read-only mounts, and a right that is missing."""
    place = (PRIVATE, "executors", f"doctor.{uuid.uuid4().hex[:8]}")
    store.make_folder(*place)
    try:
        try_folder(store.uri(*place))
        if not store.is_local:
            try_delta(store, *place)
            conditional_writes.check(store)
            source = Credentials(known.settings_of(store.root))
            return f"written, read, listed, deleted by obstore and delta-rs, with {source}"
    finally:
        store.remove(*place)
    free = shutil.disk_usage(store.table("")).free
    if free < FREE_BYTES_MIN:
        raise WarehouseUnavailable(
            f"Only {free / 2**20:,.0f} MiB are free.",
            where=store.root,
            remedy="Free space, or remove old versions with `driftline gc --all`.",
        )
    return f"writable, {free / 2**30:,.1f} GiB free"


def _packages(store: Store) -> str:
    installed, missing = [], []
    for name in PACKAGES if store.is_local else PACKAGES + cluster.OF_BUCKETS:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ConfigurationError(
            f"Not installed: {', '.join(missing)}.",
            where=sys.executable,
            remedy="Run: pip install 'driftline[warehouse,object-stores]'"
            if not store.is_local
            else "Run: pip install 'driftline[warehouse]'",
        )
    return f"Python {sys.version.split()[0]}, {', '.join(installed)}"


def _java(config: WarehouseConfig, store: Store, homes: list[Path]) -> str:
    """Find a Java, and append its home to `homes`; it may be absent where no step needs one.

    Raises:
        ConfigurationError: there is none, and the details say what needs it.
    """
    try:
        java.ensure_java()
    except ConfigurationError as error:
        if why := _needs_spark(config, store):
            error.details["Spark is needed"] = why
            raise
        return (
            f"none, nor is one needed while every step is small ({_small(config)}); for a larger "
            "one: pip install 'driftline[java]'"
        )
    home = Path(os.environ["JAVA_HOME"])
    homes.append(home)
    runs = java.probe(home / "bin" / "java")
    return f"Java {runs.major if runs else '?'}, JAVA_HOME {home}"


def _small(config: WarehouseConfig) -> str:
    """Return how large a step may be without Spark."""
    if config.small_bytes is not None:
        return f"`small_bytes` is {config.small_bytes:,}"
    steps = Steps.of(config, session.DeferredSession.of(config))
    return f"no more than {steps.memory:,} bytes, and faster than Spark with its start"


def _needs_spark(config: WarehouseConfig, store: Store) -> str:
    """Return what will need Spark as far as it is known now; empty if nothing does."""
    if config.small_bytes == 0:
        return "`small_bytes` is 0"
    if config.views:
        return "for the rows of views"
    steps = Steps.of(config, session.DeferredSession.of(config))
    for name in config.fragments:
        with contextlib.suppress(DriftlineError):  # a check of its own says what is wrong
            newest = formats.head(store, name)
            size = sum(f.size for f in newest.files) if newest else 0
            if config.small_bytes is None:
                size *= UNPACKED
            if (placed := steps.expected(*written(size))) is not None:
                return f"for {name}, which has {size:,} bytes, {placed.because}"
    return ""


def _spark(config: WarehouseConfig, started: list[SparkSession]) -> str:
    """Start a session, and append it to `started`."""
    started.append(session.DeferredSession.of(config).get())
    master = config.spark.get("spark.remote") or config.spark.get("spark.master", "local[*]")
    return f"Spark {started[0].version} at {master}"


def _executors(spark: SparkSession, store: Store) -> str:
    """Run a task on each executor: is the warehouse there, and the driver's packages?"""
    executors, here, differences = cluster.probe(spark, store), cluster.versions(store), []
    for executor in executors:
        cluster.refuse_unfit(executor, store)
        differences += [
            f"{executor.host} has {name} {there or 'not installed'}, and the driver {here[name]}"
            for name, there in executor.versions.items()
            if there != here[name]
        ]
    if differences:
        raise ConfigurationError(
            f"Versions differ: {'; '.join(dict.fromkeys(differences))}.",
            where="[spark]",
            remedy="Install the same ones, or name a Python that has them: `spark.pyspark.python`.",
        )
    hosts = ", ".join(sorted({executor.host for executor in executors}))
    said = ", ".join(f"{name} {version}" for name, version in here.items() if version)
    return f"{len(executors)} on {hosts}, workers with {said}; each reads and writes the warehouse"


def _relation(store: Store, fragment: Fragment, newest: Newest) -> str:
    """Check that the relation has the published columns, and carriers that fit them."""
    base = newest()
    with SourceChannel(fragment.source) as link:
        reply = link.describe(fragment.relation, derivation.beside(fragment, base))
    layout = derivation.described(reply, fragment, base)
    if base is not None:
        derivation.check(reply, fragment, base)
        schema_change.check_carriers(base.layout, fragment)
        before = Notes.read(store, fragment.name).policies(base)
        told = PolicyDigests.from_message(reply.description)
        row_security.refuse_changed(before, told, fragment.name)
    taken = derivation.summary(layout)
    said = _described(reply.description) + ("" if taken is None else f"; taken: {taken}")
    return said + _allowed(reply, fragment, base)


def _allowed(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> str:
    """Return what the source allows to be read, and what it means for a refresh now."""
    allowance, now = allowances(reply).get(fragment.relation), datetime.now(UTC)
    if allowance is None or not (said := allowance.describe(now)):
        return ""
    rows = rows_of_part(fragment, allowance, now) if base is not None and base.rows else None
    if is_by_key(fragment, base, allowance, now):
        means = "a refresh now compares all rows, by key"
    elif rows is not None:
        means = f"a refresh now compares at most {counted(rows, 'row')}"
    elif allowance.may_scan(now) or fragment.incremental is not None:
        means = "a refresh now compares all rows"
    else:
        means = "a refresh that compares all rows is refused now"
    return f"; the source allows {said}: {means}"


def _described(description: pb.Description) -> str:
    types = Counter(c.type for c in description.columns)
    kinds = one_line(", ".join(f"{n} {t}" for t, n in sorted(types.items())), LINE_CHARACTERS_MAX)
    sure = "" if description.vouched else ", checked at every refresh"
    notes = "".join(f"; {note}" for note in description.notes)
    count = counted(len(description.columns), "column")
    return f"{size_and_key(description)}{sure}, {count}: {kinds}{notes}"


def _view(store: Store, view: View) -> str:
    """Resolve the columns of a view's query, as far as its inputs are published.

    Raises:
        ConfigurationError: an unknown or ambiguous column.
        WarehouseUnavailable: a table cannot be read.
    """
    from warehouse_agent.views.evaluate import PinnedInput, lacking
    from warehouse_agent.views.query import resolve

    inputs = []
    for name in view.inputs:
        if (head := formats.any_head(store, name)) is None:
            return f"its input {name} is not published yet, so its columns are not known"
        inputs.append(PinnedInput(name, head.version, head.layout, head.files))
    query = query_of(view)
    if why := lacking(view.name, query, inputs):
        return f"the next refresh serves its query: {why}"
    columns = [one.layout.data_names for one in inputs]
    resolve(query, columns, where=f"views.{view.name}.query")
    newest = formats.view_head(store, view.name)
    if newest is None:
        return "nothing published yet"
    return f"version {newest.version}, {counted(newest.rows, 'row')}"


def _published(store: Store, fragment: Fragment, newest: Newest) -> str:
    """Check that the newest version is ours, and that its files and its key are there."""
    snapshot = newest()
    if snapshot is None:
        return "nothing yet"
    check_files(store, fragment.name, snapshot)
    if store.read(PRIVATE, "keys", f"{fragment.name}.key") is None:
        raise WarehouseUnavailable(
            "The fragment key is gone.",
            where=fragment.name,
            remedy=f"Restore {store.uri(PRIVATE, 'keys', fragment.name + '.key')}.",
        )
    size = sum(f.size for f in snapshot.files)
    return (
        f"version {snapshot.version}, {counted(snapshot.rows, 'row')}, "
        f"{counted(len(snapshot.files), 'file')}, {counted(size, 'byte')}"
    )


def examine_source(source: Source, *, now: datetime | None = None) -> Iterator[ReadinessCheck]:
    """Check the connection to a source, step by step; end with the first failure."""
    moment = now or datetime.now(UTC)
    looks: list[tuple[str, Callable[[], str]]] = [("TCP", lambda: _tcp(source))]
    if not source.insecure:
        looks.append(("our certificate", lambda: _ours(source, moment)))
        if proxy_between(source) is None:  # behind a proxy only gRPC gets through
            looks.append(("TLS", lambda: _tls(source, moment)))
    looks.append(("agent", lambda: _agent(source)))
    for what, look in looks:
        yield (made := check(f"source {source.name}: {what}", look))
        if made.error is not None:
            return


def _tcp(source: Source) -> str:
    if (proxy := proxy_between(source)) is not None:
        return f"not tried: gRPC reaches {source.address} through the proxy {proxy}"
    began = time.monotonic()
    reach(source)
    return f"{source.address} answers in {(time.monotonic() - began) * 1000:.0f} ms"


def _ours(source: Source, now: datetime) -> str:
    """Check that our certificate fits its key and is within its dates."""
    context_of(source)
    _, certificate, _ = certificates(source)
    assert source.certificate is not None
    begins, ends = validity(certificate, source.certificate)
    return _dates(source, "Our certificate", begins, ends, now)


def _tls(source: Source, now: datetime) -> str:
    if (error := diagnose(source)) is not None:
        raise error
    host, _ = host_and_port(source)
    context = context_of(source)
    try:
        with (
            connect(source) as plain,
            context.wrap_socket(plain, server_hostname=source.server_name or host) as line,
        ):
            der, version = line.getpeercert(True), line.version()
    except OSError as problem:
        raise SourceUnreachable(f"The line was lost: {problem}.", where=source.name) from problem
    assert der is not None  # the certificate was verified, so there is one
    theirs = read_der(der)
    dates = _dates(source, "Their certificate", theirs.begins, theirs.ends, now)
    return f"{version}, certificate for {', '.join(theirs.names)}, {dates}"


def _agent(source: Source) -> str:
    with SourceChannel(source) as link:
        reply = link.describe("")
        agreed = link.agreed()
    names = ", ".join(sorted(reply.relations)) or "nothing"
    return (
        f"{reply.agent} on {reply.database}, protocol {agreed.protocol}; "
        f"serves to this certificate: {names}"
    )


def _dates(source: Source, whose: str, begins: datetime, ends: datetime, now: datetime) -> str:
    if not begins <= now <= ends:
        state = "is not valid yet" if now < begins else "has expired"
        raise Unauthenticated(
            f"{whose} {state}: it is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}.",
            where=f"source {source.name}",
            remedy="Check this machine's clock. `driftline-source enroll` makes new certificates.",
        )
    days = (ends - now).days
    urgent = " - RENEW IT SOON" if days < RENEW_DAYS else ""
    return f"valid until {ends:%Y-%m-%d}, {counted(days, 'day')} left{urgent}"
