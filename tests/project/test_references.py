"""Declared settings: each is complete, and the pages and schemas for editors are made of them.

A schema may be laxer than the agent that reads a file, which also compares settings with each
other; it is never stricter.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from driftline.errors import ConfigurationError
from driftline.settings.declarations import Setting, SettingKind, SettingsTable

from tests import ROOT
from tests.faults.test_fuzzed_settings import DUMP, FORMAT, SOURCE, VALUES, WAREHOUSE
from tests.project.references import FILES, generated, schema, settings

EVERY = {
    f"{file}: {name}": setting for file, table in FILES.items() for name, setting in settings(table)
}
NAMED = pytest.mark.parametrize("setting", EVERY.values(), ids=EVERY.keys())
SCHEMAS = {
    name: jsonschema.Draft202012Validator(
        json.loads((ROOT / f"docs/schemas/{name}.schema.json").read_text(encoding="utf-8"))
    )
    for name in FILES
}
_FENCE = re.compile(r"^```toml[^\n]*\n(.*?)^```$", re.M | re.S)

GOOD = (
    '"90s"', '"15m"', "5000", "2.5", "0.5",
    '["id"]', '"native"', '{ a = "int8" }', '"never"', '"UTC"',
    '["02:00-03:00"]', '["Sat,Sun", "Mon 02:00-03:00"]', '"127.0.0.1:1"', '"[::1]:7443"',
    '["rows"]', '","', '"utf-8"', '{ "Mon-Fri" = 4 }',
)  # fmt: skip

# Wrong lines for editors to mark, each in place of a line of a good file.
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
        incremental = { rows = 40, pause_s = 0.3 } | incremental = { row = 40 }
        incremental = { rows = 40, pause_s = 0.3 } | incremental = { pause_s = "slow" }
        carriers = { note = "string" } | carriers = { note = "text" }
        max_lag = "1h" | max_lag = "an hour" | chunk_rows = 0 | maintain = "never"
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


def leaves(kind: SettingKind[object]) -> SettingKind[object]:
    """Return the kind of the values that a reference lists."""
    return kind.each if kind.each is not None and kind.each.table is None else kind


@NAMED
def test_a_setting_says_what_it_is(setting: Setting[object]) -> None:
    kind = leaves(setting.kind)
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
def test_a_default_is_within_its_bounds(setting: Setting[object], tmp_path: Path) -> None:
    if setting.default is None:
        return
    setting.kind.parse(SettingsTable(tmp_path / "x.toml", "", {}), setting.name, setting.default)
    found = schema(type("Alone", (SettingsTable,), {setting.name: setting}))
    jsonschema.Draft202012Validator(found).validate({setting.name: setting.default})


@NAMED
def test_an_editor_refuses_nothing_that_the_agent_reads(
    setting: Setting[object], tmp_path: Path
) -> None:
    table = SettingsTable(tmp_path / "x.toml", "", {})
    found = schema(type("Alone", (SettingsTable,), {setting.name: setting}))
    validator = jsonschema.Draft202012Validator(found)
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
        jsonschema.Draft202012Validator.check_schema(validator.schema)


def examples() -> Iterator[tuple[str, str]]:
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            yield f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}", match[1]
    for file in sorted([*ROOT.glob("deploy/**/*.toml"), *ROOT.glob("tests/golden/*/*.toml")]):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    yield from (("source", SOURCE), ("dump", DUMP), ("format", FORMAT), ("warehouse", WAREHOUSE))


@pytest.mark.parametrize("text", dict(examples()).values(), ids=dict(examples()).keys())
def test_every_example_is_valid(text: str) -> None:
    parsed = tomllib.loads(text)
    name = "warehouse" if "warehouse" in parsed else "source" if "server" in parsed else None
    SCHEMAS[name or "dump-format"].validate(parsed)


def wrong() -> Iterator[tuple[str, str, str]]:
    for text, lines in WRONG.items():
        for line in lines.strip().splitlines():
            good, *bad = (part.strip() for part in line.split(" | "))
            yield from ((text, good, one) for one in bad)


WRONG_LINES = list(wrong())


def test_many_lines_are_wrong() -> None:
    assert len(WRONG_LINES) >= 50


@pytest.mark.parametrize(
    ("text", "good", "bad"), WRONG_LINES, ids=[f"{good} -> {bad}" for _, good, bad in WRONG_LINES]
)
def test_an_editor_marks_a_wrong_line(text: str, good: str, bad: str) -> None:
    assert f"\n{good}\n" in text
    validator = SCHEMAS["warehouse" if text == WAREHOUSE else "source"]
    assert validator.is_valid(tomllib.loads(text))
    assert not validator.is_valid(tomllib.loads(text.replace(f"\n{good}\n", f"\n{bad}\n", 1)))
