"""Columns that a derivation may compare, per engine, with awkward values; and why others may not.

A case is (declaration, declared type, what it may be compared by, values, literals): values are SQL
of the engine, literals are in the string form of the declared type. A counter-example is
(declaration, values, condition, Spark's condition): what a warehouse would push if the column were
on the list, and the same in Spark over the column as it is published. They keep other rows.
"""

from __future__ import annotations

from driftline.relations.derivations import Comparable

from tests.harness.family import FAMILY

ORDER, EQUALITY = Comparable.ORDER, Comparable.EQUALITY
Compared = tuple[str, str, Comparable, list[str], list[str]]
Counterexample = tuple[str, list[str], str, str]

LANGUAGES = "postgresql_with_languages"  # the engine that has these, and its server's fixture
_WITHOUT_CASE = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
COLLATIONS = (
    f"CREATE COLLATION without_case ({_WITHOUT_CASE})",
    "CREATE COLLATION german (provider = libc, locale = 'de_DE.UTF-8')",
)
_ICU = ("und-x-icu", "de-x-icu", "sv-x-icu", "tr-x-icu")

TEXTS = [
    "''", "' '", "'a'", "'a '", "'a  '", "'A'", "'B'", "'b'", "'ä'", "'Ä'", "'a\u0308'", "'z'",
    "'Z'", "'ß'", "'ss'", "'\ufeffa'", "'\uffff'", "'😀'", "'10'", "'9'", "'%'", "'a%'", "'_'",
    "'NULL'", "'\t'", "'a\u00ad'", "'ı'", "'I'", "'i'", "'0'",
]  # fmt: skip
LITERALS = [
    "", " ", "a", "a ", "A", "B", "ä", "a\u0308", "ss", "\uffff", "😀", "10", "9", "%", "a%",
    "NULL", "\\", "'", '"', "I", "a\u00ad", "\\'; DROP TABLE t; --", "{a,b}", "%s", "?",
]  # fmt: skip
LATIN = [v for v in TEXTS if v.encode("latin1", "replace").decode("latin1") == v]
INT8 = ["-9223372036854775808", "-1", "0", "1", "9007199254740992", "9007199254740993",
        "9223372036854775806", "9223372036854775807"]  # fmt: skip
DATES = ["0001-01-01", "1582-10-04", "1582-10-15", "1999-12-31", "2000-02-29", "9999-12-31"]
MOMENTS = ["0001-01-01 00:00:00", "1999-12-31 23:59:59", "1999-12-31 23:59:59.999999",
           "2024-03-31 02:30:00", "9999-12-31 23:59:59.999999"]  # fmt: skip
CENTS = ["-99999.99", "-0.01", "0.00", "0.01", "0.30", "1.50", "99999.99"]
WIDE = ["-9999999999999999999999999999.9999999999", "0.0000000000", "0.0000000001",
        "1.0000000001", "9999999999999999999999999999.9999999999"]  # fmt: skip


def _quoted(values: list[str]) -> list[str]:
    return [f"'{value}'" for value in values]


