"""The strict TOML reader: what it accepts, and that every refusal says file, key and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError
from driftline.settings.declarations import (
    SettingsTable,
    environment_name,
    is_loopback,
    nearest,
    password,
    read,
    read_secret,
)
from driftline.settings.kinds import (
    ADDRESS,
    FLAG,
    PATH,
    TEXT,
    integer,
    list_of,
    map_of,
    number,
    table_of,
    url,
)


class Inner(SettingsTable):
    """A table below."""

    text = TEXT.optional("a text")
    rate = number("rows").optional("a rate")


class Agent(SettingsTable):
    """A file."""

    text = TEXT.required("a text")
    usual = TEXT.by_default("d", "a text")
    flag = FLAG.by_default(False, "a flag")
    count = integer("rows", least=0).by_default(1, "a count")
    rate = number("rows a second").optional("a rate")
    names = list_of(TEXT, "names").optional("names")
    document = PATH.optional("a file")
    listen = ADDRESS.optional("an address")
    url = url("DATABASE").required("a URL")
    password_file = PATH.optional("a file")
    inner = map_of(table_of(Inner)).by_default({}, "tables")
    one = table_of(Inner).required("a table")
    map = map_of(TEXT).by_default({}, "texts")


def written(tmp_path: Path, text: str) -> Agent:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return read(path, Agent)


def of(table: SettingsTable, name: str) -> ConfigurationError:
    return refused(getattr, table, name)


def refused(action: object, *arguments: object, **options: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        action(*arguments, **options)  # type: ignore[operator]
    return caught.value


def test_values_come_back_as_they_stand(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        'text="a"\nflag=true\ncount=3\nrate=2\nnames=["x", "y"]\ndocument="sub/../f"\n'
        '[map]\n"dotted.name" = "v"\n[inner.one]\ntext="b"\n',
    )
    assert table.text == "a"
    assert table.flag
    assert table.count == 3
    assert table.rate == 2.0
    assert table.names == ("x", "y")
    assert table.document == tmp_path / "f"
    assert table.map == {"dotted.name": "v"}
    assert {name: inner.text for name, inner in table.inner.items()} == {"one": "b"}


def test_what_is_missing_is_the_default_or_refused(tmp_path: Path) -> None:
    table = written(tmp_path, "")
    assert (table.usual, table.flag, table.count) == ("d", False, 1)
    assert table.names is None
    assert table.inner == {}
    error = of(table, "text")
    assert error.where == "agent.toml: text"
    assert error.message == "The setting is missing; it is a string."
    assert "[one]" in of(table, "one").message


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    error = refused(written, tmp_path, "txet = 1")
    assert error.where == "agent.toml: txet"
    assert error.remedy == "Did you mean 'text'?"
    assert error.exit_code == 2
    table = written(tmp_path, '[inner."a b"]\ntxt=1')
    error = of(table, "inner")
    assert error.where == 'agent.toml: inner."a b".txt'
    assert "'text'" in error.remedy
    assert nearest("zzz", ("one", "two")) == "Known: one, two."


@pytest.mark.parametrize(
    ("line", "getter", "expected", "found"),
    [
        ("text = 1", "text", "a string", "an integer (1)"),
        ('flag = "yes"', "flag", "true or false", "a string ('yes')"),
        ("count = true", "count", "an integer", "true or false (true)"),
        ("count = 1.5", "count", "an integer", "a number (1.5)"),
        ("rate = true", "rate", "a number", "true or false (true)"),
        ("rate = nan", "rate", "more than 0", "nan"),
        ("rate = inf", "rate", "more than 0", "inf"),
        ("rate = 0", "rate", "more than 0", "0"),
        ("count = -1", "count", "at least 0", "-1"),
        ('names = "x"', "names", "a list", "not a string."),
        ("names = [1]", "names", "Item 1 must be a string", "an integer (1)"),
        ('names = ["x", "x"]', "names", "twice", "'x'"),
        ('text = ""', "text", "empty", ""),
        ("text = 1979-05-27", "text", "a string", "a date"),
        ("inner = 1", "inner", "a table", "an integer (1)"),
        ("inner = {one = 1}", "inner", "a table", "an integer (1)"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_found(
    tmp_path: Path, line: str, getter: str, expected: str, found: str
) -> None:
    table = written(tmp_path, line)
    error = of(table, getter)
    assert error.where.startswith(f"agent.toml: {getter}")
    assert expected in error.message
    assert found in error.message


@pytest.mark.parametrize(
    "line", ['text = ["hunter2"]', 'text = {a = "hunter2"}', 'inner = "x://u:hunter2@h/d"']
)
def test_what_may_be_a_secret_is_not_shown(tmp_path: Path, line: str) -> None:
    error = of(written(tmp_path, line), line.split(maxsplit=1)[0])
    assert "hunter2" not in error.message
    assert "It must be a" in error.message


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no file" in refused(read, tmp_path / "absent.toml", Agent).message
    assert "cannot be read" in refused(read, tmp_path, Agent).message
    path = tmp_path / "bad.toml"
    path.write_text("text = \n")
    assert "line 1" in refused(read, path, Agent).message
    path.write_bytes(b'text = "\xff"')
    assert "UTF-8" in refused(read, path, Agent).message


@pytest.mark.parametrize(("ending", "kept"), [("", ""), ("\n", ""), ("\r\n", ""), ("\n\n", "\n")])
def test_a_password_file_loses_one_newline(tmp_path: Path, ending: str, kept: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(f" p\u00e4ss {ending}".encode())
    secret.chmod(0o600)
    table = written(tmp_path, 'password_file = "secret"')
    assert password(table.password_file, "DATABASE", "here") == f" p\u00e4ss {kept}"


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden-value")
    table = written(tmp_path, 'password_file = "secret"')
    for mode in (0o644, 0o604, 0o602, 0o601, 0o620, 0o610):
        secret.chmod(mode)
        error = refused(password, table.password_file, "DATABASE", "here")
        assert f"{secret} is open to others than its owner (mode {mode:04o})" in error.message
        assert error.remedy == f"Run: chmod 600 {secret}"
        assert "hidden-value" not in str(error)
    secret.chmod(0o600)
    secret.write_bytes(b"x" * 5000)
    assert "4096" in refused(password, table.password_file, "DATABASE", "here").message
    secret.unlink()
    assert "cannot be read" in refused(password, table.password_file, "DATABASE", "here").message


@pytest.mark.parametrize("owner", [0, 12345])
def test_the_group_may_read_what_is_roots(tmp_path: Path, owner: int) -> None:
    """As libpq has it: /etc/driftline/source.key of root and the agent's group, mode 0640."""
    secret = tmp_path / "secret"
    secret.write_text("hidden-value")
    secret.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(secret, owner, owner)
    data, exposed = read_secret(secret)
    assert data == b"hidden-value"
    assert bool(exposed) == (secret.stat().st_uid != 0)


