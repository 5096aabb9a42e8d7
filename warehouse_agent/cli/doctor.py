"""`doctor`: everything a refresh needs, each thing checked by itself, in the order it is needed.

Nothing is changed but a file that is written and removed in the warehouse's folder, and no row of a
source is read. A check that fails says what to do and does not hide those after it, except what
cannot be asked at all: without a configuration nothing else, without a line to a source nothing of
its relations.

The source's side of the line is `examine_source`. Not here: `verify`, which reads every row.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from driftline import wire_pb2 as pb
from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    WarehouseUnavailable,
)
from driftline.peer_text import one_line

from warehouse_agent.cli.doctor_connection import Found, examine_source
from warehouse_agent.cli.verify import check_files
from warehouse_agent.config import Fragment, WarehouseConfig, load
from warehouse_agent.refresh import schema_change
from warehouse_agent.report import counted
from warehouse_agent.spark import java, session
from warehouse_agent.spark.executors import Batches, cause, mistake, task
from warehouse_agent.storage import formats, row_security
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.file_damage import SPARK_FAILURES
from warehouse_agent.transport.channel import Link
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX

FREE_BYTES_MIN = 1 << 30  # a refresh writes before it removes
PACKAGES = (
    "pyspark", "pyarrow", "deltalake", "pandas", "numpy", "grpcio", "protobuf", "blake3",
    "zstandard", "tenacity", "rich",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, or the error with its remedy."""

    what: str
    found: str
    error: DriftlineError | None = None


def examine(path: Path) -> Iterator[Check]:
    """Every check, as it is made."""
    read: list[WarehouseConfig] = []

    def configuration() -> str:
        read.append(load(path))
        sources = counted(len(read[0].sources), "source")
        return f"{sources}, {counted(len(read[0].fragments), 'fragment')}"

    yield check(f"configuration {path}", configuration)
    if not read:
        return
    config = read[0]
    store = Store(config.path)
    yield check(f"warehouse {config.path}", lambda: _writable(store))
    yield check("Python packages of the driver", _packages)
    if "spark.remote" not in config.spark:
        yield check("Java", _java)
    yield check("Spark", lambda: _spark(config))
    reachable: dict[str, DriftlineError | None] = {}
    for source in config.sources.values():
        for found in examine_source(source):
            yield _as_check(found)
            reachable[source.name] = reachable.get(source.name) or found.error
    for fragment in config.fragments.values():
        error = reachable.get(fragment.source.name)
        if error is None:
            yield check(f"fragment {fragment.name}: relation", partial(_relation, store, fragment))
        else:
            yield Check(f"fragment {fragment.name}: relation", "", error)
        yield check(f"fragment {fragment.name}: published", partial(_published, store, fragment))


def check(what: str, look: Callable[[], str]) -> Check:
    """Look, whatever happens."""
    try:
        return Check(what, look())
    except Exception as problem:
        return Check(what, "", mistake(problem, what))


def _as_check(found: Found) -> Check:
    return Check(found.what, found.text, found.error)


def _writable(store: Store) -> str:
    """A small file is written, read and removed: only that tells of quotas and read-only mounts."""
    place = (PRIVATE, "fragments", f"doctor.{uuid.uuid4().hex[:8]}")
    data = b"driftline doctor"
    store.write(data, *place)
    try:
        if store.read(*place) != data:
            raise WarehouseUnavailable("What was written does not read back.", where=store.root)
    finally:
        store.remove_file(*place)
    if not store.is_local:
        return "writable"
    free = shutil.disk_usage(store.table("")).free
    if free < FREE_BYTES_MIN:
        raise WarehouseUnavailable(
            f"Only {free / 2**20:,.0f} MiB are free.",
            where=store.root,
            remedy="Free space, or remove old versions with `driftline gc --all`.",
        )
    return f"writable, {free / 2**30:,.1f} GiB free"


def _packages() -> str:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ConfigurationError(
            f"Not installed: {', '.join(missing)}.",
            where=sys.executable,
            remedy="Run: pip install 'driftline[warehouse]'",
        )
    return f"Python {sys.version.split()[0]}, {', '.join(found)}"


def _java() -> str:
    java.ensure_java()
    home = Path(os.environ["JAVA_HOME"])
    runs = java.probe(home / "bin" / "java")
    return f"Java {runs.major if runs else '?'}, JAVA_HOME {home}"


def _spark(config: WarehouseConfig) -> str:
    """A session, and one task that needs what every task of ours needs."""
    try:
        spark = session.start(dict(config.spark))
        row = spark.range(1, numPartitions=1).mapInArrow(task(_worker), "python string").first()
    except SPARK_FAILURES as error:
        raise ConfigurationError(
            f"Spark does not work: {cause(error)}",
            where="[spark]",
            remedy="Its workers need the same Python, driftline and its packages.",
        ) from error
    master = config.spark.get("spark.remote") or config.spark.get("spark.master", "local[*]")
    return f"Spark {spark.version} at {master}, workers with Python {row[0] if row else '?'}"


def _worker(batches: Batches) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.version.split()[0]]})


def _relation(store: Store, fragment: Fragment) -> str:
    """Described, with carriers that its columns may have and the columns that are published."""
    with Link(fragment.source) as link:
        reply = link.describe(fragment.relation)
    base = formats.head(store, fragment.name)
    layout = schema_change.described(reply, fragment, base)
    if base is not None and layout.recipe.id != base.layout.recipe.id:
        raise schema_change.explained(reply, base, fragment.name)
    if base is not None:
        schema_change.check_carriers(base.layout, fragment)
        notes = store.read_json(PRIVATE, "fragments", f"{fragment.name}.json")
        told = PolicyDigests.from_message(reply.description)
        row_security.refuse_changed(row_security.known(base, notes), told, fragment.name)
    return _described(reply.description, reply.description.vouched)


def _described(description: pb.Description, vouched: bool) -> str:
    types = Counter(c.type for c in description.columns)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(types.items()))
    columns = one_line(kinds, LINE_CHARACTERS_MAX)
    names = ", ".join(c.name for c in description.columns[: description.key_columns])
    key = one_line(names, LINE_CHARACTERS_MAX)
    expected = description.rows_expected
    rows = f"about {counted(expected, 'row')}" if expected else "rows unknown"
    sure = "" if vouched else ", checked at every refresh"
    notes = "".join(f"; {note}" for note in description.notes)
    count = counted(len(description.columns), "column")
    return f"{rows}, key ({key}){sure}, {count}: {columns}{notes}"


def _published(store: Store, fragment: Fragment) -> str:
    """The newest version is ours and its files are there, as long as they should be."""
    snapshot = formats.head(store, fragment.name)
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
