"""The service of the load test, in this process and on a real database, and the check of what it acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from loadtest.journal import Entry
from loadtest.service import SAVERS, make_app
from loadtest.verify import verify
from tests.support.server import run_sql


@asynccontextmanager
async def client_of(saver: str, dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    told: list[str] = []
    app = make_app(saver, dsn, told=told.append)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client
    assert told == ["ready", "closed"]


async def post(client: httpx.AsyncClient, path: str, token: str = "", **more: Any) -> dict[str, Any]:
    body = {"token": token, "text": "Hello"} if token else {}
    answer = await client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def entry(kind: str, thread: str, token: str, answer: dict[str, Any]) -> Entry:
    return Entry(kind, thread, answer["turn"], token, tuple(answer["ids"]), 0.0, 0.0, 0.1, 200, None)


async def delete_checkpoints_with(reader: Any, database: str, thread: str, message: str) -> None:
    """Make it look as if what came with a message had never been committed."""
    async for found in reader.alist({"configurable": {"thread_id": thread}}):
        if message in [str(each.id) for each in found.checkpoint["channel_values"].get("messages", [])]:
            run_sql(
                database,
                "DELETE FROM pgcairn.checkpoints WHERE checkpoint_id = %s",
                found.config["configurable"]["checkpoint_id"],
            )


@pytest.mark.parametrize("saver", ["pgcairn", "pgcairn-asyncpg", "official-pool"])
async def test_a_conversation_and_what_is_stored_of_it(saver: str, database: str) -> None:
    entries: list[Entry] = []
    async with client_of(saver, database) as client:
        assert await get(client, "/live") == {"live": True}
        assert await get(client, "/ready") == {"ready": True}
        for number in (1, 2):
            answer = await post(client, "/threads/a/turns", f"a.{number}.x")
            assert (answer["turn"], answer["token"]) == (number, f"a.{number}.x")
            entries.append(entry("turn", "a", f"a.{number}.x", answer))
        state = await get(client, "/threads/a/state")
        assert set(entries[0].ids + entries[1].ids) <= {each["id"] for each in state["messages"]}
        assert state["next"] == []
        assert state["messages"][-1]["content"] == answer["answer"]

        found = await get(client, "/threads/a/history?limit=3")
        assert len(found["checkpoints"]) == 3
        assert found["checkpoints"][0]["messages"] == len(state["messages"])

        asked = await post(client, "/threads/b/interrupt-turn", "b.1.x")
        assert asked["ids"] == ["b.1.x"]
        assert len(asked["questions"]) == 1
        entries.append(entry("interrupt", "b", "b.1.x", asked))
        assert (await get(client, "/threads/b/state"))["next"] == ["tools"]
        resumed = await post(client, "/threads/b/resume", allowed=True)
        assert resumed["ids"] == ["b.1.x", "b.1.x-answer"]
        entries.append(entry("resume", "b", "", resumed))
        assert [each["type"] for each in (await get(client, "/threads/b/state"))["messages"]] == [
            *("human", "ai", "tool", "ai")
        ]

        forked = await post(client, "/threads/a/fork", "a.3.x")
        assert forked["turn"] == 2, "the second turn is on the other branch"
        entries.append(entry("fork", "a", "a.3.x", forked))
        ids = {each["id"] for each in (await get(client, "/threads/a/state"))["messages"]}
        assert {"a.1.x", "a.3.x"} <= ids
        assert "a.2.x" not in ids

        stats = await get(client, "/stats")
        assert stats["saver"] == saver
        assert stats["stats"]["pool_size"] >= 1
    async with SAVERS[saver].open(database) as reader:
        verdict = await verify(reader, entries)
        assert (verdict.turns, verdict.threads, verdict.missing) == (4, 2, ())


async def test_refusals_say_what_is_wrong(database: str) -> None:
    async with client_of("pgcairn", database) as client:
        assert (await client.post("/threads/a/turns", json={"text": "x"})).status_code == 400
        assert (await client.post("/threads/a/turns", content=b"{")).status_code == 400
        assert (await client.get("/threads/a/history?limit=x")).status_code == 400
        assert (await client.post("/threads/a/fork", json={"token": "a.1.x", "text": "x"})).status_code == 409
        await post(client, "/threads/a/turns", "a.1.x")
        answer = await client.post("/threads/%00/turns", json={"token": "a.1.x", "text": "x"})
        assert answer.status_code == 400
        assert answer.json()["error"] == "InvalidInput"


async def test_a_refused_consent_is_told_to_the_model(database: str) -> None:
    async with client_of("pgcairn", database) as client:
        await post(client, "/threads/a/interrupt-turn", "a.1.x")
        await post(client, "/threads/a/resume", allowed=False)
        messages = (await get(client, "/threads/a/state"))["messages"]
        assert messages[2]["content"] == "The user refused."


async def test_a_turn_that_was_lost_is_noticed(database: str) -> None:
    async with client_of("pgcairn", database) as client:
        entries = []
        for thread in ("a", "b"):
            for number in (1, 2):
                token = f"{thread}.{number}.x"
                answer = await post(client, f"/threads/{thread}/turns", token)
                entries.append(entry("turn", thread, token, answer))
    async with SAVERS["pgcairn"].open(database) as reader:
        assert (await verify(reader, entries)).turns_missing == 0
        await reader.adelete_thread("a")
        assert (await verify(reader, entries)).turns_missing == 2
        await delete_checkpoints_with(reader, database, "b", "b.2.x")
    async with SAVERS["pgcairn"].open(database) as reader:
        verdict = await verify(reader, entries)
        assert verdict.turns_missing == 3
        assert any("b.2.x is missing in the latest state of b" in line for line in verdict.missing)


async def test_a_turn_that_was_lost_behind_a_fork_is_noticed(database: str) -> None:
    async with client_of("pgcairn", database) as client:
        entries = []
        for kind, path, number in (("turn", "turns", 1), ("turn", "turns", 2), ("fork", "fork", 3)):
            answer = await post(client, f"/threads/a/{path}", f"a.{number}.x")
            entries.append(entry(kind, "a", f"a.{number}.x", answer))
    async with SAVERS["pgcairn"].open(database) as reader:
        assert (await verify(reader, entries)).missing == ()
        await delete_checkpoints_with(reader, database, "a", "a.2.x")
        verdict = await verify(reader, entries)
    assert verdict.turns_missing == 1
    assert all("missing in the history of a" in line for line in verdict.missing)


async def test_the_limit_that_stores_nothing_works_too() -> None:
    async with client_of("memory", "") as client:
        await post(client, "/threads/a/turns", "a.1.x")
        assert (await get(client, "/threads/a/state"))["messages"][0]["id"] == "a.1.x"
