"""Real graphs: this saver and LangGraph's own in memory must end in the same states."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Durability, Send, StateSnapshot, interrupt
from typing_extensions import TypedDict

from pgcairn import AsyncPostgresSaver, PostgresSaver
from tests.support.savers import LARGE_TEXT, saver_on

Saver = BaseCheckpointSaver[Any]
Config = Any
Trace = list[Any]

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")


def on(thread_id: str, **more: Any) -> Config:
    return {"configurable": {"thread_id": thread_id, **more}}


# --- comparable forms: everything but ids and times ---------------------------------------------------


def plain(value: Any) -> Any:
    """Messages get random ids; the rest of them must be equal."""
    if isinstance(value, HumanMessage | AIMessage | ToolMessage):
        fields = value.model_dump(exclude={"id"})
        return {name: plain(found) for name, found in fields.items()}
    if isinstance(value, dict):
        return {name: plain(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [plain(found) for found in value]
    return value


def shape(state: StateSnapshot) -> dict[str, Any]:
    metadata = dict(state.metadata or {})
    metadata.pop("parents", None)
    metadata.pop("thread_id", None)
    return {
        "values": plain(state.values),
        "next": state.next,
        "metadata": plain(metadata),
        "has_parent": state.parent_config is not None,
        "tasks": [
            (
                task.name,
                task.path,
                repr(task.error),
                [each.value for each in task.interrupts],
                plain(task.result),
            )
            for task in state.tasks
        ],
        "interrupts": [each.value for each in state.interrupts],
    }


async def history(graph: Any, config: Config) -> list[dict[str, Any]]:
    return [shape(state) async for state in graph.aget_state_history(config)]


# --- graphs -------------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def chat(saver: Saver) -> Any:
    def answer(state: Chat) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number} {LARGE_TEXT}", id=f"ai-{number}")]}

    builder: Any = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


async def run_chat(saver: Saver, durability: Durability) -> Trace:
    graph = chat(saver)
    trace: Trace = []
    for turn in range(4):
        message = HumanMessage(f"question {turn}", id=f"human-{turn}")
        trace.append(await graph.ainvoke({"messages": [message]}, on("chat"), durability=durability))
    # A message that is replaced, in a thread of its own that goes on.
    replaced = HumanMessage("another question", id="human-0")
    trace.append(await graph.ainvoke({"messages": [replaced]}, on("chat"), durability=durability))
    return [plain(trace), await history(graph, on("chat"))]


def agent(saver: Saver) -> Any:
    def call_model(state: Chat) -> dict[str, Any]:
        calls = sum(isinstance(message, AIMessage) for message in state["messages"])
        if calls < 2:
            tools = [
                {"name": "add", "args": {"a": calls, "b": n}, "id": f"call-{calls}-{n}", "type": "tool_call"}
                for n in range(3)
            ]
            return {"messages": [AIMessage("", id=f"ai-{calls}", tool_calls=tools)]}
        return {"messages": [AIMessage("done", id=f"ai-{calls}")]}

    def use_tool(call: dict[str, Any]) -> dict[str, Any]:
        found = str(call["args"]["a"] + call["args"]["b"])
        return {"messages": [ToolMessage(found, tool_call_id=call["id"], id=f"tool-{call['id']}")]}

    def route(state: Chat) -> list[Send] | str:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [Send("tool", call) for call in calls] or END

    builder: Any = StateGraph(Chat)
    builder.add_node("model", call_model)
    builder.add_node("tool", use_tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tool", END])
    builder.add_edge("tool", "model")
    return builder.compile(checkpointer=saver)


async def run_agent(saver: Saver, durability: Durability) -> Trace:
    graph = agent(saver)
    first = await graph.ainvoke(
        {"messages": [HumanMessage("go", id="human")]}, on("agent"), durability=durability
    )
    return [plain(first), await history(graph, on("agent"))]


class Basket(TypedDict):
    items: Annotated[list[str], operator.add]
    big: str


def approval(saver: Saver) -> Any:
    def prepare(state: Basket) -> dict[str, Any]:
        return {"items": ["prepared"], "big": LARGE_TEXT}

    def ask(state: Basket) -> dict[str, Any]:
        first = interrupt({"approve": state["items"]})
        second = interrupt("sure?")
        return {"items": [f"{first} {second}"]}

    def beside(state: Basket) -> dict[str, Any]:
        return {"items": ["beside"]}

    def finish(state: Basket) -> dict[str, Any]:
        return {"items": ["finished"]}

    builder: Any = StateGraph(Basket)
    for node in (prepare, ask, beside, finish):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "ask")
    builder.add_edge("prepare", "beside")
    builder.add_edge(["ask", "beside"], "finish")
    return builder.compile(checkpointer=saver)


async def run_approval(saver: Saver, durability: Durability) -> Trace:
    graph = approval(saver)
    trace: Trace = []
    steps: list[Any] = [{"items": ["start"]}, Command(resume="yes"), Command(resume="really")]
    for step in steps:
        result = await graph.ainvoke(step, on("approval"), durability=durability)
        result.pop("__interrupt__", None)
        trace.append(result)
        trace.append(shape(await graph.aget_state(on("approval"))))
    return [plain(trace), await history(graph, on("approval"))]


def branches(saver: Saver) -> Any:
    def spread(state: Basket) -> list[Send]:
        return [Send("work", {"items": [str(number)], "big": ""}) for number in range(8)]

    def work(state: Basket) -> dict[str, Any]:
        return {"items": [f"{state['items'][0]} {LARGE_TEXT}"]}

    builder: Any = StateGraph(Basket)
    builder.add_node("start", lambda state: {"big": "b"})
    builder.add_node("work", work)
    builder.add_node("end", lambda state: {"items": [f"collected {len(state['items'])}"]})
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", spread, ["work"])
    builder.add_edge("work", "end")
    return builder.compile(checkpointer=saver)


async def run_branches(saver: Saver, durability: Durability) -> Trace:
    graph = branches(saver)
    result = await graph.ainvoke({"items": []}, on("branches"), durability=durability)
    return [plain(result), await history(graph, on("branches"))]


def nested(saver: Saver, checkpointer: bool | None) -> Any:
    """A graph in a graph: stateful with ``True``, one state per call with ``None``."""

    def inner_first(state: Basket) -> dict[str, Any]:
        return {"items": ["inner"]}

    def inner_ask(state: Basket) -> dict[str, Any]:
        return {"items": [f"inner heard {interrupt('inner?')}"], "big": LARGE_TEXT}

    inner: Any = StateGraph(Basket)
    inner.add_node("first", inner_first)
    inner.add_node("ask", inner_ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")

    outer: Any = StateGraph(Basket)
    outer.add_node("before", lambda state: {"items": ["before"]})
    outer.add_node("inner", inner.compile(checkpointer=checkpointer))
    outer.add_node("after", lambda state: {"items": ["after"]})
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    outer.add_edge("inner", "after")
    return outer.compile(checkpointer=saver)


async def run_nested(saver: Saver, durability: Durability, checkpointer: bool | None) -> Trace:
    graph = nested(saver, checkpointer)
    trace: Trace = []
    for turn in range(2):
        steps: list[Any] = [{"items": [f"turn {turn}"]}, Command(resume=f"answer {turn}")]
        for step in steps:
            result = await graph.ainvoke(step, on("nested"), durability=durability)
            result.pop("__interrupt__", None)
            trace.append(plain(result))
            state = await graph.aget_state(on("nested"), subgraphs=True)
            trace.append(shape(state))
            trace += [shape(task.state) for task in state.tasks if isinstance(task.state, StateSnapshot)]
    return [trace, await history(graph, on("nested"))]


async def run_stateful_subgraph(saver: Saver, durability: Durability) -> Trace:
    return await run_nested(saver, durability, True)


async def run_subgraph_per_call(saver: Saver, durability: Durability) -> Trace:
    return await run_nested(saver, durability, None)


async def run_updates(saver: Saver, durability: Durability) -> Trace:
    """``update_state``: into the present, as a node, and clearing what was to come."""
    graph = approval(saver)
    config = on("updates")
    await graph.ainvoke({"items": ["start"]}, config, durability=durability)
    trace: Trace = []
    await graph.aupdate_state(config, {"items": ["by hand"]})
    trace.append(shape(await graph.aget_state(config)))
    await graph.aupdate_state(config, {"items": ["as ask"]}, as_node="ask")
    trace.append(shape(await graph.aget_state(config)))
    await graph.aupdate_state(config, {"items": ["as beside"]}, as_node="beside")
    trace.append(shape(await graph.aget_state(config)))
    trace.append(plain(await graph.ainvoke(None, config, durability=durability)))
    trace.append(await history(graph, config))
    return trace


async def run_time_travel(saver: Saver, durability: Durability) -> Trace:
    """Replay from the middle, fork with other values, and go on in the fork; the first branch stays."""
    graph = branches(saver)
    config = on("travel")
    await graph.ainvoke({"items": ["first"]}, config)
    states = [state async for state in graph.aget_state_history(config)]
    middle = next(state for state in states if state.next and state.next[0] == "work")
    trace: Trace = [shape(state) for state in states]
    trace.append(plain(await graph.ainvoke(None, middle.config, durability=durability)))
    fork = await graph.aupdate_state(middle.config, {"items": ["forked"], "big": LARGE_TEXT})
    trace.append(shape(await graph.aget_state(fork)))
    trace.append(plain(await graph.ainvoke(None, fork, durability=durability)))
    trace.append(await history(graph, config))
    for state in states:
        trace.append(shape(await graph.aget_state(state.config)))
    return trace


class Flaky(Exception):
    """Raised once by a node."""


async def run_failure(saver: Saver, durability: Durability) -> Trace:
    """A node that fails once: what was done before is not done again."""
    done: list[str] = []

    def good(state: Basket) -> dict[str, Any]:
        done.append("good")
        return {"items": ["good"]}

    def bad(state: Basket) -> dict[str, Any]:
        done.append("bad")
        if done.count("bad") == 1:
            raise Flaky("once")
        return {"items": ["bad"]}

    builder: Any = StateGraph(Basket)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_edge(START, "good")
    builder.add_edge("good", "bad")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(Flaky):
        await graph.ainvoke({"items": ["x"]}, on("flaky"), durability=durability)
    trace: Trace = [shape(await graph.aget_state(on("flaky")))]
    trace.append(plain(await graph.ainvoke(None, on("flaky"), durability=durability)))
    assert done == ["good", "bad", "bad"]
    return [*trace, await history(graph, on("flaky"))]


RUNS: dict[str, Callable[[Saver, Durability], Awaitable[Trace]]] = {
    run.__name__.removeprefix("run_"): run
    for run in (
        run_chat,
        run_agent,
        run_approval,
        run_branches,
        run_stateful_subgraph,
        run_subgraph_per_call,
        run_updates,
        run_time_travel,
        run_failure,
    )
}


# --- tests --------------------------------------------------------------------------------------------


@pytest.fixture
async def saver(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema) as opened:
        yield opened


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", RUNS)
async def test_a_graph_ends_as_in_memory(
    saver: AsyncPostgresSaver, name: str, durability: Durability
) -> None:
    ours = await RUNS[name](saver, durability)
    theirs = await RUNS[name](InMemorySaver(), durability)
    assert ours == theirs


@pytest.mark.parametrize("name", ["approval", "subgraph_per_call", "time_travel"])
async def test_a_graph_ends_as_in_memory_on_asyncpg(dsn: str, schema: str, name: str) -> None:
    async with saver_on(dsn, schema, driver="asyncpg", inline_max_bytes=0) as saver:
        assert await RUNS[name](saver, "async") == await RUNS[name](InMemorySaver(), "async")


async def test_a_run_goes_on_in_another_process(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as first:
        await approval(first).ainvoke({"items": ["start"]}, on("t"))
    async with saver_on(dsn, schema) as second:
        graph = approval(second)
        assert (await graph.aget_state(on("t"))).next == ("ask",)
        await graph.ainvoke(Command(resume="yes"), on("t"))
    async with saver_on(dsn, schema) as third:
        result = await approval(third).ainvoke(Command(resume="really"), on("t"))
    assert result["items"] == ["start", "prepared", "yes really", "beside", "finished"]


async def test_many_graphs_at_once(saver: AsyncPostgresSaver) -> None:
    graph = branches(saver)
    results = await asyncio.wait_for(
        asyncio.gather(*(graph.ainvoke({"items": [f"t{n}"]}, on(f"t{n}")) for n in range(40))), 60
    )
    expected = await branches(InMemorySaver()).ainvoke({"items": ["t0"]}, on("t0"))
    for number, result in enumerate(results):
        assert result["items"] == [f"t{number}", *expected["items"][1:]]
        assert (await graph.aget_state(on(f"t{number}"))).values == result


def run_sync(saver: Saver) -> Trace:
    graph = approval(saver)
    trace: Trace = []
    steps: list[Any] = [{"items": ["start"]}, Command(resume="yes"), Command(resume="really")]
    for step in steps:
        result = graph.invoke(step, on("sync"))
        result.pop("__interrupt__", None)
        trace += [plain(result), shape(graph.get_state(on("sync")))]
    graph.update_state(on("sync"), {"items": ["by hand"]})
    trace += [shape(state) for state in graph.get_state_history(on("sync"))]
    return trace


def test_graphs_without_an_event_loop(dsn: str, schema: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        ours = run_sync(saver)
    assert ours == run_sync(InMemorySaver())


async def test_a_sync_graph_in_a_thread_beside_the_loop(saver: AsyncPostgresSaver) -> None:
    ours = await asyncio.wait_for(asyncio.to_thread(run_sync, saver), 60)
    assert ours == run_sync(InMemorySaver())


@dataclass
class Order:
    """A class of the user's own."""

    number: int
    lines: list[str]


class Typed(TypedDict):
    order: Order
    model: str


async def test_a_streamed_answer(saver: AsyncPostgresSaver) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("streamed words", id="ai")]))

    async def answer(state: Chat) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: Any = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    modes = [
        mode
        async for mode, _ in graph.astream(
            {"messages": [HumanMessage("hi", id="human")]},
            on("stream"),
            stream_mode=["updates", "checkpoints"],
        )
    ]
    assert "updates" in modes
    assert "checkpoints" in modes
    state = await graph.aget_state(on("stream"))
    assert [message.content for message in state.values["messages"]] == ["hi", "streamed words"]


async def test_types_of_the_graphs_own_are_allowed(saver: AsyncPostgresSaver) -> None:
    builder: Any = StateGraph(Typed)
    builder.add_node("make", lambda state: {"order": Order(1, [LARGE_TEXT])})
    builder.add_edge(START, "make")
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke({"model": "m"}, on("typed"))
    assert (await graph.aget_state(on("typed"))).values == {"model": "m", "order": Order(1, [LARGE_TEXT])}
