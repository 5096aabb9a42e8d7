"""What a view's query may be, where errors point, and what is put into the text."""

from __future__ import annotations

import contextlib

import pytest
from driftline.errors import ConfigurationError
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from warehouse_agent.views.query import OCCURRENCES_MAX, read_query, resolve
from warehouse_agent.views.words import FUNCTIONS

WHERE = "warehouse.toml: views.v.query"
ACCEPTED = [
    "SELECT a FROM t",
    "select `a b` as ab from erp.t",
    "SELECT o.a, c.b AS bb FROM erp.orders o JOIN crm.customer AS c ON c.k = o.k",
    "SELECT o.a FROM erp.orders o INNER JOIN x ON o.k <=> x.k CROSS JOIN y, z WHERE o.a > z.b",
    "SELECT a::int AS x, CAST(b AS DECIMAL(10, 2)) AS y, try_cast(c AS date) AS z FROM t",
    "SELECT CASE WHEN a IN (1, 2) THEN 'it''s' ELSE upper(b) END AS c FROM t WHERE NOT (a IS NULL)",
    "SELECT a IS DISTINCT FROM b AS c FROM t WHERE a IS NOT DISTINCT FROM 3",
    "SELECT extract(YEAR FROM d) AS y, trim(BOTH 'x' FROM s) AS s FROM t -- FROM nowhere",
    "SELECT d + INTERVAL 1 DAY AS e, date '2020-02-29' AS f FROM t WHERE s LIKE 'a%'",
    "SELECT a FROM t WHERE s RLIKE 'b' OR s ILIKE '%C'",
    "SELECT a % 2 AS m, a DIV 2 AS d, -a AS n, a & 3 AS b, s || 'x' AS c FROM t;",
    "SELECT a FROM t /* JOIN u */ WHERE b = 'SELECT' AND c = \"FROM\"",
    "SELECT if(a > 1, b, c) AS x, coalesce(a, 0) AS y, substring(s, 1, 2) AS z FROM t;;",
    "SELECT `FROM` AS f, `select` AS s FROM t AS `join`",
    "SELECT a\r\nFROM erp . `t`\r\n  o WHERE\to.a BETWEEN 1 AND 2",
    "SELECT l.a, r.a AS b FROM t l JOIN t r ON l.k = r.k",
    "SELECT t.distinct FROM t",
    "SELECT t.from, `distinct` FROM t WHERE t.distinct IS DISTINCT FROM t.from",
    "SELECT a + 1 AS b, date + INTERVAL 1 DAY AS c, (a) + -b AS d FROM t",
    "SELECT a -- \\ x\n, b /* x \\\n */ FROM t -- x\\\n",
    "SELECT a FROM t WHERE s = '10:00' OR s IN ('todayish', 'to' || 'do', '9:30')",
    "SELECT CAST(d || ' 10:00' AS TIMESTAMP) AS x, to_timestamp(concat(d, ' 10:00')) AS y FROM t",
    "SELECT d + INTERVAL '10:00' HOUR TO MINUTE AS x, CAST('10:00' AS STRING) AS y FROM t",
    "SELECT TIMESTAMP '2020-02-29 10:00' AS x FROM t WHERE hour(d) > 1 AND s <> '10:00'",
]
REFUSED = [
    ("", "does not begin with SELECT"),
    ("DELETE FROM t", "does not begin with SELECT, column 1"),
    ("FROM t SELECT a", "does not begin with SELECT"),
    ("SELECT a FROM t; SELECT a FROM t", "several statements"),
    ("SELECT a", "no FROM"),
    ("SELECT * FROM t", "`*` is refused, column 8"),
    ("SELECT t.* FROM t", "`*` is refused"),
    ("SELECT count(*) AS n FROM t", "an aggregate is refused"),
    ("SELECT sum(a) AS n FROM t", "an aggregate is refused"),
    ("SELECT a FROM t GROUP BY a", "GROUP BY is refused: it comes with a later release"),
    ("SELECT DISTINCT a FROM t", "DISTINCT is refused"),
    ("SELECT a FROM t ORDER BY a", "ORDER BY is refused"),
    ("SELECT a FROM t LIMIT 3", "LIMIT is refused"),
    ("SELECT a FROM t HAVING a > 1", "HAVING is refused"),
    ("SELECT a FROM t QUALIFY a > 1", "refused"),
    ("SELECT row_number() OVER (ORDER BY a) AS n FROM t", "a window function is refused"),
    ("SELECT lower(a) OVER (ORDER BY a) AS n FROM t", "a window function is refused"),
    ("SELECT a FROM t LEFT JOIN u ON t.k = u.k", "LEFT JOIN is refused, column 27"),
    ("SELECT a FROM t FULL OUTER JOIN u ON t.k = u.k", "FULL OUTER JOIN is refused"),
    ("SELECT a FROM t RIGHT JOIN u ON t.k = u.k", "RIGHT JOIN is refused"),
    ("SELECT a FROM t LEFT SEMI JOIN u ON t.k = u.k", "LEFT SEMI JOIN is refused"),
    ("SELECT a FROM t LEFT ANTI JOIN u ON t.k = u.k", "LEFT ANTI JOIN is refused"),
    ("SELECT a FROM t NATURAL JOIN u", "NATURAL JOIN is refused"),
    ("SELECT a FROM t JOIN u USING (k)", "USING is refused"),
    ("SELECT a FROM (SELECT a FROM t) x", "subquery"),
    ("SELECT a FROM t WHERE a IN (SELECT b FROM u)", "subquery, column 29"),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)", "subquery"),
    ("WITH x AS (SELECT a FROM t) SELECT a FROM x", "WITH is refused"),
    ("SELECT a FROM t UNION ALL SELECT a FROM u", "no plain SELECT"),
    ("SELECT a FROM t UNION TABLE u", "refused"),
    ("SELECT a FROM VALUES (1) AS x(a)", "reads tables by name"),
    ("SELECT a FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE is refused"),
    ("SELECT a FROM t LATERAL VIEW explode(b) x AS y", "LATERAL VIEW is refused"),
    ("SELECT a FROM t, LATERAL (SELECT 1)", "subquery"),
    ("SELECT a FROM (t JOIN u ON t.k = u.k)", "refused"),
    ("SELECT a FROM range(5)", "reads tables by name"),
    ("SELECT a FROM identifier('t')", "reads tables by name"),
    ("SELECT a FROM t VERSION AS OF 3", "time travel"),
    ("SELECT a FROM t TIMESTAMP AS OF '2020-01-01'", "time travel"),
    ("SELECT a FROM a.b.c", "at most two parts"),
    ("SELECT erp.t.a FROM erp.t", "more than one qualifier"),
    ("SELECT a FROM t o(x, y)", "COLUMNS is refused"),
    ("SELECT /*+ BROADCAST(t) */ a FROM t", "refused"),
    ("SELECT a FROM t |> WHERE a = 1", "refused"),
    ("SELECT :x AS a FROM t", "parameter"),
    ("SELECT ? AS a FROM t", "parameter"),
    ("SELECT transform(b, x -> x + 1) AS a FROM t", "a lambda is refused"),
    ("SELECT a + 1 FROM t", "has no name, column 8"),
    ("SELECT upper(a) FROM t", "has no name"),
    ("SELECT a, b AS A FROM t", "two columns are called 'A'"),
    ("SELECT a AS `x y` FROM t", "Delta refuses it"),
    ("SELECT a AS _driftline_k1 FROM t", "Driftline's own"),
    ("SELECT a AS _op FROM t", "Driftline's own"),
    ("SELECT now() AS a FROM t", "'now' is not one"),
    ("SELECT current_date AS a FROM t", "not on the list"),
    ("SELECT current_date() AS a FROM t", "'current_date' is not one"),
    ("SELECT a FROM t WHERE d < current_timestamp", "not on the list"),
    ("SELECT rand() AS a FROM t", "'rand' is not one"),
    ("SELECT uuid() AS a FROM t", "'uuid' is not one"),
    ("SELECT myudf(a) AS a FROM t", "'myudf' is not one"),
    ("SELECT `upper`(a) AS a FROM t", "'upper' is not one"),
    ("SELECT uper(a) AS a FROM t", "Did you mean 'upper'?"),
    ("SELECT unix_timestamp() AS a FROM t", "'unix_timestamp' is not one"),
    ("SELECT input_file_name() AS a FROM t", "'input_file_name' is not one"),
    ("SELECT a FROM t WHERE d < date 'today'", "moment of the clock"),
    ("SELECT a FROM t WHERE d < 'Now UTC'", "moment of the clock"),
    ("SELECT a FROM t WHERE d < 'today+01:00'", "moment of the clock, column 27"),
    ("SELECT a FROM t WHERE d < '\\0 tod\\u0061y '", "moment of the clock"),
    ("SELECT a FROM t WHERE d < r'now'", "moment of the clock"),
    ("SELECT a FROM t WHERE d < 'to' \"day\"", "moment of the clock, column 27"),
    ("SELECT a FROM t WHERE d < CAST('to' || 'day' AS DATE)", "moment of the clock"),
    ("SELECT 'x' || 'today'::date AS a FROM t", "moment of the clock"),
    ("SELECT TIMESTAMP '10:00' AS a FROM t", "a time of the day on which, column 18"),
    ("SELECT timestamp_ltz ' T10:00' AS a FROM t", "a time of the day on which"),
    ("SELECT CAST('1:' '2' AS TIMESTAMP) AS a FROM t", "a time of the day on which"),
    ("SELECT try_cast((('T10')) AS timestamp_ltz) AS a FROM t", "a time of the day on which"),
    ("SELECT ('10:00')::timestamp AS a FROM t", "a time of the day on which"),
    ("SELECT timestamp('10:00') AS a FROM t", "a time of the day on which"),
    ("SELECT to_timestamp('10:00') AS a FROM t", "a time of the day on which"),
    ("SELECT date_trunc('day', '10:00') AS a FROM t", "a time of the day on which"),
    ("SELECT extract(HOUR FROM '10:00') AS a FROM t", "a time of the day on which"),
    ("SELECT TIME '10:00' AS a FROM t", "the type TIME"),
    ("SELECT a::time AS a FROM t", "the type TIME"),
    ("SELECT a FROM t WHERE s = +'05'", "a plus in front, column 27"),
    ("SELECT a FROM t JOIN u ON t.a = + u.a", "a plus in front, column 33"),
    ("SELECT a + +1 AS b FROM t", "a plus in front, column 12"),
    ("SELECT d + INTERVAL +3 DAY AS b FROM t", "a plus in front"),
    ("SELECT a -- x\\\n, b FROM t", "ends with a backslash, column 10"),
    ("SELECT a FROM t WHERE a = 1 /* /*+ */ OR a = 2 -- */\n AND b", "a comment within a comment"),
    ("SELECT a FROM t WHERE a = 1 /*/*/ AND a > 0 /* */", "a comment within a comment"),
    ("SELECT a {# b #} FROM t", "refused"),
    ("SELECT a FROM t WHERE s COLLATE UTF8_LCASE = 'a'", "COLLATE is refused"),
    ("SELECT 2x(a) AS b FROM t", "'2x' is not one"),
    ("SELECT a, current_date AS d FROM t", "CURRENTDATE is refused: it is not on the list, column"),
    ("SELECT a, :x AS b FROM t", "a parameter is refused, column"),
    ("SELECT a FROM t WHERE ? = a", "a parameter is refused, column"),
    ("SELECT a, b ->> 'c' AS d FROM t", "is refused, column"),
    ("SELECT format_string('%s', b) AS c FROM t", "'format_string' is not one"),
    ("SELECT printf('%tT', 0) AS c FROM t", "'printf' is not one"),
    ("-- x\\\nSELECT a FROM t", "ends with a backslash, column 1"),
    ("SELECT a FROM t AS", "'AS' is refused behind a table, column 17"),
    ("SELECT a FROM t *", "'*' is refused behind a table, column 17"),
    ("SELECT t.a FROM t AS, u", "'AS' is refused behind a table, column 19"),
    ("SELECT a FROM t JOIN t ON t.a = t.a", "two tables are called 't'"),
    ("SELECT a FROM t WHERE", "cannot be read"),
    ("SELECT a b c FROM t", "cannot be read"),
    ("SELECT 'a FROM t", "cannot be read"),
    ("SELECT a FROM " + ", ".join(f"t{i}" for i in range(OCCURRENCES_MAX + 1)), "joins 17 tables"),
    ("SELECT a FROM t WHERE " + "(" * 3000 + "a" + ")" * 3000 + " = 1", "nested too deeply"),
    ("SELECT a FROM t -- " + "x" * 70_000, "has more than 65,536 characters"),
]  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    query = read_query(text, where=WHERE)
    assert query.occurrences
    assert query.columns


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_query(text, where=WHERE)
    assert str(caught.value).count("refused") >= 1
    assert caught.value.where.startswith(WHERE)
    reason, _, place = why.partition(", column")
    assert reason in str(caught.value), str(caught.value)
    if place:
        assert caught.value.where.endswith(f"column{place}"), str(caught.value)


