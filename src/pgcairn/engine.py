"""What a saver and its clones share: the pool, the layers on top of it, the owner's event loop, the life cycle.

Owns opening (once, by whoever comes first), the check of the schema, forwarding from other event loops and
threads, and closing. Knows nothing of LangGraph's interface; ``saver.py`` is above it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from pgcairn.coalescer import Coalescer
from pgcairn.codec.bases import Bases
from pgcairn.codec.placement import Placements
from pgcairn.connection import psycopg_driver
from pgcairn.connection.pool import Pool, Session, retried, run_retried
from pgcairn.errors import ClosedError, InvalidInput, SettingsError, WrongLoopError
from pgcairn.health import Health
from pgcairn.intake import Intake
from pgcairn.reader import Reader
from pgcairn.settings import Settings
from pgcairn.storage import migrations
from pgcairn.storage.history import HistoryRepository
from pgcairn.storage.repository import Repository
from pgcairn.storage.statements import statements_for
from pgcairn.storage.thread_repository import ThreadRepository
from pgcairn.telemetry import Counters, Stats, snapshot

logger = logging.getLogger("pgcairn")

T = TypeVar("T")

# How often a caller that waits for another event loop looks whether that loop still runs.
_LOOP_CHECK_SECONDS = 0.5


def pool_for(connection: object, settings: Settings, counters: Counters) -> Pool:
    """Wrap what the user gave into the seam.

    Raises:
        InvalidInput: It is nothing that pgcairn can use; the message says what is.
    """
    if isinstance(connection, AsyncConnectionPool):
        return psycopg_driver.PsycopgPool(connection, settings, counters, owned=False)
    if isinstance(connection, AsyncConnection):
        return psycopg_driver.PsycopgConnectionAsPool(connection, settings, counters)
    if type(connection).__module__.partition(".")[0] == "asyncpg":
        import asyncpg

        from pgcairn.connection import asyncpg_driver

        if isinstance(connection, asyncpg.Pool):
            return asyncpg_driver.AsyncpgPool(connection, settings, counters)
    hint = (
        "For a connection string use `async with AsyncPostgresSaver.from_conn_string(dsn) as saver`."
        if isinstance(connection, str)
        else ""
    )
    raise InvalidInput(
        f"conn must be a psycopg AsyncConnectionPool, a psycopg AsyncConnection or an asyncpg Pool, "
        f"not {type(connection).__module__}.{type(connection).__qualname__}.",
        hint=hint,
    )


def owned_pool(conn_string: str, settings: Settings, counters: Counters) -> Pool:
    """Make a pool for a connection string. Does no I/O.

    Raises:
        InvalidInput: The connection string cannot be read.
        SettingsError: The driver is not installed.
    """
    try:
        psycopg.conninfo.conninfo_to_dict(conn_string)  # libpq's parser, for both drivers
    except psycopg.ProgrammingError as error:
        raise InvalidInput(
            f"The connection string cannot be read: {str(error).strip()}.",
            hint="Write postgresql://user@host:5432/database, host=... dbname=..., or embedded:///path/to/data.",
        ) from error
    if settings.driver == "psycopg":
        return psycopg_driver.make_pool(conn_string, settings, counters)
    try:
        from pgcairn.connection import asyncpg_driver
    except ImportError as error:
        raise SettingsError("driver='asyncpg' needs asyncpg: pip install 'pgcairn[asyncpg]'.") from error
    return asyncpg_driver.make_pool(conn_string, settings, counters)


class _Shared:
    """One attempt that concurrent callers share; after a failure the next caller makes another."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._call = call
        self._name = name
        self._attempt: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        attempt = self._attempt
        if attempt is None or (attempt.done() and (attempt.cancelled() or attempt.exception() is not None)):
            attempt = asyncio.get_running_loop().create_task(self._call(), name=self._name)
            attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._attempt = attempt
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():  # by ``stop``; the caller itself goes on
                raise ClosedError from None
            raise

    async def stop(self) -> None:
        """Cancel the attempt if it is under way, and wait for its end."""
        if self._attempt is not None and not self._attempt.done():
            self._attempt.cancel()
            await asyncio.wait([self._attempt])


