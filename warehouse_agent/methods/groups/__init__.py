"""The group method: which rows are compared as one, the opening, shards, the exchange."""
