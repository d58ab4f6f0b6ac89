"""The connection seam: what the layers above need of a driver, and nothing else.

Owns the two protocols (``Pool``, ``Session``), the query object that carries a statement to a driver, and
the meaning of SQLSTATE codes. Never builds SQL and never opens a connection by itself. The drivers
(``psycopg_driver``, ``asyncpg_driver``) implement the protocols and are held by one conformance suite.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pgcairn.errors import (
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SchemaError,
    UnavailableError,
)
from pgcairn.telemetry import Counters

logger = logging.getLogger("pgcairn")

T = TypeVar("T")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A statement as a driver needs it: constant text with ``$n`` placeholders, and their types.

    Attributes:
        name: Name of the statement, for logs; it also opens the text as a comment.
        text: The SQL.
        types: PostgreSQL types of $1, $2, …, as their casts in the text name them.
        patience: How many times as long as other statements it may take.
    """

    name: str
    text: str
    types: tuple[str, ...]
    patience: float = 1.0


PING = Query("ping", "/* pgcairn:ping */ SELECT 1", ())
"""Asks a session whether it works."""
# How long a session that idled may take to say so: a round trip around the world is a third of a second (guess).
PING_SECONDS = 2.0


CONFIRM = Query(
    "confirm", "/* pgcairn:confirm */ SELECT pg_logical_emit_message(true, 'pgcairn'::text, ''::text)", ()
)
"""Writes a record of a few bytes that nobody reads to the WAL, and commits it: where standbys are synchronous, it returns
once they have everything that was committed before."""


BACKEND_PID = Query("backend_pid", "/* pgcairn:backend_pid */ SELECT pg_backend_pid()", ())
"""Asks who answers. Behind a pooler it is somebody else than who the session was opened with."""

TYPES = Query(
    "types", "/* pgcairn:types */ SELECT $1::text[], $2::bytea[], $3::int4[]", ("text[]", "bytea[]", "int4[]")
)
"""Has all types that statements use as parameters and that not every driver knows from the start."""

# A prepared statement that is not there, or there already: somebody between here and the server swaps sessions.
_STATEMENT_IS_LOST = frozenset(("26000", "42P05"))


class Preparing:
    """Whether the statements of a pool are prepared.

    Args:
        setting: ``Settings.prepared_statements``.

    Attributes:
        is_wanted: Whether to prepare them, as far as is known now.
    """

    __slots__ = ("_may_change", "is_wanted")

    def __init__(self, setting: bool | None) -> None:
        self.is_wanted = setting is not False
        self._may_change = setting is None

    def is_given_up(self, sqlstate: str | None) -> bool:
        """Whether an error means that prepared statements do not last here, so that the call is to be repeated without."""
        if not self._may_change or sqlstate not in _STATEMENT_IS_LOST:
            return False
        if self.is_wanted:
            logger.warning(
                "prepared statements are lost between here and the server, as behind PgBouncer in transaction mode before "
                "1.21: going on without them (prepared_statements=False says so from the start)"
            )
        self.is_wanted = False
        return True


class TimeLimit:
    """An ``async with`` block that may take so long and no longer; then it is cancelled and raises ``TimeoutError``.

    ``asyncio.timeout``, which Python 3.10 does not have.
    """

    __slots__ = ("_expired", "_handle", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: object
    ) -> None:
        self._handle.cancel()
        if not self._expired or exc_type is not asyncio.CancelledError:
            return
        uncancel = getattr(self._task, "uncancel", None)  # Python 3.11
        if uncancel is not None and uncancel() > 0:
            return  # somebody else wants its end, too
        raise asyncio.TimeoutError(f"no answer within {self._seconds:g} s") from exc

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


class Session(Protocol):
    """One database session, held by one task at a time."""

    def limit(self, seconds: float) -> None:
        """Give no statement longer than this from now on, times its patience; ``statement_timeout_seconds`` holds as well."""
        ...

    async def fetch(self, query: Query, params: Sequence[object]) -> Sequence[Row]:
        """Run one statement in one round trip and return its rows.

        Outside ``transaction()`` the statement is its own transaction, committed when this returns.

        Raises:
            UnavailableError: The statement was not carried out; repeating it may help.
            OutcomeUnknown: The connection broke after the statement was sent.
            RejectedError: The data of this statement was refused.
            SchemaError: A table or column is missing.
            DatabaseError: PostgreSQL refused the statement for another reason.
        """
        ...

    async def execute(self, query: Query, params: Sequence[object]) -> int:
        """Run one statement that returns no rows; return how many rows it wrote. Otherwise as ``fetch``."""
        ...

    async def script(self, text: str) -> None:
        """Run DDL: one or more statements without parameters. Raises as ``fetch`` does."""
        ...

    def transaction(self, *, read_committed: bool = False) -> AbstractAsyncContextManager[None]:
        """A transaction around several statements; a savepoint if one is open already.

        Args:
            read_committed: Begin at READ COMMITTED whatever the database's or the role's default is: for
                transactions whose later statements must see what others committed meanwhile. A savepoint
                has the level of the transaction around it.
        """
        ...


