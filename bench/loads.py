"""The work that savers are given. The same objects for all of them, made beforehand, so that the loads themselves cost
little and cost everybody the same.

``supersteps`` is what one step of a graph asks of a saver, without the graph: one ``aput`` with a list of
messages that has grown by one, then one ``aput_writes``. ``chat_turns`` is a whole graph.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from bench.harness import Load, Meter
from bench.peers import Saver

FIRST_MESSAGES = 8
STEPS_OF_A_THREAD = 8  # then a new thread begins, so that states keep their size: 9 to 16 messages
MESSAGE_CHARACTERS = 500

# InMemorySaver never waits, and other tasks must run for the window to end. Every load yields now and then.
_YIELD_EVERY = 16

# Words of conversations that such graphs hold. zstd makes lists of such messages about three times smaller, as it does with
# real chats of that size (bench/compression_levels.py).
_PROSE = """
the a to your you I is of and for in on with that have this can please would like flight reservation from order be
are my it not will ticket date change number cancel we passenger city payment card name any account baggage time
cabin economy business refund policy help confirm details available return date one-way round trip user travel
insurance certificate total amount add bag membership gold silver regular member request however unfortunately
because since already original method process within hours days department agent transfer human assist further
thank sorry understand inconvenience provide information proceed option cost difference price direct connecting
stop arrival departure airport seat upgrade address email phone order item exchange size color status shipped
delivered tracking warranty invoice update search result tool error retry summary next step question answer
"""
_WORDS = _PROSE.split()


def _phrases(count: int) -> list[str]:
    draw = random.Random(0)
    weights = [1 / rank for rank in range(2, len(_WORDS) + 2)]
    return [" ".join(draw.choices(_WORDS, weights, k=draw.randint(1, 4))) for _ in range(count)]


_PHRASES = _phrases(300)
_PHRASE_WEIGHTS = [1 / rank for rank in range(2, len(_PHRASES) + 2)]


def text(characters: int, seed: int) -> str:
    """Prose-like text: phrases drawn by rank, so that the first ones are frequent, and numbers. Fixed by its seed."""
    draw = random.Random(seed)
    phrases = draw.choices(_PHRASES, _PHRASE_WEIGHTS, k=characters // 2)
    numbered = [
        f"{phrase} {draw.randrange(10_000)}" if draw.random() < 0.08 else phrase for phrase in phrases
    ]
    return " ".join(numbered)[:characters]


def messages(count: int, *, as_objects: bool, characters: int = MESSAGE_CHARACTERS) -> list[Any]:
    """Messages of some length: dicts, or LangChain's ``HumanMessage``."""
    made: list[Any] = []
    for number in range(count):
        identity = str(uuid.UUID(int=random.Random(number).getrandbits(128), version=4))
        content = text(characters, number)
        if as_objects:
            made.append(HumanMessage(content, id=identity))
        else:
            made.append({"role": "user", "id": identity, "content": content})
    return made


def supersteps(callers: int, *, as_objects: bool = False) -> Load:
    """A load of concurrent threads, each doing superstep after superstep. Counts supersteps."""
    all_messages = messages(FIRST_MESSAGES + STEPS_OF_A_THREAD, as_objects=as_objects)
    # Ids are made once: they need to be new within their thread only.
    steps = [
        (
            f"1f0{number:05x}-aaaa-6bbb-8ccc-ddddeeeeffff",
            str(uuid.UUID(int=number << 64 | 0x8000 << 48, version=5)),
            all_messages[: FIRST_MESSAGES + number + 1],
        )
        for number in range(STEPS_OF_A_THREAD)
    ]

    async def caller(saver: Saver, meter: Meter) -> None:
        while not meter.stopped:
            thread_id = str(uuid.uuid4())
            version = None
            parent_id = None
            for number, (checkpoint_id, task_id, state) in enumerate(steps):
                if meter.stopped:
                    return
                version = saver.get_next_version(version, None)
                checkpoint = {
                    "v": 4,
                    "id": checkpoint_id,
                    "ts": "2026-01-01T00:00:00.000000+00:00",
                    "channel_values": {"messages": state, "step": number},
                    "channel_versions": {"messages": version, "step": version, "__start__": version},
                    "versions_seen": {"__input__": {}, "agent": {"messages": version}},
                    "updated_channels": ["messages"],
                }
                config = await saver.aput(
                    {
                        "configurable": {
                            "thread_id": thread_id,
                            "checkpoint_ns": "",
                            "checkpoint_id": parent_id,
                        }
                    },
                    checkpoint,  # type: ignore[arg-type]
                    {"source": "loop", "step": number, "parents": {}, "run_id": thread_id},
                    {"messages": version, "step": version},
                )
                meter.operations += 0.5
                await saver.aput_writes(config, [("messages", state[-1])], task_id, "~__pregel_pull, agent")
                meter.operations += 0.5
                parent_id = checkpoint_id
            await asyncio.sleep(0)

    async def load(saver: Saver, meter: Meter) -> None:
        await asyncio.gather(*(caller(saver, meter) for _ in range(callers)))

    return load


