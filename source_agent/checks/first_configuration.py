"""Propose a first configuration from the live catalogue, or what an existing one lacks.

Every table and view that the patterns match is described as the agent would do it. What can be
published is; the rest has the reason. Without a primary key, a unique index over NOT NULL columns
is the key. Passwords come from a prompt or a file, never from the command line, where every process
can read them. Nothing is written here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from driftline.errors import ConfigurationError, DatabaseRefused, DriftlineError, UsageError
from driftline.limits import NAME_BYTES_MAX
from driftline.settings.declarations import address_parts, environment_name, password
from driftline.settings.kinds import holds_password
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from source_agent.checks.grants import ACCOUNT, connections
from source_agent.config.declarations import LOGIN
from source_agent.config.file import Budget, load
from source_agent.engines.interface import Engine, Limits, Listed
from source_agent.engines.registry import connect, is_file
from source_agent.engines.relations.select import nearest
from source_agent.engines.relations.shapes import Relation, Shape

LISTEN = "127.0.0.1:7443"

AskPassword = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of `init`, but for whether it may overwrite files.

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
    ask_password: AskPassword


@dataclass(frozen=True, slots=True)
class RelationProposal:
    """One table or view with its shape, or the reason why it cannot be published."""

    name: str
    listed: Listed
    shape: Shape | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SourceProposal:
    """The values of a first source.toml, and the script of grants for its login.

    `password_file` is in force only if `keeps_password`. `typed` is the password to write into it;
    None: nobody typed one, or it is that of another login. `awaits_password`: the DBA writes it.
    """

    url: URL
    password_file: str
    keeps_password: bool
    typed: str | None = field(repr=False)
    awaits_password: bool
    proposals: list[RelationProposal]
    grants: str


def unserved(request: InitOptions) -> list[RelationProposal]:
    """Return a proposal for each table and view that the source.toml which exists lacks.

    Raises UsageError for an option, ConfigurationError for a file or if the URL names another
    database than the file, and errors of the database.
    """
    config = load(request.config)
    known = make_url(config.database.url)
    if request.url is not None and _place(checked_url(request, request.url), request) != _place(
        known, request
    ):
        raise ConfigurationError(
            f"{request.config} names another database, and an agent serves one database.",
            where=str(request.config),
            remedy="Choose another --config, for a second agent; or, to begin anew, --force.",
        )
    given = request.url or config.database.url
    asked = replace(request, url=given)
    if request.url is None and request.password_file is None:
        of = config.database
        engine = connect(given, of.password, of.limits, pooler=of.pooler)
    else:
        engine, _ = _connected(asked, checked_url(asked, given))
    every = engine.listed()
    relations = [served.relation for served in config.relations.values()]
    tables = {relation.table for relation in relations}
    alone = Counter(listed.name for listed in every)

    def is_served(listed: Listed) -> bool:
        spelled = {listed.table, f"{listed.schema}.{listed.name}"}
        return bool(tables & (spelled | ({listed.name} if alone[listed.name] == 1 else set())))

    chosen = [listed for listed in _chosen(every, request.patterns) if not is_served(listed)]
    return _described(engine, chosen, taken=frozenset(config.relations))


def _place(url: URL, request: InitOptions) -> tuple[object, ...]:
    """Return what tells one database from another in URLs: not the login, nor the driver."""
    database = url.database
    if is_file(url) and database:
        database = str((request.config.absolute().parent / database).resolve())
    return url.get_backend_name(), url.host, url.port, database, url.normalized_query


def propose(request: InitOptions, url: URL) -> SourceProposal:
    """Return what to write for the database of a checked URL.

    Raises UsageError for an option, ConfigurationError for a file, and errors of the database.
    """
    login = request.login or url.username or ACCOUNT
    secret = re.sub(r"[^A-Za-z0-9_.-]", "_", login) + ".password"
    engine, typed = _connected(request, url)
    proposals = _described(engine, _chosen(engine.listed(), request.patterns))
    is_own = is_file(url) or request.login in {None, url.username}
    named, is_kept = _kept_password(request, secret, is_own=is_own, typed=typed is not None)
    relations = [o.shape.relation for o in proposals if o.shape is not None]
    return SourceProposal(
        # Without --login a URL without a user stays as it is: ACCOUNT may not exist.
        url=url if is_own else url.set(username=login),
        password_file=named,
        keeps_password=is_kept,
        typed=typed if is_own else None,
        awaits_password=not is_own,
        proposals=proposals,
        grants=engine.grants(relations, login=login, connections=connections(Budget())),
    )


def checked_url(request: InitOptions, given: str) -> URL:
    """Return the URL; the path of an SQLite file is relative to the configuration, if below it.

    Raises UsageError if it or another option is malformed, or if it holds a password.
    """
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise UsageError(
            "--url is not a database URL.",  # not shown: it may hold a password
            remedy="Write one such as postgresql://reader@localhost/erp or sqlite:///erp.db.",
        ) from None
    if url.password is not None or holds_password(given):
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
    request: InitOptions, file: str, *, is_own: bool, typed: bool
) -> tuple[str, bool]:
    """Return the value of `password_file`, and whether it is set; else it becomes a comment."""
    if request.password_file is not None and is_own:
        return _relative(request.password_file, request.config), True
    return file, typed or not is_own