class Pool(Protocol):
    """Sessions, owned by pgcairn or lent by the user."""

    async def open(self) -> None:
        """Get ready. Idempotent. A pool lent by the user is left as it is."""
        ...

    async def close(self) -> None:
        """Close what pgcairn owns. May be called twice; a pool lent by the user stays open."""
        ...

    def acquire(self, patience_seconds: float = math.inf) -> AbstractAsyncContextManager[Session]:
        """Lend a session for the time of an ``async with`` block.

        Args:
            patience_seconds: How long to wait for one; never longer than ``acquire_timeout_seconds``.

        Raises:
            UnavailableError: No session could be had in time.
            ClosedError: The pool is closed.
        """
        ...

    @property
    def size(self) -> int:
        """Sessions that exist right now."""
        ...

    @property
    def idle(self) -> int:
        """Sessions that nobody uses right now."""
        ...

    @property
    def max_size(self) -> int:
        """Most sessions that can be lent at the same time."""
        ...

    @property
    def last_failure(self) -> str:
        """Why the last attempt to open a session failed; empty if it did not, or if ``acquire`` says it."""
        ...


class Lender(Protocol):
    """Whatever lends a session for the time of an ``async with`` block: a pool, or a ``HeldSession``."""

    def acquire(self, patience_seconds: float = math.inf) -> AbstractAsyncContextManager[Session]:
        """See ``Pool.acquire``."""
        ...


class HeldSession:
    """A session that is kept from one use to the next, by one task, until ``release`` or an error.

    Args:
        pool: Where it comes from and goes back to.
    """

    __slots__ = ("_loan", "_patience_seconds", "_pool", "_session", "_since")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._patience_seconds = math.inf
        self._loan: AbstractAsyncContextManager[Session] | None = None
        self._session: Session | None = None
        self._since = 0.0

    def acquire(self, patience_seconds: float = math.inf) -> AbstractAsyncContextManager[Session]:
        """See ``Pool.acquire``; the session stays when the block ends well."""
        self._patience_seconds = patience_seconds
        return self

    async def __aenter__(self) -> Session:
        if self._session is None:
            loan = self._pool.acquire(self._patience_seconds)
            self._session = await loan.__aenter__()
            self._loan = loan
            self._since = time.monotonic()
        return self._session

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: object
    ) -> None:
        if exc is not None:
            await self.release()

    @property
    def is_held(self) -> bool:
        """Whether there is one."""
        return self._session is not None

    @property
    def held_seconds(self) -> float:
        """For how long a session has been held; 0 when there is none."""
        return 0.0 if self._session is None else time.monotonic() - self._since

    async def release(self) -> None:
        """Give the session back, if there is one."""
        loan, self._loan, self._session = self._loan, None, None
        if loan is not None:
            await loan.__aexit__(None, None, None)


# --- what an SQLSTATE means ----------------------------------------------------------------------

# PostgreSQL manual, appendix A. The statement had no effect and the same statement may succeed later.
_TRANSIENT = {
    "25006": "the server is read-only (a standby, or a primary that was demoted)",
    "25P03": "the transaction was ended because its client was silent",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53300": "too many connections",
    "55P03": "lock not available",
    "57P01": "the server is shutting down or the session was terminated",
    "57P02": "the server crashed",
    "57P03": "the server is starting up or shutting down",
    "57P05": "the session was closed because it idled",
}
_TRANSIENT_CLASSES = ("08",)
# The session can not be used for anything else after these.
_SESSION_IS_LOST = frozenset({"25006", "25P03", "57P01", "57P02", "57P03", "57P05"})
# The data of one row is at fault: data exception, integrity constraint, cardinality, program limit, RAISE.
_DATA_CLASSES = ("21", "22", "23", "54", "P0")
_SCHEMA = frozenset({"42P01", "42703", "3F000", "42704"})
_POOLER_HINT = (
    "A pooler in transaction mode (PgBouncer before 1.21) loses prepared statements: set prepared_statements=False; for "
    "a pool of yours prepare_threshold=None (psycopg) or statement_cache_size=0 (asyncpg)."
)
# What to do, where the code says more than the class of the error does.
_HINTS = {
    "25006": (
        "Nothing was written. Name all hosts in the connection string, with target_session_attrs=read-write, so that "
        "new sessions find the primary; or end default_transaction_read_only on the server, the database or the role."
    ),
    "26000": _POOLER_HINT,
    "42P05": _POOLER_HINT,
    "42501": (
        "Nothing of this call was written. Grant the role what it lacks: USAGE on the schema, and SELECT, INSERT, UPDATE "
        "and DELETE on its tables; setup() must run as their owner."
    ),
    "53100": (
        "Nothing of this call was written. The server's disk is full: free space or enlarge it, then repeat the call; "
        "reads go on meanwhile, and nothing has to be restarted."
    ),
    "53200": (
        "Nothing of this call was written. The server is out of memory: lower work_mem, max_connections or the pools' "
        "max_size, or lower max_batch_bytes; then repeat the call."
    ),
    "53300": (
        "The sum of all pools' max_size over all processes exceeds max_connections of the server: "
        "lower max_size, use a pooler, or raise max_connections."
    ),
    "55P03": (
        "Nothing was written: somebody else held the lock for longer than lock_timeout of the server, the database or "
        "the role. See pg_blocking_pids() for who; then retry the call."
    ),
    "57014": (
        "Nothing of this call was written. PostgreSQL ended the statement: statement_timeout of the server, the database "
        "or the role is shorter than it took, or an administrator cancelled it. Raise that timeout for this role, or "
        "lower max_batch_rows and max_batch_bytes; then repeat the call."
    ),
}


