"""The contract between the two agents: all that both sides must agree on, byte for byte.

The modules follow the sections of `docs/protocol.md`: `types` and `values` (2), `columns` (3),
`keys` (4), `fingerprints` (5), `digests` (6), `ranges`, `sketches` and `units` (7), `frames` (8),
`wire` (9), `errors` (10), `limits` (11). Nothing here imports a database, a server or Spark, so
Spark executors and the thin source agent can both import it.
"""
