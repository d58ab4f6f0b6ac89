"""A TCP proxy in front of PostgreSQL that delays, stalls, cuts and counts, on command.

Runs in the test's own event loop, without tasks of its own except while a connection is being made.
Faults are *armed*: each returns an ``asyncio.Event`` that is set when the fault has happened, and
happens once, on the first connection that sends what it waits for. Nothing depends on timing.

    async with FaultProxy(dsn) as proxy:
        lost = proxy.cut_on_answer(matching=b"COMMIT")
        ...                              # use proxy.dsn
        await lost.wait()
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.support.addresses import host_and_port, with_changes
from tests.support.wire import COUNTED, ClientStream, Message, ServerStream, WireCount

Kind = Literal["cut_before_send", "cut_on_send", "cut_on_answer", "half_open", "hold"]


@dataclass(eq=False)
class _Fault:
    kind: Kind
    matching: bytes
    fired: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, message: Message) -> bool:
        return message.kind not in _UNTYPED and self.matching in message.raw


# Set-up of a connection, never a fault's target.
_UNTYPED = (b"startup", b"negotiate", b"cancel", b"p")

# The message that ends a statement or a pipeline of the extended protocol.
SYNC = b"S\x00\x00\x00\x04"


@dataclass(eq=False)
class Hold:
    """Messages that ``FaultProxy.hold`` keeps back.

    Attributes:
        reached: Set when the message has arrived at the proxy and waits there.
    """

    reached: asyncio.Event
    _proxy: FaultProxy
    _fault: _Fault

    def release(self) -> None:
        """Let the message and all that came after it on its connection pass."""
        self._proxy._release(self._fault)


class WireCounter:
    """A count that goes on while the proxy runs."""

    def __init__(self) -> None:
        self.count = WireCount()
        self._waiters: list[tuple[Callable[[WireCount], bool], asyncio.Future[None]]] = []

    def add(self, **amounts: int) -> None:
        """Count, and wake whoever waits for it."""
        self.count = replace(
            self.count, **{name: getattr(self.count, name) + n for name, n in amounts.items()}
        )
        for waiter in [w for w in self._waiters if w[0](self.count)]:
            self._waiters.remove(waiter)
            if not waiter[1].done():
                waiter[1].set_result(None)

    async def wait_until(self, reached: Callable[[WireCount], bool]) -> None:
        """Until ``reached(count)`` is true; at once if it is already."""
        if not reached(self.count):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((reached, future))
            await future


class Counting:
    """What was sent since the ``with`` block began; final once it has ended."""

    def __init__(self, counter: WireCounter) -> None:
        self._counter = counter
        self._begin = counter.count
        self._end: WireCount | None = None

    def finish(self) -> None:
        """Stop counting."""
        self._end = self._counter.count

    @property
    def sent(self) -> WireCount:
        """The count of the block."""
        return (self._end or self._counter.count) - self._begin

    @property
    def round_trips(self) -> int:
        """Sync and simple Query."""
        return self.sent.round_trips

    @property
    def statements(self) -> int:
        """Execute and simple Query."""
        return self.sent.statements


class _Outlet:
    """One direction of one connection: what is to be written, in order, after the delay."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self.held = False

    def send(self, payload: bytes | None) -> None:
        """Queue bytes; None closes once all before it is written."""
        loop = asyncio.get_running_loop()
        self._queue.append((loop.time() + self._proxy.round_trip_seconds / 2, payload))
        self.pump()

    def pump(self) -> None:
        """Write what is due."""
        loop = asyncio.get_running_loop()
        if self.transport is None or self.held or self._proxy.stalled:
            return
        while self._queue:
            due, payload = self._queue[0]
            if due > loop.time():
                if self._timer is None:
                    self._timer = loop.call_at(due, self._on_timer)
                return
            self._queue.popleft()
            if payload is None:
                self.transport.close()
            elif not self.transport.is_closing():
                self.transport.write(payload)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def flush_and_close(self) -> None:
        """Write everything now and close with FIN, so that the other end can read it all."""
        self._stop_timer()
        if self.transport is not None and not self.transport.is_closing():
            for _, payload in self._queue:
                if payload is not None:
                    self.transport.write(payload)
            self.transport.close()
        self._queue.clear()

    def drop(self, *, reset: bool = False) -> None:
        """Throw away what is queued and close; with ``reset`` the other end gets RST."""
        self._stop_timer()
        self._queue.clear()
        if self.transport is not None:
            if reset:
                sock: socket.socket = self.transport.get_extra_info("socket")
                if sock.fileno() >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _End(asyncio.Protocol):
    """One socket of a connection."""

    def __init__(
        self,
        outlet: _Outlet,
        received: Callable[[bytes], None],
        ended: Callable[[], None],
        opposite: Callable[[], asyncio.Transport | None],
    ) -> None:
        self._outlet = outlet
        self._received = received
        self._ended = ended
        self._opposite = opposite

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outlet.transport = transport
        self._outlet.pump()

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def pause_writing(self) -> None:
        source = self._opposite()
        if source is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        source = self._opposite()
        if source is not None and not source.is_closing():
            source.resume_reading()


