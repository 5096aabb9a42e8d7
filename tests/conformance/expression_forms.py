"""Operators and functions that a view may use, in the SQL of Spark and of each engine.

A form is (name, type of its result, types of its arguments, Spark's SQL, SQL of engines where it
is another one; None: the engine has nothing like it). `{0}` is the first argument. A difference is
known by engine and form; the word that it names is in the table of docs/views.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

PG, MY, LITE, FB = "postgresql", "mariadb", "sqlite", "firebird"


class Form(NamedTuple):
    """An operator or function; `others`: SQL of engines where it is not Spark's."""

    name: str
    result: str
    args: tuple[str, ...]
    spark: str
    others: Mapping[str, str | None] = MappingProxyType({})

    def sql(self, engine: str) -> str | None:
        return self.others.get(engine, self.spark)


_NO_FB: dict[str, str | None] = {FB: None}
_CAST_INT = {PG: "CAST({0} AS int)", MY: "CAST({0} AS signed)", LITE: "CAST({0} AS integer)"}
_CAST_TEXT = {PG: "CAST({0} AS text)", MY: "CAST({0} AS char)", LITE: "CAST({0} AS text)",
              FB: "CAST({0} AS varchar(100))"}  # fmt: skip
_CONCAT = {MY: "CONCAT({0}, {1})"}
_SUBSTRING = {LITE: "substr({0}, {1}, {2})", FB: "substring({0} from {1} for {2})",
              PG: "substring({0}, {1}, {2})"}  # fmt: skip
_SAFE = {LITE: "{0} IS {1}", PG: "{0} IS NOT DISTINCT FROM {1}", FB: "{0} IS NOT DISTINCT FROM {1}"}
_PART = {MY: "extract({0} from {{0}})", PG: "CAST(extract({0} from {{0}}) AS int)",
         FB: "extract({0} from {{0}})"}  # fmt: skip


def _part(word: str, lite: str | None = None, **others: str | None) -> dict[str, str | None]:
    found: dict[str, str | None] = {engine: text.format(word) for engine, text in _PART.items()}
    return found | {LITE: lite} | others


def _compared(kind: str) -> list[Form]:
    named = {"dec": "decimal", "dbl": "double"}.get(kind, kind)
    both = (kind, kind)
    found = [
        Form(f"{named} {sign} {named}", "bool", both, f"{{0}} {sign} {{1}}")
        for sign in ("=", "<>", "<", "<=")
    ]
    return [
        *found,
        Form(f"{named} IN", "bool", (kind,) * 3, "{0} IN ({1}, {2})"),
        Form(f"{named} NOT IN", "bool", (kind,) * 3, "{0} NOT IN ({1}, {2})"),
        Form(f"{named} BETWEEN", "bool", (kind,) * 3, "{0} BETWEEN {1} AND {2}"),
        Form(f"{named} <=>", "bool", both, "{0} <=> {1}", _SAFE),
        Form(f"{named} IS NULL", "bool", (kind,), "{0} IS NULL"),
        Form(f"coalesce({named})", kind, both, "coalesce({0}, {1})"),
        Form(f"nullif({named})", kind, both, "nullif({0}, {1})"),
        Form(f"CASE of {named}", kind, ("bool", *both), "CASE WHEN {0} THEN {1} ELSE {2} END"),
        Form(f"greatest({named})", kind, both, "greatest({0}, {1})",
             {LITE: "max({0}, {1})", FB: "maxvalue({0}, {1})"}),
        Form(f"least({named})", kind, both, "least({0}, {1})",
             {LITE: "min({0}, {1})", FB: "minvalue({0}, {1})"}),
    ]  # fmt: skip


