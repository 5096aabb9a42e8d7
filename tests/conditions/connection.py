"""Conditions of the line between the agents: TCP, TLS, certificates, and what changes bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from source_agent.enrolment import enroll
from tests.conditions.conditions import ROWS, Bench, cause
from tests.harness.relay import Ending, Relay, unanswered
from tests.harness.tls_pair import TlsPair
from warehouse_agent.transport import channel as link_module
from warehouse_agent.transport import handshake, preflight

HANDSHAKE_BYTES = 500  # inside the server's first flight, which has some 850
FLIPPED_BYTES = 3_000  # behind the handshake, in the answer to Describe
NOTE_BYTES = 400  # of each row, where it matters how many bytes come
WAIT_S = 1.0  # instead of CONTROL_S and REACH_S


@contextlib.contextmanager
def _pair(bench: Bench, *, note_bytes: int = 0, **options: object) -> Iterator[TlsPair]:
    with bench.sqlite(note_bytes=note_bytes) as legacy, bench.pair(legacy, **options) as pair:
        yield pair


@contextlib.contextmanager
def _relayed(bench: Bench, *, note_bytes: int = 0) -> Iterator[tuple[TlsPair, Relay]]:
    with _pair(bench, note_bytes=note_bytes) as pair, Relay(pair.address) as relay:
        pair.dial(relay.address)
        yield pair, relay


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "CONTROL_S", WAIT_S)
        patch.setattr(handshake, "CONTROL_S", WAIT_S)
        patch.setattr(preflight, "REACH_S", WAIT_S)
        yield


@cause("nothing listens at the address", "UNREACHABLE", 4, "driftline-source serve", retried=False)
def refused(bench: Bench) -> Iterator[TlsPair]:
    with _pair(bench) as pair:
        pair.stop()
        yield pair
        pair.serve()
        bench.converge(pair)


@cause("the host name is not known", "UNREACHABLE", 4, "erp.invalid:7443", retried=False)
def no_such_host(bench: Bench) -> Iterator[TlsPair]:
    with _pair(bench) as pair:
        address = pair.address
        pair.dial("erp.invalid:7443")
        yield pair
        pair.dial(address)
        bench.converge(pair)


@cause("a firewall drops the packets to it", "UNREACHABLE", 4, "in time", retried=False)
def black_hole(bench: Bench) -> Iterator[TlsPair]:
    with _pair(bench) as pair:
        with _impatient(), unanswered() as address:
            pair.dial(address)
            yield pair
        pair.restart()
        bench.converge(pair)


@cause("connected, and nothing comes back", "UNREACHABLE", 4, "in time", retried=True)
def swallowed(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench) as (pair, relay):
        with _impatient():
            relay.swallow()
            yield pair
        relay.heal()
        bench.converge(pair)


@cause("FIN in the TLS handshake", "UNREACHABLE", 4, "cut off", retried=True)
def fin(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench) as (pair, relay):
        relay.end_each(down=HANDSHAKE_BYTES, ending=Ending.FIN)
        yield pair
        assert relay.cuts >= 2
        relay.heal()
        bench.converge(pair)


@cause("RST in the TLS handshake", "UNREACHABLE", 4, "reset", retried=True)
def rst(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench) as (pair, relay):
        relay.end_each(down=HANDSHAKE_BYTES, ending=Ending.RST)
        yield pair
        assert relay.cuts >= 2
        relay.heal()
        bench.converge(pair)


@cause("a byte changed in the TLS handshake", "UNREACHABLE", 4, "damaged", retried=True)
def flipped_in_handshake(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench) as (pair, relay):
        relay.flip_after(down=HANDSHAKE_BYTES)
        yield pair
        assert relay.cuts == 1
        relay.heal()
        bench.converge(pair)


@cause("a byte changed on the line after it", "UNREACHABLE", 4, "damaged", retried=True)
def flipped(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench) as (pair, relay):
        relay.flip_after(down=FLIPPED_BYTES)
        yield pair
        assert relay.cuts == 1
        relay.heal()
        bench.converge(pair)


@cause("the line is reset while rows come", "UNREACHABLE", 4, "what arrived is kept", retried=True)
def cut(bench: Bench) -> Iterator[TlsPair]:
    with _relayed(bench, note_bytes=NOTE_BYTES) as (pair, relay):
        relay.cut_after(down=ROWS * NOTE_BYTES // 4)
        yield pair
        assert relay.cuts == 1
        relay.heal()
        bench.converge(pair)


@cause(
    "the source's certificate is of another authority", "UNAUTHENTICATED", 5,
    "not from the authority in `ca`", "other/ca.pem", retried=False,
)  # fmt: skip
def wrong_authority(bench: Bench) -> Iterator[TlsPair]:
    other = _enrolled(bench.folder / "other")
    with _pair(bench) as pair:
        pair.dial(pair.address, ca=other)
        yield pair


@cause(
    "the source's certificate has expired", "UNAUTHENTICATED", 5,
    "The source's certificate has expired", "valid from", retried=False,
)  # fmt: skip
def expired(bench: Bench) -> Iterator[TlsPair]:
    yield from _dated(bench, days_ago=30)


@cause(
    "the source's certificate is not valid yet", "UNAUTHENTICATED", 5,
    "The source's certificate is not valid yet", "clock", retried=False,
)  # fmt: skip
def not_yet_valid(bench: Bench) -> Iterator[TlsPair]:
    yield from _dated(bench, days_ago=-30)


def _dated(bench: Bench, *, days_ago: int) -> Iterator[TlsPair]:
    made = datetime.now(UTC) - timedelta(days=days_ago)
    theirs = _enrolled(bench.folder / "theirs", now=made)
    with _pair(bench, theirs=theirs) as pair:
        pair.dial(pair.address, ca=theirs)
        yield pair


@cause(
    "the source's certificate is for another name", "UNAUTHENTICATED", 5,
    "is for erp.example, 10.1.2.3; 127.0.0.1 was asked for",
    'set `server_name = "erp.example"` in [sources.erp]', retried=False,
)  # fmt: skip
def wrong_name(bench: Bench) -> Iterator[TlsPair]:
    theirs = _enrolled(bench.folder / "theirs", names=["erp.example", "10.1.2.3"])
    with _pair(bench, theirs=theirs) as pair:
        pair.dial(pair.address, ca=theirs)
        yield pair


@cause(
    "our certificate is of another authority", "UNAUTHENTICATED", 5,
    "after it received our certificate", "client_ca", retried=False,
)  # fmt: skip
def not_known(bench: Bench) -> Iterator[TlsPair]:
    other = _enrolled(bench.folder / "other")
    with _pair(bench) as pair:
        pair.dial(pair.address, own=other)
        yield pair


@cause(
    "our certificate has expired", "UNAUTHENTICATED", 5, "Our certificate has expired",
    retried=False,
)  # fmt: skip
def ours_expired(bench: Bench) -> Iterator[TlsPair]:
    old = _enrolled(bench.folder / "old", now=datetime.now(UTC) - timedelta(days=30))
    with _pair(bench) as pair:
        pair.dial(pair.address, own=old)
        yield pair


@cause(
    "our certificate and our key do not fit together", "CONFIGURATION", 2,
    "do not fit together", retried=False,
)  # fmt: skip
def mismatch(bench: Bench) -> Iterator[TlsPair]:
    other = _enrolled(bench.folder / "other")
    with _pair(bench) as pair:
        own = pair.certs / "warehouse.key"
        own.write_bytes((other / "warehouse.key").read_bytes())
        yield pair


@cause(
    "TLS is spoken to a port in plain text", "UNAUTHENTICATED", 5, "does not speak TLS",
    retried=False,
)  # fmt: skip
def tls_to_plain(bench: Bench) -> Iterator[TlsPair]:
    with _pair(bench) as pair:
        pair.stop()
        super(TlsPair, pair).serve()
        pair.dial(pair.address)
        yield pair


@cause(
    "plain text is spoken to a port with TLS, without a certificate", "UNAUTHENTICATED", 5,
    "speaks TLS", "Remove `insecure`", retried=False,
)  # fmt: skip
def plain_to_tls(bench: Bench) -> Iterator[TlsPair]:
    with _pair(bench) as pair:
        pair.source_lines = f'address = "{pair.address}"\ninsecure = true'
        yield pair


def _enrolled(folder: Path, *, names: list[str] | None = None, now: datetime | None = None) -> Path:
    enroll(folder, source_names=names or ["127.0.0.1"], days=5, now=now)
    return folder
