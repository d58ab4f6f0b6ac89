"""Conversations to replay: read from a JSONL file, or the small invented sample beside this module.

A line is ``{"id", "messages": [{"role": "system|user|assistant|tool", "content", "tool_calls"?: [{"id", "name",
"args"}], "tool_call_id"?, "name"?}]}``; ``args`` is a JSON string. Everything is checked while reading, so that
a replay cannot stumble; an error names file and line. No graph and no database here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from pgcairn.errors import InvalidInput

SAMPLE = Path(__file__).with_name("sample_conversations.jsonl")


@dataclass(frozen=True)
class Turn:
    """What one call of the graph does: positions of messages in the conversation."""

    start: int  # the first message the user's side sends
    answer: int  # the first message the agent's side adds; equal to ``end`` if it adds none
    end: int


@dataclass(frozen=True)
class Conversation:
    """A recorded conversation. Message ids are ``<id>-<position>``, so that copies compare equal."""

    id: str
    messages: tuple[AnyMessage, ...]

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation cut before each message of the user that follows one of the agent."""
        found: list[Turn] = []
        start = answer = 0
        for position, message in enumerate(self.messages):
            if isinstance(message, HumanMessage | SystemMessage):
                if answer > start:
                    found.append(Turn(start, answer, position))
                    start = answer = position
            elif answer == start:
                answer = position
        if answer == start:
            answer = len(self.messages)
        return (*found, Turn(start, answer, len(self.messages)))

    def turn_at(self, position: int) -> int:
        """The number of the turn that the message at this position belongs to; after the last: their count."""
        return sum(1 for turn in self.turns if turn.end <= position)

    @cached_property
    def node_runs(self) -> int:
        """How many times a node of the agent graph runs in the whole conversation."""
        runs = 0
        for turn in self.turns:
            answers = self.messages[turn.answer : turn.end]
            for before, message in zip((None, *answers), answers, strict=False):
                if isinstance(message, AIMessage) or not isinstance(before, ToolMessage):
                    runs += 1
            if not answers or isinstance(answers[-1], ToolMessage):
                runs += 1  # the model is asked, and has nothing more to say
        return runs


def load_conversations(path: Path | None = None) -> list[Conversation]:
    """Read a file of conversations, or the sample.

    Raises:
        InvalidInput: The file cannot be read, has none, or a line is not one; it names file and line.
    """
    path = path or SAMPLE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    found: dict[str, Conversation] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            conversation = _conversation(line)
            if conversation.id in found:
                raise _Wrong(f"the id {conversation.id!r} was used before")
        except _Wrong as wrong:
            raise InvalidInput(f"{path}, line {number}: {wrong}.") from None
        found[conversation.id] = conversation
    if not found:
        raise InvalidInput(f"{path} holds no conversation.")
    return list(found.values())


class _Wrong(Exception):
    """What is wrong with a line."""


def _conversation(line: str) -> Conversation:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _Wrong(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _Wrong("not a JSON object")
    name, messages = found.get("id"), found.get("messages")
    if not isinstance(name, str) or not name:
        raise _Wrong("'id' is not a text")
    if not isinstance(messages, list) or not messages:
        raise _Wrong("'messages' is not a list of messages")
    made = tuple(
        _message(message, f"message {position}", f"{name}-{position}")
        for position, message in enumerate(messages)
    )
    _check_order(made)
    return Conversation(name, made)


def _message(message: Any, where: str, message_id: str) -> AnyMessage:
    if not isinstance(message, dict):
        raise _Wrong(f"{where} is not a JSON object")
    role = message.get("role")
    content = _text(message, "content", where)
    if role == "system":
        return SystemMessage(content, id=message_id)
    if role == "user":
        return HumanMessage(content, id=message_id)
    if role == "tool":
        call_id = _text(message, "tool_call_id", where)
        name = _text(message, "name", where) if message.get("name") is not None else None
        return ToolMessage(content, tool_call_id=call_id, name=name, id=message_id)
    if role != "assistant":
        raise _Wrong(f"{where} has the role {role!r}, which is none of system, user, assistant, tool")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _Wrong(f"{where}: 'tool_calls' is not a list")
    return AIMessage(content, id=message_id, tool_calls=[_call(call, where) for call in calls])


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, dict):
        raise _Wrong(f"{where}: a tool call is not a JSON object")
    try:
        args = json.loads(_text(call, "args", where))
    except ValueError:
        args = None
    if not isinstance(args, dict):
        raise _Wrong(f"{where}: 'args' of a tool call is not the text of a JSON object")
    return {
        "id": _text(call, "id", where),
        "name": _text(call, "name", where),
        "args": args,
        "type": "tool_call",
    }


def _text(found: dict[str, Any], key: str, where: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise _Wrong(f"{where}: {key!r} is not a text")
    return value


def _check_order(messages: Sequence[AnyMessage]) -> None:
    # Exactly what the graph can replay: the user begins, calls are answered in their order, and the agent
    # speaks once before it is the user's turn again.
    open_calls: list[str | None] = []
    before: AnyMessage | None = None
    seen_user = False
    for position, message in enumerate(messages):
        where = f"message {position}"
        if isinstance(message, ToolMessage):
            if not open_calls or open_calls.pop(0) != message.tool_call_id:
                raise _Wrong(
                    f"{where} answers {message.tool_call_id!r}, which is not the next open tool call"
                )
        elif open_calls:
            raise _Wrong(f"{where} comes before tool call {open_calls[0]!r} was answered")
        elif isinstance(message, AIMessage):
            if isinstance(before, AIMessage):
                raise _Wrong(f"{where} is a second assistant message in a row")
            if not seen_user:
                raise _Wrong(f"{where} is from the assistant, before the user said anything")
            open_calls = [call["id"] for call in message.tool_calls]
        else:
            if isinstance(before, ToolMessage):
                raise _Wrong(f"{where}: the assistant says nothing after a tool's result")
            seen_user = seen_user or isinstance(message, HumanMessage)
        before = message
    if open_calls:
        raise _Wrong(f"tool call {open_calls[0]!r} is never answered")
    if not seen_user:
        raise _Wrong("the user says nothing")
