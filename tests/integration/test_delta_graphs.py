"""Real graphs with DeltaChannels: at every checkpoint the state is that of LangGraph's saver in memory."""

# Annotations are evaluated here, because those of states name channels that are local to a function.

import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Durability, Overwrite, Send, StateSnapshot, interrupt
from typing_extensions import TypedDict

from pgcairn import AsyncPostgresSaver, PostgresSaver
from tests.support.savers import LARGE_TEXT, saver_on

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*beta")

Saver = BaseCheckpointSaver[Any]
Trace = list[Any]

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
FREQUENCIES = (1, 3, 100)


def on(thread_id: str = "thread", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}


def joined(state: list[str], writes: Sequence[Any]) -> list[str]:
    """A reducer for which the order of writes matters."""
    found = list(state)
    for write in writes:
        found += write if isinstance(write, list) else [write]
    return found


def merged(state: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = dict(state)
    for write in writes:
        found.update(write)
    return found


def with_messages(state: list[AnyMessage], writes: Sequence[Any]) -> list[AnyMessage]:
    found: Any = state
    for write in writes:
        found = add_messages(found, write)
    return list(found)


class Plain(TypedDict):
    items: Annotated[list[str], operator.add]
    files: Annotated[dict[str, str], operator.or_]
    big: str


def states(frequency: int) -> tuple[Any, Any]:
    """Two forms of one state: its channels as ``DeltaChannel`` and as plain reducers."""

    item_channel: Any = DeltaChannel(joined, snapshot_frequency=frequency)
    file_channel: Any = DeltaChannel(merged, snapshot_frequency=frequency * 2)

    class Delta(TypedDict):
        items: Annotated[list[str], item_channel]
        files: Annotated[dict[str, str], file_channel]
        big: str

    return Delta, Plain


def shape(state: StateSnapshot) -> dict[str, Any]:
    return {
        "values": state.values,
        "next": state.next,
        "step": (state.metadata or {}).get("step"),
        "counters": (state.metadata or {}).get("counters_since_delta_snapshot"),
        "tasks": [(task.name, [each.value for each in task.interrupts]) for task in state.tasks],
    }


async def everything(graph: Any, config: Any) -> Trace:
    """The states of all checkpoints, listed and read one by one."""
    listed = [state async for state in graph.aget_state_history(config)]
    read = [await graph.aget_state(state.config) for state in listed]
    assert [shape(state) for state in listed] == [shape(state) for state in read]
    return [shape(state) for state in read]


# --- graphs -------------------------------------------------------------------------------------------


def workshop(saver: Saver, state: Any) -> Any:
    """Parallel writers to one channel, one of which asks; a node that leaves the channels alone."""

    def spread(found: Any) -> list[Send]:
        return [Send("work", number) for number in (3, 1, 2, 0)]

    def work(number: int) -> dict[str, Any]:
        return {"items": [f"work {number}"], "files": {f"file {number % 2}": f"{number} {LARGE_TEXT}"}}

    def idle(found: Any) -> dict[str, Any]:
        return {"big": f"{len(found['items'])} {LARGE_TEXT}"}

    def ask(found: Any) -> dict[str, Any]:
        return {"items": [f"heard {interrupt(len(found['items']))}"]}

    def beside(found: Any) -> dict[str, Any]:
        return {"items": [f"beside {len(found['items'])}"]}

    builder: Any = StateGraph(state)
    for node in (work, idle, ask, beside):
        builder.add_node(node.__name__, node)
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", "idle")
    builder.add_edge("idle", "ask")
    builder.add_edge("idle", "beside")
    return builder.compile(checkpointer=saver)


async def turns(graph: Any, config: Any, count: int, durability: Durability, first: int = 0) -> Trace:
    trace: Trace = []
    for turn in range(first, first + count):
        steps: list[Any] = [{"items": [f"turn {turn}"]}, Command(resume=f"answer {turn}")]
        for step in steps:
            result = await graph.ainvoke(step, config, durability=durability)
            result.pop("__interrupt__", None)
            trace.append(result)
    return trace


async def run_turns(saver: Saver, frequency: int, durability: Durability) -> Trace:
    graph = workshop(saver, states(frequency)[0])
    return [await turns(graph, on(), 4, durability), await everything(graph, on())]


async def run_migration(saver: Saver, frequency: int, durability: Durability) -> Trace:
    """A thread of plain reducers goes on with DeltaChannels."""
    delta, plain = states(frequency)
    before = workshop(saver, plain)
    trace = await turns(before, on(), 2, durability)
    await before.ainvoke({"items": ["asked by the old graph"]}, on(), durability=durability)
    after = workshop(saver, delta)
    trace.append(shape(await after.aget_state(on())))
    result = await after.ainvoke(Command(resume="answered by the new one"), on(), durability=durability)
    trace.append(result)
    trace += await turns(after, on(), 3, durability, first=2)
    return [trace, await everything(after, on())]


async def run_migration_back(saver: Saver, frequency: int, durability: Durability) -> Trace:
    """And back again: LangGraph then replays writes into the plain reducer."""
    delta, plain = states(frequency)
    trace = await turns(workshop(saver, delta), on(), 2, durability)
    after = workshop(saver, plain)
    trace.append(shape(await after.aget_state(on())))
    return [trace, await turns(after, on(), 2, durability, first=2), await everything(after, on())]


async def run_updates(saver: Saver, frequency: int, durability: Durability) -> Trace:
    """``update_state`` on a new thread, in between, in bulk, with ``Overwrite``; and a copy."""
    graph = workshop(saver, states(frequency)[0])
    trace: Trace = []
    await graph.aupdate_state(on(), {"items": ["before all"]}, as_node="beside")
    trace += await turns(graph, on(), 2, durability)
    for number in range(4):
        await graph.aupdate_state(on(), {"items": [f"by hand {number}"]}, as_node="beside")
        trace.append(shape(await graph.aget_state(on())))
    await graph.ainvoke({"items": ["turn"]}, on(), durability=durability)
    await graph.aupdate_state(on(), {"items": ["while it asks"]}, as_node="ask")
    trace.append(shape(await graph.aget_state(on())))
    await graph.aupdate_state(on(), {"items": Overwrite(["new"])}, as_node="beside")
    trace += await turns(graph, on(), 1, durability, first=5)
    await graph.aupdate_state(on(), None, as_node="__copy__")
    trace.append(shape(await graph.aget_state(on())))
    trace += await turns(graph, on(), 1, durability, first=6)
    await graph.aupdate_state(on(), None, as_node="__end__")
    trace += await turns(graph, on(), 1, durability, first=7)
    return [trace, await everything(graph, on())]


async def run_time_travel(saver: Saver, frequency: int, durability: Durability) -> Trace:
    """Every checkpoint of a thread is started from again, in three ways; the branches stay apart."""
    graph = workshop(saver, states(frequency)[0])
    trace = await turns(graph, on(), 2, durability)
    found = [state async for state in graph.aget_state_history(on())]
    # With "exit", a thread begins with a checkpoint that only holds writes: nothing can start from there.
    states_before = [state for state in found if (state.metadata or {})["step"] > -2]
    for number, state in enumerate(reversed(states_before)):
        result = await graph.ainvoke(None, state.config, durability=durability)
        result.pop("__interrupt__", None)
        trace.append(result)
        fork = await graph.aupdate_state(state.config, {"items": [f"fork {number}"]}, as_node="beside")
        trace.append(shape(await graph.aget_state(fork)))
        result = await graph.ainvoke({"items": [f"branch {number}"]}, fork, durability=durability)
        result.pop("__interrupt__", None)
        trace.append(result)
        if state.next == ("ask", "beside"):
            trace.append(
                await graph.ainvoke(Command(resume=f"again {number}"), state.config, durability=durability)
            )
    trace += [shape(await graph.aget_state(state.config)) for state in states_before]
    return [trace, await everything(graph, on())]


async def run_chat(saver: Saver, frequency: int, durability: Durability) -> Trace:
    message_channel: Any = DeltaChannel(with_messages, snapshot_frequency=frequency)

    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], message_channel]

    def answer(state: Chat) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number} {LARGE_TEXT}", id=f"ai-{number}")]}

    builder: Any = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    trace: Trace = []
    for turn in range(8):
        message = HumanMessage(f"question {turn}", id=f"human-{turn % 5}")  # some are replaced
        trace.append(await graph.ainvoke({"messages": [message]}, on(), durability=durability))
    return [trace, await everything(graph, on())]


