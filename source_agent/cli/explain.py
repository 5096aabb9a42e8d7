"""`explain`: print every SQL text that this agent can issue, for the DBA to review.

Identifiers and queries are those of source.toml, and values from the network are bound. The texts
come from the functions that the sessions execute; tests compare the servers' statement logs with
them. The commands are included: `check` plans a scan, and describes each relation also with
fingerprints made by the database, to report whether that is possible.
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
    """Return the statements of every session, and those of each relation of source.toml.

    It contacts the database to describe the relations; one that fails does not hide the others.
    Raises DatabaseRefused or DatabaseUnavailable if no session can be opened.
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
                session = _renewed(engine, session)  # the failed statement may have ended it
                continue
            by_database = replace(published.relation, fingerprint=Fingerprint.DATABASE)
            refused: list[str] = []
            try:
                shapes.append(session.describe(by_database))
            except DriftlineError:  # it cannot hash this relation, which `check` reports
                refused = engine.attempts(by_database)
                session = _renewed(engine, session)
            sections.append(Section(heading, _own(engine.templates(shapes) + refused, common)))
    finally:
        session.close()
    return sections


def _own(statements: Sequence[str], common: Sequence[str]) -> tuple[str, ...]:
    """Return the statements that are not common to every session, each once."""
    return tuple(sql for sql in dict.fromkeys(statements) if sql not in common)


def _renewed(engine: Engine, session: Session) -> Session:
    session.close()
    return engine.open()


def as_text(sections: list[Section]) -> str:
    """Return the statements as text; headings are SQL comments."""
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
