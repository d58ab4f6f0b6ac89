"""Statements over a psycopg connection by libpq's own calls (``psycopg.pq``), without cursors.

Owns the binary form of parameters, the names of prepared statements, and the wait for an answer. The
statements name the type of every parameter, so nothing has to be guessed from values, and one exchange is one
send and one wait. Measured for one inserted row: 71 against 167 µs of client CPU through a cursor
(docs/decisions/0003-libpq-calls.md). Never opens or closes a connection, and leaves transactions to psycopg.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from pgcairn.connection.pool import Query, Row

# --- parameters -----------------------------------------------------------------------------------

_TEXT, _BYTEA, _INT4 = 25, 17, 23  # object ids of element types: pg_type.dat, fixed for all versions
_INT = struct.Struct(">i")
_BIGINT = struct.Struct(">q")
_NULL = _INT.pack(-1)
_ARRAY_HEAD = struct.Struct(">iiIii")  # dimensions, has nulls, element oid, length, lower bound
_EMPTY_HEAD = struct.Struct(">iiI")


def _pack(elements: list[bytes | None], element_oid: int) -> bytes:
    """Pack elements into PostgreSQL's binary array format (src/backend/utils/adt/arrayfuncs.c)."""
    count = len(elements)
    if not count:
        return _EMPTY_HEAD.pack(0, 0, element_oid)
    has_null = None in elements
    parts: list[bytes] = [b""] * (2 * count + 1)
    if has_null:
        parts[1::2] = [_NULL if element is None else _INT.pack(len(element)) for element in elements]
        parts[2::2] = [element or b"" for element in elements]
    else:
        present = cast("list[bytes]", elements)
        parts[1::2] = map(_INT.pack, map(len, present))
        parts[2::2] = present
    parts[0] = _ARRAY_HEAD.pack(1, has_null, element_oid, count, 1)
    return b"".join(parts)


def _texts(values: Sequence[str | None]) -> bytes:
    if None in values:
        return _pack([None if value is None else value.encode() for value in values], _TEXT)
    return _pack(list(map(str.encode, cast("Sequence[str]", values))), _TEXT)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "text": str.encode,
    "bytea": bytes,
    "bool": lambda value: b"\x01" if value else b"\x00",
    "int4": _INT.pack,
    "int8": _BIGINT.pack,
    "text[]": _texts,
    "bytea[]": lambda values: _pack(list(values), _BYTEA),
    "int4[]": lambda values: _pack(list(map(_INT.pack, values)), _INT4),
}


def encode(query: Query, params: Sequence[object]) -> list[bytes | None]:
    """Bring parameters into PostgreSQL's binary format.

    Raises:
        UnicodeEncodeError, struct.error, TypeError: A value does not fit its parameter's type.
    """
    return [
        None if value is None else _ENCODERS[type_name](value)
        for type_name, value in zip(query.types, params, strict=True)
    ]


# --- exchanges --------------------------------------------------------------------------------------

# PostgreSQL manual, appendix A: a prepared statement that is gone (DISCARD ALL by a pooler or a reset
# callback), or whose result type changed (DDL by a migration).
_STALE_STATEMENT = frozenset(("26000", "0A000"))
# Client encodings under which UTF-8 passes unchanged.
_UTF8 = frozenset((b"UTF8", b"UNICODE", b"SQL_ASCII"))


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


