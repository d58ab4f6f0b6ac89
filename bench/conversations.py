"""Chats as input: from a file of conversations, or the small sample beside this file.

A line is ``{"id", "messages": [{"role", "content", "tool_calls"?: [{"id", "name", "args"}], "tool_call_id"?, "name"?}]}``;
``args`` is a JSON string.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langchain_core.messages import AnyMessage, convert_to_messages

SAMPLE = Path(__file__).with_name("sample_conversations.jsonl")


def load(path: Path | None) -> list[list[AnyMessage]]:
    """The conversations of a file, as LangChain's message objects with ids."""
    lines = (path or SAMPLE).read_text(encoding="utf-8").splitlines()
    return [_messages(json.loads(line)) for line in lines if line.strip()]


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
