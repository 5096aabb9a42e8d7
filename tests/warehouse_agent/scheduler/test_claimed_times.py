"""`fit` and decisions from claimed times of events in a real table; the picture of a fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.harness.legacy import PostgresLegacy, SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from warehouse_agent.cli.main import cli
from warehouse_agent.scheduler import claimed_times
from warehouse_agent.scheduler import due as due_now

ROWS = 3000
LINES = 'event_time = "created_at"\nevent_kind = "creation"\ntime_zone = "Europe/Vienna"\n'


@pytest.fixture
def pair(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Pair]:
    legacy = PostgresLegacy(postgresql)
    legacy.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, created_at timestamptz, entered timestamp,"
        " note text)"
    )
    hours = np.random.default_rng(1).uniform(1, 20 * 168, ROWS).tolist()
    legacy.execute(
        "INSERT INTO orders SELECT n, at, at AT TIME ZONE 'UTC', 'x' FROM (SELECT n,"
        " now() - make_interval(secs => 3600 * h) AS at"
        " FROM unnest(%s::float8[]) WITH ORDINALITY AS drawn(h, n)) AS made",
        hours,
    )
    legacy.execute("INSERT INTO orders VALUES (-1, now() + interval '1 day'), (-2, NULL)")
    relations = {"orders": 'table = "orders"'}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        yield made
    legacy.close()


def fit(pair: Pair, *words: str, lines: str = LINES) -> Result:
    pair.fragment_lines = {"orders": lines}
    return CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), "fit", *words])


def test_a_fit_of_claimed_times(pair: Pair, tmp_path: Path) -> None:
    """One refresh is enough: the times are in the rows."""
    pair.reports()
    picture = tmp_path / "orders.svg"
    said = fit(pair, "orders", "--plot", str(picture))
    assert said.exit_code == 0, said.output
    assert "changed rows an hour, from " in said.stdout
    assert "claimed events" in said.stdout
    assert "a creation time: deleted rows do not show" in said.stdout
    assert "1 time after the snapshot, not counted" in said.stdout
    assert "1 row without a time, not counted" in said.stdout
    assert "goodness of fit of the times (Lemma 6): not contradicted" in said.stdout
    body = json.loads(fit(pair, "orders", "--json").stdout)
    assert body["rows_per_hour"] == pytest.approx(ROWS / (20 * 168), rel=0.1)
    assert (body["event_time"], body["event_kind"]) == ("created_at", "creation")
    assert (body["event_times_in_future"], body["event_times_missing"]) == (1, 1)
    root = ElementTree.fromstring(picture.read_text())
    kinds = [shape.get("class") for shape in root.iter() if shape.get("class")]
    assert kinds == ["interval", "rate", "fit"]
    # Times without a zone are those of the source's clock, here of UTC, and mean the same.
    entered = 'event_time = "entered"\nevent_kind = "update"\n'
    again = json.loads(fit(pair, "orders", "--json", lines=entered).stdout)
    assert again["event_times_p_value"] == pytest.approx(body["event_times_p_value"], abs=0.2)
    assert "last change alone" in again["event_bias"]
    for column, why in (("note", "no time"), ("nothing", "no column")):
        lines = f'event_time = "{column}"\nevent_kind = "update"\n'
        refused = fit(pair, "orders", lines=lines)
        assert refused.exit_code != 0
        assert isinstance(refused.exception, Exception)
        assert why in f"{refused.exception}{refused.output}"
    lost = fit(pair, "orders", "--plot", str(tmp_path / "no" / "folder.svg"))
    assert "cannot be written" in f"{lost.exception}{lost.output}"


def decision(pair: Pair, lines: str, hours: float = 1.0) -> due_now.FragmentDecision:
    pair.fragment_lines = {"orders": lines}
    config, now = pair.config(), datetime.now(UTC) + timedelta(hours=hours)
    return due_now.scheduled(config, pair.store, config.fragments["orders"], now.timestamp(), None)


def test_a_decision_reads_the_claimed_times_once_a_day(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one refresh there is no interval, and still a model: that of the times."""
    pair.reports()
    goal = "refreshes_per_day = 2\n"
    without = decision(pair, goal)
    assert (without.decision.rows, without.decision.policy) == (None, "fixed")
    found = decision(pair, LINES + goal).decision
    assert found.rows == pytest.approx(12 * ROWS / (20 * 168), rel=0.15)
    kept = pair.warehouse / "_driftline" / "claims" / "orders.json"
    before = kept.read_bytes()
    pair.legacy.execute("INSERT INTO orders VALUES (-3, now())")
    pair.refresh("orders")
    decision(pair, LINES + goal)
    assert kept.read_bytes() == before
    with monkeypatch.context() as patched:  # a day later it is read again
        patched.setattr(claimed_times, "READ_AGAIN_S", 0.0)
        decision(pair, LINES + goal)
    assert json.loads(kept.read_text())["end"] > json.loads(before)["end"]
    kept.write_text("damaged")
    assert decision(pair, LINES + goal).decision.rows is not None
    assert json.loads(kept.read_text())["of"] == ["created_at", "creation", "Europe/Vienna"]


