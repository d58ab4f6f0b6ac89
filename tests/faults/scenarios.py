"""The faults, each defined once: for some seconds by the tests, for a minute with figures by ``python -m tests.faults``.

A scenario gets a ``Stage`` and says what it saw. Its docstring says the fault and what must hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgcairn import AsyncPostgresSaver, BacklogFull, PgcairnError
from tests.support.addresses import database_of
from tests.support.load import Load
from tests.support.proxy import FaultProxy
from tests.support.savers import checkpoint, config, put, saver_on
from tests.support.server import PostgresServer

SCHEMA = "pgcairn"


@dataclass(frozen=True)
class Stage:
    """Where a scenario plays.

    Attributes:
        server: A durable server of its own.
        dsn: A database on it.
        driver: The driver.
        seconds: For how long faults are made.
    """

    server: PostgresServer
    dsn: str
    driver: str
    seconds: float


@dataclass
class Outcome:
    """What a scenario saw.

    Attributes:
        faults: How often the fault was made.
        acknowledged: Calls that returned.
        errors: Errors that reached callers, by text.
        problems: What was lost, torn or out of order.
        longest_wait_seconds: The longest that a call took.
        retries, sessions_lost: As in ``Stats``.
        figures: What else was measured, by name with its unit.
    """

    faults: int = 0
    acknowledged: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    longest_wait_seconds: float = 0.0
    retries: int = 0
    sessions_lost: int = 0
    figures: dict[str, float] = field(default_factory=dict)


Scenario = Callable[[Stage], Awaitable[Outcome]]


@asynccontextmanager
async def _under_load(
    stage: Stage, through: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Outcome, Load, AsyncPostgresSaver]]:
    """24 writers and readers for the length of the block; what they saw is in the outcome afterwards."""
    outcome = Outcome()
    async with saver_on(through or stage.dsn, SCHEMA, driver=stage.driver, **settings) as saver:
        load = Load(saver)
        async with load.running():
            await load.answers(24)
            yield outcome, load, saver
            await load.answers(24)
        stats = saver.stats()
    outcome.acknowledged = load.acknowledged
    outcome.errors = dict(load.errors)
    outcome.longest_wait_seconds = load.longest_wait_seconds
    outcome.retries, outcome.sessions_lost = stats.retries, stats.sessions_lost
    outcome.problems = await load.missing(stage.dsn, SCHEMA)


async def killed_backends(stage: Stage) -> Outcome:
    """Every session is ended by the server every 0.2 to 0.6 s. No error reaches a caller, nothing acknowledged is lost."""
    async with _under_load(stage) as (outcome, _, _):
        draw = random.Random(1)
        for _ in _until(stage.seconds):
            await asyncio.to_thread(stage.server.terminate_sessions, database_of(stage.dsn))
            outcome.faults += 1
            await asyncio.sleep(draw.uniform(0.2, 0.6))
    return outcome


async def restarts(stage: Stage) -> Outcome:
    """The server crashes (``immediate``) and starts again every few seconds. Callers wait, then go on."""
    async with _under_load(stage) as (outcome, load, _):
        draw = random.Random(2)
        slowest = 0.0
        for _ in _until(stage.seconds):
            await asyncio.to_thread(stage.server.restart, "immediate")
            ready_at = time.monotonic()
            outcome.faults += 1
            await load.answers()
            slowest = max(slowest, time.monotonic() - ready_at)
            await asyncio.sleep(draw.uniform(0.3, 0.6) * min(8.0, stage.seconds))
        outcome.figures["longest until the first answer after a restart, s"] = slowest
    return outcome


async def stalls(stage: Stage) -> Outcome:
    """The way to the server swallows everything for 10 s (a tenth of that in tests), again and again: connections open, no
    answer comes. Callers wait, then go on; no call takes longer than its deadline.
    """
    length = min(10.0, stage.seconds / 4)
    async with FaultProxy(stage.dsn) as proxy, _under_load(stage, proxy.dsn) as (outcome, load, _):
        for _ in _until(stage.seconds):
            proxy.stall()
            outcome.faults += 1
            await asyncio.sleep(length)
            proxy.resume()
            await load.answers(100)
    return outcome


async def cuts_in_statements(stage: Stage) -> Outcome:
    """The connection breaks right after a statement was sent, about five times a second."""
    return await _cut_again_and_again(stage, lambda proxy: proxy.cut_on_send())


async def cuts_after_commit(stage: Stage) -> Outcome:
    """The connection breaks when the server has committed and before its answer arrives, about five times a second."""
    return await _cut_again_and_again(stage, lambda proxy: proxy.cut_on_answer())


async def _cut_again_and_again(stage: Stage, arm: Callable[[FaultProxy], asyncio.Event]) -> Outcome:
    async with FaultProxy(stage.dsn) as proxy, _under_load(stage, proxy.dsn) as (outcome, _, _):
        for _ in _until(stage.seconds):
            await arm(proxy).wait()
            outcome.faults += 1
            await asyncio.sleep(0.2)
    return outcome


async def half_open_after_idle(stage: Stage) -> Outcome:
    """All connections go silent while nobody uses them, as behind a firewall that forgets them. The first call after it is
    served: a session that idled is asked first, and replaced when it does not answer.
    """
    outcome = Outcome()
    idle_seconds = min(0.2, stage.seconds)
    async with (
        FaultProxy(stage.dsn) as proxy,
        saver_on(
            proxy.dsn, SCHEMA, driver=stage.driver, check_after_idle_seconds=idle_seconds / 2, max_size=4
        ) as saver,
    ):
        for number in range(max(1, int(stage.seconds / 10))):
            await asyncio.gather(*(put(saver, config(f"t{each}"), checkpoint(number)) for each in range(8)))
            await asyncio.sleep(idle_seconds)
            for connection in proxy.connections:
                connection.silence()
            outcome.faults += 1
            asked_at = time.monotonic()
            try:
                await saver.aget_tuple(config("t0"))
                outcome.acknowledged += 1
            except PgcairnError as error:
                outcome.errors[str(error)] = outcome.errors.get(str(error), 0) + 1
            outcome.longest_wait_seconds = max(outcome.longest_wait_seconds, time.monotonic() - asked_at)
            proxy.cut()
        stats = saver.stats()
        outcome.retries, outcome.sessions_lost = stats.retries, stats.sessions_lost
    return outcome


async def frozen_server(stage: Stage) -> Outcome:
    """All processes of the server stand still for a while (5 s; less in tests) and go on: an overloaded host, a snapshot."""
    length = min(5.0, stage.seconds / 4)
    async with _under_load(stage) as (outcome, load, _):
        for _ in _until(stage.seconds):
            stage.server.freeze()
            outcome.faults += 1
            try:
                await asyncio.sleep(length)
            finally:
                stage.server.thaw()
            await load.answers(100)
    return outcome


async def cancels(stage: Stage) -> Outcome:
    """500 callers are cancelled at random moments. Every later call works, the pool is as it was, nothing warns."""
    draw = random.Random(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with _under_load(stage) as (outcome, load, saver):
            size = saver.stats().pool_size

            async def victim(number: int) -> None:
                where = config(f"victim-{number % 50}")
                with contextlib.suppress(asyncio.CancelledError):
                    await put(saver, where, checkpoint(number))
                    await saver.aget_tuple(where)
                    async for _ in saver.alist(where, limit=3):
                        pass
                    await saver.aprune([f"victim-{number % 50}"])

            for _ in range(10):
                victims = [asyncio.create_task(victim(outcome.faults + each)) for each in range(50)]
                for each in victims:
                    await asyncio.sleep(draw.uniform(0, 0.004))
                    each.cancel()
                    outcome.faults += 1
                await asyncio.gather(*victims)
            await load.answers(100)
            outcome.figures["sessions before"] = size
            outcome.figures["sessions after"] = saver.stats().pool_size
        gc.collect()
    outcome.figures["warnings"] = len(caught)
    outcome.problems += [str(each.message) for each in caught]
    return outcome


async def slow_database(stage: Stage) -> Outcome:
    """The database takes a fraction of what callers bring, and callers do not wait for each other, as with
    ``durability="async"``. Memory stays bounded; who finds no room waits, then gets ``BacklogFull`` with nothing written.
    """
    outcome = Outcome()
    bound = 8 * 1024 * 1024
    payload = "x" * 10_000
    size = 0
    async with (
        FaultProxy(stage.dsn) as proxy,
        saver_on(
            proxy.dsn,
            SCHEMA,
            driver=stage.driver,
            max_backlog_bytes=bound,
            max_batch_rows=20,
            backlog_timeout_seconds=min(5.0, stage.seconds / 4),
            close_timeout_seconds=300,
            retry_deadline_seconds=300,
        ) as saver,
    ):
        await put(saver, config("warm"), checkpoint(1))
        proxy.set_round_trip(0.25)
        gc.collect()
        before = resident_bytes()
        highest_backlog, highest_memory = 0, before
        refused = acknowledged = 0

        async def caller(number: int) -> None:
            nonlocal refused, acknowledged
            asked_at = time.monotonic()
            try:
                await put(
                    saver, config(f"slow-{number % 500}"), checkpoint(number, {"payload": [payload, number]})
                )
                acknowledged += 1
            except BacklogFull:
                refused += 1
            except PgcairnError as error:
                outcome.errors[str(error)] = outcome.errors.get(str(error), 0) + 1
            outcome.longest_wait_seconds = max(outcome.longest_wait_seconds, time.monotonic() - asked_at)

        callers: set[asyncio.Task[None]] = set()
        number = 1
        for _ in _until(stage.seconds):
            for _ in range(20):
                number += 1
                task = asyncio.create_task(caller(number))
                callers.add(task)
                task.add_done_callback(callers.discard)
            highest_backlog = max(highest_backlog, saver.stats().backlog_bytes)
            highest_memory = max(highest_memory, resident_bytes())
            await asyncio.sleep(0.02)
        proxy.set_round_trip(0)
        await asyncio.gather(*callers)
        outcome.faults = number
        outcome.acknowledged = acknowledged
        size = len(payload) + 200
        outcome.figures = {
            "calls": number,
            "BacklogFull": refused,
            "bound of the backlog, MB": bound / 1e6,
            "highest backlog, MB": highest_backlog / 1e6,
            "resident memory before, MB": before / 1e6,
            "highest resident memory, MB": highest_memory / 1e6,
        }
        if highest_backlog > bound + size:
            outcome.problems.append(f"the backlog reached {highest_backlog} bytes; its bound is {bound}")
        if saver.stats().backlog_bytes or saver.stats().backlog_rows:
            outcome.problems.append("the backlog is not empty in the end")
    return outcome


def resident_bytes() -> int:
    """Memory that this process has right now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("VmRSS is not known here.")


def _until(seconds: float) -> Any:
    """Again and again until the time is over, once at least."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        yield


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        killed_backends,
        restarts,
        stalls,
        cuts_in_statements,
        cuts_after_commit,
        half_open_after_idle,
        frozen_server,
        cancels,
        slow_database,
    )
}
