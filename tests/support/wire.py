"""PostgreSQL's wire protocol as a bystander sees it: where messages begin, how many of which.

Source: PostgreSQL's manual, chapter "Frontend/Backend Protocol", "Message Formats". Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

_SSL_REQUEST = 80877103
_GSSENC_REQUEST = 80877104
_CANCEL_REQUEST = 80877102


@dataclass(frozen=True)
class WireCount:
    """Messages that clients sent, counted where they enter the proxy.

    Subtract two to get what was sent in between.
    """

    connections: int = 0
    parses: int = 0
    binds: int = 0
    describes: int = 0
    executes: int = 0
    queries: int = 0
    syncs: int = 0
    flushes: int = 0
    terminates: int = 0
    cancels: int = 0
    messages: int = 0
    sent_bytes: int = 0

    @property
    def round_trips(self) -> int:
        """How often a client asked for an answer and waited: Sync and simple Query."""
        return self.syncs + self.queries

    @property
    def statements(self) -> int:
        """Statements carried out: Execute and simple Query."""
        return self.executes + self.queries

    def __sub__(self, earlier: WireCount) -> WireCount:
        return WireCount(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})


COUNTED: dict[bytes, str] = {
    b"P": "parses",
    b"B": "binds",
    b"D": "describes",
    b"E": "executes",
    b"Q": "queries",
    b"S": "syncs",
    b"H": "flushes",
    b"X": "terminates",
}


@dataclass(frozen=True)
class Message:
    """One whole message.

    Attributes:
        kind: Its type byte, or ``startup``, ``negotiate`` (TLS, GSS), ``cancel``.
        raw: All of its bytes.
    """

    kind: bytes
    raw: bytes


class ClientStream:
    """Cuts what a client sends into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False

    def feed(self, received: bytes) -> Iterator[Message]:
        """The messages that are complete now; the rest waits for the next call."""
        self._buffer += received
        while True:
            header = 1 if self._started else 0
            if len(self._buffer) < header + 4:
                return
            size = header + int.from_bytes(self._buffer[header : header + 4], "big")
            if len(self._buffer) < size:
                return
            raw = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield Message(raw[:1] if self._started else self._untyped(raw), raw)

    def _untyped(self, raw: bytes) -> bytes:
        code = int.from_bytes(raw[4:8], "big")
        if code in (_SSL_REQUEST, _GSSENC_REQUEST):
            return b"negotiate"
        if code == _CANCEL_REQUEST:
            return b"cancel"
        self._started = True
        return b"startup"


class ServerStream:
    """Cuts what a server sends into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._single_bytes = 0

    def expect_single_byte(self) -> None:
        """The client asked for encryption: the next answer is one byte."""
        self._single_bytes += 1

    def feed(self, received: bytes) -> Iterator[Message]:
        """The messages that are complete now; the rest waits for the next call."""
        self._buffer += received
        while self._buffer:
            if self._single_bytes:
                self._single_bytes -= 1
                size, kind = 1, b"negotiate"
                if self._buffer[:1] != b"N":
                    raise ValueError("The server encrypts: nobody can read along.")
            else:
                if len(self._buffer) < 5:
                    return
                size = 1 + int.from_bytes(self._buffer[1:5], "big")
                if len(self._buffer) < size:
                    return
                kind = bytes(self._buffer[:1])
            raw = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield Message(kind, raw)
