"""The asyncpg driver of the connection seam.

Owns the pool that ``from_conn_string`` makes with ``driver="asyncpg"``, and the adapter that lets a user's
``asyncpg.Pool`` serve as one. JSON travels as text, so that codecs a user registered do not matter.
Errors are mapped by SQLSTATE here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import random
import socket
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import asyncpg
from psycopg.conninfo import conninfo_to_dict

from pgcairn.connection.pool import (
    BACKEND_PID,
    BUSY_HINT,
    PING,
    PING_SECONDS,
    TYPES,
    Query,
    Row,
    Session,
    TimeLimit,
    error_for,
    no_connection,
    session_is_lost,
)
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

# asyncpg's own default; the library has fewer statements than that.
_STATEMENT_CACHE_SIZE = 100
# How long the end of a cancelled statement is waited for before its connection is given up; psycopg waits as
# long (AsyncConnection._try_cancel). Without it a peer that is gone holds up whoever closes the saver.
_RELEASE_TIMEOUT_SECONDS = 5.0


# InternalClientError: a session that the server ended while nobody used it can answer the next statement with it, because
# its state machine has read the farewell and nobody asked ("cannot switch to state ...; another operation ...").
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError)


def _translate(error: Exception) -> PgcairnError | None:
    """Map an error of a statement; ``None`` if it is not asyncpg's."""
    if isinstance(error, asyncpg.PostgresError):
        sqlstate = error.sqlstate
        if sqlstate is not None and not sqlstate.startswith("08"):
            return error_for(sqlstate, error.message or str(error))
    elif isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError):
        return RejectedError(f"asyncpg: {error}", sqlstate="22000")
    elif not isinstance(error, _LOST):
        return None
    reason = str(error) or (
        "no answer in time" if isinstance(error, asyncio.TimeoutError) else type(error).__name__
    )
    if isinstance(error, asyncpg.InternalClientError):
        reason = f"the server ended the session ({reason})"
    return OutcomeUnknown(f"The connection to PostgreSQL was lost: {reason}")


def _unreachable(error: Exception, max_size: int | None) -> UnavailableError | None:
    """Map an error of an attempt to connect; ``None`` if it is not asyncpg's."""
    # InternalClientError: none of several hosts is what target_session_attrs asks for, as before a promotion.
    if isinstance(error, (asyncpg.PostgresError, *_LOST)):
        return no_connection(
            str(error) or type(error).__name__, max_size, sqlstate=getattr(error, "sqlstate", None)
        )
    return None


def _is_closed(connection: Any) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        # The pool has taken a connection that broke back at once; its stand-in refuses every call.
        return True


class AsyncpgSession:
    """One asyncpg connection, seen through the seam."""

    __slots__ = ("_connection", "_counters", "_limit_seconds", "_timeout_seconds", "lost")

    def __init__(self, connection: Any, settings: Settings, counters: Counters) -> None:
        self._connection = connection
        self._counters = counters
        self._timeout_seconds = self._limit_seconds = settings.statement_timeout_seconds
        self.lost = False

    def limit(self, seconds: float) -> None:
        """See ``Session.limit``."""
        self._limit_seconds = min(self._timeout_seconds, seconds)

    async def fetch(self, query: Query, params: Sequence[object]) -> Sequence[Row]:
        """See ``Session.fetch``."""
        timeout = self._limit_seconds * query.patience
        rows: Sequence[Row] = await self._ask("fetch", query.text, *params, timeout=timeout)
        return rows

    async def execute(self, query: Query, params: Sequence[object]) -> int:
        """See ``Session.execute``."""
        timeout = self._limit_seconds * query.patience
        status: str = await self._ask("execute", query.text, *params, timeout=timeout)
        return int(status.rpartition(" ")[2])  # INSERT 0 1, UPDATE 1

    async def script(self, text: str) -> None:
        """See ``Session.script``."""
        # No limit: it may build an index. Keepalives end it if the server is gone.
        await self._ask("execute", text)

    async def works(self) -> bool:
        """Ask the server for an answer."""
        try:
            await self._ask("fetch", PING.text, timeout=PING_SECONDS)
        except PgcairnError:
            self.lost = True
            return False
        return True

    async def _ask(self, method: str, *arguments: object, timeout: float | None = None) -> Any:
        self._counters.statements += 1
        self._counters.round_trips += 1
        try:
            return await getattr(self._connection, method)(*arguments, timeout=timeout)
        except Exception as error:
            if (mapped := self._failed(error)) is None:
                raise
            raise mapped from error

    @asynccontextmanager
    async def transaction(self, *, read_committed: bool = False) -> AsyncIterator[None]:
        """See ``Session.transaction``."""
        self._counters.statements += 2
        self._counters.round_trips += 2
        try:
            begins = read_committed and not self._connection.is_in_transaction()
            block = self._connection.transaction(isolation="read_committed" if begins else None)
            async with TimeLimit(self._limit_seconds):
                await block.start()
            try:
                yield
            except BaseException:
                if self.lost:
                    self._connection.terminate()  # which ends the transaction; there is no answer to wait for
                else:
                    async with TimeLimit(self._limit_seconds):
                        await block.rollback()
                raise
            async with TimeLimit(self._limit_seconds):
                await block.commit()
        except PgcairnError:
            raise
        except Exception as error:
            if (mapped := self._failed(error)) is None:
                raise
            raise mapped from error

    def _failed(self, error: Exception) -> PgcairnError | None:
        if (
            _is_closed(self._connection)
            # Whatever comes after an answer that did not come in time is not to be trusted.
            or isinstance(error, asyncpg.InternalClientError | asyncio.TimeoutError)
            or session_is_lost(getattr(error, "sqlstate", None))
        ):
            self.lost = True
        return _translate(error)