def session_is_lost(sqlstate: str | None) -> bool:
    """Whether a session that reported this SQLSTATE must be dropped instead of returned."""
    return sqlstate is not None and (sqlstate in _SESSION_IS_LOST or sqlstate.startswith("08"))


BUSY_HINT = (
    "All sessions were in use for that long: the database is slow, or max_size is too low for the load "
    "(stats().session_wait_p99_seconds)."
)

_TOO_MANY = "53300"
# What the server says to who may not connect for it; libpq passes on the text without the code.
_TOO_MANY_TEXTS = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections",
)

# Invalid authorization, invalid catalog name.
_NOT_LET_IN = ("28", "3D")
_NOT_LET_IN_TEXTS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
)


def no_connection(reason: str, max_size: int | None, sqlstate: str | None = None) -> UnavailableError:
    """The error for a session that could not be opened.

    Args:
        reason: What the driver says.
        max_size: ``max_size`` of the pool, if it is pgcairn's own.
        sqlstate: PostgreSQL's code, if the driver knows it.
    """
    text = f"No connection to PostgreSQL: {one_line(reason)}"
    if sqlstate is not None:
        text += f" [{sqlstate}]"
    if sqlstate == _TOO_MANY or any(words in reason for words in _TOO_MANY_TEXTS):
        return UnavailableError(text, hint=_too_many(max_size))
    if (sqlstate or "").startswith(_NOT_LET_IN) or any(words in reason for words in _NOT_LET_IN_TEXTS):
        return UnavailableError(
            text,
            hint="The server answers but lets nobody in like this: check user, password and database name.",
        )
    return UnavailableError(text)


def one_line(message: str) -> str:
    """A message without line breaks, for logs."""
    return " ".join(message.split())


def _too_many(max_size: int | None) -> str:
    here = "" if max_size is None else f" (this one's is {max_size})"
    return (
        f"The sum of max_size of all pools{here} over all processes must stay below the server's max_connections minus its "
        "superuser_reserved_connections; pg_stat_activity tells who has them. Lower max_size, use a pooler, or raise "
        "max_connections."
    )


def error_for(sqlstate: str, message: str) -> PgcairnError:
    """Translate PostgreSQL's error code into pgcairn's vocabulary."""
    text = f"PostgreSQL: {one_line(message)} [{sqlstate}]"
    hint = _too_many(None) if sqlstate == _TOO_MANY else _HINTS.get(sqlstate)
    if sqlstate in _TRANSIENT or sqlstate.startswith(_TRANSIENT_CLASSES):
        return UnavailableError(text, sqlstate=sqlstate, hint=hint)
    if sqlstate in _SCHEMA:
        return SchemaError(
            f"The pgcairn schema is missing or older than this version: {message.strip()} [{sqlstate}]"
        )
    if sqlstate.startswith(_DATA_CLASSES):
        return RejectedError(text, sqlstate=sqlstate)
    return DatabaseError(text, sqlstate=sqlstate, hint=hint)


# --- repeating what may be repeated ---------------------------------------------------------------


class Runner(Protocol):
    """Runs operations on sessions of its choice, each until it succeeded or its deadline has passed."""

    async def __call__(self, operation: Callable[[Session], Awaitable[T]], /) -> T:
        """See ``run_retried``."""
        ...


# A call whose turn comes late is still tried for this long (guess: a restart of the server).
_LEAST_PATIENCE_SECONDS = 5.0


