"""Every SQL text that this agent can issue, for the DBA to review.

Identifiers and queries are those of source.toml, and values from the network are bound. For a
relation with `derive` there are templates, whose slots a warehouse fills with what is listed. The
texts come from the functions that the sessions execute; tests compare the servers' statement logs
with them. The commands are included: `check` plans a scan, and describes each relation also with
fingerprints made by the database, and with each marker that it might have, to report whether that
is possible and how its rows would be found; `check --reads` reads a sample by the driver alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from driftline.errors import DriftlineError
from driftline.limits import DERIVATION_COMPARISONS_MAX, DERIVATION_VALUES_MAX
from driftline.relations.derivations import DerivablePart

from source_agent.checks import marker_advice
from source_agent.checks.relations import refuse_unknown
from source_agent.config.file import SourceConfig
from source_agent.config.site_joins import site_joins
from source_agent.engines.interface import Engine, Session
from source_agent.engines.own_values.reading import own_values_of
from source_agent.engines.relations.predicates import (
    COLUMNS,
    EQUALITY,
    OPERATOR,
    ROWS,
    JoinedRelation,
    comparison_forms,
    join_forms,
    slotted,
)
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Fingerprint, Shape

EVERY_SESSION = "every session"
RELATION = "relation "  # before the name, in a heading


@dataclass(frozen=True, slots=True)
class StatementSection:
    """The statements under one heading; `error` is why a relation cannot be served.

    `slots` explain the slots of the statements.
    """

    heading: str
    statements: tuple[str, ...] = ()
    error: str | None = None
    slots: tuple[str, ...] = ()


def explain(
    config: SourceConfig, engine: Engine, names: Sequence[str] = ()
) -> list[StatementSection]:
    """Return the statements of every session, and those of each relation of source.toml.

    It contacts the database to describe the relations; one that fails does not hide the others.

    Args:
        names: of relations; none: all.

    Raises:
        NotFound: no relation has this name.
        DatabaseRefused, DatabaseUnavailable: no session can be opened.
    """
    refuse_unknown(config, names)
    common = tuple(engine.templates([]))
    sections = [StatementSection(EVERY_SESSION, common)]
    session = engine.open()
    try:
        for name in dict.fromkeys(names or config.relations):
            published, heading = config.relations[name], f"{RELATION}{name}"
            try:
                shapes = [session.describe(published.relation)]
            except DriftlineError as error:
                asked = engine.attempts(published.relation)
                sections.append(StatementSection(heading, _own(asked, common), str(error)))
                session = _renewed(engine, session)  # the failed statement may have ended it
                continue
            by_database = replace(published.relation, fingerprint=Fingerprint.DATABASE)
            refused: list[str] = []
            try:
                shapes.append(session.describe(by_database))
            except DriftlineError:  # it cannot hash this relation, which `check` reports
                refused = engine.attempts(by_database)
                session = _renewed(engine, session)
            texts = engine.templates(shapes) + refused
            texts += _advised(engine, session, shapes[0])
            if (own := own_values_of(engine, session)) is not None:
                texts += own.statements(shapes[0])
            for parts in (published.derive & {DerivablePart.COLUMNS}, published.derive):
                if parts:  # all columns are some of them, but all rows are without a condition
                    texts += engine.templates([slotted(shapes[0], parts)])
            joins = site_joins(
                session, published, shapes[0], config.relations, tuple(config.relations)
            )
            slots = _slots(session, shapes[0], published.derive, joins)
            sections.append(StatementSection(heading, _own(texts, common), slots=slots))
    finally:
        session.close()
    return sections


def _advised(engine: Engine, session: Session, shape: Shape) -> list[str]:
    """Return the statements by which `check` finds out whether a marker might be named."""
    texts: list[str] = []
    for marker in marker_advice.candidates(shape):
        texts += engine.attempts(replace(shape.relation, marker=marker))
        marked = marker_advice.marked_shape(session, shape, marker)
        if marked is not None:
            texts += [sql for sql in engine.templates([marked]) if sql.startswith("EXPLAIN")]
    return texts


def _slots(
    session: Session,
    shape: Shape,
    derive: Collection[DerivablePart],
    joins: Sequence[JoinedRelation],
) -> tuple[str, ...]:
    """Return lines that say what may fill the slots of a relation's templates."""
    lines = []
    if DerivablePart.COLUMNS in derive:
        lines.append(f"{COLUMNS}: any of these expressions, in this order; none without the comma")
        lines += [f"  {read}" for read in plan_of(shape).reads[shape.recipe.key_columns :]]
    if DerivablePart.ROWS in derive:
        lines.append(
            f"{ROWS}: at most {DERIVATION_COMPARISONS_MAX} of these comparisons, in AND, OR, NOT"
            " and parentheses, with at most"
        )
        lines.append(
            f"{DERIVATION_VALUES_MAX:,} bound literals of the column's own type;"
            f" {OPERATOR} is = <> < <= > or >=, {EQUALITY} is = or <>"
        )
        own = session.capabilities
        forms = comparison_forms(shape, own.compare)
        forms += join_forms(shape, joins, own.compare, own.within)
        lines += [f"  {form}" for form in forms]
    return tuple(lines)


def _own(statements: Sequence[str], common: Sequence[str]) -> tuple[str, ...]:
    """Return the statements that are not common to every session, each once."""
    return tuple(sql for sql in dict.fromkeys(statements) if sql not in common)


def _renewed(engine: Engine, session: Session) -> Session:
    session.close()
    return engine.open()
