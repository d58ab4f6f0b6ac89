"""Chats as input: from a file of conversations, or the small sample beside this file.

A line is ``{"id", "messages": [{"role", "content", "tool_calls"?: [{"id", "name", "args"}], "tool_call_id"?, "name"?}]}``;
``args`` is a JSON string.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AnyMessage, convert_to_messages

from bench.loads import text

SAMPLE = Path(__file__).with_name("sample_conversations.jsonl")


def load(path: Path | None) -> list[list[AnyMessage]]:
    """The conversations of a file, as LangChain's message objects with ids."""
    lines = (path or SAMPLE).read_text(encoding="utf-8").splitlines()
    return [_messages(json.loads(line)) for line in lines if line.strip()]


def texts(path: Path | None) -> Iterator[str]:
    """Endless texts of what people and assistants say, some hundred characters each: a file's, or generated ones."""
    if path is None:
        return (text((300, 400, 100)[number % 3], seed=number) for number in itertools.count())
    said = [
        message.content
        for chat in load(path)
        for message in chat
        if message.type in ("human", "ai") and isinstance(message.content, str) and message.content
    ]
    return itertools.cycle(said)


def _messages(conversation: dict[str, Any]) -> list[AnyMessage]:
    given = []
    for message in conversation["messages"]:
        if message.get("tool_calls"):
            calls = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["args"]},
                }
                for call in message["tool_calls"]
            ]
            message = message | {"tool_calls": calls}
        given.append(message)
    made = convert_to_messages(given)
    for number, message in enumerate(made):
        message.id = f"{conversation['id']}-{number}"
    return made  # type: ignore[return-value]
