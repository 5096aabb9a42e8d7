"""What is generated of the docs: references of settings, schemas for editors, the list of rooms.

Settings come from their declarations, rooms from the tree and its docstrings. `docs/generate`
writes all; with `--check` it names what differs instead. In a page a generated part lies between
two comments that name it. No test here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from driftline.settings.declarations import Setting, SettingKind, SettingsTable, as_toml

from source_agent.config.declarations import MarkerTable, SourceFile
from source_agent.engines.dump.formats import FormatTable
from tests import ROOT
from warehouse_agent.config.file import WarehouseFile

FILES: Mapping[str, type[SettingsTable]] = {
    "warehouse": WarehouseFile,
    "source": SourceFile,
    "dump-format": FormatTable,
}
# Of each page the references, and the table whose settings, and those below it, they list.
REFERENCES: Mapping[str, Mapping[str, type[SettingsTable]]] = {
    "operating.md": {"warehouse.toml": WarehouseFile, "source.toml": SourceFile},
    "dba-guide.md": {"a marker": MarkerTable, "a format": FormatTable},
}
HEAD = "| setting | values | default | meaning |\n|---|---|---|---|"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ROOMS_HEAD = "| room | what it holds | modules |\n|---|---|---|"
_APART = {base for tables in REFERENCES.values() for t in tables.values() for base in t.__mro__}


def settings(table: type[SettingsTable], prefix: str = "") -> Iterator[tuple[str, Setting[object]]]:
    """Yield the settings of a table and of the tables below it, each with its dotted name.

    A section of a file is no setting of its own, and a table that has another reference is not
    entered.
    """
    for name, setting in table.declared.items():
        kind = setting.kind
        below = f"{prefix}{name}.{kind.called}" if kind.each else f"{prefix}{name}"
        inner = (kind.each or kind).table
        if inner is None:
            yield below, setting
            continue
        if prefix:
            yield f"{prefix}{name}", setting
        if inner not in _APART:
            yield from settings(inner, f"{below}.")


def reference(table: type[SettingsTable]) -> str:
    """Return a table of Markdown with a row for each setting; tables may share one."""
    names: dict[Setting[object], list[str]] = {}
    for name, setting in settings(table):
        names.setdefault(setting, []).append(f"`{name}`")
    rows = (
        f"| {', '.join(several)} | {_values(setting.kind)} | {_default(setting)} |"
        f" {setting.meaning} |"
        for setting, several in names.items()
    )
    return "\n".join([HEAD, *rows])


def _values(kind: SettingKind[object]) -> str:
    shown = kind.each if kind.each is not None and kind.each.table is None else kind
    return re.sub("^an? ", "", shown.label)


def _default(setting: Setting[object]) -> str:
    value, unit = setting.default, setting.kind.unit
    if value is None:
        return setting.unset or f"required {setting.when}".strip()
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
    for page, references in REFERENCES.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name, table in references.items():
            text = _placed(text, f"settings of {name}", reference(table))
        made[ROOT / "docs" / page] = text
    architecture = ROOT / "docs" / "architecture.md"
    made[architecture] = _placed(architecture.read_text(encoding="utf-8"), "rooms", rooms())
    for name, table in FILES.items():
        head = {"$schema": DIALECT, "title": f"{name}: generated by docs/generate"}
        found = json.dumps(head | schema(table), indent=2, ensure_ascii=False)
        made[ROOT / "docs" / "schemas" / f"{name}.schema.json"] = f"{found}\n"
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
    sys.exit(main("--check" in sys.argv[1:]))