class _ReadyPool:
    """The pool as the layers above see it: its first use opens it and checks the schema."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = engine.pool

    async def open(self) -> None:
        await self._engine.ready()

    async def close(self) -> None:
        await self._pool.close()

    def acquire(self, patience_seconds: float = math.inf) -> AbstractAsyncContextManager[Session]:
        if self._engine.is_ready:
            return self._pool.acquire(patience_seconds)
        return self._acquire_first(patience_seconds)

    @asynccontextmanager
    async def _acquire_first(self, patience_seconds: float) -> AsyncIterator[Session]:
        await self._engine.ready()
        async with self._pool.acquire(patience_seconds) as session:
            yield session

    @property
    def size(self) -> int:
        return self._pool.size

    @property
    def idle(self) -> int:
        return self._pool.idle

    @property
    def max_size(self) -> int:
        return self._pool.max_size

    @property
    def last_failure(self) -> str:
        return self._pool.last_failure


class Engine:
    """One per saver, shared by the clones that ``with_allowlist`` makes. Construction does no I/O."""

    def __init__(self, pool: Pool, settings: Settings, counters: Counters, *, pipeline: bool) -> None:
        self.pool = pool
        self.settings = settings
        self.counters = counters
        self.statements = statements_for(settings.schema)
        self.repository = Repository(self.statements)
        self.history_repository = HistoryRepository(self.statements)
        self.placements = Placements(settings.placement_cache_entries)
        self.bases = Bases(settings.base_cache_bytes)
        self.is_ready = False
        ready_pool = _ReadyPool(self)
        self.coalescer = Coalescer(ready_pool, self.repository, settings, counters, group_commit=pipeline)
        self.reader = Reader(ready_pool, self.repository, settings, counters, group_reads=pipeline)
        self.intake = Intake(
            self.coalescer,
            ThreadRepository(self.statements),
            settings,
            counters,
            self.placements,
            self.bases,
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pool_open = _Shared(pool.open, "pgcairn-open")
        self._schema_check = _Shared(self._check_schema, "pgcairn-check")
        self.health = Health(pool, self.open_pool, self.statements)
        self._closing: asyncio.Task[None] | None = None
        with contextlib.suppress(RuntimeError):  # no loop yet: the first use decides
            self.loop = asyncio.get_running_loop()

    # --- life cycle --------------------------------------------------------------------------------

    async def open(self) -> None:
        """``open_pool``, repeated until ``open_timeout_seconds``."""

        async def attempt(_seconds_left: float, _is_repeated: bool) -> None:
            await self.open_pool()

        await retried(attempt, self.counters, self.settings.open_timeout_seconds)

    async def open_pool(self) -> None:
        """Open the pool, without asking for a schema. Idempotent; concurrent callers share one attempt.

        Raises:
            UnavailableError: The database cannot be reached.
            ClosedError: The engine is closed.
        """
        if self._closing is not None:
            raise ClosedError
        await self._pool_open()

    async def ready(self) -> None:
        """Open the pool and check the schema, once; concurrent callers share one attempt.

        Raises:
            SchemaError: The schema is missing or older. The next call looks again.
            UnavailableError: The database cannot be reached.
        """
        if not self.is_ready:
            await self._schema_check()

    async def _check_schema(self) -> None:
        await self._pool_open()  # also while closing: what is queued is still to be written
        async with self.pool.acquire() as session:
            await migrations.require_current(session, self.statements)
        self.is_ready = True

    async def setup(self, *, metadata_index: bool) -> list[str]:
        """Bring the schema up to date; see ``migrations.migrate``. Cancelling the caller does not stop it half-way."""
        work = asyncio.get_running_loop().create_task(self._setup(metadata_index), name="pgcairn-setup")
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(work)

    async def _setup(self, metadata_index: bool) -> list[str]:
        await self.open()
        seconds = self.settings.acquire_timeout_seconds

        async def migrate(session: Session) -> list[str]:
            return await migrations.migrate(
                session, self.statements, metadata_index=metadata_index, deadline_seconds=seconds
            )

        applied = await run_retried(self.pool, self.counters, seconds, migrate)
        if applied:
            logger.info("schema %s: applied %s", self.settings.schema, ", ".join(applied))
        return applied

    async def close(self) -> None:
        """Flush and close. May be called twice and concurrently; all callers wait for the same closing."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="pgcairn-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.settings.close_timeout_seconds
        try:
            await self.coalescer.close(self.settings.close_timeout_seconds)
            await self.reader.close(max(0.0, give_up_at - loop.time()))
        finally:
            await self.health.close()
            await self._schema_check.stop()
            await self._pool_open.stop()
            await self.pool.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing is not None

    def stats(self) -> Stats:
        """What was done since the engine was made."""
        return snapshot(
            self.counters,
            pool_size=self.pool.size,
            pool_idle=self.pool.idle,
            base_cache_bytes=self.bases.size_bytes,
            base_cache_entries=len(self.bases),
        )

    # --- event loops -------------------------------------------------------------------------------

    def is_owner(self) -> bool:
        """Whether the running event loop is the owner; the first one to call becomes it."""
        running = asyncio.get_running_loop()
        if self.loop is None:
            self.loop = running
        return running is self.loop

    async def on_owner(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the owner's loop, whichever loop this is; see ``forward``."""
        return await call() if self.is_owner() else await self.forward(call)

    async def forward(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the owner's loop and wait for it from another one.

        Raises:
            WrongLoopError: The owner's loop is closed or not running, so nobody could answer.
            ClosedError: So it is, but the engine was closed before.
        """
        owner = self._running_owner()
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), owner))
        while True:
            done, _ = await asyncio.wait([waiting], timeout=_LOOP_CHECK_SECONDS)
            if done:
                return waiting.result()
            if not owner.is_running():
                waiting.cancel()
                self._running_owner()

    def call_from_thread(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the owner's loop and block this thread until it is answered.

        Raises:
            asyncio.InvalidStateError: This thread runs the owner's loop; waiting would block it for ever.
            WrongLoopError: The owner's loop is closed, not running, or not known yet.
            ClosedError: So it is, but the engine was closed before.
        """
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None and running is self.loop:
            raise asyncio.InvalidStateError(
                f"{name}() would block the event loop that answers it: use `await saver.a{name}(...)` here."
                if name != "list"
                else "list() would block the event loop that answers it: use `async for ... in saver.alist(...)` here."
            )
        owner = self._running_owner()
        future = asyncio.run_coroutine_threadsafe(call(), owner)
        while True:
            try:
                return future.result(timeout=_LOOP_CHECK_SECONDS)
            except concurrent.futures.TimeoutError:  # Python 3.10: neither the builtin nor asyncio's
                pass
            if future.done():
                return future.result()
            if not owner.is_running():
                future.cancel()
                self._running_owner()

    def _running_owner(self) -> asyncio.AbstractEventLoop:
        owner = self.loop
        if owner is None:
            raise WrongLoopError(
                "The saver has no event loop yet.",
                hint="Call `await saver.open()` first, or use pgcairn.PostgresSaver in programs without an event loop.",
            )
        if not owner.is_closed() and owner.is_running():
            return owner
        if self.is_closed:
            raise ClosedError
        try:
            caller = f"event loop {asyncio.get_running_loop()!r}"
        except RuntimeError:
            caller = "a thread without an event loop"
        state = "closed" if owner.is_closed() else "not running"
        raise WrongLoopError(
            f"The saver belongs to event loop {owner!r}, which is {state}; it was called from {caller}.",
            hint="Make the saver inside the event loop that uses it, one per loop, or use pgcairn.PostgresSaver.",
        )