async def run_subgraphs(saver: Saver, frequency: int, durability: Durability) -> Trace:
    """A stateful graph in a graph: a namespace of its own."""
    delta, _ = states(frequency)
    inner: Any = StateGraph(delta)
    inner.add_node("inner", lambda state: {"items": [f"inner {len(state['items'])}"]})
    inner.add_node("ask", lambda state: {"items": [f"heard {interrupt('inner?')}"]})
    inner.add_edge(START, "inner")
    inner.add_edge("inner", "ask")
    outer: Any = StateGraph(delta)
    outer.add_node("before", lambda state: {"items": ["before"]})
    outer.add_node("child", inner.compile(checkpointer=True))
    outer.add_edge(START, "before")
    outer.add_edge("before", "child")
    graph = outer.compile(checkpointer=saver)
    trace: Trace = []
    for turn in range(3):
        await graph.ainvoke({"items": [f"turn {turn}"]}, on(), durability=durability)
        state = await graph.aget_state(on(), subgraphs=True)
        trace += [shape(state), *(shape(task.state) for task in state.tasks)]
        result = await graph.ainvoke(Command(resume=f"{turn}"), on(), durability=durability)
        trace.append(result)
    return [trace, await everything(graph, on())]


RUNS: dict[str, Callable[[Saver, int, Durability], Awaitable[Trace]]] = {
    run.__name__.removeprefix("run_"): run
    for run in (
        run_turns,
        run_migration,
        run_migration_back,
        run_updates,
        run_time_travel,
        run_chat,
        run_subgraphs,
    )
}

