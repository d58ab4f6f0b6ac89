"""How many histories of a DeltaChannel a second can be read after 500 turns, and how many states rebuilt from them?

``aget_delta_channel_history`` and LangGraph's ``aget_state`` on a chat whose messages are a ``DeltaChannel`` with the
default snapshot frequency of 100: a turn is two updates in three checkpoints, so a snapshot comes every 50 turns. Most of
what is left of a read is LangGraph's serializer, the same for both sides: a snapshot holds a thousand messages.
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from bench import peers
from bench.harness import Lab, Load, Meter
from bench.loads import text
from bench.peers import Saver

_PEERS = (peers.PGCAIRN, peers.OFFICIAL)
_TURNS = 500
_THREAD: Any = {"configurable": {"thread_id": "chat"}}
# Half of the snapshot's interval after the last one: what a read meets on the average.
_MORE_TURNS = 25


def _appended(state: list[AnyMessage], writes: Sequence[Any]) -> list[AnyMessage]:
    found: Any = add_messages(state, [message for write in writes for message in write])  # type: ignore[arg-type]
    return list(found)


class _Chat(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_appended)]


def _graph(saver: Saver) -> Any:
    numbers = itertools.count()

    async def agent(_: _Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(text(400, next(numbers)))]}

    builder = StateGraph(_Chat)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    return builder.compile(checkpointer=saver)


async def _prepare(saver: Saver) -> None:
    graph = _graph(saver)
    for turn in range(_TURNS + _MORE_TURNS):
        await graph.ainvoke({"messages": [HumanMessage(text(300, turn))]}, _THREAD)


def _repeated(callers: int, read_with: Callable[[Saver], Callable[[], Awaitable[object]]]) -> Load:
    async def load(saver: Saver, meter: Meter) -> None:
        read = read_with(saver)

        async def caller() -> None:
            while not meter.stopped:
                await read()
                meter.operations += 1

        await asyncio.gather(*(caller() for _ in range(callers)))

    return load


def _histories(saver: Saver) -> Callable[[], Awaitable[object]]:
    async def read() -> None:
        latest = await saver.aget_delta_channel_history(config=_THREAD, channels=["messages"])
        assert 40 < len(latest["messages"]["writes"]) < 60
        assert "seed" in latest["messages"]

    return read


def _states(saver: Saver) -> Callable[[], Awaitable[object]]:
    graph = _graph(saver)

    async def read() -> None:
        state = await graph.aget_state(_THREAD)
        assert len(state.values["messages"]) == 2 * (_TURNS + _MORE_TURNS)

    return read


async def run(lab: Lab) -> None:
    """Measure."""
    warnings.filterwarnings("ignore", message=".*DeltaChannel")
    for what, read_with, callers in (
        ("histories", _histories, 1),
        ("histories", _histories, 16),
        ("states", _states, 1),
    ):
        load = _repeated(callers, read_with)
        title = f"{what}, {callers} concurrent callers" if callers > 1 else f"{what}, 1 caller"
        found = await lab.compare(title, [(peer, load) for peer in _PEERS], prepare=_prepare)
        lab.rates(title, found, _PEERS, "reads", peers.OFFICIAL)
        lab.judge_rate(title, found, peers.PGCAIRN, peers.OFFICIAL, 1.0, "reads")
