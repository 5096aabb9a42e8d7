"""Relations that cannot be read, for `test_border`: what the DBA wrote, and what happened to it.

Everything that no client may know has SECRET in its name: tables beside those that are served,
tables under a query or a view, columns that are not published, a schema, a type, a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

SECRET = "zzq"
_NAME = re.compile(r'"\w+"')


@dataclass(frozen=True, slots=True)
class Case:
    """A relation `name`; `made` before, and `broken` after the agent has described it once.

    `since`: the first release of PostgreSQL that has it.
    """

    name: str
    toml: str
    made: Sequence[str] = ()
    broken: Sequence[str] = ()
    since: int = 0


_COLUMNS = "(id INT NOT NULL PRIMARY KEY, note VARCHAR(20), zzq_pay INT)"
_QUERY = 'query = "SELECT id, note FROM {}"\nkey = ["id"]'


def _table(name: str) -> str:
    return f"CREATE TABLE {name} {_COLUMNS}"


def _renamed(engine: str, before: str, after: str) -> str:
    return f"RENAME TABLE {before} TO {after}" if engine == "mariadb" else (
        f"ALTER TABLE {before} RENAME TO {after}"
    )  # fmt: skip


def beside() -> list[str]:
    """Tables that nothing serves."""
    return [_table(f"{SECRET}_{name}") for name in ("salaries", "price_list", "gone", "kept")]


def cases(engine: str, release: int) -> list[Case]:
    """The cases of an engine of SQL; `release` is PostgreSQL's."""
    published = 'columns = ["id", "note"]\nkey = ["id"]'
    found = [
        Case("whole", f'table = "whole"\n{published}', [_table("whole")]),
        Case("dropped", f'table = "dropped"\n{published}', [_table("dropped")],
             ["DROP TABLE dropped"]),
        Case("narrowed", f'table = "narrowed"\n{published}', [_table("narrowed")],
             ["ALTER TABLE narrowed DROP note"]),
        Case("never", f'table = "{SECRET}_never"\n{published}'),
        Case("no_key", 'table = "no_key"\nkey = ["nothing"]', [_table("no_key")]),
        Case("texts", f'table = "texts"\n{published}\nas_text = ["{SECRET}_pey"]',
             [_table("texts")]),
        Case("marked", f'table = "marked"\n{published}\nmarker = {{ column = "{SECRET}_pay" }}',
             [_table("marked")]),
        Case("mismarked", f'table = "mismarked"\n{published}\nmarker = {{ column = "zzq_at" }}',
             [_table("mismarked")]),
        Case("chosen", f'table = "chosen"\n{published}\nwhere = "{SECRET}_nothing = 1"',
             [_table("chosen")]),
        Case("asked", _QUERY.format(f"{SECRET}_kept")),
        Case("asked_gone", _QUERY.format(f"{SECRET}_gone"), (), [f"DROP TABLE {SECRET}_gone"]),
        Case("asked_wrong", f'query = "SELECT id, {SECRET}_note FROM {SECRET}_kept"\nkey = ["id"]'),
        Case("asked_twice", f'query = "SELECT id, note AS {SECRET}, note AS {SECRET}'
             f' FROM {SECRET}_kept"\nkey = ["id"]'),
        Case("asked_nonsense", f'query = "SELEKT {SECRET}"\nkey = ["id"]'),
        Case("null", f'query = "SELECT NULLIF(id, 1) AS id, note FROM {SECRET}_kept"\n'
             'key = ["id"]'),
        Case("equal", f'query = "SELECT 1 + 0 * id AS id, note FROM {SECRET}_kept"\n'
             'key = ["id"]'),
        Case("uncast", f'query = "SELECT id, CAST(note AS INT) AS note FROM {SECRET}_kept"\n'
             'key = ["id"]'),
    ]  # fmt: skip
    if engine != "firebird":
        found.append(
            Case(
                "renamed",
                f'table = "renamed"\n{published}',
                [_table("renamed")],
                [_renamed(engine, "renamed", f"{SECRET}_renamed")],
            )
        )
    found += [case for case in _OWN[engine] if case.since <= release]
    if engine == "firebird":  # which folds names to upper case
        found = [replace(case, toml=_NAME.sub(lambda m: m[0].upper(), case.toml)) for case in found]
    return found


_VIEW = f"CREATE VIEW viewed AS SELECT id, note FROM {SECRET}_base"
_RAISE = f"$$ BEGIN RAISE EXCEPTION 'no {SECRET} today'; END $$"
_OWN = {
    "postgresql": [
        Case("elsewhere", f'table = "{SECRET}.elsewhere"', [f"CREATE SCHEMA {SECRET}"]),
        Case(
            "typed",
            'table = "typed"',
            [
                f"CREATE TYPE {SECRET}_pair AS (a int)",
                f"CREATE TABLE typed (id int PRIMARY KEY, note {SECRET}_pair)",
            ],
        ),
        Case(
            "secured",
            'table = "viewed"\nkey = ["id"]',
            [
                _table(f"{SECRET}_base"),
                f"CREATE POLICY {SECRET}_only ON {SECRET}_base USING (zzq_pay < 5)",
                f"ALTER TABLE {SECRET}_base ENABLE ROW LEVEL SECURITY",
                _VIEW.replace("AS SELECT", "WITH (security_invoker) AS SELECT"),
                f"GRANT SELECT ON viewed, {SECRET}_base TO PUBLIC",
            ],
            since=15,
        ),
        Case(
            "computed",
            f'query = "SELECT id, {SECRET}_f() AS note FROM {SECRET}_kept"\nkey = ["id"]',
            [
                f"CREATE FUNCTION {SECRET}_f() RETURNS int LANGUAGE plpgsql AS {_RAISE}",
            ],
        ),
        Case(
            "unfilled",
            'table = "unfilled"\nkey = ["id"]',
            [
                f"CREATE MATERIALIZED VIEW {SECRET}_m AS SELECT * FROM {SECRET}_kept WITH NO DATA",
                f"CREATE VIEW unfilled AS SELECT id, note FROM {SECRET}_m",
            ],
        ),
    ],
    "mariadb": [
        Case(
            "viewed",
            'table = "viewed"\nkey = ["id"]',
            [_table(f"{SECRET}_base"), _VIEW],
            [f"DROP TABLE {SECRET}_base"],
        ),
        Case("elsewhere", f'table = "{SECRET}.elsewhere"\nkey = ["id"]'),
    ],
    "sqlite": [
        Case(
            "viewed",
            'table = "viewed"\nkey = ["id"]',
            [_table(f"{SECRET}_base"), _VIEW],
            [f"DROP TABLE {SECRET}_base"],
        ),
    ],
    "firebird": [],
}