def give_up_at(asked_at: float, deadline_seconds: float) -> float:
    """When a call is given up that was made at ``asked_at`` and is tried for the first time now (``time.monotonic()``)."""
    least = min(deadline_seconds, _LEAST_PATIENCE_SECONDS)
    return max(asked_at + deadline_seconds, time.monotonic() + least)


# Calls whose deadlines are this close to each other fail together (guess).
_DEADLINE_SLACK_SECONDS = 0.25


class _Deadlined(Protocol):
    @property
    def give_up_at(self) -> float: ...


D = TypeVar("D", bound=_Deadlined)


def by_deadline(calls: Sequence[D]) -> tuple[list[D], list[D]]:
    """Calls that failed together: those whose time is up, and those that are to be tried again."""
    now = time.monotonic() + _DEADLINE_SLACK_SECONDS
    return [call for call in calls if call.give_up_at <= now], [
        call for call in calls if call.give_up_at > now
    ]


# Guess: the first pause is shorter than a PostgreSQL restart, the longest does not delay recovery noticeably.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
# What the last attempt gets, however late it starts (guess).
_LEAST_ATTEMPT_SECONDS = 1.0


async def run_retried(
    pool: Lender,
    counters: Counters,
    deadline_seconds: float,
    operation: Callable[[Session], Awaitable[T]],
    *,
    writes: bool = False,
    unknown: OutcomeUnknown | None = None,
) -> T:
    """Run an operation on a session, and repeat both; see ``retried``.

    Args:
        pool: Where sessions come from.
        counters: See ``retried``.
        deadline_seconds: See ``retried``.
        operation: Gets the session. It must be one that can be repeated: a statement of its own, or one whole
            transaction.
        writes: Whether it writes. A commit that no longer waits for a synchronous standby, because it was cancelled, is
            there for whoever repeats it: the repeat has nothing to write, so PostgreSQL does not wait either. So what
            succeeds after an unknown outcome is confirmed (``CONFIRM``) before this returns.
        unknown: The unknown outcome of an earlier attempt.
    """

    async def attempt(seconds_left: float, is_repeated: bool) -> T:
        async with pool.acquire(seconds_left) as session:
            session.limit(seconds_left)
            result = await operation(session)
            if writes and is_repeated:
                await session.fetch(CONFIRM, ())
            return result

    return await retried(attempt, counters, deadline_seconds, unknown)


async def retried(
    attempt: Callable[[float, bool], Awaitable[T]],
    counters: Counters,
    deadline_seconds: float,
    unknown: OutcomeUnknown | None = None,
) -> T:
    """Do something; repeat it with jittered exponential backoff until the deadline.

    ``UnavailableError`` and ``OutcomeUnknown`` are repeated, everything else is raised at once. After an
    unknown outcome the error that is raised in the end stays ``OutcomeUnknown``, whatever came later, because
    other errors say that nothing was written. ``RejectedError`` is the exception: what was committed once is
    not refused when it is repeated.

    Args:
        attempt: What to do; it must be something that can be repeated. It gets the seconds that it may take (what is left
            until the deadline, and one second at least), and whether the outcome of an attempt before it is unknown.
        counters: ``retries`` and ``sessions_lost`` are counted.
        deadline_seconds: Seconds from now after which no new attempt starts. 0 means one attempt, however long it takes.
        unknown: The unknown outcome of an earlier attempt.
    """
    started_at = time.monotonic()
    give_up_at = started_at + deadline_seconds
    pause = _FIRST_PAUSE_SECONDS
    failures = 0
    while True:
        try:
            seconds_left = max(give_up_at - time.monotonic(), _LEAST_ATTEMPT_SECONDS)
            result = await attempt(seconds_left if deadline_seconds else math.inf, unknown is not None)
            if failures:
                seconds = time.monotonic() - started_at
                logger.warning("database call succeeded after %d failures in %.2f s", failures, seconds)
            return result
        except RejectedError:
            raise
        except PgcairnError as error:
            if isinstance(error, OutcomeUnknown):
                unknown = error
                counters.sessions_lost += 1
            left = give_up_at - time.monotonic()
            if left <= 0 or not isinstance(error, UnavailableError | OutcomeUnknown):
                if unknown is not None and unknown is not error:
                    raise unknown from error
                raise
            counters.retries += 1
            failures += 1
            wait = min(left, random.uniform(pause / 2, pause))  # noqa: S311 - jitter, not a secret
            # Once for each call: an outage is to be seen in the log, not to fill it.
            level = logging.WARNING if failures == 1 else logging.DEBUG
            logger.log(
                level,
                "database call failed, is repeated for up to %.1f s, next in %.0f ms: %s",
                left,
                wait * 1000,
                error,
            )
        await asyncio.sleep(wait)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