def test_places_are_those_of_the_text() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_query("SELECT a,\n  nope(b) AS c\nFROM t", where=WHERE)
    assert caught.value.where == f"{WHERE}, line 2, column 3"


def test_splicing() -> None:
    text = "SELECT o.a, x -- FROM\nFROM erp . `orders` o\n JOIN crm.c ON o.k = c.k;"
    query = read_query(text, where=WHERE)
    assert [(o.reference, o.alias) for o in query.occurrences] == [
        (("erp", "orders"), "o"),
        (("crm", "c"), "c"),
    ]
    assert query.columns == ("a", "x")
    assert query.spliced(["t1", "t2"], [["k"], ["p", "q"]]) == (
        "SELECT o.a, x -- FROM\n, `o`.`k` AS _driftline_k1, `c`.`p` AS _driftline_k2, "
        "`c`.`q` AS _driftline_k3 FROM `t1` AS `o`\n JOIN `t2` AS `c` ON o.k = c.k"
    )


def test_columns_are_resolved() -> None:
    query = read_query("SELECT o.A, d AS e FROM erp.o, p WHERE O.b = P.c", where=WHERE)
    found = resolve(query, [["a", "b"], ["c", "D"]], where=WHERE)
    assert found.used == (frozenset({"a", "b"}), frozenset({"c", "D"}))
    for columns, why in [
        ([["a", "b"], ["c"]], "no column 'd'"),
        ([["a", "b", "d"], ["c", "d"]], "'d' is in o and p"),
        ([["aa", "b"], ["c", "d"]], "Known: aa, b."),
    ]:
        with pytest.raises(ConfigurationError, match=why) as caught:
            resolve(query, columns, where=WHERE)
        assert caught.value.where.startswith(f"{WHERE}, line 1, column ")
    with pytest.raises(ConfigurationError, match="called 'x'"):
        resolve(read_query("SELECT x.a FROM t", where=WHERE), [["a"]], where=WHERE)