# --- tests --------------------------------------------------------------------------------------------


@pytest.fixture
async def saver(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema) as opened:
        yield opened


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("name", RUNS)
async def test_a_graph_ends_as_in_memory(
    saver: AsyncPostgresSaver, name: str, frequency: int, durability: Durability
) -> None:
    ours = await RUNS[name](saver, frequency, durability)
    assert ours == await RUNS[name](InMemorySaver(), frequency, durability)
    if frequency > 1:
        assert saver.stats().history_reads > 0


@pytest.mark.parametrize("name", ["migration", "time_travel"])
async def test_a_graph_ends_as_in_memory_on_asyncpg(dsn: str, schema: str, name: str) -> None:
    async with saver_on(dsn, schema, driver="asyncpg", inline_max_bytes=0) as saver:
        assert await RUNS[name](saver, 3, "async") == await RUNS[name](InMemorySaver(), 3, "async")


async def test_a_read_takes_two_statements_more(saver: AsyncPostgresSaver) -> None:
    """Of both channels, far from their snapshots, in a thread with a plain past."""
    delta, plain = states(100)
    await turns(workshop(saver, plain), on(), 6, "async")
    graph = workshop(saver, delta)
    await turns(graph, on(), 6, "async", first=6)
    before = saver.stats().statements
    await graph.aget_state(on())
    assert saver.stats().statements - before == 3


async def test_a_snapshot_is_written_as_often_as_asked(saver: AsyncPostgresSaver) -> None:
    graph = workshop(saver, states(3)[0])
    await turns(graph, on(), 3, "async")
    found = [each.checkpoint["channel_values"] async for each in saver.alist(on())]
    snapshots = [values["items"] for values in found if "items" in values]
    assert 2 <= len(snapshots) < len(found) / 2
    assert all(isinstance(snapshot, _DeltaSnapshot) for snapshot in snapshots)


def test_graphs_without_an_event_loop(dsn: str, schema: str) -> None:
    def run(saver: Saver) -> Trace:
        graph = workshop(saver, states(3)[0])
        trace: Trace = []
        for turn in range(3):
            steps: list[Any] = [{"items": [f"turn {turn}"]}, Command(resume=f"answer {turn}")]
            for step in steps:
                result = graph.invoke(step, on())
                result.pop("__interrupt__", None)
                trace.append(result)
        graph.update_state(on(), {"items": ["by hand"]}, as_node="beside")
        return [*trace, *(shape(state) for state in graph.get_state_history(on()))]

    with PostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        ours = run(saver)
    assert ours == run(InMemorySaver())
