"""Tell a source on the same machine which process its warehouse is, and tell no other source.

A warehouse sends a claim with each exchange, as metadata of the call: a nonce, a keyed hash of what
names the machine and its space of processes, and under it the number of its process. A source on
the same machine makes the same hash; any other learns nothing, and goes on without. So nothing is
negotiated: an older source ignores metadata that it does not know.

Who can make a claim runs processes on the machine: nobody else knows its boot id.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import Final

from blake3 import blake3

METADATA: Final = "driftline-process-bin"  # a key of gRPC's metadata; "-bin": its value is bytes
NONCE_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_PROCESS: Final = struct.Struct("<I")
_HASH_BYTES: Final = _DIGEST_BYTES + _PROCESS.size  # the digest, and what hides the process
CLAIM_BYTES: Final = NONCE_BYTES + _HASH_BYTES
_CONTEXT: Final = "driftline 2026-11 process on the same machine"


def claim(machine: str, process: int, nonce: bytes | None = None) -> bytes:
    """Return the claim of a process, CLAIM_BYTES long.

    Args:
        machine: the boot id of the machine, and the space in which its processes are numbered.
        process: its number.
        nonce: NONCE_BYTES; None: random ones.
    """
    nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
    digest, mask = _hash(machine, nonce)
    return nonce + digest + _PROCESS.pack(process ^ mask)


def process_of(said: bytes, machine: str) -> int | None:
    """Return the process of a claim that was made on this machine; None: it was not, or is none."""
    if len(said) != CLAIM_BYTES or not machine:
        return None
    digest, mask = _hash(machine, said[:NONCE_BYTES])
    if not hmac.compare_digest(digest, said[NONCE_BYTES : -_PROCESS.size]):
        return None
    (process,) = _PROCESS.unpack(said[-_PROCESS.size :])
    return int(process) ^ mask


def _hash(machine: str, nonce: bytes) -> tuple[bytes, int]:
    key = blake3(machine.encode(), derive_key_context=_CONTEXT).digest()
    output = blake3(nonce, key=key).digest(_HASH_BYTES)
    (mask,) = _PROCESS.unpack(output[_DIGEST_BYTES:])
    return output[:_DIGEST_BYTES], int(mask)