@dataclass(slots=True)
class _Ages:
    """When a connection was last given back, and when it is to be replaced."""

    used_at: float = field(default_factory=time.monotonic)
    replace_at: float = math.inf


_ages: weakref.WeakKeyDictionary[Any, _Ages] = weakref.WeakKeyDictionary()


def _of(connection: Any) -> Any:
    """The connection behind the stand-in that asyncpg's pool lends."""
    return getattr(connection, "_con", None) or connection


class Maker:
    """Makes what a pool of our own consists of: asyncpg's pools, which cannot be opened twice, and a connection to look around.

    Args:
        connect: How to connect.
        pool: What else ``asyncpg.create_pool`` gets.
        init: Called with each new connection of a pool.
        prepared_statements: See ``Settings.prepared_statements``.
    """

    def __init__(
        self,
        connect: dict[str, Any],
        pool: dict[str, Any],
        init: Callable[[Any], Awaitable[None]],
        prepared_statements: bool | None,
    ) -> None:
        self._connect = connect
        self._pool = pool
        self._init = init
        self._prepared_statements = prepared_statements

    def make(self, *, prepares: bool) -> Any:
        """A pool. Does no I/O: it connects when it is awaited."""
        if prepares:
            return asyncpg.create_pool(
                **self._connect, **self._pool, init=self._init, statement_cache_size=_STATEMENT_CACHE_SIZE
            )

        async def init(connection: Any) -> None:
            # When it meets a type for the first time, asyncpg asks the server about it and changes the session's ``jit``
            # meanwhile. Within a transaction a pooler lends one session for all of that.
            async with connection.transaction():
                await connection.prepare(TYPES.text)
            await self._init(connection)

        return asyncpg.create_pool(**self._connect, **self._pool, init=init, statement_cache_size=0)

    async def may_prepare(self) -> bool:
        """Connect once; say whether statements may be prepared. Raises what asyncpg raises if that is not possible."""
        connection = await asyncpg.connect(**self._connect, statement_cache_size=0)
        try:
            if self._prepared_statements is not None:
                return self._prepared_statements
            is_direct = await connection.fetchval(BACKEND_PID.text) == connection.get_server_pid()
        finally:
            await connection.close(timeout=_RELEASE_TIMEOUT_SECONDS)
        if not is_direct:
            logger.info("there is a pooler before the server; statements are not prepared")
        return bool(is_direct)


