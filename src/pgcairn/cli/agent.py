"""The demo's agent: an ordinary tool-calling graph whose model and tools replay a recorded conversation.

Two nodes, ``agent`` and ``tools``, and the conditional edge of every such agent between them. One turn of the
user is one call of the graph. Knows nothing of savers or of output; who wants to know which steps ran passes
a function to be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from pgcairn.cli.conversations import Conversation

StepStarted = Callable[[str, int, int, str], None]
"""Told when a node starts: thread, turn, LangGraph's step number, node."""

ScriptOf = Callable[[str], Conversation]
"""The conversation that a thread replays."""


class State(TypedDict):
    """What the graph keeps."""

    messages: Annotated[list[AnyMessage], add_messages]


class ScriptedModel:
    """Stands in for a paid model: says what the recorded assistant said at this point.

    When the user's last message is not the recorded one, as after an edit in time travel, it says so instead.
    """

    def __init__(self, conversation: Conversation, seconds: float = 0.0) -> None:
        self._conversation = conversation
        self._seconds = seconds

    async def ainvoke(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """The next message; none if the recording ends here."""
        if self._seconds:
            await asyncio.sleep(self._seconds)
        recorded = self._conversation.messages
        for message, original in zip(messages, recorded, strict=False):
            if isinstance(message, HumanMessage) and message.content != original.content:
                text = f"That is not in my script. You said: {message.content!r}"
                return [AIMessage(text, id=f"{message.id}-edited-answer")]
        following = recorded[len(messages) : len(messages) + 1]
        return [message for message in following if isinstance(message, AIMessage)]


class RecordedTools:
    """The tools of a conversation: a call returns the result that was recorded for it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def call(self, position: int, call: ToolCall) -> ToolMessage:
        """The result of a call, which becomes the message at this position.

        Raises:
            LookupError: There is no such result.
        """
        found = self._conversation.messages[position] if position < len(self._conversation.messages) else None
        if not isinstance(found, ToolMessage) or found.tool_call_id != call["id"]:
            raise LookupError(f"No result of {call['name']} was recorded in {self._conversation.id!r}.")
        return ToolMessage(found.content, tool_call_id=call["id"], name=found.name, id=found.id)


def build_agent(
    script_of: ScriptOf, *, model_seconds: float = 0.0, started: StepStarted | None = None
) -> StateGraph[State, None, State, State]:
    """The graph, to be compiled with a saver.

    Args:
        script_of: Which conversation a thread replays.
        model_seconds: How long the model takes for an answer.
        started: Told about each step before it does anything.
    """

    def begin(node: str, state: State, config: RunnableConfig) -> Conversation:
        thread_id = str(config["configurable"]["thread_id"])
        conversation = script_of(thread_id)
        if started is not None:
            turn = conversation.turn_at(len(state["messages"]) - 1)
            started(thread_id, turn, int(config["metadata"]["langgraph_step"]), node)
        return conversation

    async def agent(state: State, config: RunnableConfig) -> dict[str, Any]:
        model = ScriptedModel(begin("agent", state, config), model_seconds)
        return {"messages": await model.ainvoke(state["messages"])}

    async def tools(state: State, config: RunnableConfig) -> dict[str, Any]:
        recorded = RecordedTools(begin("tools", state, config))
        asked = state["messages"][-1]
        assert isinstance(asked, AIMessage)
        position = len(state["messages"])
        return {"messages": [recorded.call(position + i, call) for i, call in enumerate(asked.tool_calls)]}

    def route(state: State) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(State)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


def turn_input(conversation: Conversation, turn: int) -> State:
    """What the user sends in a turn."""
    found = conversation.turns[turn]
    return {"messages": list(conversation.messages[found.start : found.answer])}