COMMON: list[Compared] = [
    ("smallint", "int2", ORDER, ["-32768", "-1", "0", "32767"], ["-32768", "0", "1", "32767"]),
    ("int", "int4", ORDER, ["-2147483648", "0", "7", "2147483647"], ["-1", "0", "7", "2147483647"]),
    ("bigint", "int8", ORDER, INT8, INT8),
    ("decimal(7,2)", "numeric(7,2)", ORDER, CENTS, CENTS),
    ("decimal(38,10)", "numeric(38,10)", ORDER, WIDE, WIDE),
    ("date", "date", ORDER, _quoted(DATES), DATES),
    ("timestamp(6)", "timestamp", ORDER, _quoted(MOMENTS), MOMENTS),
]
POSTGRESQL: list[Compared] = [
    *COMMON,
    ("timestamp(0)", "timestamp", ORDER, _quoted(MOMENTS[:-1]), MOMENTS),
    ("positive", "int4", ORDER, ["1", "7"], ["0", "7"]),
    ("label", "text", ORDER, TEXTS, LITERALS),
    ("text", "text", ORDER, TEXTS, LITERALS),
    ("varchar(20)", "text", ORDER, TEXTS, LITERALS),
    *[
        (f'text COLLATE "{collation}"', "text", ORDER, TEXTS, LITERALS)
        for collation in ("C", "POSIX", "pg_c_utf8", "pg_unicode_fast", "ucs_basic")
    ],
]
POSTGRESQL_WITH_LANGUAGES: list[Compared] = [
    (f"{type} COLLATE {collation}", "text", ORDER, TEXTS, LITERALS)
    for type in ("text", "varchar(20)")
    for collation in (*(f'"{name}"' for name in _ICU), "without_case", "german")
]
_FAMILY: list[Compared] = [
    *[case for case in COMMON if case[0] != "timestamp(6)"],
    ("datetime(6)", "timestamp", ORDER, _quoted(MOMENTS), MOMENTS),
    ("datetime", "timestamp", ORDER, _quoted(MOMENTS), MOMENTS),
    ("tinyint(1)", "int2", ORDER, ["-128", "0", "1", "127"], ["0", "1", "300"]),
    ("tinyint unsigned", "int2", ORDER, ["0", "255"], ["-1", "0", "255", "256"]),
    ("smallint unsigned", "int4", ORDER, ["0", "65535"], ["-1", "65535"]),
    ("mediumint", "int4", ORDER, ["-8388608", "8388607"], ["-8388608", "0"]),
    ("int(8) unsigned zerofill", "int8", ORDER, ["0", "4294967295"], ["-1", "42", "4294967295"]),
    ("bigint unsigned", "numeric(20,0)", ORDER,
     ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615"],
     ["-1", "0", "9223372036854775808", "18446744073709551615", "99999999999999999999"]),
    ("varchar(20) CHARACTER SET latin1", "text", ORDER, [*LATIN, "'€'"], [*LITERALS, "€", "ÿ"]),
    ("varchar(20) CHARACTER SET utf16", "text", ORDER, TEXTS, LITERALS),
    ("longtext COLLATE utf8mb4_general_ci", "text", ORDER, TEXTS, LITERALS),
]  # fmt: skip
_COLLATIONS = ("utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_swedish_ci")


def _texts(*collations: str) -> list[Compared]:
    return [(f"varchar(20) COLLATE {one}", "text", ORDER, TEXTS, LITERALS) for one in collations]


MARIADB = [*_FAMILY, *_texts(*_COLLATIONS, "utf8mb4_nopad_bin", "utf8mb4_unicode_nopad_ci")]
MYSQL = [
    *(case for case in _FAMILY if case[0] != "datetime"),
    # It rounds what MariaDB truncates, and refuses what would be beyond the last second.
    ("datetime", "timestamp", ORDER, _quoted(MOMENTS[:-1]), MOMENTS),
    *_texts(*_COLLATIONS, "utf8mb4_0900_bin", "utf8mb4_0900_ai_ci", "utf8mb4_de_pb_0900_as_cs"),
]
SQLITE: list[Compared] = [
    ("integer", "int8", ORDER, INT8, INT8),
    ("bigint", "int8", ORDER, INT8, INT8),
    ("boolean", "int8", ORDER, ["0", "1", "2"], ["0", "1"]),
    ("text", "text", ORDER, TEXTS, LITERALS),
    ("varchar(9)", "text", ORDER, TEXTS, LITERALS),
    ("text COLLATE NOCASE", "text", ORDER, TEXTS, LITERALS),
    ("text COLLATE RTRIM", "text", ORDER, TEXTS, LITERALS),
]

