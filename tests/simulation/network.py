"""The simulated line: gRPC's promises without gRPC, and a source agent at its other end.

The real `SourceChannel`, `Stream`, `Servicer` and `Conversation` run over it, and every message is
bytes on its way. A conversation has a thread of its own, as always, but only one of the two threads
runs at a time: the source works while the warehouse waits, so everything follows from the seed.

A call is cut at a message: what was sent before may have arrived or not, and what is behind it is
lost. Nothing is duplicated or reordered inside a call; a call with one request may be answered
twice, if its first answer is lost.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import grpc
from driftline import wire_pb2 as pb

from source_agent.budgets.audit import AuditEntry
from source_agent.budgets.budget import ExchangeStopped, Governor
from source_agent.config.file import Budget, ServedRelation, SourceConfig
from source_agent.engines.relations.shapes import Relation
from source_agent.server.catalogue import AgentState, Client
from source_agent.server.conversation import Conversation
from source_agent.server.handlers import known, refusal
from source_agent.server.service import Servicer
from tests.simulation import clock
from tests.simulation.database import Engine
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import Reply, SourceChannel

CLIENT = Client("warehouse")
WAIT_S_MAX = 60.0  # of true time, for the other thread
SILENCE_S = 31.0


class Lost(grpc.RpcError):
    """What gRPC raises when a connection breaks."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the simulated line was cut"

    def trailing_metadata(self) -> Any:
        return ()


class Refused(Lost):
    """A call that the source agent ended with an error of its own."""

    def __init__(self, refused: pb.Refused) -> None:
        self._refused = refused

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.FAILED_PRECONDITION

    def trailing_metadata(self) -> Any:
        return (("driftline-refused-bin", self._refused.SerializeToString()),)


class Lines:
    """The audit file, as the entries of this world."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def write(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


class SourceAgent:
    """The process beside the database. `step` is called at each of its messages."""

    def __init__(self, template: SourceConfig, engine: Engine, names: Mapping[str, str]) -> None:
        """`names`: relations to tables."""
        relations = {name: ServedRelation(Relation(name, table=names[name])) for name in names}
        config = replace(template, relations=relations, budget=Budget())
        self.audit = Lines()
        governor = Governor(config.budget, clock=lambda: clock.current().monotonic())
        self.state = AgentState(config, engine, governor, self.audit, 5.0)  # type: ignore[arg-type]
        self.servicer = Servicer(self.state)
        self.down_until_s = 0.0  # the process, by the clock of the world

    def check_up(self) -> None:
        """Raise Lost while the process is down."""
        if clock.current().now_s < self.down_until_s:
            raise Lost

    def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        """Answer a Describe, by the servicer's own method."""
        try:
            entry = AuditEntry(CLIENT.label, request.relation)
            return self.servicer._describe(request, CLIENT, _Context(), entry)  # type: ignore[arg-type]
        except Exception as problem:
            raise Refused(refusal(known(problem))) from None


class _Context:
    """What `Servicer._session` needs of a call: somebody who may leave."""

    def add_callback(self, _: Callable[[], None]) -> bool:
        return True


Step = Callable[[str], None]


class SimulatedLink(SourceChannel):
    """`SourceChannel` over the simulated line. `step` is called at each message: it may raise
    Lost."""

    def __init__(self, source: Source, agent: SourceAgent, step: Step) -> None:
        self._agent, self._step = agent, step
        self._calls: list[_Call] = []
        super().__init__(source)

    def hang_up(self) -> None:
        """End the calls of a process that has ended."""
        for call in self._calls:
            call.cancel()

    def _opened(self) -> Any:
        return _Channel(self._agent, self._step)

    def _begun(self) -> _Call:
        self._calls.append(_Call(self._agent, self._step))
        return self._calls[-1]

    def _diagnosed(self) -> None:
        return None

    def round_trip_s(self) -> float | None:
        return 0.05


