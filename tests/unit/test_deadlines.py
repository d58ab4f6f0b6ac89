"""Writes that share a batch do not share a deadline."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from pgcairn import coalescer as module
from pgcairn.coalescer import Coalescer, Item, WritesItem, _is_away
from pgcairn.connection import pool as pool_module
from pgcairn.connection.pool import Lender, Pool, Session, error_for, give_up_at, run_retried
from pgcairn.errors import OutcomeUnknown, PgcairnError, UnavailableError
from pgcairn.settings import Settings
from pgcairn.storage.repository import Batch, BatchResult, Repository
from pgcairn.telemetry import Counters
from tests.support.idle import IdleSession


class _Pool:
    max_size = 1

    @asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        yield cast("Session", IdleSession())


class _Repository:
    async def insert_batch(self, _: Session, batch: Batch) -> BatchResult:
        return BatchResult(0, 0, frozenset())


def _item(thread_id: str) -> Item:
    row = (thread_id, "", "1", "task", 0, "", "c", "t", b"f")
    return WritesItem(thread_id=thread_id, writes=[row], replace=False)


async def _submit(
    monkeypatch: pytest.MonkeyPatch, errors: list[PgcairnError], deadlines: Iterator[float]
) -> list[object]:
    async def failing(
        pool: Lender,
        counters: Counters,
        seconds: float,
        operation: Callable[[Session], Awaitable[Any]],
        **_: object,
    ) -> Any:
        if errors:
            raise errors.pop(0)
        return await run_retried(pool, counters, seconds, operation)

    monkeypatch.setattr(module, "run_retried", failing)
    monkeypatch.setattr(module, "give_up_at", lambda *_: next(deadlines))
    repository = cast("Repository", _Repository())
    coalescer = Coalescer(cast("Pool", _Pool()), repository, Settings(), Counters())
    answers = [coalescer.submit(_item(each)) for each in ("a", "late", "b")]
    found: list[object] = await asyncio.gather(*answers, return_exceptions=True)
    await coalescer.close(1)
    return found


async def test_who_has_time_left_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    found = await _submit(monkeypatch, [UnavailableError("away")], iter([now + 60, now - 1, now + 60]))
    assert [type(each) for each in found] == [type(None), UnavailableError, type(None)]
    assert "'late'" in str(found[1])


async def test_what_may_have_been_written_is_never_said_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(
        pool_module, "_DEADLINE_SLACK_SECONDS", 100
    )  # a deadline of its own passes with the second error
    errors: list[PgcairnError] = [OutcomeUnknown("no answer"), UnavailableError("away")]
    found = await _submit(monkeypatch, errors, iter([now + 1000, now + 90, now + 1000]))
    assert [type(each) for each in found] == [type(None), OutcomeUnknown, type(None)]
    item = _item("x")
    item.unknown = OutcomeUnknown("no answer")
    item.answer = asyncio.get_running_loop().create_future()
    coalescer = Coalescer(cast("Pool", _Pool()), cast("Repository", _Repository()), Settings(), Counters())
    coalescer._fail([item], UnavailableError("away"))
    assert type(item.answer.exception()) is OutcomeUnknown


async def test_who_waited_behind_calls_that_failed_for_as_long_as_it_may_fails_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[PgcairnError] = [UnavailableError("away")]

    async def failing(
        pool: Lender,
        counters: Counters,
        seconds: float,
        operation: Callable[[Session], Awaitable[Any]],
        **_: object,
    ) -> Any:
        if not errors:
            return await run_retried(pool, counters, seconds, operation)
        for item in queued[1:3]:
            item.submitted_at -= 1000  # time passes
        raise errors.pop(0)

    monkeypatch.setattr(module, "run_retried", failing)
    monkeypatch.setattr(module, "give_up_at", lambda *_: time.monotonic())
    coalescer = Coalescer(
        cast("Pool", _Pool()),
        cast("Repository", _Repository()),
        Settings(max_batch_rows=1),
        counters := Counters(),
    )
    queued = [_item(each) for each in ("first", "b", "c", "young")]
    answers = [coalescer.submit(item) for item in queued]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(each) for each in found] == [*[UnavailableError] * 3, type(None)]
    assert "Nothing of this call was sent" in str(found[1])
    assert "'c'" in str(found[2])
    await coalescer.close(1)
    assert counters.backlog_rows == 0


def test_what_tells_that_the_server_is_away() -> None:
    cut = OutcomeUnknown("cut")
    assert not _is_away(cut), "a statement was not answered; perhaps it waited for a lock"
    cut.__cause__ = UnavailableError("no connection")
    assert _is_away(cut)
    assert _is_away(UnavailableError("no connection"))
    assert not _is_away(error_for("55P03", "lock timeout"))


def test_a_call_whose_turn_comes_late_is_still_tried_for_a_while() -> None:
    now = time.monotonic()
    assert give_up_at(now, 30) == now + 30
    assert now + 4 < give_up_at(now - 100, 30) < now + 6
    assert give_up_at(now - 100, 0) < now + 1
