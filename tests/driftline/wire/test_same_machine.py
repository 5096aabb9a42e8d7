"""Claims of a process on the same machine: who believes them, and what they tell others."""

from __future__ import annotations

import pytest
from driftline.wire.same_machine import CLAIM_BYTES, NONCE_BYTES, claim, process_of
from hypothesis import given
from hypothesis import strategies as st

HERE, ELSEWHERE = "3732dcf9-49b3 pid:[4026531836]", "3732dcf9-49b3 pid:[4026531837]"
NONCE = bytes(range(NONCE_BYTES))


@given(st.integers(0, 2**32 - 1))
def test_the_same_machine_knows_the_process(process: int) -> None:
    said = claim(HERE, process)
    assert len(said) == CLAIM_BYTES
    assert process_of(said, HERE) == process
    assert process_of(said, ELSEWHERE) is None, "processes have other numbers in a container"
    assert process_of(said, "") is None, "a system that does not say which machine it is"


@given(st.binary(max_size=2 * CLAIM_BYTES))
def test_other_bytes_are_no_claim(said: bytes) -> None:
    assert process_of(said, HERE) is None


@pytest.mark.parametrize("at", range(NONCE_BYTES + 16))
def test_a_changed_claim_is_none(at: int) -> None:
    said = bytearray(claim(HERE, 7, NONCE))
    said[at] ^= 1
    assert process_of(bytes(said), HERE) is None


def test_a_claim_does_not_show_what_it_is_made_of() -> None:
    first, second = claim(HERE, 7), claim(HERE, 7)
    assert first[NONCE_BYTES:] != second[NONCE_BYTES:]
    assert (7).to_bytes(4, "little") not in (claim(HERE, 7, NONCE), claim(ELSEWHERE, 7, NONCE))
    # A claim is for ever the same bytes: two releases have to agree.
    assert claim(HERE, 7, NONCE).hex()[:32] == NONCE.hex()
