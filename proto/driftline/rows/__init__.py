"""Bytes of rows: columns, keys and their order, fingerprints, digests, frames (sections 3-6, 8)."""