class Wire:
    """What is known about one connection: which statements it has prepared, and who waits for an answer.

    Does not refer to the connection, so that it can be kept for as long as that one lives and no longer.

    Attributes:
        used_at: ``time.monotonic()`` when the connection was last given back.
    """

    __slots__ = (
        "_answer",
        "_attached",
        "_generation",
        "_names",
        "_pgconn",
        "_results",
        "_socket",
        "_timeout_seconds",
        "_writing",
        "used_at",
    )

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        encoding = connection.pgconn.parameter_status(b"client_encoding")
        if encoding is not None and encoding.upper() not in _UTF8:
            raise psycopg.NotSupportedError(
                f"client_encoding is {encoding.decode()}; pgcairn needs UTF8 on its connections"
            )
        self._pgconn = connection.pgconn
        self._names: dict[str, bytes] = {}
        self._generation = 0  # the server may still know names that were forgotten here
        self._results: list[PGresult] = []
        self._answer: asyncio.Future[None] | None = None
        self._writing = False
        self._attached = False
        self._socket = connection.pgconn.socket
        self._timeout_seconds = 0.0
        self.used_at = time.monotonic()

    async def run(
        self,
        connection: AsyncConnection[Any],
        query: Query,
        params: list[bytes | None],
        *,
        prepare: bool,
        stay: bool,
        timeout_seconds: float,
    ) -> PGresult:
        """Run a statement and return its result, which is one without an error.

        Args:
            connection: The connection that this belongs to; its ``lock`` is held during an exchange, so that
                one shared with its owner's code is not used by both at once.
            query: The statement.
            params: Its parameters, encoded.
            prepare: Whether to prepare it, unless the connection's ``prepare_threshold`` is ``None``.
            stay: Whether to go on watching the socket afterwards, which saves eight system calls a statement.
                Only for a connection that nobody else uses before ``detach``.
            timeout_seconds: How long an answer may take.

        Cancelling this leaves the connection in the middle of an exchange: it can only be closed.

        Raises:
            NoAnswer: It took too long; the connection can only be closed.
            psycopg.Error: As psycopg's cursors raise it.
        """
        async with connection.lock:
            self._timeout_seconds = timeout_seconds
            try:
                if self._pgconn.pipeline_status != PipelineStatus.OFF:
                    raise psycopg.NotSupportedError("the connection is in pipeline mode; leave it first")
                if not prepare or connection.prepare_threshold is None:
                    return _checked(await self._exchange(query.text.encode(), params, None))
                for attempt in (1, 2):
                    name = self._names.get(query.text)
                    if name is None:
                        name = await self._prepare(query)
                    result = await self._exchange(b"", params, name)
                    if (
                        attempt == 2
                        or _sqlstate(result) not in _STALE_STATEMENT
                        or self._pgconn.transaction_status != TransactionStatus.IDLE
                    ):
                        break
                    self._names.clear()
                    self._generation += 1
                return _checked(result)
            finally:
                if not stay:
                    self.detach()

    async def _prepare(self, query: Query) -> bytes:
        # Named by its text: behind a pooler that lends sessions statement by statement, a name of another
        # client then still means the same.
        digest = hashlib.sha1(query.text.encode(), usedforsecurity=False).hexdigest()
        name = f"pgcairn_{digest[:32]}_{self._generation}".encode()
        self._pgconn.send_prepare(name, query.text.encode())
        result = await self._wait()
        # It may be there already, from whoever had the session before; unless that has ended our transaction.
        if _sqlstate(result) != "42P05" or self._pgconn.transaction_status == TransactionStatus.INERROR:
            _checked(result)
        self._names[query.text] = name
        return name

    async def _exchange(self, text: bytes, params: list[bytes | None], name: bytes | None) -> PGresult:
        formats = [Format.BINARY] * len(params)
        if name is None:
            self._pgconn.send_query_params(text, params, param_formats=formats, result_format=Format.BINARY)
        else:
            self._pgconn.send_query_prepared(name, params, param_formats=formats, result_format=Format.BINARY)
        return await self._wait()

    async def _wait(self) -> PGresult:
        """Flush what was sent and wait until its answer is complete."""
        loop = asyncio.get_running_loop()
        pgconn = self._pgconn
        self._results.clear()
        self._answer = loop.create_future()
        self._writing = bool(pgconn.flush())
        if not self._attached:
            loop.add_reader(self._socket, self._readable)
            self._attached = True
        if self._writing:
            loop.add_writer(self._socket, self._writable)
        timer = loop.call_later(self._timeout_seconds, self._expire, self._answer)
        try:
            await self._answer
        except BaseException:
            self.detach()
            raise
        finally:
            timer.cancel()
            self._answer = None
        return self._results[-1]

    def _expire(self, answer: asyncio.Future[None]) -> None:
        if not answer.done():
            answer.set_exception(NoAnswer(f"no answer within {self._timeout_seconds:g} s"))

    def detach(self) -> None:
        """Stop watching the connection's socket. Before psycopg uses or closes the connection, this must be called."""
        if self._attached:
            self._attached = False
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            if self._writing:
                self._writing = False
                loop.remove_writer(self._socket)

    def _readable(self) -> None:
        pgconn, answer = self._pgconn, self._answer
        if answer is None or answer.done():
            # Nobody waits: a notice, or the server closed the session. Whoever uses the connection next sees it.
            self.detach()
            return
        try:
            pgconn.consume_input()
            if self._writing:
                # The server may not read on before it has got rid of an answer, so both go on together.
                self._flush()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    answer.set_result(None)
                    return
                self._results.append(result)
        except psycopg.Error as error:
            answer.set_exception(error)

    def _writable(self) -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        try:
            self._flush()
        except psycopg.Error as error:
            answer.set_exception(error)

    def _flush(self) -> None:
        if not self._pgconn.flush():
            self._writing = False
            asyncio.get_running_loop().remove_writer(self._socket)


# --- answers ----------------------------------------------------------------------------------------


def rows_of(result: PGresult) -> Sequence[Row]:
    """Load the rows of a result."""
    if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
        return ()
    # Adapters of psycopg itself, not the connection's: a user may have registered others there.
    transformer = Transformer.from_context(None)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def _checked(result: PGresult) -> PGresult:
    if result.status == ExecStatus.FATAL_ERROR:
        raise error_from_result(result, encoding="utf-8")
    return result


def _sqlstate(result: PGresult) -> str | None:
    if result.status != ExecStatus.FATAL_ERROR:
        return None
    return (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
