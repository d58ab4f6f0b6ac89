"""The agent of the service: an ordinary tool-calling graph whose model and tools follow a script.

Two nodes, ``model`` and ``tools``. A turn is one call of the graph: an answer at once, or a tool first. The model says by
``Command`` where the graph goes on, which spares LangGraph reducing the messages a second time for a conditional edge. A
message that asks for consent makes the tools interrupt until a person has answered. Knows nothing of savers and of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from loadtest.scripts import Scripts, ScriptTurn

ASKS_CONSENT = "asks_consent"


class State(TypedDict):
    """What the graph keeps."""

    messages: Annotated[list[AnyMessage], add_messages]


def user_message(text: str, token: str, *, asks_consent: bool = False) -> HumanMessage:
    """What begins a turn. The token becomes the id of the message, and the ids of the answers begin with it."""
    return HumanMessage(text, id=token, additional_kwargs={ASKS_CONSENT: True} if asks_consent else {})


def last_user_message(messages: Sequence[AnyMessage]) -> HumanMessage:
    """The message that began the latest turn.

    Raises:
        LookupError: There is none.
    """
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return message
    raise LookupError("The thread has no message of a user.")


def turns_in(messages: Sequence[AnyMessage]) -> int:
    """How many turns there are."""
    return sum(message.type == "human" for message in messages)


def build_agent(scripts: Scripts) -> StateGraph[State, None, State, State]:
    """The graph, to be compiled with a saver."""

    def current(state: State, config: RunnableConfig) -> tuple[HumanMessage, ScriptTurn]:
        asked = last_user_message(state["messages"])
        script = scripts.of(str(config["configurable"]["thread_id"]))
        number = turns_in(state["messages"])
        return asked, script.turn(number, with_tool=ASKS_CONSENT in asked.additional_kwargs)

    async def model(state: State, config: RunnableConfig) -> Command[Literal["tools", "__end__"]]:
        asked, turn = current(state, config)
        if turn.calls and state["messages"][-1] is asked:
            calls = [
                {"id": f"{asked.id}.{i}", "name": name, "args": args, "type": "tool_call"}
                for i, (name, args) in enumerate(turn.calls)
            ]
            calling = AIMessage("", tool_calls=calls, id=f"{asked.id}-calls")
            return Command(update={"messages": [calling]}, goto="tools")
        answer = AIMessage(turn.answer, id=f"{asked.id}-answer")
        return Command(update={"messages": [answer]}, goto="__end__")

    async def tools(state: State, config: RunnableConfig) -> dict[str, Any]:
        asked, turn = current(state, config)
        calling = state["messages"][-1]
        assert isinstance(calling, AIMessage)
        is_allowed = True
        if ASKS_CONSENT in asked.additional_kwargs:
            is_allowed = interrupt(
                {"question": "May I?", "tools": [call["name"] for call in calling.tool_calls]}
            )
        results = turn.results if is_allowed else ("The user refused.",) * len(turn.results)
        return {
            "messages": [
                ToolMessage(
                    result, tool_call_id=str(call["id"]), name=call["name"], id=f"{call['id']}-result"
                )
                for call, result in zip(calling.tool_calls, results, strict=True)
            ]
        }

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_edge("tools", "model")
    return builder