FORMS: list[Form] = [
    *(form for kind in ("int", "dec", "dbl", "text", "date", "ts") for form in _compared(kind)),
    Form("NOT", "bool", ("bool",), "NOT {0}"),
    Form("AND", "bool", ("bool", "bool"), "{0} AND {1}"),
    Form("OR", "bool", ("bool", "bool"), "{0} OR {1}"),
    # Types that meet.
    Form("int = decimal", "bool", ("int", "dec"), "{0} = {1}"),
    Form("int < double", "bool", ("int", "dbl"), "{0} < {1}"),
    Form("decimal = double", "bool", ("dec", "dbl"), "{0} = {1}"),
    Form("int = text", "bool", ("int", "digits"), "{0} = {1}", {PG: None}),
    Form("decimal = text", "bool", ("dec", "digits"), "{0} = {1}", {PG: None}),
    Form("date = text", "bool", ("date",), "{0} = '2024-02-29'"),
    Form("date < text", "bool", ("date",), "{0} < '2024-3-1'"),
    Form("date < timestamp", "bool", ("date", "ts"), "{0} < {1}"),
    Form("date = timestamp", "bool", ("date", "ts"), "{0} = {1}"),
    Form(
        "boolean = integer",
        "bool",
        ("bool", "int"),
        "CAST({0} AS INT) = {1}",
        {PG: "CAST({0} AS int) = {1}", MY: "{0} = {1}", LITE: "{0} = {1}", FB: None},
    ),
    # Numbers.
    *(
        Form(
            f"{a} {sign} {b}",
            r,
            (a[:3].replace("dou", "dbl"), b[:3].replace("dou", "dbl")),
            f"{{0}} {sign} {{1}}",
        )
        for a, b, r in (
            ("int", "int", "int"),
            ("decimal", "decimal", "dec"),
            ("int", "decimal", "dec"),
            ("double", "double", "dbl"),
            ("int", "double", "dbl"),
        )
        for sign in "+-*"
    ),
    Form("int / int", "dbl", ("int", "int"), "{0} / {1}"),
    Form("decimal / decimal", "dec", ("dec", "dec"), "{0} / {1}"),
    Form("decimal / int", "dec", ("dec", "int"), "{0} / {1}"),
    Form("double / double", "dbl", ("dbl", "dbl"), "{0} / {1}"),
    Form(
        "int DIV int",
        "int",
        ("int", "int"),
        "{0} DIV {1}",
        {PG: "div({0}, {1})", LITE: "{0} / {1}", FB: "{0} / {1}"},
    ),
    Form("int % int", "int", ("int", "int"), "{0} % {1}", {FB: "mod({0}, {1})"}),
    Form("decimal % decimal", "dec", ("dec", "dec"), "{0} % {1}", _NO_FB),
    Form("- int", "int", ("int",), "- {0}"),
    Form("- decimal", "dec", ("dec",), "- {0}"),
    Form("abs", "dec", ("dec",), "abs({0})"),
    Form("sign", "int", ("dec",), "sign({0})"),
    Form("round(decimal)", "dec", ("dec",), "round({0})"),
    Form("round(decimal, 1)", "dec", ("dec",), "round({0}, 1)"),
    Form("round(double)", "dbl", ("dbl",), "round({0})"),
    Form("round(int, -1)", "int", ("int",), "round({0}, -1)"),
    Form("ceil", "int", ("dec",), "ceil({0})"),
    Form("floor", "int", ("dec",), "floor({0})"),
    Form("power", "dbl", ("int", "int"), "power({0}, {1})"),
    Form("sqrt", "dbl", ("int",), "sqrt({0})"),
    Form("ln", "dbl", ("int",), "ln({0})"),
    Form("exp", "dbl", ("int",), "exp({0})"),
    Form("int & int", "int", ("int", "int"), "{0} & {1}", {FB: "bin_and({0}, {1})"}),
    Form("int | int", "int", ("int", "int"), "{0} | {1}", {FB: "bin_or({0}, {1})"}),
    Form(
        "int ^ int",
        "int",
        ("int", "int"),
        "{0} ^ {1}",
        {PG: "{0} # {1}", LITE: None, FB: "bin_xor({0}, {1})"},
    ),
    Form("~ int", "int", ("int",), "~ {0}", {FB: "bin_not({0})"}),
    # Casts.
    Form("CAST(decimal AS INT)", "int", ("dec",), "CAST({0} AS INT)", _CAST_INT),
    Form("CAST(double AS INT)", "int", ("dbl",), "CAST({0} AS INT)", _CAST_INT),
    Form("CAST(text AS INT)", "int", ("digits",), "CAST({0} AS INT)", _CAST_INT),
    Form("CAST(decimal AS DECIMAL)", "dec", ("dec",), "CAST({0} AS DECIMAL(9,1))"),
    Form("CAST(double AS DECIMAL)", "dec", ("dbl",), "CAST({0} AS DECIMAL(9,1))"),
    Form("CAST(int AS STRING)", "text", ("int",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(decimal AS STRING)", "text", ("dec",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(double AS STRING)", "text", ("dbl",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(date AS STRING)", "text", ("date",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(timestamp AS STRING)", "text", ("ts",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(boolean AS STRING)", "text", ("bool",), "CAST({0} AS STRING)", _CAST_TEXT),
    Form("CAST(timestamp AS DATE)", "date", ("ts",), "CAST({0} AS DATE)", {LITE: "date({0})"}),
    Form(
        "CAST(date AS TIMESTAMP)",
        "ts",
        ("date",),
        "CAST({0} AS TIMESTAMP_NTZ)",
        {
            PG: "CAST({0} AS timestamp)",
            MY: "CAST({0} AS datetime)",
            LITE: "datetime({0})",
            FB: "CAST({0} AS timestamp)",
        },
    ),
    # Texts.
    Form("||", "text", ("text", "text"), "{0} || {1}", _CONCAT),
    Form("concat", "text", ("text", "text"), "concat({0}, {1})", {LITE: None, FB: "{0} || {1}"}),
    Form("concat_ws", "text", ("text", "text"), "concat_ws('-', {0}, {1})", {LITE: None, FB: None}),
    Form("upper", "text", ("text",), "upper({0})"),
    Form("lower", "text", ("text",), "lower({0})"),
    Form("initcap", "text", ("text",), "initcap({0})", {MY: None, LITE: None, FB: None}),
    Form("length", "int", ("text",), "length({0})", {FB: "char_length({0})"}),
    Form("char_length", "int", ("text",), "char_length({0})", {LITE: "length({0})"}),
    Form("octet_length", "int", ("text",), "octet_length({0})", {LITE: None}),
    Form("length of CHAR(n)", "int", ("char",), "length({0})", {FB: "char_length({0})"}),
    Form("CHAR(n) = text", "bool", ("char", "text"), "{0} = {1}"),
    Form("CHAR(n) || text", "text", ("char", "text"), "{0} || {1}", _CONCAT),
    Form("trim", "text", ("text",), "trim({0})"),
    Form("ltrim", "text", ("text",), "ltrim({0})", {FB: "trim(leading from {0})"}),
    Form("rtrim", "text", ("text",), "rtrim({0})", {FB: "trim(trailing from {0})"}),
    Form("substring", "text", ("text", "count", "count"), "substring({0}, {1}, {2})", _SUBSTRING),
    Form(
        "substring at 0 or less",
        "text",
        ("text", "least", "count"),
        "substring({0}, {1}, {2})",
        _SUBSTRING,
    ),
    Form("left", "text", ("text", "count"), "left({0}, {1})", {LITE: None}),
    Form("right", "text", ("text", "count"), "right({0}, {1})", {LITE: None}),
    Form("left or right of less than 0", "text", ("text", "least"), "left({0}, {1})", {LITE: None}),
    Form("lpad", "text", ("text", "count"), "lpad({0}, {1}, 'x')", {LITE: None}),
    Form("rpad", "text", ("text", "count"), "rpad({0}, {1}, 'x')", {LITE: None}),
    Form("replace", "text", ("text", "text"), "replace({0}, {1}, 'z')"),
    Form("reverse", "text", ("text",), "reverse({0})", {LITE: None}),
    Form("repeat", "text", ("text", "count"), "repeat({0}, {1})", {LITE: None, FB: None}),
    Form(
        "position",
        "int",
        ("text", "text"),
        "locate({0}, {1})",
        {PG: "strpos({1}, {0})", LITE: "instr({1}, {0})", FB: "position({0}, {1})"},
    ),
    Form("ascii", "int", ("text",), "ascii({0})", {LITE: None, FB: None}),
    Form("md5", "text", ("text",), "md5({0})", {LITE: None, FB: None}),
    Form("hex", "text", ("text",), "hex({0})", {PG: None, FB: None}),
    Form(
        "translate",
        "text",
        ("text",),
        "translate({0}, 'ab', 'x')",
        {MY: None, LITE: None, FB: None},
    ),
    Form(
        "split_part",
        "text",
        ("text", "count"),
        "split_part({0}, ' ', {1} + 1)",
        {MY: None, LITE: None, FB: None},
    ),
    Form("LIKE", "bool", ("text",), "{0} LIKE 'a%'"),
    Form("LIKE of a column", "bool", ("text", "text"), "{0} LIKE {1}"),
    Form("LIKE ESCAPE", "bool", ("text",), "{0} LIKE 'a/%' ESCAPE '/'"),
    Form("ILIKE", "bool", ("text",), "{0} ILIKE 'Ä%'", {MY: None, LITE: None, FB: None}),
    Form(
        "RLIKE", "bool", ("text",), "{0} RLIKE '^a.?$'", {PG: "{0} ~ '^a.?$'", LITE: None, FB: None}
    ),
    # Dates.
    Form(
        "date + int",
        "date",
        ("date", "int"),
        "date_add({0}, {1})",
        {
            PG: "{0} + {1}",
            MY: "{0} + INTERVAL {1} DAY",
            LITE: "date({0}, {1} || ' days')",
            FB: "{0} + {1}",
        },
    ),
    Form(
        "date - date",
        "int",
        ("date", "date"),
        "datediff({0}, {1})",
        {
            PG: "{0} - {1}",
            LITE: "CAST(julianday({0}) - julianday({1}) AS integer)",
            FB: "{0} - {1}",
        },
    ),
    Form(
        "date + months",
        "date",
        ("date", "count"),
        "add_months({0}, {1})",
        {
            PG: "CAST({0} + {1} * INTERVAL '1 month' AS date)",
            MY: "{0} + INTERVAL {1} MONTH",
            LITE: "date({0}, {1} || ' months')",
            FB: "dateadd({1} month to {0})",
        },
    ),
    Form(
        "timestamp + months",
        "ts",
        ("ts",),
        "{0} + INTERVAL '1' MONTH",
        {
            PG: "{0} + INTERVAL '1 month'",
            MY: "{0} + INTERVAL 1 MONTH",
            LITE: "strftime('%Y-%m-%d %H:%M:%f', {0}, '1 months')",
            FB: "dateadd(1 month to {0})",
        },
    ),
    Form(
        "timestamp + hours",
        "ts",
        ("ts",),
        "{0} + INTERVAL '25' HOUR",
        {
            PG: "{0} + INTERVAL '25 hour'",
            MY: "{0} + INTERVAL 25 HOUR",
            LITE: "strftime('%Y-%m-%d %H:%M:%f', {0}, '25 hours')",
            FB: "dateadd(25 hour to {0})",
        },
    ),
    Form(
        "last_day",
        "date",
        ("date",),
        "last_day({0})",
        {PG: None, LITE: "date({0}, 'start of month', '+1 month', '-1 day')", FB: None},
    ),
    Form(
        "year", "int", ("date",), "year({0})", _part("year", "CAST(strftime('%Y', {0}) AS integer)")
    ),
    Form(
        "month",
        "int",
        ("date",),
        "month({0})",
        _part("month", "CAST(strftime('%m', {0}) AS integer)"),
    ),
    Form("day", "int", ("date",), "day({0})", _part("day", "CAST(strftime('%d', {0}) AS integer)")),
    Form("quarter", "int", ("date",), "quarter({0})", _part("quarter", firebird=None)),
    Form("week", "int", ("date",), "weekofyear({0})", _part("week")),
    Form(
        "dayofweek",
        "int",
        ("date",),
        "dayofweek({0})",
        {
            PG: "CAST(extract(dow from {0}) AS int)",
            LITE: "CAST(strftime('%w', {0}) AS integer)",
            FB: "extract(weekday from {0})",
        },
    ),
    Form(
        "dayofyear",
        "int",
        ("date",),
        "dayofyear({0})",
        {
            PG: "CAST(extract(doy from {0}) AS int)",
            LITE: "CAST(strftime('%j', {0}) AS integer)",
            FB: "extract(yearday from {0})",
        },
    ),
    Form(
        "hour", "int", ("ts",), "hour({0})", _part("hour", "CAST(strftime('%H', {0}) AS integer)")
    ),
    Form(
        "second",
        "int",
        ("ts",),
        "second({0})",
        {
            PG: "extract(second from {0})",
            MY: "second({0})",
            LITE: "CAST(strftime('%S', {0}) AS integer)",
            FB: "extract(second from {0})",
        },
    ),
    Form(
        "trunc to month",
        "date",
        ("date",),
        "trunc({0}, 'MM')",
        {
            PG: "CAST(date_trunc('month', {0}) AS date)",
            MY: None,
            LITE: "date({0}, 'start of month')",
            FB: None,
        },
    ),
    Form(
        "date_trunc to week",
        "ts",
        ("ts",),
        "date_trunc('week', {0})",
        {MY: None, LITE: None, FB: None},
    ),
    Form(
        "months_between",
        "dbl",
        ("date", "date"),
        "months_between({0}, {1})",
        {PG: None, MY: None, LITE: None, FB: None},
    ),
    # Values.
    Form(
        "-0 = 0",
        "bool",
        (),
        "- CAST(0 AS DOUBLE) = 0e0",
        {
            PG: "- CAST(0 AS double precision) = 0e0",
            LITE: "-0.0 = 0.0",
            FB: "- CAST(0 AS double precision) = 0e0",
        },
    ),
    Form(
        "NaN = NaN",
        "bool",
        (),
        "double('NaN') = double('NaN')",
        {PG: "float8 'NaN' = float8 'NaN'", MY: None, LITE: None, FB: None},
    ),
    Form(
        "NaN > number",
        "bool",
        (),
        "double('NaN') > 1e308",
        {PG: "float8 'NaN' > 1e308", MY: None, LITE: None, FB: None},
    ),
    Form("backslash", "int", (), r"length('a\\b')", {FB: r"char_length('a\\b')"}),
]

# Columns by type, the value of each row as text. `c` and `p` are CHAR(3), which some engines read
# without blanks (`c`), and others with them (`p`).
PADDED = {PG: "p", MY: "c", LITE: "c", FB: "p"}
ROWS = 12


def _values(text: str) -> list[str | None]:
    return [None if value == "NULL" else value for value in text.split("|")]


COLUMNS: dict[str, dict[str, list[str | None]]] = {
    "int": {
        "i": _values("-7|-1|0|1|2|3|7|15|25|-25|NULL|5"),
        "j": _values("2|3|7|-3|1|-2|5|4|9|10|6|NULL"),
    },
    "dec": {
        "d": _values("-2.50|-0.01|0.00|0.10|0.25|1.50|2.50|1.00|99999.99|NULL|0.35|3.00"),
        "e": _values(
            "2.0000|-0.5000|3.3333|0.1000|-1.2500|1.5000|7.0001|1.0000|0.0001|6.0000|NULL|3.0000"
        ),
    },
    "dbl": {
        "f": _values("-2.5|-0.5|0|0.1|0.25|1.5|2.5|3.5|100000|NULL|1e-7|3"),
        "g": _values("2.5|-0.5|3|0.1|4|1.5|-7|1e10|2|6.5|NULL|0.75"),
    },
    "text": {
        "t": _values("| |a|A|a |ä|ß|abc|10|NULL|a%|ab c"),
        "u": _values("a||a |a|a|Ä|SS|b|9|x|NULL|İı"),
    },
    "digits": {
        "n": _values("1|0|10|9|-7|2|3|15|25|NULL|007|5"),
    },
    "char": {
        "c": _values("a||ab|A|abc|ä|a|b|1|NULL|x|a"),
        "p": _values("a||ab|A|abc|ä|a|b|1|NULL|x|a"),
    },
    "date": {
        "a": _values(
            "2024-02-29|2024-01-31|2023-12-31|"
            "2024-01-01|1999-12-31|2000-02-29|"
            "2024-03-31|1970-01-01|2024-12-30|"
            "NULL|2023-02-28|1969-07-20"
        ),
        "b": _values(
            "2024-02-29|2024-02-01|2023-01-31|"
            "2023-12-31|2024-02-29|2000-03-01|"
            "2024-03-30|2038-01-19|2025-01-05|"
            "2001-01-01|NULL|1600-02-29"
        ),
    },
    "ts": {
        "s": _values(
            "2024-02-29 00:00:00|2024-01-31 23:59:59.999|2023-12-31 12:30:00|"
            "2024-01-01 00:00:00|1999-12-31 23:00:00|2000-02-29 01:02:03.5|"
            "2024-03-31 02:30:00|1970-01-01 00:00:00|2024-12-30 06:07:08|"
            "NULL|2023-02-28 23:30:00|1969-07-20 20:17:40"
        ),
    },
    "count": {
        "k": _values("0|1|2|3|1|2|4|1|2|3|1|2"),
    },
    "least": {
        "m": _values("0|-1|-2|0|-1|0|-1|0|-1|0|-1|-3"),
    },
}
