"""The psycopg 3 driver of the connection seam.

Owns the pool that ``from_conn_string`` makes, and the adapters that let a user's ``AsyncConnectionPool`` or
single ``AsyncConnection`` serve as one. Statements go through ``psycopg_wire``, so that nothing depends on the user's
``row_factory``; puts ``autocommit`` back as it found it; obeys ``prepare_threshold=None``.
Errors are mapped by SQLSTATE here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import struct
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg import AsyncConnection, AsyncRawCursor, IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg_pool import AsyncConnectionPool

from pgcairn.connection.pool import (
    BUSY_HINT,
    PING,
    PING_SECONDS,
    Preparing,
    Query,
    Row,
    Session,
    TimeLimit,
    error_for,
    no_connection,
    one_line,
    session_is_lost,
)
from pgcairn.connection.psycopg_wire import NoAnswer, Wire, encode, rows_of
from pgcairn.errors import (
    ClosedError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    UnavailableError,
)
from pgcairn.settings import Settings
from pgcairn.telemetry import Counters

logger = logging.getLogger("pgcairn")

# How long a server may take to accept that a statement is cancelled (guess).
_CANCEL_SECONDS = 1.0

# An attempt to connect is repeated once after this time and then begun anew, as long as there is need (see ``refill``). psycopg's
# own pauses double, so that a server that was away for 20 s would be missed for up to 16 s more.
_RECONNECT_SECONDS = 0.5

# What is known about each connection lives as long as the connection, which it must not refer to.
_wires: weakref.WeakKeyDictionary[AsyncConnection[Any], Wire] = weakref.WeakKeyDictionary()


# --- sessions -------------------------------------------------------------------------------------


def _translate(error: psycopg.Error, *, sent: bool) -> PgcairnError:
    """Map a psycopg error. ``sent`` says whether the statement may have reached the server."""
    if error.sqlstate is not None and not error.sqlstate.startswith("08"):
        return error_for(error.sqlstate, error.diag.message_primary or str(error))
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        kind = OutcomeUnknown if sent else UnavailableError
        return kind(f"The connection to PostgreSQL was lost: {one_line(str(error))}")
    return RejectedError(f"psycopg: {error}", sqlstate=error.sqlstate)


class PsycopgSession:
    """One psycopg connection, seen through the seam."""

    __slots__ = (
        "_connection",
        "_counters",
        "_exclusive",
        "_limit_seconds",
        "_preparing",
        "_timeout_seconds",
        "_wire",
        "is_unanswered",
        "lost",
    )

    def __init__(
        self,
        connection: AsyncConnection[Any],
        settings: Settings,
        counters: Counters,
        preparing: Preparing,
        *,
        exclusive: bool,
    ) -> None:
        self._exclusive = exclusive
        self._connection = connection
        self._wire = _wires.get(connection)
        self._counters = counters
        self._preparing = preparing
        self._timeout_seconds = self._limit_seconds = settings.statement_timeout_seconds
        self.lost = False
        self.is_unanswered = False

    def limit(self, seconds: float) -> None:
        """See ``Session.limit``."""
        self._limit_seconds = min(self._timeout_seconds, seconds)

    async def fetch(self, query: Query, params: Sequence[object]) -> Sequence[Row]:
        """See ``Session.fetch``."""
        return rows_of(await self._run(query, params))

    async def execute(self, query: Query, params: Sequence[object]) -> int:
        """See ``Session.execute``."""
        return (await self._run(query, params)).command_tuples or 0

    async def _run(self, query: Query, params: Sequence[object]) -> PGresult:
        try:
            encoded = encode(query, params)
        except (UnicodeEncodeError, struct.error, TypeError) as error:
            raise RejectedError(f"A parameter of {query.name} cannot be encoded: {error}") from error
        return await self._exchange(query, encoded, self._limit_seconds * query.patience)

    async def _exchange(self, query: Query, encoded: list[bytes | None], timeout_seconds: float) -> PGresult:
        self._counters.statements += 1
        self._counters.round_trips += 1
        try:
            if self._wire is None:
                self._wire = _wires[self._connection] = Wire(self._connection)
            return await self._wire.run(
                self._connection,
                query,
                encoded,
                prepare=self._preparing.is_wanted,
                stay=self._exclusive,
                timeout_seconds=timeout_seconds,
            )
        except psycopg.Error as error:
            raise self._failed(error) from error
        except asyncio.CancelledError:
            # The answer is still to come; nobody could tell it from the next one's.
            self.lost = True
            raise

    @property
    def idle_seconds(self) -> float:
        """For how long nobody used the connection through pgcairn; 0 if nobody did yet."""
        return 0.0 if self._wire is None else time.monotonic() - self._wire.used_at

    async def works(self) -> bool:
        """Ask the server for an answer."""
        try:
            await self._exchange(PING, [], PING_SECONDS)
        except PgcairnError:
            self.lost = True
            return False
        return True

    async def script(self, text: str) -> None:
        """See ``Session.script``."""
        self._counters.statements += 1
        self._counters.round_trips += 1
        self.detach()
        try:
            # No limit: it may build an index. Keepalives end it if the server is gone.
            await AsyncRawCursor(self._connection).execute(text, prepare=False)
        except psycopg.Error as error:
            raise self._failed(error) from error

    @asynccontextmanager
    async def transaction(self, *, read_committed: bool = False) -> AsyncIterator[None]:
        """See ``Session.transaction``."""
        self._counters.statements += 2
        self._counters.round_trips += 2
        self.detach()
        connection = self._connection
        level = connection.isolation_level
        begins = read_committed and connection.info.transaction_status == TransactionStatus.IDLE
        if begins:  # only what BEGIN will say: no round trip
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        try:
            block = connection.transaction()
            await self._limited(block.__aenter__())
            try:
                yield
            except BaseException as error:
                self.detach()
                if self.lost:
                    await connection.close()  # which ends the transaction; there is no answer to wait for
                await self._limited(block.__aexit__(type(error), error, error.__traceback__))
                raise
            self.detach()
            await self._limited(block.__aexit__(None, None, None))
        finally:
            if begins and connection.info.transaction_status == TransactionStatus.IDLE:
                await connection.set_isolation_level(level)

    async def _limited(self, exchange: Awaitable[object]) -> None:
        """Let psycopg do what takes a round trip, for as long as a statement may take."""
        try:
            async with TimeLimit(self._limit_seconds):
                await exchange
        except psycopg.Error as error:
            raise self._failed(error) from error
        except asyncio.TimeoutError as error:
            raise self._failed(NoAnswer(str(error))) from error

    def detach(self) -> None:
        """Leave the socket to psycopg, or to whoever is next."""
        if self._wire is not None:
            self._wire.detach()
            self._wire.used_at = time.monotonic()

    def _failed(self, error: psycopg.Error) -> PgcairnError:
        self.is_unanswered = isinstance(error, NoAnswer)
        if self.is_unanswered or self._connection.closed or session_is_lost(error.sqlstate):
            self.lost = True
        if self._preparing.is_given_up(error.sqlstate):
            return UnavailableError(f"A prepared statement was lost: {one_line(str(error))}")
        return _translate(error, sent=True)


async def _enter_autocommit(connection: AsyncConnection[Any]) -> bool:
    """Put a connection into autocommit unless it is, or is inside a transaction; return whether it was done."""
    if connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    await connection.set_autocommit(True)
    return True


async def _leave_autocommit(connection: AsyncConnection[Any]) -> None:
    """Undo ``_enter_autocommit``."""
    if not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE:
        await connection.set_autocommit(False)


# --- pools ----------------------------------------------------------------------------------------


class _Loan:
    """A session for the time of an ``async with`` block. A class, because a generator costs twice as much."""

    __slots__ = ("_connection", "_flipped", "_patience_seconds", "_pool", "_session")

    def __init__(self, pool: PsycopgPool, patience_seconds: float) -> None:
        self._pool = pool
        self._patience_seconds = patience_seconds

    async def __aenter__(self) -> Session:
        pool = self._pool
        settings = pool._settings
        while True:
            self._connection = await pool._take(self._patience_seconds)
            self._flipped = False
            session = self._session = PsycopgSession(
                self._connection, settings, pool._counters, pool._preparing, exclusive=True
            )
            try:
                self._flipped = await _enter_autocommit(self._connection)
                if session.idle_seconds <= settings.check_after_idle_seconds or await session.works():
                    return session
                pool._counters.sessions_lost += 1
                logger.info("a session had died while it was idle; taking another one")
            except BaseException:
                await self._give_back()
                raise
            await self._give_back()

    async def __aexit__(self, *_: object) -> None:
        await self._give_back()

    async def _give_back(self) -> None:
        connection, session = self._connection, self._session
        session.detach()
        try:
            if session.lost:
                await _abandon(connection, session)
            elif self._flipped:
                await _leave_autocommit(connection)
        finally:
            # The pool replaces connections that come back closed.
            await self._pool._pool.putconn(connection)


async def _abandon(connection: AsyncConnection[Any], session: PsycopgSession) -> None:
    """Close a connection; if it owes an answer, first ask the server to end the statement and what it has locked."""
    if session.is_unanswered and not connection.closed:
        with contextlib.suppress(psycopg.Error):  # the server may be gone
            await connection.cancel_safe(timeout=_CANCEL_SECONDS)
    await connection.close()


class PsycopgPool:
    """A psycopg pool as a ``Pool``: one lent by the user, or (with ``owned``) one of our own."""

    def __init__(
        self, pool: AsyncConnectionPool[Any], settings: Settings, counters: Counters, *, owned: bool
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._counters = counters
        self._owned = owned
        self._preparing = Preparing(settings.prepared_statements)
        self._refilling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """See ``Pool.open``."""
        if not self._owned or not self._pool.closed:
            return
        # The pool's own attempts only log why they fail; one of ours says it to the caller, and at once.
        try:
            probe = await self._pool.connection_class.connect(self._pool.conninfo, **self._pool.kwargs)  # type: ignore[arg-type]
            await probe.close()
        except psycopg.Error as error:
            raise no_connection(str(error), self.max_size) from error
        await self._pool.open()

    async def close(self) -> None:
        """See ``Pool.close``."""
        if not self._owned:
            return
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        await self._pool.close(timeout=self._settings.close_timeout_seconds)

    def refill(self) -> None:
        """Have the pool connect again and again until it has a session: by itself it pauses longer and longer, and gives up."""
        if self._refilling is None or self._refilling.done():
            loop = asyncio.get_running_loop()
            self._refilling = loop.create_task(self._refill(), name="pgcairn-refill")

    async def _refill(self) -> None:
        pool = self._pool
        wanted, most = pool.min_size, pool.max_size
        while self.last_failure or self.size < wanted:
            try:
                # Asking makes it try; a session that comes goes to who has waited longest.
                connection = await pool.getconn(_RECONNECT_SECONDS)
            except psycopg_pool.PoolClosed:
                return
            except psycopg.Error:
                continue
            await pool.putconn(connection)
            if (size := self.size) < wanted:
                # Connections that were given up count as never having been wanted; so they are wanted once more.
                await pool.resize(size, most)
                await pool.resize(wanted, most)
            await asyncio.sleep(_RECONNECT_SECONDS)

    def acquire(self, patience_seconds: float = math.inf) -> AbstractAsyncContextManager[Session]:
        """See ``Pool.acquire``; a user's pool keeps its own timeout."""
        return _Loan(self, patience_seconds)

    async def _take(self, patience_seconds: float) -> AsyncConnection[Any]:
        asked_at = time.monotonic()
        try:
            timeout = min(self._pool.timeout, patience_seconds)
            connection: AsyncConnection[Any] = await self._pool.getconn(timeout)
            self._counters.session_wait.observe(time.monotonic() - asked_at)
            return connection
        except psycopg_pool.PoolClosed as error:
            whose = "The saver's pool" if self._owned else "The pool that was given to the saver"
            raise ClosedError(f"{whose} cannot be used: {error}.") from error
        except psycopg.Error as error:  # PoolTimeout, TooManyRequests, failed connections
            if self.last_failure:
                raise no_connection(self.last_failure, self.max_size) from error
            raise UnavailableError(
                f"No session could be had: {error} ({self.size} of {self.max_size} are open, {self.idle} idle).",
                hint=BUSY_HINT,
            ) from error

    @property
    def size(self) -> int:
        """See ``Pool.size``."""
        return self._pool.get_stats().get("pool_size", 0)

    @property
    def idle(self) -> int:
        """See ``Pool.idle``."""
        return self._pool.get_stats().get("pool_available", 0)

    @property
    def max_size(self) -> int:
        """See ``Pool.max_size``."""
        return self._pool.max_size

    @property
    def last_failure(self) -> str:
        """See ``Pool.last_failure``."""
        return getattr(self._pool.connection_class, "last_failure", "")