def test_a_column_that_is_no_time_is_told_and_counts_decide(pair: Pair) -> None:
    pair.reports()
    wrong = 'event_time = "note"\nevent_kind = "update"\nrefreshes_per_day = 2\n'
    found = decision(pair, wrong)
    assert (found.decision.due, found.decision.policy) == (False, "fixed")
    assert "no time" in found.unread
    said = "`event_time` is not used: 'note' of orders is published as string"
    assert said in pair.said("schedule", "orders")
    assert json.loads(pair.said("schedule", "orders", "--json"))["event_time_not_used"] == (
        found.unread
    )


@pytest.mark.parametrize("column", ["entered", "created_at"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna", "America/New_York"])
def test_times_at_the_ends_of_time_are_outside(pair: Pair, column: str, zone: str) -> None:
    """Many tables have a last or first day for "never"; a zone has no offset there."""
    pair.legacy.execute(
        "INSERT INTO orders (id, entered, created_at) SELECT n, at::timestamp, at FROM"
        " unnest(ARRAY['9999-12-31 23:59:59+00', '0001-01-01 00:00:00+00', '1900-01-01 00:00+00']"
        "::timestamptz[]) WITH ORDINALITY AS drawn(at, m), LATERAL (SELECT -10 - m AS n) AS k"
    )
    pair.reports()
    lines = f'event_time = "{column}"\nevent_kind = "update"\ntime_zone = "{zone}"\n'
    body = json.loads(fit(pair, "orders", "--json", lines=lines).stdout)
    assert 1 <= body["event_times_in_future"] <= 12  # those of the last hours, in New York
    assert body["rows_per_hour"] == pytest.approx(ROWS / (20 * 168), rel=0.1)
    assert not decision(pair, lines + "refreshes_per_day = 2\n").decision.due


@pytest.mark.starts
def test_a_time_marker_that_is_published_as_text_claims_nothing(tmp_path: Path) -> None:
    """Nobody wrote `event_time`: neither is anything wrong, nor is a fit refused."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed DATETIME NOT NULL)")
    legacy.execute("INSERT INTO orders VALUES (1, datetime('now'))")
    lines = 'table = "orders"\nmarker = { column = "changed", late = "15m", zone = "UTC" }'
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": lines}) as pair:
        pair.small_bytes = 32 << 20
        pair.reports()
        found = decision(pair, "refreshes_per_day = 2\n")
        assert (found.decision.due, found.unread) == (False, "")
        said = fit(pair, "orders", lines="")
        assert (said.exit_code, said.exception) == (0, None), said.output
    legacy.close()


def test_a_time_marker_claims_times_without_another_word(pair: Pair) -> None:
    """The DBA named the column, so the engineer need not."""
    pair.publish("orders", 'table = "orders"\nmarker = { column = "created_at", late = "15m" }')
    pair.reports()
    body = json.loads(fit(pair, "orders", "--json", lines="").stdout)
    assert (body["event_time"], body["event_kind"]) == ("created_at", "update")
    found = decision(pair, "refreshes_per_day = 2\n").decision
    assert found.rows == pytest.approx(12 * ROWS / (20 * 168), rel=0.15)