class Connection:
    """One client's connection through the proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._client_stream = ClientStream()
        self._server_stream = ServerStream()
        self._to_client = _Outlet(proxy)
        self._to_server = _Outlet(proxy)
        self._answers_due = 0  # ReadyForQuery messages that the server owes
        self._losing_answer: _Fault | None = None
        self._deaf = False
        self._holding: _Fault | None = None
        self.client_end = _End(
            self._to_client,
            self._from_client,
            self._client_ended,
            lambda: self._to_server.transport,
        )
        self.server_end = _End(
            self._to_server,
            self._from_server,
            self._server_ended,
            lambda: self._to_client.transport,
        )

    def cut(self, *, reset: bool = False) -> None:
        """Close both sides now. Bytes not yet forwarded are lost."""
        self._to_client.drop(reset=reset)
        self._to_server.drop()

    def silence(self) -> None:
        """From now on nothing passes and nothing is closed, as with ``half_open``."""
        self._deaf = True

    def release(self, fault: _Fault) -> None:
        """Let a held message pass."""
        if self._holding is fault:
            self._holding = None
            self._to_server.held = False
            self._to_server.pump()

    def pump(self) -> None:
        """Write what a stall kept back."""
        self._to_client.pump()
        self._to_server.pump()

    def _from_client(self, received: bytes) -> None:
        passing = bytearray()
        for message in self._client_stream.feed(received):
            self._proxy._count(message)
            if self._deaf:
                continue
            fault = self._proxy._take_fault(message)
            if fault is not None and fault.kind != "cut_on_answer":
                self._to_server.send(bytes(passing))
                passing.clear()
            if fault is not None and self._strike(fault, message):
                return
            if message.kind in (b"startup", b"Q", b"S"):
                self._answers_due += 1
            elif message.kind == b"negotiate":
                self._server_stream.expect_single_byte()
            passing += message.raw
        if passing:
            self._to_server.send(bytes(passing))

    def _strike(self, fault: _Fault, message: Message) -> bool:
        """Carry out a fault; True if the message goes no further."""
        if fault.kind == "cut_before_send":
            self.cut()
        elif fault.kind == "cut_on_send":
            # FIN after the bytes: the server reads and carries out what it got, then finds nobody.
            self._to_server.send(message.raw)
            self._to_server.flush_and_close()
            self._to_client.drop()
        elif fault.kind == "half_open":
            self._deaf = True
        elif fault.kind == "hold":
            self._holding = fault
            self._to_server.held = True
        else:
            self._losing_answer = fault
            return False  # it has happened only when the answer is lost
        fault.fired.set()
        return fault.kind != "hold"

    def _from_server(self, received: bytes) -> None:
        for message in self._server_stream.feed(received):
            if message.kind == b"Z":
                self._answers_due -= 1
        if self._deaf:
            return
        if self._losing_answer is not None:
            if self._answers_due <= 0:
                self.cut()
                self._losing_answer.fired.set()
            return
        self._to_client.send(received)

    def _client_ended(self) -> None:
        if not self._deaf:
            self._to_server.send(None)
            if self._to_server.transport is None:
                self._proxy._forget(self)
        self._forget_when_over()

    def _server_ended(self) -> None:
        if not self._deaf:
            self._to_client.send(None)
        self._forget_when_over()

    def _forget_when_over(self) -> None:
        ends = (self._to_client.transport, self._to_server.transport)
        if all(end is None or end.is_closing() for end in ends):
            self._proxy._forget(self)


class FaultProxy:
    """The proxy. Construct, then ``async with``; every method works while connections are open."""

    def __init__(self, dsn: str, *, round_trip_seconds: float = 0.0) -> None:
        self._target_dsn = dsn
        self._target = host_and_port(dsn)
        self.round_trip_seconds = round_trip_seconds
        self.counter = WireCounter()
        self.stalled = False
        self.port = 0
        self._connections: list[Connection] = []
        self._faults: list[_Fault] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FaultProxy:
        await self.listen()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.refuse()
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self.cut()

    # What is seen

    @property
    def dsn(self) -> str:
        """The target's DSN, but through the proxy."""
        return with_changes(self._target_dsn, host="127.0.0.1", port=self.port)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open connections, oldest first."""
        return tuple(self._connections)

    @property
    def count(self) -> WireCount:
        """Everything sent so far. To wait for a number: ``await proxy.counter.wait_until(...)``."""
        return self.counter.count

    @contextmanager
    def counting(self) -> Iterator[Counting]:
        """Count what is sent within a block: ``with proxy.counting() as sent: ...``."""
        counting = Counting(self.counter)
        try:
            yield counting
        finally:
            counting.finish()

    # What is done at once

    def set_round_trip(self, seconds: float) -> None:
        """Delay each direction by half of this, from now on. Many messages travel at once."""
        self.round_trip_seconds = seconds

    def stall(self) -> None:
        """Accept connections and bytes, forward nothing, until ``resume``. Messages are counted."""
        self.stalled = True

    def resume(self) -> None:
        """Forward everything that a stall kept back, and go on."""
        self.stalled = False
        for connection in self.connections:
            connection.pump()

    def cut(self, *, reset: bool = False) -> None:
        """Close every connection now, by RST if ``reset``. New ones are accepted."""
        for connection in self.connections:
            connection.cut(reset=reset)

    def refuse(self) -> None:
        """Stop listening: new connections are refused; open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def listen(self) -> None:
        """Listen (again), on the same port as before."""
        if self._server is None:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept, "127.0.0.1", self.port
            )
            self.port = self._server.sockets[0].getsockname()[1]

    def set_target(self, dsn: str) -> None:
        """Send connections made from now on to another server, as after a failover."""
        self._target = host_and_port(dsn)

    # What is armed, and happens with a client's next message that contains ``matching``. Set-up of
    # connections never triggers it. The text of a prepared statement is sent once, in its Parse.

    def cut_before_send(self, matching: bytes = b"") -> asyncio.Event:
        """Cut the connection instead of forwarding the message: the server never sees it."""
        return self._arm("cut_before_send", matching)

    def cut_on_send(self, matching: bytes = b"") -> asyncio.Event:
        """Forward the one message, then cut: the server has it, nobody waits for the answer.

        A statement of the extended protocol is several messages, and is carried out when its last,
        a Sync, has arrived: ``matching=SYNC``.
        """
        return self._arm("cut_on_send", matching)

    def cut_on_answer(self, matching: bytes = b"") -> asyncio.Event:
        """Forward all the client sends, wait until the server has answered all of it, then cut.

        The answer is lost: what was sent is carried out, and committed if it was to be.
        """
        return self._arm("cut_on_answer", matching)

    def half_open(self, matching: bytes = b"") -> asyncio.Event:
        """From that message on nothing passes and nothing is closed, as if a cable broke."""
        return self._arm("half_open", matching)

    def hold(self, matching: bytes = b"") -> Hold:
        """Keep the message back, and what follows it on its connection, until ``release()``."""
        fault = _Fault("hold", matching)
        self._faults.append(fault)
        return Hold(fault.fired, self, fault)

    def disarm(self) -> None:
        """Forget faults that have not happened."""
        self._faults.clear()

    def _arm(self, kind: Kind, matching: bytes) -> asyncio.Event:
        fault = _Fault(kind, matching)
        self._faults.append(fault)
        return fault.fired

    def _take_fault(self, message: Message) -> _Fault | None:
        for fault in self._faults:
            if fault.wants(message):
                self._faults.remove(fault)
                return fault
        return None

    def _release(self, fault: _Fault) -> None:
        for connection in self.connections:
            connection.release(fault)

    def _count(self, message: Message) -> None:
        amounts = {"messages": 1, "sent_bytes": len(message.raw)}
        if message.kind == b"startup":
            amounts["connections"] = 1
        elif message.kind == b"cancel":
            amounts["cancels"] = 1
        elif message.kind in COUNTED:
            amounts[COUNTED[message.kind]] = 1
        self.counter.add(**amounts)

    def _forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def _accept(self) -> asyncio.Protocol:
        connection = Connection(self)
        self._connections.append(connection)
        task = asyncio.get_running_loop().create_task(
            self._connect(connection), name="FaultProxy connects to the server"
        )
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return connection.client_end

    async def _connect(self, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection.server_end, *self._target)
        except OSError:
            connection.cut()
