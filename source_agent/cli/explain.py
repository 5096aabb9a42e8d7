"""`explain`: every SQL text that this agent can issue, for the DBA to read before it runs.

There is no other: identifiers and queries are those of her file, and what comes from the network is
bound as a value or not used at all. The templates come from the same functions that the sessions
execute from; the tests watch the servers' statement logs for any that is not among them.

The statements of the DBA's own commands are among them: `check` plans a scan, and describes each
relation also as one whose fingerprints the database makes, to say whether it could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftline.errors import DriftlineError

from source_agent.config import SourceConfig
from source_agent.engines.interface import Engine, Fingerprint, Session

EVERY_SESSION = "every session"
_ASKED = "-- The agent issues these statements to describe it:"


@dataclass(frozen=True, slots=True)
class Section:
    """The statements under one heading; `error` is why a relation cannot be served."""

    heading: str
    statements: tuple[str, ...] = ()
    error: str | None = None


def explain(config: SourceConfig, engine: Engine) -> list[Section]:
    """Return the templates that every session may issue, and those of each relation of the file.

    Describes the relations, so it contacts the database; one that cannot be described does not hide
    the others.

    Raises:
        DatabaseRefused, DatabaseUnavailable: there is no session to ask with.
    """
    common = tuple(engine.templates([]))
    sections = [Section(EVERY_SESSION, common)]
    session = engine.open()
    try:
        for name, published in config.relations.items():
            heading = f"relation {name}"
            try:
                shapes = [session.describe(published.relation)]
            except DriftlineError as error:
                asked = engine.attempts(published.relation)
                sections.append(Section(heading, _own(asked, common), str(error)))
                session = _renewed(engine, session)  # the statement that failed may have ended it
                continue
            by_database = replace(published.relation, fingerprint=Fingerprint.DATABASE)
            refused: list[str] = []
            try:
                shapes.append(session.describe(by_database))
            except DriftlineError:  # this database makes no hashes of it, which `check` says
                refused = engine.attempts(by_database)
                session = _renewed(engine, session)
            sections.append(Section(heading, _own(engine.templates(shapes) + refused, common)))
    finally:
        session.close()
    return sections


def _own(statements: Sequence[str], common: Sequence[str]) -> tuple[str, ...]:
    """Return the statements that not every session may issue, each once."""
    return tuple(sql for sql in dict.fromkeys(statements) if sql not in common)


def _renewed(engine: Engine, session: Session) -> Session:
    session.close()
    return engine.open()


def as_text(sections: list[Section]) -> str:
    """Return the statements as a script that runs nothing: headings are comments of SQL."""
    lines: list[str] = []
    for section in sections:
        lines.append(f"-- {section.heading}")
        if section.error is not None:
            reason = " ".join(section.error.split())
            lines += [f"-- cannot be served: {reason}", _ASKED, ""]
        for sql in section.statements:
            lines += [sql.strip().removesuffix(";") + ";", ""]
        lines.append("")
    return "\n".join(lines).rstrip()