class _Channel:
    """What `SourceStub` and `SourceChannel` need of a channel."""

    def __init__(self, agent: SourceAgent, step: Step) -> None:
        self._agent, self._step = agent, step

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        def call(request: pb.DescribeRequest, **_: float) -> pb.DescribeReply:
            assert path.endswith("/Describe")
            self._step("describe")
            self._agent.check_up()
            sent = pb.DescribeRequest.FromString(request.SerializeToString())
            reply = self._agent.describe(sent)
            self._step("described")
            return pb.DescribeReply.FromString(reply.SerializeToString())

        return call

    def stream_stream(self, path: str, **_: Any) -> Callable[..., NoReturn]:
        def call(*_: object) -> NoReturn:
            raise AssertionError(f"{path} is begun by SimulatedLink")

        return call

    def close(self) -> None:
        """Do nothing: calls are cancelled one by one."""


class _Call:
    """`channel.Call`, with the conversation at its other end."""

    def __init__(self, agent: SourceAgent, step: Step) -> None:
        self._agent, self._step = agent, step
        self._held: deque[pb.Request | None] = deque()
        self._reply: pb.Reply | None = None
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)  # whose turn
        self._conversation: Conversation | None = None
        self._is_over = self._is_broken = self._is_lost = self.is_cancelled = False

    # The warehouse's side.

    def put(self, request: pb.Request | None) -> None:
        if request is None:
            self._held.append(None)
            return
        try:
            self._step("send")
        except (Lost, TimeoutError):  # gRPC says so when a reply is awaited
            self._is_lost = True
        if not self._is_lost:
            self._held.append(pb.Request.FromString(request.SerializeToString()))

    def take(self, timeout_s: float) -> Reply:
        try:
            self._agent.check_up()
            self._step("receive")
            if self._is_lost:
                raise Lost
        except Lost as lost:
            self._break()
            return lost
        except TimeoutError:  # what is on the line never comes
            clock.current().sleep(SILENCE_S)
            raise queue.Empty from None
        if self._is_broken:
            return Lost()
        self._run()
        reply, self._reply = self._reply, None
        if reply is None and not self._is_over:
            clock.current().sleep(SILENCE_S)
            raise queue.Empty
        return None if reply is None else pb.Reply.FromString(reply.SerializeToString())

    def cancel(self) -> None:
        self.is_cancelled = True
        self._break()

    def _break(self) -> None:
        """End the conversation: its thread finds that the client has left."""
        self._is_broken = True
        while self._conversation is not None and not self._is_over:
            self._run()

    def _run(self) -> None:
        """Let the source work until it has a reply, waits for a request, or has ended."""
        if self._is_over:
            return
        if self._conversation is None:
            requests = iter(self._hear, None)
            self._conversation = Conversation(self._agent.state, CLIENT, requests)
            vars(self._conversation)["_outbox"] = Outbox(self)
            self._conversation.start()
        else:
            self._theirs.release()
        assert self._ours.acquire(timeout=WAIT_S_MAX), "the source agent does not answer"
        if self._is_over:
            self._conversation.join(WAIT_S_MAX)

    # The source's side, in the thread of the conversation.

    def _hear(self) -> pb.Request | None:
        while not self._held and not self._is_broken:
            self._yield()
        if self._is_broken:
            raise ExchangeStopped
        return self._held.popleft()

    def put_reply(self, reply: pb.Reply) -> bool:
        self._reply = reply
        self._yield()
        if self._is_broken:
            raise ExchangeStopped
        return True

    def close(self) -> None:
        self._is_over = True
        self._ours.release()

    def _yield(self) -> None:
        self._ours.release()
        assert self._theirs.acquire(timeout=WAIT_S_MAX), "the warehouse does not go on"


class Outbox:
    """`ReplyQueue` of a conversation, in front of a call."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def put(self, reply: pb.Reply, timeout_s: float) -> bool:
        return self._call.put_reply(reply)

    def take(self, timeout_s: float) -> Iterator[NoReturn]:
        raise AssertionError("the call takes the replies")

    def close(self) -> None:
        self._call.close()
