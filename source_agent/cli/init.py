"""`init`: write a first source.toml and the script of grants from the live catalogue.

Every table and view that the patterns match is described as the agent would do it. What can be
published is; the rest becomes a comment with the reason. Without a primary key, a unique index over
NOT NULL columns is the key. Passwords come from a prompt or a file, never from the command line,
where every process can read them, and are never written into source.toml. Names and reasons from
the database are cut and escaped. Nothing is written before the whole catalogue was read, and
nothing is overwritten without --force: beside a source.toml that exists, what it lacks is printed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from driftline.errors import ConfigurationError, DatabaseRefused, DriftlineError, UsageError
from driftline.limits import NAME_BYTES_MAX
from driftline.peer_text import one_line
from driftline.settings.declarations import address_parts, environment_name, password
from driftline.settings.kinds import URL_PASSWORDS
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from source_agent.cli.grants import ACCOUNT, connections
from source_agent.config.declarations import (
    LOGIN,
    DatabaseTable,
    LimitsTable,
    RelationTable,
    ServerTable,
)
from source_agent.config.file import Budget, load
from source_agent.engines.interface import Engine, Limits, Listed
from source_agent.engines.registry import connect, is_file
from source_agent.engines.relations.select import nearest
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.printable import counted

LISTEN = "127.0.0.1:7443"
PAUSE_FILE = "PAUSE"
COMMENT_CHARACTERS_MAX = 300  # of a reason or a note, in a comment
_SECRET_MODE = 0o600
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

AskPassword = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command line.

    `url` is None for that of a source.toml that exists. `login` is the agent's account, None for
    that of the URL. `password_file` has the password of the URL's account. `ask_password` prompts
    with a text; it returns None without a terminal.
    """

    config: Path
    url: str | None
    patterns: tuple[str, ...]
    login: str | None
    password_file: Path | None
    listen: str
    force: bool
    ask_password: AskPassword


