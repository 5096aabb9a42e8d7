"""The published relations, the clients that may have them, and their description as a message.

A relation that does not exist, and one whose `allow` does not name the client, get the same answer
at the same cost: no SQL. Descriptions contain names and types, never values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from driftline import wire_pb2 as pb
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    LimitExceeded,
    MalformedMessage,
    NotFound,
)
from driftline.limits import NAME_BYTES_MAX
from driftline.peer_text import visible
from driftline.relations.activity import UnknownActivity
from driftline.relations.derivation_messages import from_message, inflated
from driftline.relations.derivations import DerivablePart, Derivation
from driftline.relations.reference_messages import to_messages
from driftline.relations.references import Reference
from driftline.values.types import Recipe
from driftline.wire.negotiation import DEFLATE, check_fields, check_protocol

from source_agent.budgets.audit import NOT_RELOADED, RELOADED, AuditEntry, AuditLog
from source_agent.budgets.budget import Governor
from source_agent.config.file import Budget, ServedRelation, SourceConfig, load
from source_agent.config.site_joins import chosen
from source_agent.engines.interface import Engine, Session
from source_agent.engines.relations.markers import MarkedBy
from source_agent.engines.relations.predicates import JoinedRelation
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.printable import counted

_log = logging.getLogger("driftline.source")


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a call: `label` for the audit, `names` for `allow`, none without TLS."""

    label: str
    names: frozenset[str] = frozenset()


@dataclass(slots=True)
class AgentState:
    """State shared by every conversation of an agent. `reload` replaces `config` as a whole."""

    config: SourceConfig
    engine: Engine
    governor: Governor
    audit: AuditLog
    heartbeat_s: float
    _reading: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def served_relation(self, name: str, protocol: int, client: Client) -> ServedRelation:
        """Return the relation that this client knows by a name. Contact no database.

        Raises NotFound; VersionMismatch for the protocol; LimitExceeded for a name too long.
        """
        check_protocol(protocol)
        if len(name.encode()) > NAME_BYTES_MAX:
            raise LimitExceeded(f"The name of a relation has at most {NAME_BYTES_MAX} bytes.")
        relation = self.config.relations.get(name)
        if relation is None or not relation.admits(client.names):
            raise NotFound(
                f"No relation {name!a} is published to this certificate.",
                remedy="Check the name, or ask the DBA to publish it to this certificate.",
            )
        return relation

    def probed(self, client: Client) -> Sequence[Relation]:
        """Return the relations whose activity may be read for this client."""
        if self.config.budget.activity_s is None:
            return ()
        served = self.config.relations.values()
        return [s.relation for s in served if s.activity and s.admits(client.names)]

    def named(self, names: Iterable[str], client: Client) -> list[Relation]:
        """Return the relations of these names that this client may have, each once.

        Other names are passed over, so that nothing tells which of them exist.
        """
        served = (self.config.relations.get(name) for name in dict.fromkeys(names))
        return [s.relation for s in served if s is not None and s.admits(client.names)]

    def published(self, client: Client) -> dict[str, ServedRelation]:
        """Return the relations that this client may have, by name."""
        served = self.config.relations.items()
        return {name: one for name, one in served if one.admits(client.names)}

    def unprobed(self, name: str, client: Client) -> UnknownActivity:
        """Return why nothing is known of the activity of a relation that no session probed.

        As in `served_relation`, one that does not exist and one that the client may not have are
        alike.
        """
        served = self.config.relations.get(name)
        if served is None or not served.admits(client.names):
            return UnknownActivity("no relation of this name is published to this certificate")
        if self.config.budget.activity_s is None or not served.activity:
            return UnknownActivity("the source's DBA has switched it off")
        return UnknownActivity("the database says nothing of it")

    def reload(self) -> None:
        """Read the DBA's file again and adopt its limits and relations.

        Limits take effect also for running exchanges, relations and `allow` for new ones, and
        [database] and [server] only at a restart. A file with an error is logged and not used.
        """
        with self._reading:
            if (config := self._read_again()) is None:
                return
            self.governor.adopt(config.budget)
            self.config = replace(config, database=self.config.database, server=self.config.server)
        _log.info("%s was read again: %s", config.path, counted(len(config.relations), "relation"))

    def reload_limits(self) -> None:
        """Read the DBA's file again, because it changed, and adopt its limits alone.

        What a client may have changes by a signal of the DBA, not by saving a file. The log names
        what changed and does not count yet.
        """
        with self._reading:
            if (config := self._read_again()) is None:
                return
            before = self.config
            if config.relations != before.relations:
                _log.warning("[relations] of %s changed; send SIGHUP to apply it", config.path)
            if config.budget == before.budget:
                return
            self.governor.adopt(config.budget)
            self.config = replace(before, budget=config.budget)
        _log.info("[limits] of %s changed and count from now on", config.path)

    def _read_again(self) -> SourceConfig | None:
        """Return the DBA's file as it is now; None, said in log and audit, if it is wrong."""
        before = self.config
        try:
            config = load(before.path)
        except ConfigurationError as error:
            _log.error("source.toml was not reloaded; the previous settings stay in use: %s", error)
            self.audit.write(AuditEntry("", "", NOT_RELOADED))
            return None
        for name in ("database", "server"):
            if getattr(config, name) != getattr(before, name):
                _log.warning("[%s] of %s changed; restart the agent to apply it", name, config.path)
        self.audit.write(AuditEntry("", "", RELOADED))
        return config


