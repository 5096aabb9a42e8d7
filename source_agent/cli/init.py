"""`init`: write a first source.toml and the script of grants.

What can be published is; the rest becomes a comment with the reason. A password is never written
into source.toml. Names and reasons from the database are cut and escaped. Nothing is written before
the whole catalogue was read, and nothing is overwritten without --force: beside a source.toml that
exists, what it lacks is printed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftline.errors import ConfigurationError, UsageError
from driftline.peer_text import one_line

from source_agent.checks.first_configuration import (
    InitOptions,
    RelationProposal,
    SourceProposal,
    checked_url,
    propose,
    unserved,
)
from source_agent.config.declarations import (
    DatabaseTable,
    LimitsTable,
    RelationTable,
    ServerTable,
)
from source_agent.engines.registry import is_file
from source_agent.printable import counted

PAUSE_FILE = "PAUSE"
COMMENT_CHARACTERS_MAX = 300  # of a reason or a note, in a comment
_SECRET_MODE, _MODE = 0o600, 0o644
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


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

    Raises what `unserved` raises.
    """
    proposals = unserved(request)
    lines = ["\n".join(_relation_lines(proposal)) for proposal in proposals]
    addable = _served(proposals)
    return MissingConfiguration(request.config, "\n\n".join(lines), addable, len(proposals))


def _served(proposals: Sequence[RelationProposal]) -> int:
    return sum(proposal.shape is not None for proposal in proposals)


def init(request: InitOptions, *, force: bool) -> WrittenFiles:
    """Read the catalogue and write the files.

    Raises UsageError for an option, ConfigurationError for a file, and errors of the database.
    """
    config = request.config
    if request.url is None:
        raise UsageError(
            f"There is no {config} that could name the database.",
            remedy="Add --url, such as --url postgresql://reader@localhost/erp.",
        )
    url = checked_url(request, request.url)
    script = config.with_name("grants.sh" if is_file(url) else "grants.sql")
    _refuse_existing(config, [config, script], force=force)
    made = propose(request, url)
    written: list[tuple[Path, str, int | None]] = [
        (config, _text(request.listen, made), None),
        (script, made.grants, None),
    ]
    if made.typed is not None:
        secret = config.with_name(made.password_file)
        _refuse_existing(config, [secret], force=force)
        written.append((secret, made.typed, _SECRET_MODE))
    for path, content, mode in written:
        _write(path, content, mode, force=force)
    awaited = made.password_file if made.awaits_password else None
    files = tuple(path for path, _, _ in written)
    return WrittenFiles(files, _served(made.proposals), len(made.proposals), awaited)


def _refuse_existing(config: Path, paths: Sequence[Path], *, force: bool) -> None:
    existing = [path.name for path in paths if os.path.lexists(path)]
    if existing and not force:
        raise ConfigurationError(
            f"{', '.join(existing)} would be overwritten.",
            where=str(config),
            remedy="Choose another --config, move it away, or add --force.",
        )


def _text(listen: str, made: SourceProposal) -> str:
    lines = [
        "# Made by `driftline-source init`. Relative paths start from the folder of this file.",
        "[database]",
        f"url = {_quoted(made.url.render_as_string(hide_password=False))}",
    ]
    if not is_file(made.url):
        line = DatabaseTable.password_file.line(_quoted(made.password_file))
        lines.append(line if made.keeps_password else f"# {line}")
    lines += [
        "",
        "[server]",
        ServerTable.listen.line(_quoted(listen)),
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
    for proposal in made.proposals:
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
    """Write a file completely or not at all. Whatever the umask, it is its owner's alone to write,
    because it says what the agent runs; with a mode, others can never read it."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE if mode is None else mode)
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
