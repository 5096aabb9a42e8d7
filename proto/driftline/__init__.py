"""The contract between the two agents: all that both sides must agree on, byte for byte.

The rooms follow the sections of `docs/protocol.md`: `values` (2), `rows` (3 to 6, and 8),
`reconciliation` (7), `wire` with the messages (9), `errors` (10), `limits` (11). Nothing here
imports a database, a server or Spark, so Spark executors and the thin source agent can both import
it.
"""
