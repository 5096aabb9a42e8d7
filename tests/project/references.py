"""What is generated of the docs: references of settings and commands, and schemas for editors; and
the rooms.

Settings and options come from their declarations. `docs/generate` writes all; with `--check` it
names what differs instead. With `--rooms` it prints the rooms, from the tree and its docstrings. In
a page a generated part lies between two comments that name it. Errors of wrong values are those of
the agents' own readers. No test here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import jsonschema
from driftline.errors import ConfigurationError
from driftline.settings.declarations import Setting, SettingKind, SettingsTable, as_toml

from source_agent.config.declarations import SourceFile
from source_agent.engines.dump.formats import FormatTable
from tests import ROOT
from tests.project.json_schemas import LINES, schema_of
from warehouse_agent.config.file import WarehouseFile
from warehouse_agent.spark import session

FILES: Mapping[str, type[SettingsTable]] = {
    "warehouse": WarehouseFile,
    "source": SourceFile,
    "dump-format": FormatTable,
}
HEAD = (
    "| setting | values | default | meaning | a wrong value, and its error |\n|---|---|---|---|---|"
)
DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that Taplo implements in full
LEFT_OUT = {  # by examples that show only what they are about: the table, and the least it may be
    "relations": {
        "database": '[database]\nurl = "sqlite:///erp.db"\n',
        "server": '[server]\nlisten = "127.0.0.1:7443"\ninsecure = true\n',
    },
    "fragments": {
        "warehouse": '[warehouse]\npath = "warehouse"\n',
        "sources": '[sources.erp]\naddress = "127.0.0.1:7443"\ninsecure = true\n',
    },
}
AGENT_ALONE = "†"  # a wrong value that no schema can tell
OPTIONS_HEAD = "| option | meaning |\n|---|---|"
SPARK_HEAD = "| setting | value | when |\n|---|---|---|"
ROOMS_HEAD = "| room | what it holds | modules |\n|---|---|---|"


def tables(table: type[SettingsTable], name: str = "") -> Iterator[tuple[str, type[SettingsTable]]]:
    """Yield a table and those below it, each with its name in a file; the file's own is empty."""
    yield name, table
    for key, setting in table.declared.items():
        kind = setting.kind
        inner = (kind.each or kind).table
        if inner is not None:
            place = ".".join(filter(None, (name, key, kind.called if kind.each else "")))
            yield from tables(inner, place)


def settings(table: type[SettingsTable]) -> Iterator[tuple[str, Setting[object]]]:
    """Yield the settings of a table and of those below it, each with its dotted name. A section of
    a file is no setting of its own."""
    for name, one in tables(table):
        for key, setting in one.declared.items():
            kind = setting.kind
            if (kind.each or kind).table is None or name:
                free = f".{kind.called}" if kind.each and kind.each.table is None else ""
                yield f"{name}.{key}{free}".lstrip("."), setting


def reference(table: type[SettingsTable]) -> str:
    """Return the reference of a file: for each of its tables a heading, and a row for each setting.

    Settings that several tables share have a heading that names them all. A table of values by free
    names has a section of its own, behind the others, if it is at the top of the file.
    """
    places: dict[Setting[object], list[str]] = {}
    meanings: dict[str, str] = {}
    for name, one in tables(table):
        meanings[name] = (one.__doc__ or "").strip().split("\n")[0]
        for setting in one.declared.values():
            places.setdefault(setting, []).append(name)
    sections: dict[tuple[str, ...], list[str]] = {}
    free: dict[tuple[str, ...], list[str]] = {}
    for setting, names in places.items():
        kind = setting.kind
        if (kind.each or kind).table is None and kind.each is not None:
            if names == [""]:
                free[setting.name,] = [_row(kind.called, setting)]
                meanings[setting.name] = f"{setting.brief[0].upper()}{setting.brief[1:]}."
                continue
            sections.setdefault(tuple(names), []).append(
                _row(f"{setting.name}.{kind.called}", setting)
            )
        elif (kind.each or kind).table is None or names != [""]:
            sections.setdefault(tuple(names), []).append(_row(setting.name, setting))
    return "\n\n".join(
        "\n".join([*_heading(names, meanings), HEAD, *rows])
        for names, rows in (sections | free).items()
    )


def _heading(names: tuple[str, ...], meanings: Mapping[str, str]) -> list[str]:
    if names == ("",):
        return [meanings[""], ""]
    said = meanings[names[0]] if len(names) == 1 else "In each of these tables:"
    return [f"## {' and '.join(f'[{name}]' for name in names)}", said, ""]


def _row(name: str, setting: Setting[object]) -> str:
    kind = leaf(setting.kind)
    cells = (
        f"`{name}`",
        re.sub("^an? ", "", kind.label),
        _default(setting),
        re.sub(r"(?<=\]\()(?=[^)])", "../", setting.meaning),
        "<br>".join(_refusal(kind, value) for value in kind.wrong),
    )
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def leaf(kind: SettingKind[object]) -> SettingKind[object]:
    """Return the kind of the values that a reference lists."""
    return kind.each if kind.each is not None and kind.each.table is None else kind


def refused(kind: SettingKind[object], value: object) -> ConfigurationError:
    """Return the error that an agent has for a value of a file."""
    try:
        kind.parse(SettingsTable(Path("/folder/file.toml"), "", {}), "setting", value)
    except ConfigurationError as error:
        return error
    raise AssertionError(f"{value!r} is not wrong")


def is_marked(kind: SettingKind[object], value: object) -> bool:
    """Return True if an editor marks a value by the schema."""
    return not jsonschema.Draft7Validator(_of_kind(kind)).is_valid(value)


