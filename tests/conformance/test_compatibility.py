"""Each side against the other side of an older release: two people upgrade on two days.

LATEST is the commit before the messages last changed, STRATA one before strata could be left out,
LISTED one before claims, BASE one before checksums, OLDER one before markers, foreign keys and
named keys. Each is taken out of the repository's own history; its source agent runs as a process
against this tree's warehouse, and its warehouse as a process against this tree's source agent.
Whoever adds messages moves LATEST to the commit before.

FIELD is the commit before the first archive, unit and failpoint. Its wheel is built and installed,
and one side after the other is upgraded around one warehouse, as users do it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import RecipeChanged, VersionMismatch
from driftline.reconciliation.ranges import uniform
from driftline.relations.derivations import ColumnPredicate, Derivation, Operator
from driftline.relations.reference_messages import FEATURE
from driftline.rows.digests import Digest, Salt
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire.negotiation import (
    BRIEF,
    CHECKSUM,
    CLAIMED,
    DEFLATE,
    LATER,
    REFERRING,
    SINCE,
)
from pyspark.sql import SparkSession

from source_agent.engines.sqlite.activity import WAL
from tests import ROOT
from tests.harness.absent import absent
from tests.harness.installation import Installation, build_wheel, clean_environment, install
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import UNBRAKED, Pair, SourceProcess, environment
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.refresh import prepare
from warehouse_agent.scheduler.parent_deletions import parents
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.reply_validation import refusal

LATEST = "408fe0589f91612c10e54f4ed7c43978c9fc65cb"
STRATA = "c9218253ad08eca44f990417fffd20a50081bd33"
LISTED = "5762206b61689be46cb4579f5ec78ff05d36f1e6"
BASE = "00d938a352968ee54b996c61315e48e46daf722f"
OLDER = "e46cebe80f7c7e83fe60cc065df2e87970fd4b99"
FIELD = "d5146057dbfa90ee8da1a9a36df9842adc154a90"
ROWS = 2000

# Runs commands of a tree's own command line in one process, so that Spark starts once: arguments
# as a JSON list per line in, and after the command's own output a line with its exit code.
COMMANDS = """
import json, sys
from warehouse_agent.cli.main import cli
for line in sys.stdin:
    code = 0
    try:
        cli.main(json.loads(line), standalone_mode=False)
    except SystemExit as ended:
        code = ended.code
    print(f"exit {code}", flush=True)