@pytest.mark.parametrize("text", ["SELECT t.distinct FROM t", "SELECT t.from FROM `e`.`t` t"])
def test_lineage_is_put_before_the_clause(text: str) -> None:
    spliced = read_query(text, where=WHERE).spliced(["v"], [["k"]])
    assert spliced.endswith(" , `t`.`k` AS _driftline_k1 FROM `v` AS `t`")


@given(st.text(max_size=80))
def test_no_text_is_an_internal_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        read_query(text, where=WHERE)


WORDS = "SELECT a b FROM t u JOIN ON WHERE , . ( ) = `x` 'y' -- /* */ AS AND OR IN 1 ; * LEFT"
PIECES = st.lists(st.sampled_from(WORDS.split()), max_size=14)


@given(PIECES)
def test_no_sequence_of_words_is_an_internal_error(words: list[str]) -> None:
    text = "SELECT a FROM t " + " ".join(words)
    try:
        query = read_query(text, where=WHERE)
    except ConfigurationError:
        return
    tables = [f"v{i}" for i in range(len(query.occurrences))]
    spliced = query.spliced(tables, [["k"]] * len(tables))
    again = read_query(spliced.replace("_driftline_", "drift_"), where=WHERE)
    assert [o.reference for o in again.occurrences] == [(t,) for t in tables]
    assert [o.alias for o in again.occurrences] == [o.alias for o in query.occurrences]
    assert again.columns[: len(query.columns)] == query.columns


@pytest.mark.spark
def test_every_function_is_deterministic_in_spark(spark: SparkSession) -> None:
    described = {
        row[0]: spark.sql(f"DESCRIBE FUNCTION EXTENDED `{row[0]}`").collect()
        for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()
        if row[0] in FUNCTIONS
    }
    assert {f for f in FUNCTIONS if f not in described} == set()
    notes = {name: " ".join(row[0] for row in rows).lower() for name, rows in described.items()}
    assert [n for n, text in notes.items() if "non-deterministic" in text] == []


@pytest.mark.spark
@pytest.mark.parametrize("text", ACCEPTED)
def test_spark_reads_what_is_accepted(spark: SparkSession, text: str) -> None:
    query = read_query(text, where=WHERE)
    tables = [f"v{i}" for i in range(len(query.occurrences))]
    spliced = query.spliced(tables, [["k"]] * len(tables))
    spark._jsparkSession.sessionState().sqlParser().parsePlan(spliced)