def _refusal(kind: SettingKind[object], value: object) -> str:
    error = refused(kind, value)
    text = as_toml(value)
    text = text if '"' in text else text.replace("'", '"')
    mark = "" if is_marked(kind, value) else f" {AGENT_ALONE}"
    ticks = "``" if "`" in text else "`"
    said = " ".join(filter(None, (error.message, error.remedy)))
    return f"{ticks}{text}{ticks}{mark}: {said}"


def _default(setting: Setting[object]) -> str:
    value, unit = setting.default, setting.kind.unit
    if value is None:
        text = setting.unset or f"required {setting.when}".strip()
        return re.sub(r"(?<=\]\()(?=[^)])", "../", text)
    if value in ([], {}):
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = as_toml(value)
        return f"`{text}`" if '"' in text else f"`{text}`".replace("'", '"')
    mebibytes = f" ({value >> 20} MiB)" if unit == "bytes" and isinstance(value, int) else ""
    return f"{value:,g}{mebibytes}" if isinstance(value, float) else f"{value:,}{mebibytes}"


def schema(table: type[SettingsTable]) -> dict[str, object]:
    """Return the JSON Schema of a table: its settings, and no others."""
    properties: dict[str, object] = {}
    for name, setting in table.declared.items():
        found = _of_kind(setting.kind) | {"description": setting.plain_meaning}
        if setting.default is not None:
            found["default"] = setting.default
        properties[name] = found
    required = [name for name, setting in table.declared.items() if setting.is_required]
    return {
        "description": (table.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _of_kind(kind: SettingKind[object]) -> dict[str, object]:
    if kind.table is not None:
        return schema(kind.table)
    if kind.each is not None:
        return {**kind.schema, "additionalProperties": _of_kind(kind.each)}
    return dict(kind.schema)


def whole(example: str) -> str:
    """Return the text of a file of settings of which a page shows a part."""
    shown = tomllib.loads(example)
    added = [
        text
        for part, tables_ in LEFT_OUT.items()
        if part in shown
        for name, text in tables_.items()
        if name not in shown
    ]
    return "\n".join([example, *added])


def commands() -> Mapping[str, click.Group]:
    """Return the command lines of both agents, by the names of their programs."""
    from source_agent.cli import main as source
    from warehouse_agent.cli import main as warehouse

    return {"driftline": warehouse.cli, "driftline-source": source.cli}


def options(command: click.Command) -> str:
    """Return a table of Markdown with a row for each option of a command, as `--help` has them."""
    context = click.Context(command)
    rows = []
    for option in command.params:
        if isinstance(option, click.Option):
            record = option.get_help_record(context)
            assert record is not None, f"{option.name} has no help"
            name, meaning = (cell.replace("|", "&#124;") for cell in record)
            rows.append(f"| `{name}` | {meaning} |".replace("&#124;", "\\|"))
    return "\n".join([OPTIONS_HEAD, *rows])


def spark_settings() -> str:
    """Return a table of Markdown with a row for each setting of Spark that the agent sets."""
    kinds = (
        (session.ALWAYS, "always"),
        (session.DEFAULTS, "by default"),
        (session.LOCAL_DEFAULTS, "by default, with a local master"),
    )
    rows = [
        f"| `{name}` | `{value}` | {when} |" for kind, when in kinds for name, value in kind.items()
    ]
    return "\n".join([SPARK_HEAD, *rows])


def rooms() -> str:
    """Return a table of Markdown with a row for each room of the product."""
    rows = [ROOMS_HEAD]
    for package in ("proto/driftline", "source_agent", "warehouse_agent"):
        for path in sorted((ROOT / package).rglob("__init__.py")):
            room = path.parent
            what = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
            modules = sorted(one.stem for one in room.glob("*.py") if not one.stem.startswith("_"))
            listed = ", ".join(f"`{module}`" for module in modules)
            rows.append(f"| `{room.relative_to(ROOT)}/` | {what} | {listed} |")
    return "\n".join(rows)


def generated() -> dict[Path, str]:
    """Return the text of each file that has generated parts, or is generated."""
    made = {}
    for name, table in FILES.items():
        page = ROOT / "docs" / "reference" / f"{name}.md"
        made[page] = _placed(page.read_text(encoding="utf-8"), "settings", reference(table))
    page = ROOT / "docs" / "reference" / "warehouse.md"
    made[page] = _placed(made[page], "settings of Spark", spark_settings())
    for program, group in commands().items():
        for name, command in group.commands.items():
            page = ROOT / "docs" / "reference" / program / f"{name}.md"
            text = page.read_text(encoding="utf-8")
            made[page] = _placed(text, f"options of {program} {name}", options(command))
    for name, table in FILES.items():
        head = {"$schema": DIALECT, "title": f"{name}: generated by docs/generate"}
        found = json.dumps(head | schema(table), indent=2, ensure_ascii=False)
        made[ROOT / "docs" / "schemas" / f"{name}.schema.json"] = f"{found}\n"
    for name in LINES:
        found = json.dumps({"$schema": DIALECT} | schema_of(name), indent=2, ensure_ascii=False)
        made[ROOT / "docs" / "schemas" / f"{name}.json.schema.json"] = f"{found}\n"
    return made


def _placed(text: str, name: str, part: str) -> str:
    """Return the text of a page with its generated part of that name."""
    first, last = f"<!-- {name}: docs/generate -->\n", "\n<!-- end -->"
    before, _, rest = text.partition(first)
    assert rest, f"no page has a place for {name}"
    _, _, after = rest.partition(last)
    return f"{before}{first}{part}{last}{after}"


def main(check: bool) -> int:
    """Write what is generated, or with `check` return 1 if that would change a file."""
    stale = [
        path
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not current: run docs/generate", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(generated()[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    if "--rooms" in sys.argv[1:]:
        print(rooms())
        sys.exit()
    sys.exit(main("--check" in sys.argv[1:]))