@dataclass(frozen=True, slots=True)
class RelationProposal:
    """One table or view with its shape, or the reason why it cannot be published."""

    name: str
    listed: Listed
    shape: Shape | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files that were written, and the number of relations found and published.

    `password_to_write` is the file in which the DBA must put the password of `--login`.
    """

    files: tuple[Path, ...]
    published: int
    found: int
    password_to_write: str | None = None

    def __str__(self) -> str:
        if self.published == self.found:
            return f"{counted(self.published, 'relation')} can be served"
        return (
            f"{self.published} of {counted(self.found, 'relation')} can be served; the others "
            f"are comments in {self.files[0].name}, with the reason"
        )


@dataclass(frozen=True, slots=True)
class MissingConfiguration:
    """The lack of a source.toml: `text` to add to it, with `addable` relations of `found`."""

    config: Path
    text: str
    addable: int
    found: int

    def __str__(self) -> str:
        if not self.found:
            return f"{self.config} serves every table and view that was found; nothing to add."
        here = f" of {self.found}" if self.addable != self.found else ""
        return (
            f"{self.config} exists and stays as it is. {self.addable}{here} of the tables and views"
            " that it lacks can be served: add what is printed above to it."
        )


def missing(request: InitOptions) -> MissingConfiguration:
    """Return what the source.toml that exists lacks of the database; write nothing.

    Raises UsageError for an option, ConfigurationError for a file or if the URL names another
    database than the file, and errors of the database.
    """
    config = load(request.config)
    known = make_url(config.database.url)
    if request.url is not None and _place(_checked(request, request.url), request) != _place(
        known, request
    ):
        raise ConfigurationError(
            f"{request.config} is for another database, and an agent serves one.",
            where=str(request.config),
            remedy="Choose another --config, for a second agent; or, to begin anew, --force.",
        )
    given = request.url or config.database.url
    asked = replace(request, url=given)
    if request.url is None and request.password_file is None:
        of = config.database
        engine = connect(given, of.password, of.limits, pooler=of.pooler)
    else:
        engine, _ = _connected(asked, _checked(asked, given))
    every = engine.listed()
    relations = [served.relation for served in config.relations.values()]
    tables = {relation.table for relation in relations}
    alone = Counter(listed.name for listed in every)

    def is_served(listed: Listed) -> bool:
        spelled = {listed.table, f"{listed.schema}.{listed.name}"}
        return bool(tables & (spelled | ({listed.name} if alone[listed.name] == 1 else set())))

    chosen = [listed for listed in _chosen(every, request.patterns) if not is_served(listed)]
    proposals = _described(engine, chosen, taken=frozenset(config.relations))
    lines = ["\n".join(_relation_lines(proposal)) for proposal in proposals]
    addable = sum(proposal.shape is not None for proposal in proposals)
    return MissingConfiguration(request.config, "\n\n".join(lines), addable, len(proposals))


def _place(url: URL, request: InitOptions) -> tuple[object, ...]:
    """Return what tells one database from another in URLs: not the login, nor the driver."""
    database = url.database
    if is_file(url) and database:
        database = str((request.config.absolute().parent / database).resolve())
    return url.get_backend_name(), url.host, url.port, database, url.normalized_query


def init(request: InitOptions) -> WrittenFiles:
    """Read the catalogue and write the files.

    Raises UsageError for an option, ConfigurationError for a file, and errors of the database.
    """
    if request.url is None:
        raise UsageError(
            f"There is no {request.config} that could name the database.",
            remedy="Add --url, such as --url postgresql://reader@localhost/erp.",
        )
    url = _checked(request, request.url)
    config = request.config
    script = config.with_name("grants.sh" if is_file(url) else "grants.sql")
    login = request.login or url.username or ACCOUNT
    secret = config.with_name(re.sub(r"[^A-Za-z0-9_.-]", "_", login) + ".password")
    _refuse_existing(request, [config, script])
    engine, prompted = _connected(request, url)
    proposals = _described(engine, _chosen(engine.listed(), request.patterns))
    is_own = is_file(url) or request.login in {None, url.username}
    kept = _kept_password(request, secret, is_own=is_own, typed=prompted is not None)
    # Without --login a URL without a user stays as it is: ACCOUNT may not exist.
    text = _text(request, url if is_own else url.set(username=login), kept, proposals)
    relations = [o.shape.relation for o in proposals if o.shape is not None]
    grants = engine.grants(relations, login=login, connections=connections(Budget()))
    written: list[tuple[Path, str, int | None]] = [(config, text, None), (script, grants, None)]
    if prompted is not None and is_own:
        _refuse_existing(request, [secret])
        written.append((secret, prompted, _SECRET_MODE))
    for path, content, mode in written:
        _write(path, content, mode, force=request.force)
    files = tuple(path for path, _, _ in written)
    return WrittenFiles(files, len(relations), len(proposals), None if is_own else secret.name)


def _checked(request: InitOptions, given: str) -> URL:
    """Return the URL; the path of an SQLite file is relative to the configuration, if below it."""
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise UsageError(
            "--url is not a database URL.",  # not shown: it may hold a password
            remedy="Write one such as postgresql://reader@localhost/erp or sqlite:///erp.db.",
        ) from None
    if url.password is not None or any(name.lower() in URL_PASSWORDS for name in url.query):
        raise UsageError(
            "The URL holds a password. Every user of this machine can read it in the list of "
            "processes, and it stays in the shell's history.",
            remedy="Leave it out: `init` prompts for it, or reads --password-file. A TLS key must "
            "have no passphrase. Change the password if others may have seen it.",
        )
    if address_parts(request.listen) is None:
        raise UsageError(
            f"--listen {request.listen!r} is not an address.",
            remedy=f"Write HOST:PORT, such as {LISTEN}.",
        )
    if not is_file(url) or not url.database or url.database.startswith((":", "file:")):
        return url
    return url.set(database=_relative(Path(url.database), request.config))


def _relative(path: Path, config: Path) -> str:
    """Return the path relative to the configuration's folder if it is below it, else absolute."""
    file, folder = path.absolute(), config.absolute().parent
    return os.path.relpath(file, folder) if file.is_relative_to(folder) else str(file)


def _refuse_existing(request: InitOptions, paths: Sequence[Path]) -> None:
    existing = [path.name for path in paths if os.path.lexists(path)]
    if existing and not request.force:
        raise ConfigurationError(
            f"{', '.join(existing)} would be overwritten.",
            where=str(request.config),
            remedy="Choose another --config, move it away, or add --force.",
        )


def _connected(request: InitOptions, url: URL) -> tuple[Engine, str | None]:
    """Return the engine, after a first connection, and the password if the user typed it."""
    given = request.password_file
    known = password(given and given.absolute(), LOGIN, "--password-file")
    file = url.database
    if is_file(url) and file and not file.startswith((":", "file:")):
        url = url.set(database=str(request.config.absolute().parent / file))
    text = url.render_as_string(hide_password=False)
    engine = connect(text, known, Limits())
    try:
        engine.open().close()
        return engine, None
    except DatabaseRefused as error:
        if known is not None:
            raise
        typed = request.ask_password(f"Password of {url.username or 'the login'}")
        if typed is None:
            raise DatabaseRefused(
                error.message,
                where=error.where,
                remedy="Write the password into a file that only you can read and name it with "
                f"--password-file, or set {environment_name(LOGIN)}.",
            ) from error
    engine = connect(text, typed, Limits())
    engine.open().close()
    return engine, typed


