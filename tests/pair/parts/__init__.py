"""Refreshes of a part of a table: tiles, shards, ranges of keys, hours without a scan."""
