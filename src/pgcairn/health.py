"""HEALTH. Answers for probes: does the database answer, and is the schema there.

Owns the vocabulary of readiness and the bound on what probes may cost: one session at most, however many ask and
however long the database takes. Never retries, never changes anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pgcairn.connection.pool import PING, Pool
from pgcairn.errors import (
    ClosedError,
    OutcomeUnknown,
    PgcairnError,
    SchemaError,
    UnavailableError,
)
from pgcairn.storage import migrations
from pgcairn.storage.statements import Statements

T = TypeVar("T")

ReadinessState = Literal[
    "ready",
    "closed",
    "database_away",
    "database_refuses",
    "schema_missing",
    "schema_outdated",
    "schema_unusable",
]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a saver can serve, and if not, why. True in a condition when it can.

    Attributes:
        state: ``"ready"``; ``"closed"``: the saver was closed; ``"database_away"``: no connection, no free session, or no
            answer in time; ``"database_refuses"``: it answered with an error, of permissions for instance;
            ``"schema_missing"``, ``"schema_outdated"``: ``setup()`` is to be run; ``"schema_unusable"``: it belongs to
            something else or to a newer pgcairn.
        detail: Why, in a sentence for people; empty when ready.
        seconds: How long the answer took.
    """

    state: ReadinessState
    detail: str
    seconds: float

    def __bool__(self) -> bool:
        return self.state == "ready"


class _Shared(Generic[T]):
    """A question that is put to the database once, for all who ask while the answer is awaited."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], name: str) -> None:
        self._ask = ask
        self._name = name
        self._task: asyncio.Task[T] | None = None

    async def __call__(self, timeout_seconds: float) -> T:
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.get_running_loop().create_task(self._ask(), name=self._name)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Goes on when its time is up, because cancelling an exchange costs the session: others may share it.
        await asyncio.wait({task}, timeout=timeout_seconds)
        if not task.done():
            raise UnavailableError(f"The database has not answered within {timeout_seconds:g} s.")
        if task.cancelled():  # by ``stop``
            raise ClosedError
        return task.result()

    async def stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


class Health:
    """Asks for probes. Methods are for the owner's event loop.

    Background tasks: at most one named ``pgcairn-ping`` and one named ``pgcairn-readiness``.

    Args:
        pool: Where the session comes from.
        open_pool: Opens it, once; raises ``UnavailableError`` or ``ClosedError``.
        statements: The statements of the schema.
    """

    def __init__(self, pool: Pool, open_pool: Callable[[], Awaitable[None]], statements: Statements) -> None:
        self._pool = pool
        self._open_pool = open_pool
        self._statements = statements
        self._pinging = _Shared(self._ping, "pgcairn-ping")
        self._looking = _Shared(self._look, "pgcairn-readiness")

    async def ping(self, timeout_seconds: float) -> float:
        """Ask the database for an answer; return the seconds of the round trip.

        Raises:
            UnavailableError: There was none in time.
            ClosedError: The saver is closed.
        """
        try:
            return await self._pinging(timeout_seconds)
        except OutcomeUnknown as error:
            raise UnavailableError(error.message) from error
        except UnavailableError as error:
            raise self._explained(error) from error

    async def readiness(self, timeout_seconds: float) -> Readiness:
        """Find out whether the database answers and the schema is there. Raises nothing but cancellation."""
        asked_at = time.monotonic()
        state: ReadinessState
        detail = ""
        try:
            state, detail = await self._looking(timeout_seconds)
        except (UnavailableError, OutcomeUnknown) as error:
            state, detail = "database_away", str(self._explained(error))
        except SchemaError as error:
            state, detail = "schema_unusable", str(error)
        except ClosedError as error:
            state, detail = "closed", str(error)
        except PgcairnError as error:
            state, detail = "database_refuses", str(error)
        return Readiness(state, detail, time.monotonic() - asked_at)

    async def close(self) -> None:
        """Stop asking; who waits for an answer learns that the saver is closed."""
        await self._pinging.stop()
        await self._looking.stop()

    async def _ping(self) -> float:
        await self._open_pool()
        async with self._pool.acquire() as session:
            asked_at = time.monotonic()
            await session.fetch(PING, ())
            return time.monotonic() - asked_at

    async def _look(self) -> tuple[ReadinessState, str]:
        await self._open_pool()
        async with self._pool.acquire() as session:
            found = await migrations.read_state(session, self._statements)
        if (problem := migrations.shortfall(found, self._statements)) is None:
            return "ready", ""
        return ("schema_missing" if found.version == 0 else "schema_outdated"), str(problem)

    def _explained(self, error: PgcairnError) -> PgcairnError:
        """Add why no session can be opened, if that is known."""
        reason = self._pool.last_failure
        if not reason or reason in error.message:
            return error
        return UnavailableError(f"{error.message} Last attempt to connect: {reason}", hint=error.hint)
