"""Groups of reads: one that fails does not fail the others."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from pgcairn import reader as module
from pgcairn.connection.pool import Lender, Pool, Session, run_retried
from pgcairn.errors import DatabaseError, UnavailableError
from pgcairn.reader import Key, Reader
from pgcairn.settings import Settings
from pgcairn.storage.repository import Repository, StoredTuple
from pgcairn.telemetry import Counters
from tests.support.idle import IdleSession


class _Pool:
    max_size = 1

    @asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        yield cast("Session", IdleSession())


class _Repository:
    """Knows no checkpoint; a row of the thread ``bad`` cannot be read."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def select_tuple(self, _: Session, *key: object) -> StoredTuple | None:
        await self.select_tuples(_, [cast("Key", key)])
        return None

    async def select_tuples(self, _: Session, keys: Sequence[Key]) -> list[StoredTuple]:
        self.asked.append([key[0] for key in keys])
        if "bad" in self.asked[-1]:
            raise DatabaseError("invalid page in block 7", sqlstate="XX001")
        return []


def _reader(repository: _Repository) -> Reader:
    return Reader(cast("Pool", _Pool()), cast("Repository", repository), Settings(), Counters())


async def _load(reader: Reader, *threads: str) -> list[object]:
    return await asyncio.gather(*(reader.load((each, "", None)) for each in threads), return_exceptions=True)


async def test_a_row_that_cannot_be_read_fails_its_own_caller() -> None:
    repository = _Repository()
    found = await _load(_reader(repository), "a", "b", "bad", "c")
    assert [type(each) for each in found] == [type(None), type(None), DatabaseError, type(None)]
    assert str(found[2]).count("thread 'bad'") == 1
    assert repository.asked[0] == ["a", "b", "bad", "c"]


async def test_each_read_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    deadlines = iter([now + 60, now - 1, now + 60])
    monkeypatch.setattr(module, "give_up_at", lambda *_: next(deadlines))
    real = run_retried
    attempts: list[float] = []

    async def away_at_first(
        pool: Lender, counters: Counters, seconds: float, operation: Callable[[Session], Awaitable[Any]]
    ) -> Any:
        attempts.append(seconds)
        if len(attempts) == 1:
            raise UnavailableError("away")
        return await real(pool, counters, seconds, operation)

    monkeypatch.setattr(module, "run_retried", away_at_first)
    found = await _load(_reader(_Repository()), "a", "late", "b")
    assert [type(each) for each in found] == [type(None), UnavailableError, type(None)]
    assert attempts[0] < 0 < attempts[1]
