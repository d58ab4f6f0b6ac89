"""Repeating what may be repeated, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from pgcairn.connection import pool as module
from pgcairn.connection.pool import Pool, Session, TimeLimit, error_for, run_retried, session_is_lost
from pgcairn.errors import (
    ClosedError,
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SchemaError,
    StoredDataError,
    UnavailableError,
)
from pgcairn.telemetry import Counters
from tests.support.idle import IdleSession


class _Time:
    """``time`` and ``asyncio`` as the module sees them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Time:
    time = _Time()
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(module, "asyncio", time)
    monkeypatch.setattr(logging.getLogger("pgcairn"), "disabled", True)
    return time


class _Pool:
    def __init__(self) -> None:
        self.lent = 0
        self.refuses = 0
        self.patience: list[float] = []
        self.session = IdleSession()

    @contextlib.asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        self.patience.append(patience_seconds)
        if self.refuses:
            self.refuses -= 1
            raise UnavailableError("no session")
        self.lent += 1
        try:
            yield cast("Session", self.session)
        finally:
            self.lent -= 1


class _Operation:
    """Fails with each error in turn, the last one for ever; returns when they are used up."""

    def __init__(self, *errors: BaseException, for_ever: bool = False) -> None:
        self.errors = list(errors)
        self.for_ever = for_ever
        self.calls = 0

    async def __call__(self, session: Session) -> str:
        self.calls += 1
        if not self.errors:
            return "done"
        raise self.errors[0] if self.for_ever and len(self.errors) == 1 else self.errors.pop(0)


async def _run(operation: _Operation, deadline: float, counters: Counters, pool: _Pool | None = None) -> Any:
    pool = pool or _Pool()
    try:
        return await run_retried(cast("Pool", pool), counters, deadline, operation)
    finally:
        assert pool.lent == 0, "a session was not given back"


async def test_it_is_repeated_until_it_works(clock: _Time) -> None:
    counters, pool = Counters(), _Pool()
    pool.refuses = 1
    operation = _Operation(UnavailableError("a"), OutcomeUnknown("b"))
    assert await _run(operation, 30, counters, pool) == "done"
    assert (operation.calls, counters.retries, counters.sessions_lost) == (3, 3, 1)
    assert len(clock.waits) == 3


async def test_pauses_grow_are_jittered_and_bounded(clock: _Time) -> None:
    with pytest.raises(UnavailableError):
        await _run(_Operation(UnavailableError("a"), for_ever=True), 60, Counters())
    ceilings = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    for wait, ceiling in zip(clock.waits, ceilings, strict=False):
        assert ceiling / 2 <= wait <= ceiling
    assert max(clock.waits) <= 1.0
    assert clock.now == pytest.approx(1060.0)


async def test_each_attempt_gets_what_is_left(clock: _Time) -> None:
    pool = _Pool()
    with pytest.raises(UnavailableError):
        await _run(_Operation(UnavailableError("a"), for_ever=True), 5, Counters(), pool)
    assert pool.patience == pool.session.limits
    assert pool.patience[0] == 5
    assert pool.patience == sorted(pool.patience, reverse=True)
    assert pool.patience[-1] == 1, "the last one is not in vain"


async def test_a_single_attempt_gets_all_the_time(clock: _Time) -> None:
    pool = _Pool()
    await _run(_Operation(), 0, Counters(), pool)
    assert pool.patience == pool.session.limits == [math.inf]


async def test_no_deadline_is_one_attempt(clock: _Time) -> None:
    operation = _Operation(UnavailableError("a"))
    with pytest.raises(UnavailableError, match=r"^a"):
        await _run(operation, 0, Counters())
    assert (operation.calls, clock.waits) == (1, [])


@pytest.mark.parametrize(
    "later", [UnavailableError("l"), DatabaseError("l"), ClosedError("l"), StoredDataError("l")]
)
async def test_an_unknown_outcome_stays_unknown(clock: _Time, later: PgcairnError) -> None:
    with pytest.raises(OutcomeUnknown, match=r"^first") as raised:
        await _run(_Operation(OutcomeUnknown("first"), later, for_ever=True), 5, Counters())
    assert raised.value.__cause__ is later


async def test_what_is_refused_after_an_unknown_outcome_was_not_committed(clock: _Time) -> None:
    with pytest.raises(RejectedError):
        await _run(_Operation(OutcomeUnknown("first"), RejectedError("bad")), 5, Counters())


@pytest.mark.parametrize(
    "error",
    [
        RejectedError("x"),
        DatabaseError("x"),
        SchemaError("x"),
        ClosedError("x"),
        RuntimeError("x"),
        asyncio.CancelledError(),
    ],
)
async def test_everything_else_is_raised_at_once(clock: _Time, error: BaseException) -> None:
    operation = _Operation(error)
    with pytest.raises(type(error)) as raised:
        await _run(operation, 30, Counters())
    assert raised.value is error
    assert (operation.calls, clock.waits) == (1, [])


@pytest.mark.parametrize(
    ("sqlstate", "kind", "lost"),
    [
        ("40001", UnavailableError, False),
        ("40P01", UnavailableError, False),
        ("55P03", UnavailableError, False),
        ("53300", UnavailableError, False),
        ("25006", UnavailableError, True),
        ("57P01", UnavailableError, True),
        ("57P02", UnavailableError, True),
        ("57P03", UnavailableError, True),
        ("57P05", UnavailableError, True),
        ("08006", UnavailableError, True),
        ("42P01", SchemaError, False),
        ("42703", SchemaError, False),
        ("3F000", SchemaError, False),
        ("22P05", RejectedError, False),
        ("23502", RejectedError, False),
        ("21000", RejectedError, False),
        ("54000", RejectedError, False),
        ("P0001", RejectedError, False),
        ("42501", DatabaseError, False),
        ("53100", DatabaseError, False),
        ("57014", DatabaseError, False),
        ("XX000", DatabaseError, False),
    ],
)
def test_sqlstates_have_a_meaning(sqlstate: str, kind: type[PgcairnError], lost: bool) -> None:
    error = error_for(sqlstate, " what ")
    assert type(error) is kind
    assert sqlstate in str(error)
    assert "what" in str(error)
    assert session_is_lost(sqlstate) == lost
    if isinstance(error, DatabaseError):
        assert error.sqlstate == sqlstate


def test_no_sqlstate_loses_no_session() -> None:
    assert not session_is_lost(None)


def test_too_many_connections_says_which_knob() -> None:
    assert "max_size" in error_for("53300", "x").hint


# --- limits -----------------------------------------------------------------------------------------


async def test_a_limit_that_is_not_reached_is_not_noticed() -> None:
    async with TimeLimit(60):
        pass
    with pytest.raises(ValueError, match="mine"):
        async with TimeLimit(60):
            raise ValueError("mine")


async def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(asyncio.TimeoutError, match=r"no answer within 0\.001 s"):
        async with TimeLimit(0.001):
            await asyncio.Event().wait()
    await asyncio.wait_for(asyncio.sleep(0), 1)  # the task can go on waiting for others


async def test_a_cancellation_from_outside_stays_one() -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with TimeLimit(60):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