# Why what is not on the list is not on it. The published column is `v`, of the carrier of its type.
PADDED = (["'a'", "'b'"], "v = 'a'", "v = 'a'")
NOT_IN_POSTGRESQL: list[Counterexample] = [
    ("char(3)", *PADDED),  # 'a  ' in Spark
    ("numeric", ["10", "9", "1.0", "1.00"], "v < 9.5", "v < '9.5'"),  # text in Spark
    ("numeric", ["1.0", "1.00"], "v = 1.0", "v = '1.0'"),
    ("real", ["1.1", "2"], "v = 1.1", "v = CAST('1.1' AS FLOAT)"),
    ("uuid", ["'123e4567-e89b-12d3-a456-426655440000'"],
     "v = '123E4567-E89B-12D3-A456-426655440000'", "v = '123E4567-E89B-12D3-A456-426655440000'"),
    ("mood", ["'sad'", "'ok'"], "v < 'ok'", "v < 'ok'"),  # by its place, not its name
    ("jsonb", ["'{\"a\":1.10}'"], "v = '{\"a\":1.1}'", "v = '{\"a\":1.1}'"),
    ("time", ["'24:00'", "'10:00'"], "v = '10:00'", "v = '10:00'"),
    ("timestamptz", ["'2024-10-27 00:30Z'", "'2024-10-27 01:30Z'"],  # the first, and the second
     "v = '2024-10-27 02:30 Europe/Zurich'", "v = TIMESTAMP '2024-10-27 02:30:00 Europe/Zurich'"),
    ("money", ["2", "10"], "v = '$2'", "v = 10"),
    ("interval", ["'1 month'", "'30 days'"], "v = '30 days'", "v = 'P0M30DT0S'"),
]  # fmt: skip
NOT_IN_MARIADB: list[Counterexample] = [
    ("enum('sad','ok')", ["'sad'", "'ok'"], "v < 2", "v < '2'"),
    ("float", ["1.1", "2"], "v = 1.1", "v = CAST('1.1' AS FLOAT)"),
    ("time", ["'10:00:00'"], "v = '10:00'", "v = '10:00'"),
    ("uuid", ["'123e4567-e89b-12d3-a456-426655440000'"],
     "v = '123E4567-E89B-12D3-A456-426655440000'", "v = '123E4567-E89B-12D3-A456-426655440000'"),
    ("char(5) COLLATE utf8mb4_general_ci", ["'a'", "'A'"], "v = 'a'", "v = 'a'"),
    ("year", ["2001", "1999"], "v = 1", "v = 1"),
    ("timestamp", ["'2024-06-01 00:30:00'", "'2024-06-01 02:30:00'"],  # a zone is not read
     "v = '2024-06-01 02:30:00 Europe/Paris'", "v = TIMESTAMP '2024-06-01 02:30:00 Europe/Paris'"),
]  # fmt: skip
NOT_IN_SQLITE: list[Counterexample] = [
    ("decimal(10,2)", ["0.3", "0.1"], "v * 3 = 0.9", "v * 3 = 0.9"),  # doubles
    ("numeric", ["5", "'5'"], "v = 5", "v = '5'"),  # tagged text in Spark: i:5
    ("date", ["'2020-01-01'", "'x'"], "v < 5", "v < '5'"),
    ("real", ["1", "0.5"], "v = '1'", "v = 2"),
]
# Operators of the engine itself on text, which a derivation therefore does not use.
RAW_MARIADB: list[Counterexample] = [
    ("varchar(9) COLLATE utf8mb4_general_ci", ["'a'", "'A'", "'ä'"], "v = 'a'", "v = 'a'"),
    ("varchar(9) COLLATE utf8mb4_bin", ["'a'", "'a '"], "v = 'a'", "v = 'a'"),
    ("varchar(9) COLLATE utf8mb4_general_ci", ["'a'", "'B'"], "v < 'B'", "v < 'B'"),
    ("varchar(9) COLLATE utf8mb4_general_ci", ["'10'", "'9'"], "v < 10", "v < '10'"),
]
RAW_POSTGRESQL: list[Counterexample] = [
    ("text COLLATE without_case", ["'a'", "'A'"], "v = 'a'", "v = 'a'"),
    ('text COLLATE "de-x-icu"', ["'a'", "'B'"], "v < 'B'", "v < 'B'"),
    ("text COLLATE german", ["'a'", "'B'"], "v < 'B'", "v < 'B'"),
    ('text COLLATE "de-x-icu"', ["'z'", "'ä'", "'a'"], "v BETWEEN 'a' AND 'z'",
     "v BETWEEN 'a' AND 'z'"),
]  # fmt: skip
RAW_SQLITE: list[Counterexample] = [
    ("text COLLATE NOCASE", ["'a'", "'A'"], "v = 'a'", "v = 'a'"),
    ("text COLLATE RTRIM", ["'a'", "'a '"], "v = 'a'", "v = 'a'"),
]

