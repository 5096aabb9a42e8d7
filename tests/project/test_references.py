"""Declared settings: each is complete, and the pages and schemas for editors are made of them.

A schema may be laxer than the agent that reads a file, which also compares settings with each
other; it is never stricter. The references say of each wrong value whether an editor sees it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest
from driftline.errors import CommandKilled, ConfigurationError
from driftline.settings.declarations import Setting, SettingsTable

from source_agent.config.file import load as load_source
from tests import ROOT
from tests.faults.test_fuzzed_settings import DUMP, FORMAT, SOURCE, VALUES, WAREHOUSE
from tests.project.references import (
    AGENT_ALONE,
    FILES,
    generated,
    is_marked,
    leaf,
    refused,
    schema,
    settings,
    whole,
)
from warehouse_agent.config.file import load as load_warehouse
from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.failures import Failure
from warehouse_agent.inspection.published_state import PublishedState, UnseenChanges
from warehouse_agent.planning.marker_state import MarkerAudit
from warehouse_agent.report import MovedViews, Report

EVERY = {
    f"{file}: {name}": setting for file, table in FILES.items() for name, setting in settings(table)
}
NAMED = pytest.mark.parametrize("setting", EVERY.values(), ids=EVERY.keys())
SCHEMAS = {
    name: jsonschema.Draft7Validator(
        json.loads((ROOT / f"docs/schemas/{name}.schema.json").read_text(encoding="utf-8"))
    )
    for name in FILES
}
_FENCE = re.compile(r"^```toml[^\n]*\n(.*?)^```$", re.M | re.S)

GOOD = (
    '"90s"', '"15m"', "5000", "2.5", "0.5",
    '["id"]', '"native"', '{ a = "int8" }', '"never"', '"UTC"',
    '["02:00-03:00"]', '["Sat,Sun", "Mon 02:00-03:00"]', '"127.0.0.1:1"', '"[::1]:7443"',
    '["rows"]', '","', '"utf-8"', '{ "Mon-Fri" = 4 }', '"https://chat.example.com/hook"',
)  # fmt: skip

# Wrong lines, each in place of a line of a good file: an editor marks them, and the agent refuses
# them.
WRONG = {
    WAREHOUSE: """
        path = "warehouse" | pth = "w" | path = 1 | path = "" | path = ["w"]
        small_bytes = 0 | small_bytes = -1 | small_bytes = "1M" | ahead = 0 | ahead = 1.5
        small_bytes = 0 | ahead = "most" | sources_at_once = 0 | executors_wait_s = 0
        small_bytes = 0 | executors_wait_s = "2m" | driver_share = 0 | driver_share = 1.5
        address = "127.0.0.1:7443" | adress = "127.0.0.1:7443" | address = 7443
        insecure = true | insecure = "yes" | insecure = 1
        objective = "bytes" | objective = "speed" | refresh_hours = [] | time_zone = 1
        source = "erp" | sorce = "erp" | source = ""
        method = "range" | method = "rang" | proof = "parts" | read_at_most = 10 | priority = 1.5
        freshness = "1h" | freshness = "1x" | freshness = 3600 | policy = "optimum"
        freshness = "1h" | weights = { "Mon" = "x" } | weights = { "Mon" = 0 }
        freshness = "1h" | weights_by_change = { update = 0 } | weights_by_change = { updte = 1 }
        incremental = { rows = 40, pause_s = 0.3 } | incremental = { row = 40 }
        incremental = { rows = 40, pause_s = 0.3 } | incremental = { pause_s = "slow" }
        carriers = { note = "string" } | carriers = { note = "text" }
        max_lag = "1h" | max_lag = "an hour" | chunk_rows = 0 | maintain = "never"
        format = "slack" | format = "irc" | command = [] | command = "mail" | timeout = 2
        format = "slack" | heartbeat = "ping" | values = 1 | webhok = "https://a.example/"
    """,
    SOURCE: """
        lock_timeout_s = 1 | lock_timeout_s = 0 | lock_timeout = 1 | silence_timeout_s = 3601
        scans_at_once = 2 | scans_at_once = 0 | readers = 1.5
        quiet_hours = ["02:00-03:00"] | quiet_hours = "02:00-03:00" | quiet_hours = [2]
        scans_at_once = 2 | activity_seconds = "sometimes" | feedback = "true"
        listen = "127.0.0.1:0" | listn = "127.0.0.1:0"
        table = "orders" | tabel = "orders" | table = ""
        key = ["id"] | key = [] | key = ["id", "id"] | key = "id"
        derive = ["rows"] | derive = ["row"] | fingerprint = "databse" | rows_by_key = 0
        scan = ["22:00-05:00"] | scan = [] | scan = "nevr" | scan = true
        marker = { column = "at", late = "1h" } | marker = { colum = "at" } | marker = "at"
    """,
}

# The same, where the agent alone sees that a line is wrong.
CONTRADICTIONS = {
    WAREHOUSE: """
        path = "warehouse" | path = "ware*house"
        address = "127.0.0.1:7443" | address = "10.0.0.1:7443" | address = "127.0.0.1:0"
        objective = "bytes" | time_zone = "Vienna" | refresh_hours = ["Mon-Fri 9-18"]
        objective = "bytes" | refresh_hours = ["Mon", "Mon 08:00-09:00"] | server_name = "erp"
        source = "erp" | source = "shop"
        method = "range" | method = "group" | audit = "1d" | event_time = "at"
        require = "fuzzy" | require = "exact"
        freshness = "1h" | refreshes_per_day = 0.1 | weights = { "Mo" = 2 }
        max_lag = "1h" | max_lag = "8d"
        format = "slack" | heartbeat = "http://a.example/" | heartbeat = "https://u:p@a.example/"
        format = "slack" | webhook_file = "hook.url"
    """,
    SOURCE: """
        insecure = true | insecure = false
        quiet_hours = ["02:00-03:00"] | quiet_hours = ["02:00-25:00"]
        table = "orders" | query = "SELECT id FROM orders" | complete = "{file}.done"
        key = ["id"] | key = ["ident"]
        scan = ["22:00-05:00"] | scan = ["22:00-05:00", "04:00-06:00"]
        marker = { column = "at", late = "1h" } | marker = { column = "at", zone = "Vienna" }
        marker = { column = "at", late = "1h" } | marker = { xmin = true, late = "1h" }
    """,
}


@NAMED
def test_a_setting_says_what_it_is(setting: Setting[object]) -> None:
    kind = leaf(setting.kind)
    assert kind.label
    assert len(setting.meaning.split()) > 1
    assert len(setting.brief) < 100 or setting.name == "url", setting.brief
    assert setting.brief == setting.brief.strip(" .;")
    assert "\n" not in setting.meaning
    several = kind.schema.get("anyOf")
    for part in several if isinstance(several, list) else [kind.schema]:
        if part.get("type") in {"integer", "number"}:
            assert kind.unit, "a number has a unit"
            bounds = {"minimum", "exclusiveMinimum", "maximum"} & set(part)
            assert bounds or setting.name == "priority"


@NAMED
def test_a_setting_has_a_wrong_value_and_its_error(setting: Setting[object]) -> None:
    """The references show both, and say which of them an editor does not see."""
    kind = leaf(setting.kind)
    assert kind.wrong
    for value in kind.wrong:
        assert len(refused(kind, value).message.split()) > 2


@NAMED
def test_a_default_is_within_its_bounds(setting: Setting[object], tmp_path: Path) -> None:
    if setting.default is None:
        return
    setting.kind.parse(SettingsTable(tmp_path / "x.toml", "", {}), setting.name, setting.default)
    found = schema(type("Alone", (SettingsTable,), {setting.name: setting}))
    jsonschema.Draft7Validator(found).validate({setting.name: setting.default})


@NAMED
def test_an_editor_refuses_nothing_that_the_agent_reads(
    setting: Setting[object], tmp_path: Path
) -> None:
    table = SettingsTable(tmp_path / "x.toml", "", {})
    found = schema(type("Alone", (SettingsTable,), {setting.name: setting}))
    validator = jsonschema.Draft7Validator(found)
    accepted = 0
    for text in (*VALUES, *GOOD):
        value = tomllib.loads(f"x = {text}")["x"]
        try:
            setting.kind.parse(table, setting.name, value)
        except ConfigurationError:
            continue
        accepted += 1
        validator.validate({setting.name: value})
    assert accepted or setting.kind.table or "enum" in setting.kind.schema


def test_the_generated_files_are_current() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text() != text]
    assert not stale, "run docs/generate"


def test_a_schema_is_one() -> None:
    for validator in SCHEMAS.values():
        jsonschema.Draft7Validator.check_schema(validator.schema)


def examples() -> Iterator[tuple[str, str]]:
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            yield f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}", whole(match[1])
    for file in sorted([*ROOT.glob("deploy/**/*.toml"), *ROOT.glob("tests/golden/*/*.toml")]):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    yield from (("source", SOURCE), ("dump", DUMP), ("format", FORMAT), ("warehouse", WAREHOUSE))


@pytest.mark.parametrize("text", dict(examples()).values(), ids=dict(examples()).keys())
def test_every_example_is_valid(text: str) -> None:
    parsed = tomllib.loads(text)
    name = "warehouse" if "warehouse" in parsed else "source" if "server" in parsed else None
    SCHEMAS[name or "dump-format"].validate(parsed)


def wrong(lines_of: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for text, lines in lines_of.items():
        for line in lines.strip().splitlines():
            good, *bad = (part.strip() for part in line.split(" | "))
            yield from ((text, good, one) for one in bad)


WRONG_LINES = list(wrong(WRONG))
ALONE = list(wrong(CONTRADICTIONS))


def test_many_lines_are_wrong() -> None:
    assert len(WRONG_LINES) >= 50


def replaced(text: str, good: str, bad: str) -> str:
    """Return a file with a wrong line in place of a good one."""
    assert f"\n{good}\n" in text
    return text.replace(f"\n{good}\n", f"\n{bad}\n", 1)


def is_refused(text: str, file: Path) -> bool:
    """Return True if the agent that reads a file refuses it."""
    file.write_text(text, encoding="utf-8")
    try:
        (load_warehouse if "[warehouse]" in text else load_source)(file)
    except ConfigurationError as error:
        return error.where.startswith(f"{file.name}: ")
    return False


@pytest.mark.parametrize(
    ("text", "good", "bad"), WRONG_LINES, ids=[f"{good} -> {bad}" for _, good, bad in WRONG_LINES]
)
def test_editor_and_agent_refuse_a_wrong_line(
    text: str, good: str, bad: str, tmp_path: Path
) -> None:
    changed = replaced(text, good, bad)
    validator = SCHEMAS["warehouse" if text == WAREHOUSE else "source"]
    assert validator.is_valid(tomllib.loads(text))
    assert not is_refused(text, tmp_path / "file.toml")
    assert not validator.is_valid(tomllib.loads(changed))
    assert is_refused(changed, tmp_path / "file.toml")


@pytest.mark.parametrize(
    ("text", "good", "bad"), ALONE, ids=[f"{good} -> {bad}" for _, good, bad in ALONE]
)
def test_the_agent_alone_refuses_a_contradiction(
    text: str, good: str, bad: str, tmp_path: Path
) -> None:
    """A schema is told of one setting at a time; should it learn more, the page is to say so."""
    changed = replaced(text, good, bad)
    assert SCHEMAS["warehouse" if text == WAREHOUSE else "source"].is_valid(tomllib.loads(changed))
    assert is_refused(changed, tmp_path / "file.toml")


def test_a_reference_marks_what_the_agent_alone_refuses() -> None:
    for name, table in FILES.items():
        page = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
        kinds = [leaf(setting.kind) for _, setting in settings(table)]
        alone = sum(not is_marked(kind, value) for kind in kinds for value in kind.wrong)
        marks = page.count(f" {AGENT_ALONE}:")
        assert 0 < marks <= alone, "settings of several tables have one row"
        assert "enerated" in "\n".join(page.splitlines()[:5])


def validator(name: str) -> jsonschema.Draft7Validator:
    text = (ROOT / f"docs/schemas/{name}.json.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft7Validator(json.loads(text))


def test_printed_lines_have_the_schemas() -> None:
    failed = Report("orders", predicted={"what": "sketch"}, changes_expected=(1, 2, 3))
    failed.fail(CommandKilled("killed"))
    failed.view_phases.append(MovedViews(3, 0.5, "2026-11-30T08:00:00Z"))
    for report in (Report("orders"), failed):
        validator("report").validate(json.loads(report.to_json()))
    failure = Failure(1, None, None, 3, "LOCKED", "m", "w", "", True, 75, {"a": "b"})
    audit = MarkerAudit("2026-11-30T08:00:00Z", None, 1, 0, (), 0)
    states = (
        PublishedState("orders"),
        PublishedState(
            "orders", failed=failure, state=MonitoringState.WARNING, alarms=["late"], audit=audit,
            ahead=UnseenChanges(1, "2026-11-30T08:00:00Z"), inputs={"a": 1},
        ),
    )  # fmt: skip
    for state in states:
        word = None if state.state is None else state.state.word
        line = json.dumps(asdict(state) | {"state": word})
        validator("status").validate(json.loads(line))
    newer = json.loads(Report("orders").to_json()) | {"key_of_tomorrow": 1}
    validator("report").validate(newer)


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"schema": "1"}, {"places": ["spark"]}])
def test_other_lines_have_not(body: dict[str, object]) -> None:
    line = (json.loads(Report("orders").to_json()) | body) if body else body
    assert not validator("report").is_valid(line)
