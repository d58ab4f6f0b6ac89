"""The application of docs/web-apps.md, as it stands there, under uvicorn: served, probed, and ended by SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.support.proxy import FaultProxy
from tests.support.savers import config, get, saver_on

_GRAPH = """
import operator
from typing import Annotated

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def build_graph():
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"items": [f"seen {len(state['items'])}"]})
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder


"""


def application(folder: Path, **replaced: str) -> None:
    """Write the application of the page, with its graph, to ``app.py``."""
    page = Path(__file__).parents[2].joinpath("docs", "web-apps.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert match is not None
    text = match[1]
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    folder.joinpath("app.py").write_text(_GRAPH + text, encoding="utf-8")


class Application:
    """The application in a process of its own, and what it writes to stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self._more = asyncio.Event()

    async def read(self) -> None:
        """Read its log to the end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode())
            self._more.set()
        self.log.append("(the end)")
        self._more.set()

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until a line of the log matches."""
        while True:
            self._more.clear()
            for line in self.log:
                if (found := re.search(pattern, line)) is not None:
                    return found
            assert self.log[-1:] != ["(the end)"], "".join(self.log)
            await self._more.wait()

    async def client(self) -> httpx.AsyncClient:
        """A client, once it listens."""
        found = await self.says(r"running on (http://127\.0\.0\.1:\d+)")
        return httpx.AsyncClient(base_url=found[1], timeout=60)

    async def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def running(folder: Path, dsn: str) -> AsyncIterator[Application]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--app-dir", str(folder)),
        env={**os.environ, "DATABASE_URL": dsn},
        stderr=asyncio.subprocess.PIPE,
    )
    app = Application(process)
    reading = asyncio.create_task(app.read())
    try:
        yield app
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def test_every_answered_turn_is_there_after_sigterm(proxy: FaultProxy, tmp_path: Path) -> None:
    application(tmp_path)
    answered: dict[str, list[str]] = {}
    async with running(tmp_path, proxy.dsn) as app, await app.client() as client:
        assert (await client.get("/ready")).json() == {"state": "ready", "detail": ""}
        assert (await client.get("/live")).status_code == 200

        async def turn(thread_id: str) -> None:
            with contextlib.suppress(httpx.TransportError):  # it came too late to be accepted
                response = await client.post(f"/threads/{thread_id}/turns", json={"items": ["a"]})
                if response.status_code == 200:
                    answered[thread_id] = response.json()["items"]

        await turn("first")
        held = proxy.hold(matching=b"late")
        turns = [asyncio.create_task(turn(f"late{number}")) for number in range(20)]
        await held.reached.wait()  # it is being saved
        app.process.send_signal(signal.SIGTERM)
        held.release()
        await asyncio.wait(turns)
        assert await app.process.wait() in (0, -signal.SIGTERM)
    assert len(answered) > 1, "what was being saved was answered"
    async with saver_on(proxy.dsn, "pgcairn") as saver:
        for thread_id, items in answered.items():
            found = await get(saver, config(thread_id))
            assert found.checkpoint["channel_values"]["items"] == items == ["a", "seen 1"]


async def test_the_database_is_away_at_sigterm(proxy: FaultProxy, tmp_path: Path) -> None:
    application(tmp_path, **{"close_timeout_seconds=20": "close_timeout_seconds=0.5"})
    async with running(tmp_path, proxy.dsn) as app, await app.client() as client:
        assert (await client.get("/ready")).status_code == 200
        proxy.refuse()
        proxy.cut()
        # A background run that nobody waits for would be given up; a request is, by its own retry deadline.
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["state"]) == (503, "database_away")
        assert await app.end() in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in "".join(app.log)


async def test_a_database_that_starts_later(proxy: FaultProxy, tmp_path: Path) -> None:
    application(tmp_path)
    proxy.refuse()

    async with running(tmp_path, proxy.dsn) as app:
        await app.says("database call failed, is repeated")
        await proxy.listen()
        async with await app.client() as client:
            assert (await client.get("/ready")).status_code == 200
        assert await app.end() in (0, -signal.SIGTERM)
