"""Remedies for source.toml: with what each says, the file is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import ConfigurationError

from source_agent.config.file import load
from source_agent.engines.registry import connect
from tests.remedies.told import told

HEAD = '[database]\nurl = "sqlite:///erp.db"\n'
SERVER = '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
TABLE = HEAD + SERVER + '[relations.r]\ntable = "t"\n'
QUERY = HEAD + SERVER + "[relations.r]\n"
FILES = (
    '[database]\nurl = "dump:///"\n' + SERVER
    + '[relations.r]\nkey = ["id"]\nfiles = "a-*.csv"\nformat = "a.toml"\n'
)  # fmt: skip
JOIN = 'query = "SELECT a.x AS x, b.x AS y FROM a JOIN b ON a.x = b.x"\nkey = ["x"]\n'
LISTEN = "Write HOST:PORT, such as 127.0.0.1:7443; between two dots of HOST are 1 to 63 characters."
LATE, DAY = 'late = "15m"', 'Write "08:00-18:00", or "22:00-06:00" over midnight; local time.'

# The remedy, the file that has the fault, and the file after each thing that the remedy names.
FILES_AFTER: list[tuple[str, str, tuple[str, ...]]] = [
    ("Did you mean …?", TABLE + 'colums = ["a"]', (TABLE + 'columns = ["a"]',)),
    ("Known: ….", TABLE + "zzz = 1", (TABLE + 'key = ["a"]',)),
    ("Add `… = …`.", "[database]\n" + SERVER, (HEAD + SERVER,)),
    ("Add the table.", HEAD, (HEAD + SERVER,)),
    ("Remove the line or give it a value.", QUERY + 'table = ""', (TABLE, QUERY + 'table = "t"')),
    (
        (
            "Remove it from the URL and put it alone into a file named by `password_file`, or into"
            " the environment variable …. A TLS key must have no passphrase."
        ),
        '[database]\nurl = "postgresql://me:secret@h/d"\n' + SERVER,
        (
            '[database]\nurl = "postgresql://me@h/d"\npassword_file = "password"\n' + SERVER,
            '[database]\nurl = "postgresql://me@h/d"\n' + SERVER,
        ),
    ),
    (
        LISTEN,
        HEAD + '[server]\nlisten = "7443"\ninsecure = true',
        (HEAD + '[server]\nlisten = "127.0.0.1:7443"\ninsecure = true',),
    ),
    (
        "Write one such as postgresql+psycopg://reader@host/database.",
        TABLE.replace("sqlite:///erp.db", "erp"),
        (TABLE.replace("sqlite:///erp.db", "postgresql+psycopg://reader@host/database"),),
    ),
    (
        "Write at most ….",
        HEAD + "silence_timeout_s = 99999\n" + SERVER,
        (HEAD + "silence_timeout_s = {0}\n" + SERVER,),
    ),
    (
        (
            "Remove `insecure` and make certificates with `driftline-source enroll`, or listen on"
            " 127.0.0.1."
        ),
        HEAD + '[server]\nlisten = "0.0.0.0:0"\ninsecure = true',
        (
            HEAD + SERVER,
            HEAD + '[server]\nlisten = "0.0.0.0:0"\ncertificate = "certs/source.pem"\n'
            'key = "certs/source.key"\nclient_ca = "certs/ca.pem"',
        ),
    ),
    (
        "Write the whole path.",
        HEAD.replace("erp.db", "~nonesuch/erp.db") + SERVER,
        (HEAD.replace("erp.db", "/home/nonesuch/erp.db") + SERVER,),
    ),
    (
        "Name the server itself.",
        HEAD.replace("sqlite:///erp.db", "mariadb://me@pooler/erp") + "pooler = true\n" + SERVER,
        (HEAD.replace("sqlite:///erp.db", "mariadb://me@server/erp") + SERVER,),
    ),
    ("Remove one.", HEAD + SERVER + 'key = "k"', (HEAD + SERVER,)),
    (
        "Remove one.",
        TABLE + "marker = { xmin = true, column = 'a' }",
        (TABLE + "marker = { xmin = true }", TABLE + "marker = { column = 'a' }"),
    ),
    (
        "Remove one.",
        TABLE + "marker = { checksum = 'a', column = 'b' }",
        (TABLE + "marker = { checksum = 'a' }", TABLE + "marker = { column = 'b' }"),
    ),
    (
        "Remove one.",
        QUERY + JOIN + "marker = { column = 'x' }\nmarkers = { a = { column = 'x' } }",
        (
            QUERY + JOIN + "marker = { column = 'x' }",
            QUERY + JOIN + "markers = { a = { column = 'x' }, b = { column = 'y' } }",
        ),
    ),
    (
        DAY,
        TABLE + '[limits]\nquiet_hours = ["8-18"]',
        (
            TABLE + '[limits]\nquiet_hours = ["08:00-18:00"]',
            TABLE + '[limits]\nquiet_hours = ["22:00-06:00"]',
        ),
    ),
    (
        "Put the condition into the query.",
        QUERY + 'query = "SELECT 1 AS a"\nkey = ["a"]\nwhere = "a > 1"',
        (QUERY + 'query = "SELECT 1 AS a WHERE 1 > 1"\nkey = ["a"]',),
    ),
    ("Remove the line or give it a value.", TABLE + "key = []", (TABLE, TABLE + 'key = ["a"]')),
    ("Remove it.", TABLE + 'format = "a.toml"', (TABLE,)),
    (
        "Remove it.",
        FILES + 'complete = "{file}.done"\nmarker = { column = "a" }',
        (FILES + 'complete = "{file}.done"',),
    ),
    (
        'Write complete = "{file}.done", or settle_s = 300.',
        FILES,
        (FILES + 'complete = "{file}.done"', FILES + "settle_s = 300"),
    ),
    (
        "Correct database.url.",
        FILES.replace("dump:///", "sqlite:///erp.db") + "settle_s = 300",
        (FILES + "settle_s = 300",),
    ),
    (
        'Write "never", or hours such as ["22:00-05:00"]; local time.',
        TABLE + 'scan = "sometimes"',
        (TABLE + 'scan = "never"', TABLE + 'scan = ["22:00-05:00"]'),
    ),
    (
        "Write one span for both.",
        TABLE + 'scan = ["01:00-03:00", "02:00-04:00"]',
        (TABLE + 'scan = ["01:00-04:00"]',),
    ),
    ("Remove the setting.", TABLE + 'scan = ["00:00-12:00", "12:00-24:00"]', (TABLE,)),
    (
        'Write derive = ["rows"], or remove `fingerprint`.',
        TABLE + 'derive = ["columns"]\nfingerprint = "database"',
        (
            TABLE + 'derive = ["rows"]\nfingerprint = "database"',
            TABLE + 'derive = ["columns"]',
        ),
    ),
    (
        "See docs/types.md.",
        TABLE + 'types = { a = "integer" }',
        (TABLE + 'types = { a = "int4" }',),
    ),
    (
        'Write it like "Europe/Vienna" or "UTC".',
        TABLE + f'marker = {{ column = "a", {LATE}, zone = "CET9" }}',
        (
            TABLE + f'marker = {{ column = "a", {LATE}, zone = "UTC" }}',
            TABLE + f'marker = {{ column = "a", {LATE}, zone = "Europe/Vienna" }}',
        ),
    ),
    (
        "Write it like 90s, 15m, 1h30m or 1d.",
        TABLE + 'marker = { column = "a", late = "soon" }',
        tuple(
            TABLE + f'marker = {{ column = "a", late = "{text}" }}'
            for text in ("90s", "15m", "1h30m", "1d")
        ),
    ),
    (
        "Publish a simpler query, or remove `markers`.",
        QUERY + JOIN.replace("JOIN", "LEFT JOIN") + "markers = { a = { column = 'x' } }",
        (
            QUERY + JOIN + "markers = { a = { column = 'x' }, b = { column = 'y' } }",
            QUERY + JOIN.replace("JOIN", "LEFT JOIN"),
        ),
    ),
    (
        "Name its marker, or remove `markers`.",
        QUERY + JOIN + "markers = { a = { column = 'x' } }",
        (
            QUERY + JOIN + "markers = { a = { column = 'x' }, b = { column = 'y' } }",
            QUERY + JOIN,
        ),
    ),
    (
        "Write `….… AS …` into it; `columns` may leave it unpublished.",
        QUERY + JOIN + "markers = { a = { column = 'z' }, b = { column = 'y' } }",
        (
            QUERY
            + JOIN.replace("b.x AS y", "b.x AS y, a.z AS z")
            + 'columns = ["x", "y"]\n'
            + "markers = { a = { column = 'z' }, b = { column = 'y' } }",
        ),
    ),
]


@pytest.mark.parametrize("case", FILES_AFTER, ids=lambda case: case[0][:40])
def test_the_file_is_read(tmp_path: Path, case: tuple[str, str, tuple[str, ...]]) -> None:
    remedy, fault, mended = case
    file = tmp_path / "source.toml"
    (tmp_path / "password").touch(0o600)
    file.write_text(fault)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    printed = told(caught.value, remedy)
    for text in mended:
        number = "".join(c for c in printed if c.isdigit())
        file.write_text(text.replace("{0}", number))
        assert load(file).path == file


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "sauce.toml")
    told(caught.value, "Name it with --config FILE, or write one with `init`.")
    (tmp_path / "source.toml").write_text(TABLE)
    assert load(tmp_path / "source.toml").relations


def test_a_password_file_that_others_can_read(tmp_path: Path) -> None:
    secret, file = tmp_path / "password", tmp_path / "source.toml"
    secret.write_text("hidden")
    secret.chmod(0o644)
    file.write_text(HEAD + 'password_file = "password"\n' + SERVER)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    command = told(caught.value, "Run: chmod 600 …").removeprefix("Run: ").split()
    assert command[:2] == ["chmod", "600"]
    Path(command[2]).chmod(0o600)
    assert load(file).database.password == "hidden"


# The remedy, the URL that has the fault, and URLs that follow the remedy.
URLS: list[tuple[str, str, tuple[str, ...]]] = [
    (
        "Write it as postgresql://user@host/database or sqlite:////path/to/file.",
        "erp",
        ("postgresql://user@host/database", "sqlite:////path/to/file"),
    ),
    (
        "Use … or ….",
        "orakel://h/d",
        ("postgresql://h/d", "mariadb://h/d", "mysql://h/d", "sqlite:///f", "dump:///d"),
    ),
    ("Write ….", "postgresql+psycopg2://h/d", ("postgresql+psycopg://h/d", "postgresql://h/d")),
    ("Write it as sqlite:////path/to/file.", "sqlite://", ("sqlite:////path/to/file",)),
    ("Write it as dump:////path/to/folder.", "dump://", ("dump:////path/to/folder",)),
    (
        "Write it as …://user@host/database.",
        "mariadb://user@host",
        ("mariadb://user@host/database",),
    ),
    ("Known are: ….", "mariadb://u@h/d?ssl=1", ("mariadb://u@h/d?ssl_ca=/a",)),
    (
        "Write SQLAlchemy's URL behind it: generic+oracle+oracledb://user@host/…",
        "generic://h/d",
        ("generic+sqlite:///f",),
    ),
    (
        "Install the package of the dialect and its driver.",
        "generic+nonesuch://h/d",
        ("generic+sqlite:///f",),
    ),
]


@pytest.mark.parametrize("case", URLS, ids=lambda case: case[1])
def test_the_url_names_an_engine(case: tuple[str, str, tuple[str, ...]]) -> None:
    from source_agent.engines.interface import Limits

    remedy, fault, mended = case
    with pytest.raises(ConfigurationError) as caught:
        connect(fault, None, Limits())
    printed = told(caught.value, remedy)
    for url in mended:
        assert connect(url, None, Limits()).name
    if remedy == "Use … or ….":
        assert all(url.partition(":")[0] in printed for url in mended)