def derivation_of(
    asked: pb.DescribeRequest | pb.Open, served: ServedRelation, entry: AuditEntry
) -> Derivation | None:
    """Return what a request wants of a relation, or None for all of it. Contact no database.

    Raises:
        DerivationRefused: the DBA does not let a warehouse choose it.
        LimitExceeded, MalformedMessage: it is too large, or none.
        VersionMismatch: it has fields of a newer release.
    """
    message = asked.derivation if asked.HasField("derivation") else None
    if isinstance(asked, pb.Open) and asked.deflated:
        if message is not None or DEFLATE not in asked.features:
            raise MalformedMessage("A derivation came twice, or compressed without its feature.")
        check_fields(message := inflated(asked.deflated))
    if message is None:
        return None
    derivation = from_message(message)
    entry.choose(derivation)
    served.refuse(derivation)
    return derivation


def described(
    session: Session,
    served: ServedRelation,
    derivation: Derivation | None,
    published: Mapping[str, ServedRelation],
) -> Shape:
    """Return a relation as the database describes it now, or what is derived from it.

    Raises as `Session.describe`, `ServedRelation.check_key` and `Session.derive`.
    """
    shape = session.describe(served.relation)
    served.check_key(shape)
    if derivation is None:
        return shape
    return chosen(session, served, shape, derivation, published)


def referenced(
    session: Session, shape: Shape, published: Sequence[Relation]
) -> tuple[Reference, ...]:
    """Return the foreign keys of a relation to those of `published`; none if they are not shown.

    They serve a forecast, so a database that does not show them stops nothing.
    """
    references = session.capabilities.references
    try:
        return () if references is None else references(shape, published)
    except DatabaseRefused as error:
        _log.debug("no foreign keys of %s: %s", shape.relation.name, error)
        return ()


def describe(
    shape: Shape,
    budget: Budget,
    derive: Collection[DerivablePart] = (),
    references: Iterable[Reference] = (),
    joins: Iterable[JoinedRelation] = (),
) -> pb.Description:
    """Return the relation as a message, with the rates that a warehouse plans with.

    Args:
        derive: what a warehouse may choose of it.
        references: its foreign keys to relations that the client may have.
        joins: those of them, and of others to it, along which its rows may be chosen.
    """
    recipe, marked = shape.recipe, shape.marker
    return pb.Description(
        columns=_columns(shape),
        key_columns=recipe.key_columns,
        fingerprint_version=recipe.fingerprint_version,
        vouched=shape.vouched,
        rows_expected=max(shape.rows_expected, 0),
        notes=map(visible, shape.notes),  # the name of a file may be no Unicode
        rows_per_second=budget.rows_per_second or 0.0,
        bytes_per_second=budget.bytes_per_second or 0.0,
        derive=sorted(part.value for part in derive),
        references=_references(references, joins),
        referring=_referring(joins),
        row_security=None if shape.row_security is None else shape.row_security.message(),
        marker=None if marked is None else _marker(marked, recipe),
    )


def _columns(shape: Shape) -> list[pb.ColumnDescription]:
    return [
        pb.ColumnDescription(
            name=c.name,
            type=str(c.type),
            nullable=c.nullable,
            ordinal=c.ordinal,
            comparable=comparable.value,
        )
        for c, comparable in zip(shape.recipe.columns, shape.comparable, strict=True)
    ]


def _references(
    references: Iterable[Reference], joins: Iterable[JoinedRelation]
) -> list[pb.Reference]:
    """Return foreign keys as messages, those of joins with what is there."""
    by_reference = {one.reference: one for one in joins if not one.is_referring}
    told = list(references)
    messages = to_messages(told)
    for message, reference in zip(messages, told, strict=False):
        if (joined := by_reference.get(reference)) is not None:
            message.joined.CopyFrom(_there(joined))
    return messages


def _referring(joins: Iterable[JoinedRelation]) -> list[pb.Reference]:
    """Return the foreign keys of other relations, turned, with what is there."""
    turned = [one for one in joins if one.is_referring]
    messages = to_messages(one.reference for one in turned)
    for message, joined in zip(messages, turned, strict=True):
        message.joined.CopyFrom(_there(joined))
    return messages


def _there(joined: JoinedRelation) -> pb.Description:
    """Return the other relation of a join as a message."""
    upwards = [one.reference for one in joined.joins if not one.is_referring]
    return pb.Description(
        columns=_columns(joined.shape),
        rows_expected=max(joined.shape.rows_expected, 0),
        references=_references(upwards, joined.joins),
        referring=_referring(joined.joins),
    )


def _marker(marked: MarkedBy, recipe: Recipe) -> pb.Marker:
    """Return the marker as a message; a column that is not published has no name there."""
    marker = marked.marker
    is_published = any(column.name == marker.column for column in recipe.columns)
    column = marker.column if is_published else ""
    return pb.Marker(kind=marked.kind.value, column=column, late_s=marker.late_s or 0.0)