class PsycopgConnectionAsPool:
    """A single connection of the user's as a ``Pool`` of one. It cannot heal itself."""

    size = max_size = 1
    last_failure = ""

    def __init__(self, connection: AsyncConnection[Any], settings: Settings, counters: Counters) -> None:
        self._connection = connection
        self._settings = settings
        self._counters = counters
        self._preparing = Preparing(settings.prepared_statements)
        self._turn: asyncio.Lock | None = None

    async def open(self) -> None:
        """See ``Pool.open``."""

    async def close(self) -> None:
        """See ``Pool.close``."""

    @asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        """See ``Pool.acquire``. Callers take turns, without a limit: there is one session, and it stays the user's."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            if self._connection.closed:
                raise ClosedError(
                    "The connection that was given to the saver is closed.",
                    hint="A single connection cannot heal itself: pass a pool, or use from_conn_string.",
                )
            flipped = await _enter_autocommit(self._connection)
            session = PsycopgSession(
                self._connection,
                self._settings,
                self._counters,
                self._preparing,
                exclusive=False,  # its owner may use it between two statements
            )
            try:
                yield session
            finally:
                session.detach()
                if session.lost:
                    await _abandon(self._connection, session)
                elif flipped:
                    await _leave_autocommit(self._connection)

    @property
    def idle(self) -> int:
        """See ``Pool.idle``."""
        return int(self._turn is None or not self._turn.locked())


def make_pool(conn_string: str, settings: Settings, counters: Counters) -> PsycopgPool:
    """Make a pool of our own. Does no I/O.

    Args:
        conn_string: A libpq connection string or URI; several hosts are allowed.
        settings: ``min_size`` … ``connect_timeout_seconds`` and ``password`` apply.
        counters: ``sessions_opened`` is counted.
    """
    keywords: dict[str, Any] = {
        "autocommit": True,
        "prepare_threshold": None if settings.prepared_statements is False else 5,
        "application_name": settings.session_name(),
        "client_encoding": "utf8",
        "connect_timeout": max(
            2, round(settings.connect_timeout_seconds)
        ),  # libpq takes whole seconds, at least 2
        # A peer that vanished without a word is noticed within about 30 s, also while it is quiet.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
    given = psycopg.conninfo.conninfo_to_dict(conn_string)
    keywords = {name: value for name, value in keywords.items() if name not in given}
    password = settings.password

    class Connection(AsyncConnection[Any]):
        # The pool only logs why it cannot connect; kept here so that an error can say it.
        last_failure = ""

        @classmethod
        async def connect(cls, conninfo: str = "", **kwargs: Any) -> Connection:
            if password is not None:
                secret = password()
                kwargs["password"] = await secret if inspect.isawaitable(secret) else secret
            try:
                connection = await super().connect(conninfo, **kwargs)
            except psycopg.Error as error:
                cls.last_failure = one_line(str(error))
                raise
            cls.last_failure = ""
            return connection

    async def configure(connection: AsyncConnection[Any]) -> None:
        counters.sessions_opened += 1
        with contextlib.suppress(psycopg.NotSupportedError):  # said to who uses it
            _wires[connection] = Wire(connection)  # so that its time without use is known from now on

    made: list[PsycopgPool] = []
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        conn_string,
        connection_class=Connection,
        kwargs=keywords,
        configure=configure,
        min_size=settings.min_size,
        max_size=settings.max_size,
        max_idle=settings.max_idle_seconds,
        max_lifetime=settings.max_lifetime_seconds,
        timeout=settings.acquire_timeout_seconds,
        reconnect_timeout=_RECONNECT_SECONDS,
        reconnect_failed=lambda _: made[0].refill(),
        name="pgcairn",
        open=False,
    )
    made.append(PsycopgPool(pool, settings, counters, owned=True))
    return made[0]
