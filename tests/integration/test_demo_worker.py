"""A worker of the demo that fails after a step's result was stored and before its checkpoint was.

A kill lands there only sometimes. LangGraph's latest state then counts the result in and names no next step, so that
a worker that trusts ``next`` would begin a new turn and lose the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pgcairn import AsyncPostgresSaver
from pgcairn.cli.agent import build_agent
from pgcairn.cli.conversations import load_conversations
from pgcairn.cli.demo_worker import config_of, look, scripts, work
from pgcairn.cli.step_log import Resumed, read_log, verify

# The first conversation of the sample: its input steps, an answer, a tool call, its result, the answer to it.
_STEPS = range(-1, 9)


class Lost(Exception):
    """Stands for the kill: what comes next is not sent."""


def _events(text: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, text.splitlines()) if event.pop("event") == kind]


@pytest.mark.parametrize("step", _STEPS)
async def test_a_stored_result_is_taken_up(
    step: int,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGCAIRN_DSN", database)
    put, put_writes = AsyncPostgresSaver.aput, AsyncPostgresSaver.aput_writes
    stored: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def note_writes(self: Any, config: Any, *arguments: Any) -> None:
        await put_writes(self, config, *arguments)
        stored[config["configurable"]["checkpoint_id"]].set()

    async def put_or_lose(self: Any, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if metadata["step"] != step:
            return await put(self, config, checkpoint, metadata, versions)
        if metadata["source"] == "loop":
            await stored[config["configurable"]["checkpoint_id"]].wait()
        raise Lost

    def arguments(worker: int) -> argparse.Namespace:
        return argparse.Namespace(
            worker=worker, threads=1, conversations=None, log=tmp_path / "log", model_seconds=0.0
        )

    threads = scripts(load_conversations(), 1)
    [(thread, conversation)] = threads.items()
    async with AsyncPostgresSaver.from_conn_string(database) as saver:
        await saver.setup()
        monkeypatch.setattr(AsyncPostgresSaver, "aput_writes", note_writes)
        monkeypatch.setattr(AsyncPostgresSaver, "aput", put_or_lose)
        with pytest.raises(Lost):
            await work(arguments(1))
        monkeypatch.undo()
        monkeypatch.setenv("PGCAIRN_DSN", database)
        reported = {each["thread"]: each["turns"] for each in _events(capsys.readouterr().out, "turn")}

        await work(arguments(2))

        resumed = [Resumed(**each) for each in _events(capsys.readouterr().out, "resumed")]
        graph = build_agent(threads.__getitem__).compile(checkpointer=saver)
        final = (await graph.aget_state(config_of(thread))).values["messages"]
        assert not (await look(graph, thread, conversation)).next_node
    is_input = resumed[0].next_node == ""
    assert resumed[0].result_saved is not is_input
    verdict = verify(threads, {thread: final}, read_log(tmp_path / "log"), resumed, reported)
    assert (verdict.problems, verdict.rerun) == ((), 0)
