"""One run from beginning to end: database, service, Locust, faults, samples, and the look into the database.

Owns every process that it starts and ends all of them, whatever happens. Prints nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtest import faults, journal, results
from loadtest.database import Database, fresh_database
from loadtest.sampling import CpuMeter, Sampler, with_children
from loadtest.service import SAVERS
from loadtest.verify import Verdict, verify

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_LOCUST_LOG = "locust.log"
# How long a service gets to open its saver, and to flush and end. Generous guesses; a healthy one needs three seconds.
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_ANSWERS_SECONDS = 60.0


class LoadTestFailed(RuntimeError):
    """A part of the load test did not do its work, so there is no result."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        saver: A key of ``loadtest.service.SAVERS``.
        rps: Requests a second after the ramp.
        seconds: How long; what is reported is about these seconds.
        ramp_seconds: How long the rate grows before.
        processes: Service processes; requests go to them in turn, whatever their thread.
        faults: Whether sessions are killed and the server restarted meanwhile.
        arrivals: ``constant`` or ``poisson``.
        conversations: What is said; ``None`` for made up conversations.
    """

    saver: str = "pgcairn"
    rps: float = 200.0
    seconds: float = 60.0
    ramp_seconds: float = 10.0
    processes: int = 1
    faults: bool = False
    arrivals: str = "constant"
    seed: int = 1
    conversations: Path | None = None


async def run(database: Database, plan: Plan, html: Path | None = None) -> results.Run:
    """Carry out a plan on a database of its own.

    Args:
        html: Where Locust's report goes.

    Raises:
        LoadTestFailed: A process ended too early or would not end. Failed requests and missing turns are results.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgcairn-loadtest-")))
        dsn = ""
        if SAVERS[plan.saver].needs_server:
            dsn = stack.enter_context(fresh_database(database.dsn))
        async with AsyncExitStack() as services:
            # One after the other: the official saver's setup() is not made for two at a time.
            started = [
                await services.enter_async_context(_service(plan, dsn, folder / f"service-{number}.log"))
                for number in range(plan.processes)
            ]
            addresses = [address for address, _ in started]
            path = folder / "journal.jsonl"
            locust = await services.enter_async_context(
                _locust(plan, addresses, path, html, folder / _LOCUST_LOG)
            )
            meter = CpuMeter(
                {
                    "service": lambda: [process for _, process in started],
                    "postgresql": _PostgresProcesses(database),
                    "locust": lambda: [psutil.Process(locust.pid)] if locust.returncode is None else [],
                }
            )
            sampler = Sampler(addresses, meter)
            sampling = asyncio.ensure_future(sampler.run())
            try:
                done = await _load(plan, database, dsn, path, locust)
            finally:
                sampler.stop()
                await sampling
        # The services are closed now: what they acknowledged has to be in the database.
        found = journal.read(path)
        verdict = None
        if SAVERS[plan.saver].needs_server:
            verdict = await _verify(plan.saver, dsn, found)
        options = asdict(plan) | {"conversations": plan.conversations is not None}
        return results.make(options, found, sampler.samples, done, verdict, _said(folder))


async def _load(
    plan: Plan, database: Database, dsn: str, path: Path, locust: asyncio.subprocess.Process
) -> list[dict[str, Any]]:
    ending = asyncio.ensure_future(locust.wait())
    done: list[dict[str, Any]] = []
    try:
        while not _has_begun(path):
            if ending.done():
                raise LoadTestFailed(
                    f"Locust ended before it sent anything:\n{_tail(path.with_name(_LOCUST_LOG))}"
                )
            await asyncio.sleep(0.05)
        if plan.faults and dsn:
            await asyncio.sleep(plan.ramp_seconds)
            # The last seconds are without: what was interrupted then is answered within the measured time.
            done = await faults.disturb(database, dsn, max(0.0, plan.seconds - faults.KILL_EVERY_SECONDS))
        patience = plan.ramp_seconds + plan.seconds + 2 * _ANSWERS_SECONDS
        await asyncio.wait_for(asyncio.shield(ending), patience)
    except asyncio.TimeoutError:
        raise LoadTestFailed("Locust does not end.") from None
    finally:
        ending.cancel()
    if locust.returncode:
        raise LoadTestFailed(f"Locust ended with {locust.returncode}:\n{_tail(path.with_name(_LOCUST_LOG))}")
    return done


async def _verify(saver: str, dsn: str, found: journal.Journal) -> Verdict:
    async with SAVERS[saver].open(dsn) as opened:
        return await verify(opened, found.entries)


class _PostgresProcesses:
    """The server's processes; looked for again when it was restarted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._postmaster = database.postmaster()

    def __call__(self) -> list[psutil.Process]:
        if self._postmaster is not None and not self._postmaster.is_running():
            self._postmaster = self._database.postmaster() or self._postmaster
        return [] if self._postmaster is None else with_children(self._postmaster)


@asynccontextmanager
async def _service(plan: Plan, dsn: str, log: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    arguments = ["--saver", plan.saver, "--dsn", dsn]
    if plan.conversations is not None:
        arguments += ["--conversations", str(plan.conversations)]
    async with _process("-m", "loadtest.service", *arguments, log=log) as process:
        port = (await _line(process, "ready", log)).split()[1]
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
        if process.returncode is not None:
            raise LoadTestFailed(f"The service ended with {process.returncode}:\n{_tail(log)}")
        process.terminate()
        await _line(process, "closed", log)


@asynccontextmanager
async def _locust(
    plan: Plan, addresses: list[str], path: Path, html: Path | None, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [
        *("--locustfile", str(_LOCUSTFILE), "--headless", "--users", "1", "--only-summary"),
        *("--loglevel", "WARNING", "--exit-code-on-error", "0"),
        *("--load-services", ",".join(addresses), "--load-journal", str(path)),
        *("--load-rps", str(plan.rps), "--load-seconds", str(plan.seconds)),
        *("--load-ramp", str(plan.ramp_seconds), "--load-seed", str(plan.seed)),
        *("--load-arrivals", plan.arrivals, "--load-patience", str(_ANSWERS_SECONDS)),
    ]
    if html is not None:
        arguments += ["--html", str(html)]
    if plan.conversations is not None:
        arguments += ["--load-conversations", str(plan.conversations)]
    async with _process("-m", "locust", *arguments, log=log) as process:
        yield process


@asynccontextmanager
async def _process(*arguments: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=_LOCUSTFILE.parents[1],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdout is not None
    try:
        yield process
        # What is printed from now on is of no interest, but must not block the process.
        await asyncio.wait_for(asyncio.gather(process.wait(), process.stdout.read()), _STOP_SECONDS)
    except asyncio.TimeoutError:
        raise LoadTestFailed(f"{arguments[1]} does not end:\n{_tail(log)}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _line(process: asyncio.subprocess.Process, begins: str, log: Path) -> str:
    assert process.stdout is not None
    try:
        found = (await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)).decode()
    except asyncio.TimeoutError:
        found = ""
    if not found.startswith(begins):
        raise LoadTestFailed(f"The service did not say {begins!r} but {found!r}:\n{_tail(log)}")
    return found


def _has_begun(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _said(folder: Path) -> str:
    return "".join(each.read_text(errors="replace") for each in sorted(folder.glob("*.log")))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