def _chosen(every: Sequence[Listed], patterns: Sequence[str]) -> list[Listed]:
    """Return what the patterns match. Raises UsageError if that is nothing."""
    chosen = [
        listed
        for listed in every
        if not patterns
        or any(
            fnmatchcase(text, pattern)
            for pattern in patterns
            for text in (f"{listed.schema}.{listed.name}", listed.name)
        )
    ]
    if not chosen:
        known = [f"{listed.schema}.{listed.name}" for listed in every]
        asked = ", ".join(map(repr, patterns))
        raise UsageError(
            f"No table or view is called {asked}." if known else "The database has no tables.",
            remedy=nearest(patterns[0], known) if known else "Is it the right database?",
        )
    return chosen


def _described(
    engine: Engine, chosen: Sequence[Listed], *, taken: frozenset[str] = frozenset()
) -> list[RelationProposal]:
    """Return a proposal for each; two of one name, and a name that is `taken`, get a longer one."""
    times = Counter([*(listed.name for listed in chosen), *taken])
    proposals = []
    session = engine.open()
    try:
        for listed in chosen:
            is_long = times[listed.name] > 1 and listed.schema
            name = f"{listed.schema}.{listed.name}" if is_long else listed.name
            number = 1
            while name in taken:
                number += 1
                name = f"{listed.name}_{number}"
            relation = Relation(name, table=listed.table, key=listed.key or None)
            if listed.unread:
                proposals.append(RelationProposal(name, listed, None, listed.unread))
                continue
            try:
                _check_name(name)
                proposals.append(RelationProposal(name, listed, session.describe(relation)))
            except DriftlineError as error:
                if error.is_retryable:
                    raise
                reason = f"{error.message} {error.remedy}".strip()
                proposals.append(RelationProposal(name, listed, None, reason))
                session.close()  # the failed statement may have ended the transaction
                session = engine.open()
    finally:
        session.close()
    return proposals


def _check_name(name: str) -> None:
    if not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigurationError(
            f"Its name is not printable, or longer than {NAME_BYTES_MAX} bytes.",
            remedy="Publish a query under another name.",
        )


def _kept_password(
    request: InitOptions, file: Path, *, is_own: bool, typed: bool
) -> tuple[str, bool]:
    """Return the value of `password_file`, and whether it is set; else it becomes a comment."""
    if request.password_file is not None and is_own:
        return _relative(request.password_file, request.config), True
    return file.name, typed or not is_own


def _text(
    request: InitOptions, url: URL, kept: tuple[str, bool], proposals: Sequence[RelationProposal]
) -> str:
    lines = [
        "# Made by `driftline-source init`. Relative paths start from the folder of this file.",
        "[database]",
        f"url = {_quoted(url.render_as_string(hide_password=False))}",
    ]
    if not is_file(url):
        file, is_in_force = kept
        lines.append(
            ("" if is_in_force else "# ") + DatabaseTable.password_file.line(_quoted(file))
        )
    lines += [
        "",
        "[server]",
        ServerTable.listen.line(_quoted(request.listen)),
        ServerTable.certificate.line('"certs/source.pem"'),
        ServerTable.key.line('"certs/source.key"'),
        ServerTable.client_ca.line('"certs/ca.pem"'),
        ServerTable.audit_file.line('"audit.jsonl"'),
        "",
        "[limits]",
        LimitsTable.pause_file.line(_quoted(PAUSE_FILE)),
        "",
        f"# {RelationTable.allow.brief}; without it, {RelationTable.allow.unset}:",
        '# allow = ["spiffe://driftline/warehouse/warehouse"]',
    ]
    for proposal in proposals:
        lines += ["", *_relation_lines(proposal)]
    return "\n".join(lines) + "\n"


def _relation_lines(proposal: RelationProposal) -> Iterator[str]:
    name = proposal.name if _BARE_KEY.fullmatch(proposal.name) else _quoted(proposal.name)
    table = f"table = {_quoted(proposal.listed.table)}"
    if proposal.shape is None:
        yield from map(_comment, (f"[relations.{name}]", table))
        yield _comment(f"is not published: {proposal.reason}")
        return
    shape = proposal.shape
    rows = counted(shape.rows_expected, "row")
    yield f"[relations.{name}]" + (f"    # about {rows}" if shape.rows_expected else "")
    yield table
    if proposal.listed.key:
        key = ", ".join(map(_quoted, proposal.listed.key))
        yield RelationTable.key.line(f"[{key}]", "a unique index; the table has no primary key")
    yield from map(_comment, (*shape.notes, *shape.notes_local))


def _comment(text: str) -> str:
    return f"# {one_line(text, COMMENT_CHARACTERS_MAX)}"


def _quoted(text: str) -> str:
    """Return a TOML string: a JSON string with DEL escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, content: str, mode: int | None, *, force: bool) -> None:
    """Write a file completely or not at all; with a mode, others can never read it."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            out.write(content)
        if force:
            part.replace(path)
        else:
            os.link(part, path)  # fails if the file exists by now
            part.unlink()
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
