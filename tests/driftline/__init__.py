"""The contract: bytes, sums, sketches, messages."""
