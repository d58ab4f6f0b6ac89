"""A TCP proxy that makes the way to a server longer: half of ``--rtt-ms`` in each direction.

    python -m bench.delay_proxy --target 127.0.0.1:5432 --listen 6432 --rtt-ms 1

Prints ``listening on PORT`` once it does (``--listen 0`` takes a free port) and runs until SIGTERM or SIGINT. One
thread, no copies beyond recv and send, any number of messages on their way at once. The target may be the path of a
unix socket. Timers of asyncio and of epoll
are whole milliseconds; ``select`` on the epoll object itself has microseconds, hence this loop.
"""

from __future__ import annotations

import argparse
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 1 << 18  # guess: a batch of the write path fits
_MAX_QUEUED_BYTES = 1 << 24  # per direction; beyond it the sender is not read from


class _Side:
    """One socket, and what waits to be sent to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.fd = sock.fileno()
        self.queue: deque[tuple[float, bytes]] = deque()  # (due, bytes); no bytes: end of stream
        self.queued_bytes = 0
        self.blocked = False  # the kernel's buffer is full: wait for EPOLLOUT
        self.at_end = False  # has sent its FIN
        self.open = True  # asked instead of looking the fd up: numbers are used again
        self.other: _Side = self


class _Proxy:
    def __init__(self, target: tuple[str, int] | str, port: int, delay_seconds: float) -> None:
        self.target = target
        self.delay_seconds = delay_seconds
        self.listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.sides: dict[int, _Side] = {}
        # Every chunk has the same delay, so the order of arrival is the order of departure.
        self.departures: deque[tuple[float, _Side]] = deque()

    def run(self) -> None:
        while True:
            now = time.monotonic()
            while self.departures and self.departures[0][0] <= now:
                self._send(self.departures.popleft()[1], now)
            wait = max(0.0, self.departures[0][0] - now) if self.departures else None
            if select.select([self.epoll], [], [], wait)[0]:
                for fd, event in self.epoll.poll(0):
                    self._on_event(fd, event)

    def _on_event(self, fd: int, event: int) -> None:
        if fd == self.listener.fileno():
            self._accept()
            return
        side = self.sides.get(fd)
        if side is None:
            return
        if event & select.EPOLLOUT:
            side.blocked = False
            self._send(side, time.monotonic())
        if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and side.open:
            self._receive(side)

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        try:
            server = _connect(self.target)
        except OSError:
            client.close()
            return
        one, two = _Side(client), _Side(server)
        one.other, two.other = two, one
        for side in (one, two):
            self.sides[side.fd] = side
            self.epoll.register(side.fd, select.EPOLLIN)

    def _receive(self, side: _Side) -> None:
        try:
            received = side.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close(side)
            return
        side.at_end = not received
        due = time.monotonic() + self.delay_seconds
        side.other.queue.append((due, received))
        side.other.queued_bytes += len(received)
        self.departures.append((due, side.other))
        self._watch(side)

    def _send(self, side: _Side, now: float) -> None:
        while side.queue and not side.blocked and side.queue[0][0] <= now and side.open:
            due, payload = side.queue.popleft()
            try:
                if not payload:
                    side.socket.shutdown(socket.SHUT_WR)
                    if side.at_end:
                        self._close(side)
                    return
                sent = side.socket.send(payload)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._close(side)
                return
            side.queued_bytes -= sent
            if sent < len(payload):
                side.queue.appendleft((due, payload[sent:]))
                side.blocked = True
                self._watch(side)
            self._watch(side.other)

    def _watch(self, side: _Side) -> None:
        if side.open:
            reading = not side.at_end and side.other.queued_bytes < _MAX_QUEUED_BYTES
            self.epoll.modify(
                side.fd, (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if side.blocked else 0)
            )

    def _close(self, side: _Side) -> None:
        for one in (side, side.other):
            if one.open:
                one.open = False
                del self.sides[one.fd]
                self.epoll.unregister(one.fd)
                one.socket.close()


def _connect(target: tuple[str, int] | str) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(target)
    except OSError:
        server.close()
        raise
    return server


@contextmanager
def running(target: str, rtt_ms: float) -> Iterator[int]:
    """Run a proxy in a process of its own for the time of the block; yield its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.delay_proxy", "--target", target, "--rtt-ms", str(rtt_ms)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rsplit(maxsplit=1)[1])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Delay the way to a server.")
    parser.add_argument("--target", required=True, metavar="HOST:PORT|PATH")
    parser.add_argument("--listen", type=int, default=0, metavar="PORT")
    parser.add_argument("--rtt-ms", type=float, default=1.0, help="both directions together")
    options = parser.parse_args()
    target: tuple[str, int] | str = options.target
    if not options.target.startswith("/"):
        host, _, port = options.target.rpartition(":")
        target = (host, int(port))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    proxy = _Proxy(target, options.listen, options.rtt_ms / 2000)
    print(f"listening on {proxy.listener.getsockname()[1]}", flush=True)
    proxy.run()


if __name__ == "__main__":
    main()