# Expressions over columns that may be compared: functions, LIKE, casts, arithmetic, text against a
# number. None is known for LIKE and length in PostgreSQL; they stay as elsewhere.
IN_POSTGRESQL: list[Counterexample] = [
    ("int", ["6", "7"], "v / 2 = 3", "v / 2 = 3"),
    ("numeric(7,2)", ["1.50", "2.00"], "CAST(v AS int) = 2", "CAST(v AS int) = 2"),
    ("text", ["'ß'"], "upper(v) = 'SS'", "upper(v) = 'SS'"),
    ("date", ["'2024-01-07'"], "extract(dow FROM v) = 0", "extract(dow FROM v) = 0"),
]
IN_MARIADB: list[Counterexample] = [
    ("int", ["1", "3"], "v / 3 = 0.3333", "v / 3 = 0.3333"),
    ("decimal(7,2)", ["1.50", "2.00"], "CAST(v AS signed) = 2", "CAST(v AS int) = 2"),
    ("varchar(9) COLLATE utf8mb4_general_ci", ["'a'", "'A'"], "v LIKE 'a'", "v LIKE 'a'"),
    ("varchar(9) COLLATE utf8mb4_nopad_bin", ["'ß'"], "upper(v) = 'SS'", "upper(v) = 'SS'"),
    ("varchar(9) COLLATE utf8mb4_nopad_bin", ["'ä'"], "length(v) = 1", "length(v) = 1"),
]
IN_SQLITE: list[Counterexample] = [
    ("integer", ["6", "7"], "v / 2 = 3", "v / 2 = 3"),
    ("integer", ["1", "2"], "CAST(v AS boolean) = TRUE", "CAST(v AS boolean) = TRUE"),
    ("text", ["'9'", "'10'"], "v < 10", "v < 10"),
    ("text", ["'a'", "'A'"], "v LIKE 'a'", "v LIKE 'a'"),
    ("text", ["'ä'"], "upper(v) = 'Ä'", "upper(v) = 'Ä'"),
    ("text", ["'a' || char(0) || 'b'"], "length(v) = 1", "length(v) = 1"),
]

COMPARED = {
    "postgresql": POSTGRESQL,
    LANGUAGES: POSTGRESQL_WITH_LANGUAGES,
    "mariadb": MARIADB,
    "mysql": MYSQL,
    "sqlite": SQLITE,
}
EXCLUDED = {
    "postgresql": NOT_IN_POSTGRESQL,
    "mariadb": NOT_IN_MARIADB,
    "mysql": [case for case in NOT_IN_MARIADB if case[0] != "uuid"],
    "sqlite": NOT_IN_SQLITE,
}
RAW = {
    LANGUAGES: RAW_POSTGRESQL,
    **dict.fromkeys(FAMILY, RAW_MARIADB),
    "sqlite": RAW_SQLITE,
}
EXPRESSIONS: dict[str, list[Counterexample]] = {
    "postgresql": IN_POSTGRESQL,
    "mariadb": IN_MARIADB,
    "mysql": [
        (type.replace("nopad_bin", "0900_bin"), values, pushed, kept)
        for type, values, pushed, kept in IN_MARIADB
    ],
    "sqlite": IN_SQLITE,
}