def test_a_password_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, "")
    monkeypatch.delenv("DRIFTLINE_PASSWORD_MY_DB_1", raising=False)
    assert password(table.password_file, "my-db.1", "here") is None
    monkeypatch.setenv("DRIFTLINE_PASSWORD_MY_DB_1", "p")
    assert password(table.password_file, "my-db.1", "here") == "p"
    assert environment_name("my-db.1") == "DRIFTLINE_PASSWORD_MY_DB_1"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader:hidden@host/erp",
        "postgresql+psycopg://reader:hid/den@host/erp",
        "mariadb://:hidden@host/erp",
        "postgresql://reader@/erp?password=hidden",
        "postgresql://reader@h/erp?sslkey=k.pem&sslpassword=hidden",
        "mariadb://reader@h/erp?ssl_key=k.pem&SSL_KEY_PASSWORD=hidden",
        "postgresql://reader@/erp?host=h&PASSWORD=hidden",
        "postgresql://reader@/erp?pass%77ord=hidden",
        "generic+oracle+oracledb://reader@h/?wallet_password=hidden",
        "generic+snowflake://reader@h/?private_key_passphrase=hidden",
        "generic+trino://reader@h/?access_token=hidden",
        "generic+mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BX%7D%3BUID%3Dr%3BPWD%3Dhidden",
        "generic+mssql+pyodbc:///?odbc_connect=Password%20%3D%20hidden",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    error = of(written(tmp_path, f'url = "{text}"'), "url")
    assert "DRIFTLINE_PASSWORD_DATABASE" in error.remedy
    assert "hid" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://reader@/erp",
        "postgresql://reader@host:5432/erp",
        "postgresql://reader@/erp?host=/run/x:5432",
        "sqlite:///C:/files/x.db",
        "postgresql://reader@[::1]:5432/erp",
        "postgresql://host:5432/erp",
        "postgresql://reader@host/erp?sslmode=verify-full&options=-c%20search_path%3Dpassengers",
        "generic+mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BX%7D%3BUID%3Dreader",
    ],
)
def test_urls_without_a_password(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, f'url = "{text}"').url == text


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("0.0.0.0:7443", ("0.0.0.0", 7443)),
        ("[::1]:0", ("::1", 0)),
        ("erp.example:443", ("erp.example", 443)),
        ("erp:65535", ("erp", 65535)),
        (f"{'a' * 63}.example.:443", (f"{'a' * 63}.example.", 443)),
    ],
)
def test_addresses(tmp_path: Path, address: str, split: tuple[str, int]) -> None:
    assert written(tmp_path, f'listen = "{address}"').listen == (*split, address)


@pytest.mark.parametrize(
    "address",
    [
        *("erp", ":1", "erp:", "erp:65536", "erp:70000", "::1:7", "http://e:1", "a b:1"),
        *("db..example:1", f"{'a' * 64}.example:1"),
    ],
)
def test_what_is_no_address(tmp_path: Path, address: str) -> None:
    table = written(tmp_path, f'listen = "{address}"')
    assert "HOST:PORT" in of(table, "listen").remedy


def test_loopback_is_certain_or_not_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "127.0.0.1.example", "10.0.0.1", "host")))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2026-01-02T03:04:05Z", "(2026-01-02T03:04:05+00:00)"),
        ("2026-01-02", "(2026-01-02)"),
        ("03:04:05", "(03:04:05)"),
        ("[2026-01-02, true]", "([2026-01-02, true])"),
        ("{ a = 2026-01-02 }", "({a = 2026-01-02})"),
    ],
)
def test_a_value_is_shown_as_the_file_has_it(tmp_path: Path, value: str, shown: str) -> None:
    assert shown in of(written(tmp_path, f"text = {value}"), "text").message


@pytest.mark.parametrize("path", ["a\\u0000b", "~no-such-user-here/x"])
def test_a_path_that_no_file_can_have(tmp_path: Path, path: str) -> None:
    error = of(written(tmp_path, f'document = "{path}"'), "document")
    assert "NUL" in error.message or "whole path" in error.remedy
