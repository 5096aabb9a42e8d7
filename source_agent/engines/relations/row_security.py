"""The policies by which a database decides which rows the login sees, and their message.

A policy's condition stays at the source, because it may name customers. The warehouse receives its
name and a digest, so that it can say which policy was added, removed or changed, and the table if
it is the relation's own. Tables that a view or a query reads stay here, and so do the names of
their policies: the warehouse may not know them.
"""

from __future__ import annotations

from dataclasses import dataclass

import blake3
from driftline import wire_pb2 as pb
from driftline.limits import POLICIES_MAX

_DOMAIN = b"driftline row security\n"


@dataclass(frozen=True, slots=True)
class Policy:
    """A condition under which the database shows rows to the login; `digest`, 8 bytes, is its hash.

    `name` is empty for a table that shows the login no row. `is_own`: its table is the relation.
    """

    table: str
    name: str
    digest: bytes
    is_own: bool = True

    def abroad(self) -> pb.Policy:
        """Return the policy as a warehouse may know it: by a number if its table is another."""
        if self.is_own:
            return pb.Policy(table=self.table, name=self.name, digest=self.digest)
        number = blake3.blake3(_DOMAIN + f"{self.table}\0{self.name}".encode()).hexdigest(length=2)
        name = f"number {number}" if self.name else ""
        return pb.Policy(table=f"a table that it reads ({number})", name=name, digest=self.digest)


@dataclass(frozen=True, slots=True)
class RowSecurity:
    """The policies that decide which rows of a relation the login sees; none: it sees all."""

    policies: tuple[Policy, ...]

    @property
    def digest(self) -> bytes:
        """16 bytes that change when a policy is added, removed or changed."""
        parts = [f"{p.table}\0{p.name}\0{p.digest.hex()}\n".encode() for p in self.policies]
        return blake3.blake3(_DOMAIN + b"".join(parts)).digest(length=16)

    def message(self) -> pb.RowSecurity:
        """Return the message to the warehouse: the digest of all, and the first policies."""
        listed = [policy.abroad() for policy in self.policies[:POLICIES_MAX]]
        return pb.RowSecurity(digest=self.digest, policies=listed)