class _Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


TURNS_OF_A_THREAD = 8


def chat_graph(saver: Saver, meter: Meter, say: Callable[[], str] | None = None) -> Any:
    """Two nodes that answer at once: what is left is LangGraph and the saver. A node counts as a third of a turn.

    Args:
        say: Gives each answer; without it a node always gives the same one.
    """
    long, short = text(400, 1), text(100, 2)

    async def agent(_: _Chat) -> dict[str, Any]:
        meter.operations += 1 / 3
        return {"messages": [AIMessage(say() if say else long)]}

    async def reviewer(_: _Chat) -> dict[str, Any]:
        meter.operations += 1 / 3
        return {"messages": [AIMessage(say() if say else short)]}

    builder = StateGraph(_Chat)
    builder.add_node("agent", agent)
    builder.add_node("reviewer", reviewer)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "reviewer")
    builder.add_edge("reviewer", END)
    return builder.compile(checkpointer=saver)


def chat_turns(callers: int) -> Load:
    """A load of concurrent chats, each turn after turn. Counts turns: one ``ainvoke`` of ``chat_graph``."""
    question = text(300, 3)

    async def load(saver: Saver, meter: Meter) -> None:
        graph = chat_graph(saver, meter)

        async def caller() -> None:
            while not meter.stopped:
                config = {"configurable": {"thread_id": str(uuid.uuid4())}}
                for _ in range(TURNS_OF_A_THREAD):
                    if meter.stopped:
                        return
                    await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
                    meter.operations += 1 / 3

        await asyncio.gather(*(caller() for _ in range(callers)))

    return load


def latest_reads(callers: int, *, threads: int) -> Load:
    """A load of concurrent ``aget_tuple`` of the latest state. Counts reads. ``written`` comes before."""

    async def load(saver: Saver, meter: Meter) -> None:
        turn = itertools.count()

        async def caller() -> None:
            while not meter.stopped:
                number = next(turn)
                found = await saver.aget_tuple({"configurable": {"thread_id": f"thread-{number % threads}"}})
                assert found is not None
                meter.operations += 1
                if number % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

        await asyncio.gather(*(caller() for _ in range(callers)))

    return load


def written(*, threads: int, checkpoints: int, message_count: int = 10) -> Callable[[Saver], Awaitable[None]]:
    """What prepares ``latest_reads``: threads whose states hold ``message_count`` messages."""
    states = [messages(message_count, as_objects=False)] * checkpoints

    async def prepare(saver: Saver) -> None:
        await asyncio.gather(*(write_thread(saver, f"thread-{number}", states) for number in range(threads)))

    return prepare


class ThreadWriter:
    """Writes one thread's checkpoints, one after another, without a graph.

    Attributes:
        thread_id: The thread.
        config: Of the latest checkpoint.
        count: How many checkpoints it has.
    """

    def __init__(self, saver: Saver, thread_id: str) -> None:
        self._saver = saver
        self._version: Any = None
        self.thread_id = thread_id
        self.count = 0
        self.config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    async def put(self, state: Any) -> None:
        """Write the next checkpoint, with ``state`` as the value of the channel ``messages``."""
        saver, number = self._saver, self.count
        version = self._version = saver.get_next_version(self._version, None)
        self.config = await saver.aput(
            self.config,
            {
                "v": 4,
                "id": f"1f0{number:05x}-aaaa-6bbb-8ccc-ddddeeeeffff",
                "ts": "2026-01-01T00:00:00.000000+00:00",
                "channel_values": {"messages": state, "step": number},
                "channel_versions": {"messages": version, "step": version},
                "versions_seen": {"agent": {"messages": version}},
                "updated_channels": ["messages"],
            },
            {"source": "loop", "step": number, "parents": {}},
            {"messages": version, "step": version},
        )
        self.count += 1

    async def put_writes(self, update: Any) -> None:
        """Write what a task of the latest checkpoint wrote to the channel."""
        task_id = str(uuid.UUID(int=self.count << 64 | 0x8000 << 48, version=5))
        await self._saver.aput_writes(self.config, [("messages", update)], task_id, "~__pregel_pull, agent")


async def write_thread(
    saver: Saver, thread_id: str, states: Iterable[Any], updates: Iterable[Any] | None = None
) -> None:
    """Write a whole thread.

    Args:
        states: The value of the channel ``messages`` at each checkpoint.
        updates: What was written to the channel to get there, kept as each checkpoint's pending write; none if missing.
    """
    writer = ThreadWriter(saver, thread_id)
    writes = iter(()) if updates is None else iter(updates)
    for number, state in enumerate(states):
        update = next(writes, None)
        if number and update is not None:
            await writer.put_writes(update)
        await writer.put(state)