class AsyncpgPool:
    """An asyncpg pool as a ``Pool``: one lent by the user, or (with a ``Maker``) one of our own.

    Args:
        pool: The user's pool, or who makes ours.
        settings: Timeouts.
        counters: What is counted.
    """

    last_failure = ""  # ``acquire`` says it

    def __init__(self, pool: Any, settings: Settings, counters: Counters) -> None:
        self._maker = pool if isinstance(pool, Maker) else None
        self._owned = self._maker is not None
        self._pool = self._maker.make(prepares=False) if self._maker is not None else pool
        self._settings = settings
        self._counters = counters
        self._is_open = False
        self._closed = False

    async def open(self) -> None:
        """See ``Pool.open``."""
        if self._maker is None or self._is_open or self._closed:
            return
        try:
            prepares = await self._maker.may_prepare()  # with min_size=0 nothing else connects here
            pool = self._maker.make(prepares=prepares)
            try:
                await pool
            except BaseException:
                with contextlib.suppress(asyncpg.InterfaceError):  # it has closed itself
                    pool.terminate()
                raise
        except Exception as error:
            if (mapped := _unreachable(error, self._settings.max_size)) is None:
                raise
            raise mapped from error
        self._pool = pool
        self._is_open = True

    async def close(self) -> None:
        """See ``Pool.close``."""
        if not self._is_open or self._closed:
            return
        self._closed = True
        try:
            await asyncio.wait_for(self._pool.close(), self._settings.close_timeout_seconds)
        except asyncio.TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        """See ``Pool.acquire``."""
        while True:
            connection = await self._take(patience_seconds)
            session = AsyncpgSession(connection, self._settings, self._counters)
            ages = _ages.get(_of(connection))
            try:
                if self._owned and ages is not None and time.monotonic() > ages.replace_at:
                    session.lost = True
                elif (
                    ages is None or time.monotonic() - ages.used_at <= self._settings.check_after_idle_seconds
                ) or await session.works():
                    break
                else:
                    self._counters.sessions_lost += 1
                    logger.info("a session had died while it was idle; taking another one")
            except BaseException:
                session.lost = True
                await self._give_back(connection, session)
                raise
            await self._give_back(connection, session)
        try:
            yield session
        finally:
            await self._give_back(connection, session)

    async def _take(self, patience_seconds: float) -> Any:
        asked_at = time.monotonic()
        timeout = min(self._settings.acquire_timeout_seconds, patience_seconds)
        try:
            connection = await self._pool.acquire(timeout=timeout)
            self._counters.session_wait.observe(time.monotonic() - asked_at)
            return connection
        except asyncio.TimeoutError as error:
            raise UnavailableError(
                f"No session could be had within {timeout:g} s "
                f"({self.size} of {self.max_size} are open, {self.idle} idle).",
                hint=BUSY_HINT,
            ) from error
        except asyncpg.InterfaceError as error:
            if self._owned and not self._pool.is_closing():  # of the connection that was being opened
                raise no_connection(str(error), self._settings.max_size) from error
            raise ClosedError(
                f"The saver's pool cannot be used: {error}."
                if self._owned
                else f"The pool that was given to the saver cannot be used: {error}."
            ) from error
        except Exception as error:
            if (mapped := _unreachable(error, self._settings.max_size if self._owned else None)) is None:
                raise
            raise mapped from error

    async def _give_back(self, connection: Any, session: AsyncpgSession) -> None:
        if not _is_closed(connection):
            if session.lost:
                connection.terminate()
            else:
                ages = _ages.setdefault(_of(connection), _Ages())
                ages.used_at = time.monotonic()
        await self._pool.release(connection, timeout=_RELEASE_TIMEOUT_SECONDS)

    @property
    def size(self) -> int:
        """See ``Pool.size``."""
        return int(self._pool.get_size())

    @property
    def idle(self) -> int:
        """See ``Pool.idle``."""
        return int(self._pool.get_idle_size())

    @property
    def max_size(self) -> int:
        """See ``Pool.max_size``."""
        return int(self._pool.get_max_size())


def _keep_alive(connection: Any) -> None:
    """Have the system notice a peer that vanished without a word, as libpq does for psycopg."""
    transport = getattr(_of(connection), "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = [(socket.SOL_SOCKET, "SO_KEEPALIVE", 1)] + [
        (socket.IPPROTO_TCP, name, value)
        for name, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", 30_000),
        )
    ]
    for level, name, value in options:
        if hasattr(socket, name):  # not all systems have all
            with contextlib.suppress(OSError):
                found.setsockopt(level, getattr(socket, name), value)


async def _keep(connection: Any) -> None:
    """Take the place of asyncpg's reset query: pgcairn leaves no state in a session, and it costs a round trip."""


def make_pool(conn_string: str, settings: Settings, counters: Counters) -> AsyncpgPool:
    """Make a pool of our own. Does no I/O.

    Args:
        conn_string: A libpq connection URI or ``key=value`` string; several hosts are allowed.
        settings: ``min_size`` … ``connect_timeout_seconds`` and ``password`` apply.
        counters: ``sessions_opened`` is counted.
    """

    async def init(connection: Any) -> None:
        counters.sessions_opened += 1
        # Jittered, so that sessions that were opened together do not end together.
        lifetime = settings.max_lifetime_seconds * random.uniform(0.9, 1.0)  # noqa: S311 - no secret
        _ages[_of(connection)] = _Ages(replace_at=time.monotonic() + lifetime)
        _keep_alive(connection)

    password = settings.password

    async def secret() -> str:
        assert password is not None
        value = password()
        return await value if inspect.isawaitable(value) else value

    uri, server_settings = _uri(conn_string)
    connect = {
        "dsn": uri,
        "password": None if password is None else secret,
        "timeout": settings.connect_timeout_seconds,
        "server_settings": {"application_name": settings.session_name(), **server_settings},
    }
    pool = {
        "min_size": settings.min_size,
        "max_size": settings.max_size,
        "max_inactive_connection_lifetime": settings.max_idle_seconds,
        "reset": _keep,
    }
    return AsyncpgPool(Maker(connect, pool, init, settings.prepared_statements), settings, counters)


# libpq's own options that are no server settings; asyncpg would send them to the server, which refuses them.
_LIBPQ_ONLY = frozenset(
    [
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "gsslib",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "requirepeer",
        "sslcompression",
        "sslcrldir",
        "sslsni",
        "tcp_user_timeout",
    ]
)


def _uri(conn_string: str) -> tuple[str, dict[str, str]]:
    """Turn a libpq connection string of either form into the URI form, the only one asyncpg reads."""
    # libpq's own parser knows both forms and all escapes.
    given = {name: str(value) for name, value in conninfo_to_dict(conn_string).items() if value is not None}
    settings = {name: given.pop(name) for name in ("application_name",) if name in given}
    kept = {name: value for name, value in given.items() if name not in _LIBPQ_ONLY}
    return f"postgresql://?{urlencode(kept, quote_via=quote)}", settings
