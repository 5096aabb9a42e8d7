"""The source's half of an exchange alone, asked by messages that a test makes by hand.

The rows are in SQLite. No warehouse agent takes part: a test builds the opening from the rows that
the warehouse would hold, and reads the replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from driftline import wire_pb2 as pb
from driftline.reconciliation.ranges import Partition, RangeSums, strata, uniform
from driftline.reconciliation.sketches import Cells, Embedding
from driftline.rows import frames
from driftline.rows.columns import gather
from driftline.rows.digests import Digest, MixedFingerprints, mix
from driftline.rows.fingerprints import fingerprints, position_seed
from driftline.rows.keys import positions

from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.methods.interface import Scan
from source_agent.scan.batches import Batch
from source_agent.scan.frame_builder import FrameBuilder
from source_agent.scan.reader import Reader
from tests.harness import agents
from tests.harness.agents import FRAGMENT_KEY, SALT
from tests.harness.exchange_pair import INTEGER, Schema, Table, encode, fill, open_session


class AskedSource:
    """A source of `theirs`; `tally` counts what it reads."""

    def __init__(self, folder: Path, theirs: Table, schema: Schema = INTEGER) -> None:
        self.path = folder / "erp.db"
        fill(self.path, schema, theirs)
        self.session = open_session(self.path)
        self.shape = self.session.describe(schema.relation)
        self.tally = ReadCounts()
        self.fingerprints = fingerprints(FRAGMENT_KEY, self.shape.recipe)

    def hashed(self, rows: Table) -> tuple[np.ndarray, MixedFingerprints]:
        """Positions and mixed fingerprints of rows, as either side has them."""
        encoded = [encode(row) for row in rows]
        where = positions(gather(encoded), self.shape.recipe, position_seed(FRAGMENT_KEY))
        return where, mix(SALT, *self.fingerprints(encoded))

    def sums(self, rows: Table, partition: Partition) -> RangeSums:
        where, mixed = self.hashed(rows)
        sums = RangeSums(partition.ranges)
        sums.add(partition.indices(where), mixed)
        return sums

    def cells(self, rows: Table, embedding: Embedding, third: int) -> Cells:
        where, mixed = self.hashed(rows)
        ks, inside = embedding.embed(where, SALT)
        found = Cells(third)
        found.add(ks[inside], mixed.m0[inside], SALT)
        found.reduce()
        return found

    def opening(self, ours: Table, partition: Partition | None = None) -> pb.Open:
        """The opening, by ranges, of a warehouse that holds these rows."""
        partition = partition or uniform(16)
        sums = self.sums(ours, partition)
        said = strata(sums.short_digests(), SALT).tobytes()
        return agents.opening(
            self.shape.recipe.id, ours=sums.total, partition=partition, strata=said
        ).open

    def total(self, rows: Table) -> Digest:
        return self.hashed(rows)[1].digest()

    def say(self, opening: pb.Open, *requests: pb.Request) -> list[pb.Reply]:
        """Every reply to an opening and these requests."""
        return list(self.replies(opening, requests))

    def replies(self, opening: pb.Open, requests: Iterable[pb.Request] = ()) -> Iterator[pb.Reply]:
        comparison = Comparison(self.session, self.shape, opening, self.tally)
        return comparison.answer(iter(requests))

    def scan(self, ours: Digest | None = None) -> Scan:
        """What a method sees of an exchange with a warehouse of this total."""
        builder = FrameBuilder(self.shape.recipe, SALT, level=1)
        return Scan(self.reader(), builder, ours or Digest())

    def reader(self) -> Reader:
        key, salt = FRAGMENT_KEY, SALT
        return Reader(self.session, self.shape, fragment_key=key, salt=salt, tally=self.tally)

    def batch(self, rows: Table) -> Batch:
        where, mixed = self.hashed(rows)
        return Batch(gather([encode(row) for row in rows]), where, mixed)

    def shipped(self, replies: Iterable[pb.Reply]) -> Counter[bytes]:
        """The rows in these replies."""
        found: Counter[bytes] = Counter()
        for reply in replies:
            if reply.HasField("rows"):
                decoded = frames.decode(reply.rows.frame)
                found.update(frames.verify(decoded, self.fingerprints)[0].rows())
        return found


@contextmanager
def asked_source(folder: Path, theirs: Table, schema: Schema = INTEGER) -> Iterator[AskedSource]:
    made = AskedSource(folder, theirs, schema)
    try:
        yield made
    finally:
        made.session.close()


def bag(rows: Table) -> Counter[bytes]:
    """Rows as a multiset of row bytes."""
    return Counter(encode(row) for row in rows)


def kinds(replies: Iterable[pb.Reply]) -> list[str | None]:
    return [reply.WhichOneof("message") for reply in replies]
