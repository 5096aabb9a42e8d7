"""Two keys with one position under a seed, by inverting the hash of positions."""

from __future__ import annotations

from tests.reference.digests import P1, P2, P5, xx

WORD = 2**64


def colliding_keys(seed: int) -> tuple[bytes, bytes]:
    """Two values of 12 bytes, each alone in its key, whose key bytes have equal hashes."""
    length, last = (12).to_bytes(4, "big"), b"8 bytes."
    firsts = [b"one.", b"two."]
    states = [xx(int.from_bytes(length + f, "little"), xx(16, seed)) for f in firsts]
    mixed = _mixed(int.from_bytes(last, "little")) ^ _begun(states[0]) ^ _begun(states[1])
    other = _unmixed(mixed).to_bytes(8, "little")
    return firsts[0] + last, firsts[1] + other


def _begun(state: int) -> int:
    return (state + P5 + 8) % WORD


def _mixed(word: int) -> int:
    k = word * P2 % WORD
    return (k << 31 | k >> 33) % WORD * P1 % WORD


def _unmixed(mixed: int) -> int:
    k = mixed * pow(P1, -1, WORD) % WORD
    return (k >> 31 | k << 33) % WORD * pow(P2, -1, WORD) % WORD
