"""The policies by which a database decides which rows the login sees, and their message.

A policy's condition stays at the source, because it may name customers. The warehouse receives its
table, its name and a digest, so that it can say which policy was added, removed or changed.
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

    `name` is empty for a table that shows the login no row.
    """

    table: str
    name: str
    digest: bytes


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
        listed = [
            pb.Policy(table=policy.table, name=policy.name, digest=policy.digest)
            for policy in self.policies[:POLICIES_MAX]
        ]
        return pb.RowSecurity(digest=self.digest, policies=listed)
