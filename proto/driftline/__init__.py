"""The contract between the two agents: what both sides must agree on, byte for byte.

The tree is `docs/protocol.md` section by section: `types` (2), `values` (2), `columns` (3),
`keys` (4), `fingerprints` (5), `digests` (6), `ranges` (7), `frames` (8), `wire` (9), `errors`
(10), `limits` (11). Nothing here knows a database, a server or Spark, so that Spark executors and
the thin source agent can import it alike.
"""
