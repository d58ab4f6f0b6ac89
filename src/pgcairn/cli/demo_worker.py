"""A worker of the demo: ``python -m pgcairn.cli.demo_worker``, started by ``pgcairn demo``.

Reads the snapshot of each thread, says what it found, and plays on from there, all threads at once. It says
each of these things as one line of JSON on its standard output. The environment variable PGCAIRN_DSN names
the database, so that a password does not show in the list of processes.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from langsmith import tracing_context

from pgcairn.cli.agent import State, build_agent, turn_input
from pgcairn.cli.conversations import Conversation, load_conversations
from pgcairn.cli.event_loop import run_loop
from pgcairn.cli.step_log import Resumed, StepLog
from pgcairn.errors import PgcairnError
from pgcairn.saver import AsyncPostgresSaver

AgentGraph = CompiledStateGraph[State, None, State, State]


def scripts(conversations: Sequence[Conversation], threads: int) -> dict[str, Conversation]:
    """Which conversation each of so many threads replays."""
    return {f"thread-{n:03d}": conversations[n % len(conversations)] for n in range(threads)}


def application_name(worker: int) -> str:
    """The name of a worker's sessions."""
    return f"pgcairn demo worker {worker}"


def config_of(thread: str) -> RunnableConfig:
    """The config that names a thread."""
    return {"configurable": {"thread_id": thread}}


async def look(graph: AgentGraph, thread: str, conversation: Conversation) -> Resumed:
    """Read a thread's snapshot: where it is, and what comes next."""
    snapshot = await graph.aget_state(config_of(thread))
    # The latest state counts in results that are stored and have no checkpoint yet, and then names no next
    # step; asked for by its id, a checkpoint shows itself as it is.
    result_saved = bool(snapshot.tasks) and not snapshot.next
    if result_saved:
        snapshot = await graph.aget_state(snapshot.config)
    return describe(thread, conversation, snapshot, result_saved=result_saved)


def describe(
    thread: str, conversation: Conversation, snapshot: StateSnapshot, *, result_saved: bool = False
) -> Resumed:
    """What a snapshot says about where a thread is."""
    messages: list[AnyMessage] = snapshot.values.get("messages", [])
    # In mid-turn, what was said last belongs to the turn that is not done yet; its input may not be there yet.
    in_turn = bool(snapshot.next) and snapshot.next != ("__start__",)
    metadata: Any = snapshot.metadata or {}
    return Resumed(
        thread=thread,
        checkpoint_id=str(snapshot.config["configurable"].get("checkpoint_id") or ""),
        age_seconds=_age_seconds(snapshot),
        step=int(metadata.get("step", -2)),
        node=_last_node(snapshot, messages),
        next_node=snapshot.next[0] if snapshot.next else "",
        result_saved=result_saved,
        turns_done=conversation.turn_at(len(messages) - int(in_turn)),
    )


def _age_seconds(snapshot: StateSnapshot) -> float:
    if snapshot.created_at is None:
        return 0.0
    made = datetime.fromisoformat(snapshot.created_at)
    return (datetime.now(timezone.utc) - made).total_seconds()


def _last_node(snapshot: StateSnapshot, messages: Sequence[AnyMessage]) -> str:
    if snapshot.metadata is None:
        return "none"
    if snapshot.next == ("__start__",):
        return "input stored"
    if snapshot.next and isinstance(messages[-1], HumanMessage):
        return "input taken in"
    return "tools" if not isinstance(messages[-1], AIMessage) and snapshot.next else "agent"


def _say(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def work(arguments: argparse.Namespace) -> None:
    """Play all threads to their end, from wherever they are."""
    threads = scripts(load_conversations(arguments.conversations), arguments.threads)
    log = StepLog(arguments.log, arguments.worker)

    class AcknowledgingSaver(AsyncPostgresSaver):
        """The saver, and a line in the step log for each checkpoint it acknowledged."""

        async def aput(
            self,
            config: RunnableConfig,
            checkpoint: Checkpoint,
            metadata: CheckpointMetadata,
            new_versions: ChannelVersions,
        ) -> RunnableConfig:
            stored = await super().aput(config, checkpoint, metadata, new_versions)
            log.acknowledged(config["configurable"]["thread_id"], metadata["step"])
            return stored

    async with AcknowledgingSaver.from_conn_string(
        os.environ["PGCAIRN_DSN"], application_name=application_name(arguments.worker)
    ) as saver:
        graph = build_agent(
            threads.__getitem__, model_seconds=arguments.model_seconds, started=log.started
        ).compile(checkpointer=saver)

        found = await asyncio.gather(*(look(graph, thread, threads[thread]) for thread in threads))
        for each in found:
            _say("resumed", **dataclasses.asdict(each))
        _say("go")

        async def play(where: Resumed) -> None:
            config, conversation = config_of(where.thread), threads[where.thread]
            turn = where.turns_done
            # ``None`` goes on with a turn that was begun; messages begin one.
            given: State | None = None if where.next_node else _begin(conversation, turn)
            while turn < len(conversation.turns):
                # "sync": a step begins when the checkpoint of the one before was acknowledged.
                await graph.ainvoke(given, config, durability="sync")
                turn += 1
                _say("turn", thread=where.thread, turns=turn)
                given = _begin(conversation, turn)

        await asyncio.gather(*map(play, found))
    log.close()
    _say("end")


def _begin(conversation: Conversation, turn: int) -> State | None:
    return turn_input(conversation, turn) if turn < len(conversation.turns) else None


def main() -> int:
    """Run a worker."""
    parser = argparse.ArgumentParser(prog="pgcairn-demo-worker")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--conversations", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--model-seconds", type=float, default=0.0)
    try:
        with tracing_context(enabled=False):
            run_loop(work(parser.parse_args()))
    except PgcairnError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