"""


PRODUCT = ("proto", "source_agent", "warehouse_agent")

Changes = tuple[int, int, int] | None  # rows inserted, updated, deleted; None: all, by a load


def tree_of(commit: str, folder: Path, paths: tuple[str, ...] = PRODUCT) -> Path:
    """Return a folder with these paths of a commit, by default the product's."""
    words = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *paths]
    try:
        taken = subprocess.run(words, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        absent("OLDER RELEASE", f"this clone lacks commit {commit}: {said}", is_required_in_ci=True)
    with tarfile.open(fileobj=BytesIO(taken.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def latest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of LATEST."""
    return tree_of(LATEST, tmp_path_factory.mktemp("latest"))


@pytest.fixture(scope="module")
def strata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of STRATA."""
    return tree_of(STRATA, tmp_path_factory.mktemp("strata"))


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of LISTED."""
    return tree_of(LISTED, tmp_path_factory.mktemp("listed"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of BASE."""
    return tree_of(BASE, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of OLDER."""
    return tree_of(OLDER, tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment with the wheel of FIELD, beside the packages of the tests."""
    folder = tmp_path_factory.mktemp("field")
    paths = (*PRODUCT, "pyproject.toml", "README.md", "LICENSE")
    wheel = build_wheel(tree_of(FIELD, folder / "tree", paths), folder / "dist")
    made = install(wheel, folder / "environment")
    names = ("driftline", "source_agent", "warehouse_agent")
    code = f"import {', '.join(names)}; print({'.__file__, '.join(names)}.__file__)"
    places = made.run("python", "-c", code, cwd=folder).split()
    assert all(Path(place).is_relative_to(made.folder) for place in places), places
    return made


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    """This tree's agents around one table; each test replaces one of them."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT, price REAL)")
    orders = [(n, None if n % 7 == 0 else f"note {n * n}", n / 4) for n in range(ROWS)]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?)", orders)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


def edit(pair: Pair, again: int = 0) -> tuple[int, int, int]:
    """Change the table; returns how many rows were inserted, updated, deleted.

    `again`: 1 for a second edit of the same table.
    """
    pair.legacy.execute(f"UPDATE orders SET note = 'updated {again}' WHERE id % 100 = 3")
    pair.legacy.execute(f"DELETE FROM orders WHERE id % 400 = {5 + again}")
    pair.legacy.execute(
        f"INSERT INTO orders SELECT id + {ROWS}, 'new', 0.5 FROM orders"
        f" WHERE id % 200 = {7 + again} AND id < {ROWS}"
    )
    return 10, 20, 5


def check_reports(reports: list[dict[str, Any]], changes: Changes) -> None:
    """The fragment is proven, and changed by so many rows; None: by a load."""
    (report,) = reports
    assert report["error"] is None, report
    assert report["proof"] == "total"
    found = tuple(report[f"rows_{what}"] for what in ("inserted", "updated", "deleted"))
    assert found == (changes or (ROWS, 0, 0)), report


def test_an_older_source_serves_this_warehouse(older: Path, pair: Pair) -> None:
    pair.stop()
    pair.limits = ""  # an older one does not know feedback
    with SourceProcess(pair.source_toml(), tree=older) as source:
        pair.address = source.address

        def refresh(changes: Changes) -> None:
            check_reports([json.loads(report.to_json()) for report in pair.reports()], changes)
            pair.check("orders")

        refresh(None)
        refresh(edit(pair))
        refresh((0, 0, 0))
        assert pair.version("orders") == 1
        (report,) = pair.reports()
        assert report.held_back_s == 0, "it does not say so"
        assert report.marker is None
        fragment = pair.config().fragments["orders"]
        with SourceChannel(fragment.source) as link:
            said = link.activity(["orders"])
            assert FEATURE not in link.describe("orders").features
            assert not link.features & {SINCE}
        assert said == {"orders": WAL}
        found = parents(pair.config(), pair.store, fragment)
        assert found.why == "its source is older than this question"
        # It knows no keys that travel themselves, and says so before it reads anything.
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            stream.send(pb.Request(open=pb.Open(protocol=1, relation="orders", features=["keys"])))
            with pytest.raises(VersionMismatch, match="keys"):
                raise refusal(stream.receive().refused)


def test_a_source_before_referring_keys_describes_what_it_can(strata: Path, pair: Pair) -> None:
    """It refuses fields that it does not know, so it is not told what a view joins."""
    pair.stop()
    with SourceProcess(pair.source_toml(), tree=strata) as source:
        pair.address = source.address
        with SourceChannel(pair.config().sources["erp"]) as link:
            assert len(link.describe("orders", ("customer",)).description.columns) == 3
            assert REFERRING not in link.features


def test_a_source_before_claims_compares_keys(listed: Path, pair: Pair) -> None:
    """It cannot trust a marker alone; where the source is upgraded, no mark has to be made anew."""
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN version INTEGER")
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN gone BOOLEAN DEFAULT FALSE")
    pair.legacy.execute("UPDATE orders SET version = id")
    pair.publish("orders", 'table = "orders"\nmarker = { column = "version", deleted = "gone" }')
    pair.fragment_lines["orders"] = 'proof = "claimed"\nmethod = "since"'

    def changed(first: int) -> str | None:
        pair.legacy.execute(
            f"UPDATE orders SET note = 'other', version = {first} + id WHERE id % 100 = 3"
        )
        report = pair.refresh("orders")
        assert report.rows_changed == 20
        return report.proof

    pair.stop()
    with SourceProcess(pair.source_toml(), tree=listed) as source:
        pair.address = source.address
        pair.refresh("orders")
        assert changed(ROWS) == "keys"
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            opening = pb.Open(protocol=1, relation="orders", features=[CLAIMED])
            stream.send(pb.Request(open=opening))
            with pytest.raises(VersionMismatch, match=CLAIMED):
                raise refusal(stream.receive().refused)
    pair.restart()
    assert changed(2 * ROWS) == "claimed"
    pair.check("orders")


def test_a_source_before_brief_openings_gets_strata(strata: Path, pair: Pair) -> None:
    pair.stop()
    with SourceProcess(pair.source_toml(), tree=strata) as source:
        pair.address = source.address
        changes: Changes = None
        for again in (0, 1, 2):
            check_reports([json.loads(report.to_json()) for report in pair.reports()], changes)
            pair.check("orders")
            changes = edit(pair, again)
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            assert BRIEF not in link.describe("orders").features
            stream.send(pb.Request(open=pb.Open(protocol=1, relation="orders", features=[BRIEF])))
            with pytest.raises(VersionMismatch, match=BRIEF):
                raise refusal(stream.receive().refused)


def test_a_source_before_the_newest_messages_gets_no_compressed_derivation(
    latest: Path, pair: Pair
) -> None:
    pair.stop()
    pair.publish("orders", 'table = "orders"\nderive = ["rows"]')
    with SourceProcess(pair.source_toml(), tree=latest) as source:
        pair.address = source.address
        rows = ColumnPredicate("note", Operator.EQUAL, ("x" * 99,))
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            assert DEFLATE not in link.describe("orders").features
            recipe = Recipe((Column("id", parse_type("int8"), False, 0),), 1, 1)
            terms = ExchangeTerms(
                "orders",
                recipe,
                bytes(32),
                Salt(1, 2),
                3,
                link.agreed(),
                derivation=Derivation(None, rows),
            )
            opening = terms.opening(Digest(), uniform(1))
            assert tuple(opening.open.derivation.rows.comparison.values) == rows.values
            stream.send(opening)
            error = refusal(stream.receive().refused)
            assert isinstance(error, RecipeChanged), "it read the derivation"
            opening.open.features.append(DEFLATE)
            stream.send(opening)
            with pytest.raises(VersionMismatch, match=DEFLATE):
                raise refusal(stream.receive().refused)


def test_a_source_before_later_sums_is_asked_for_none(
    base: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the history says that our sums would be ready before its scan ends."""
    monkeypatch.setattr(prepare, "_is_later", lambda *_: True)
    pair.stop()
    pair.limits = ""  # an older one does not know feedback
    with SourceProcess(pair.source_toml(), tree=base) as source:
        pair.address = source.address

        def refresh(changes: Changes) -> None:
            check_reports([json.loads(report.to_json()) for report in pair.reports()], changes)
            pair.check("orders")

        refresh(None)
        refresh(edit(pair))
        refresh((0, 0, 0))
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            stream.send(pb.Request(open=pb.Open(protocol=1, relation="orders", features=[LATER])))
            with pytest.raises(VersionMismatch, match=LATER):
                raise refusal(stream.receive().refused)


def test_an_older_source_gives_no_mark(older: Path, pair: Pair) -> None:
    """All rows are compared, and the report says why."""
    pair.fragment_lines["orders"] = 'proof = "keys"\nmethod = "since"'
    pair.stop()
    pair.limits = ""  # an older one does not know feedback
    with SourceProcess(pair.source_toml(), tree=older) as source:
        pair.address = source.address
        pair.refresh("orders")
        edit(pair)
        report = pair.refresh("orders")
        assert (report.proof, report.rows_changed) == ("total", 35)
        assert report.marker is not None
        assert report.marker["why"] == "the source's agent is older than markers"
        pair.check("orders")


def test_a_mark_of_an_older_source_is_not_used(base: Path, pair: Pair) -> None:
    """It is made, and used by the source that made it; after an upgrade all rows are compared."""
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN version INTEGER")
    pair.legacy.execute("UPDATE orders SET version = id")
    pair.publish("orders", 'table = "orders"\nmarker = { column = "version" }')
    pair.fragment_lines["orders"] = 'proof = "keys"\nmethod = "since"'

    def change(first: int) -> None:
        pair.legacy.execute(
            f"UPDATE orders SET note = 'other', version = {first} + id WHERE id % 100 = 3"
        )

    pair.stop()
    with SourceProcess(pair.source_toml(), tree=base) as source:
        pair.address = source.address
        # It knows no checksums, and says so before it reads anything.
        with SourceChannel(pair.config().sources["erp"]) as link, link.stream() as stream:
            opening = pb.Open(protocol=1, relation="orders", features=[CHECKSUM])
            stream.send(pb.Request(open=opening))
            with pytest.raises(VersionMismatch, match=CHECKSUM):
                raise refusal(stream.receive().refused)
        pair.refresh("orders")
        change(ROWS)
        report = pair.refresh("orders")
        assert (report.proof, report.rows_changed) == ("keys", 20)
    pair.restart()
    change(2 * ROWS)
    report = pair.refresh("orders")
    assert (report.proof, report.rows_changed) == ("total", 20)
    assert report.marker is not None
    assert report.marker["why"] == "another release of the source agent made the mark"
    pair.check("orders")


@contextmanager
def older_warehouse(
    pair: Pair, python: str | Path, folder: Path, variables: Mapping[str, str]
) -> Iterator[Callable[[Changes], None]]:
    """A process of an older warehouse agent; yields its `refresh --all`, whose result is checked.

    Args:
        folder: where the process imports from first.
    """
    with subprocess.Popen(
        [python, "-c", COMMANDS],
        cwd=folder,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def refresh(changes: Changes) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            words = ["--config", str(pair.warehouse_toml()), "refresh", "--all", "--json"]
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            said = []
            for line in process.stdout:
                if line.startswith("exit "):
                    break
                said.append(json.loads(line))
            assert line == "exit 0\n", (line, said)
            check_reports(said, changes)
            pair.check("orders")

        try:
            yield refresh
        finally:
            process.stdin.close()
            process.wait()


@pytest.mark.parametrize("release", ["latest", "listed", "base", "older"])
def test_an_older_warehouse_refreshes_from_this_source(
    release: str, pair: Pair, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(release)
    with older_warehouse(pair, sys.executable, base, environment(base)) as refresh:
        refresh(None)
        refresh(edit(pair))
        refresh((0, 0, 0))
    assert pair.version("orders") == 1
    # This tree's warehouse goes on with the table that the older one wrote.
    edited = [json.loads(report.to_json()) for report in pair.reports()]
    check_reports(edited, (0, 0, 0))


@pytest.mark.parametrize("first", ["source", "warehouse"])
def test_one_side_at_a_time_is_upgraded_from_an_older_wheel(
    first: str, field: Installation, pair: Pair, tmp_path: Path
) -> None:
    """Both sides run from the wheel; then one is upgraded to this tree, and then the other.

    The table stays equal at each step, and nobody loads it again.
    """

    def refresh(changes: Changes) -> None:
        check_reports([json.loads(report.to_json()) for report in pair.reports()], changes)
        pair.check("orders")

    python = field.program("python")
    # Spark's workers are of the wheel, too, and not of the tests.
    variables = clean_environment(PYSPARK_PYTHON=str(python))
    pair.stop()
    pair.limits = ""  # it does not know feedback
    with (
        SourceProcess(pair.source_toml(), installation=field) as source,
        older_warehouse(pair, python, tmp_path, variables) as older_refresh,
    ):
        pair.address = source.address
        with SourceChannel(pair.config().sources["erp"]) as link:
            assert not link.features & {SINCE}, "the source is not of the wheel"
        older_refresh(None)
        if first == "source":
            source.kill()
            pair.limits = UNBRAKED
            pair.serve()
            older_refresh(edit(pair))
            older_refresh((0, 0, 0))
        else:
            refresh(edit(pair))
            refresh((0, 0, 0))
            source.kill()
            pair.limits = UNBRAKED
            pair.serve()
    refresh(edit(pair, again=1))
    refresh((0, 0, 0))
    assert pair.version("orders") == 2
