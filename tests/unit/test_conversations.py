"""Conversations: what can be replayed is read as it is, what cannot is refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from pgcairn.cli.conversations import SAMPLE, Turn, load_conversations
from pgcairn.errors import InvalidInput

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Good day"}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "1", "name": "look", "args": '{"at": 3}'},
        {"id": "2", "name": "see", "args": "{}"},
    ],
}
RESULT_1 = {"role": "tool", "content": "three", "tool_call_id": "1", "name": "look"}
RESULT_2 = {"role": "tool", "content": "none", "tool_call_id": "2"}
CALL = {**CALLS, "tool_calls": CALLS["tool_calls"][:1]}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "given.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_messages_turns_and_runs(tmp_path: Path) -> None:
    messages = [SYSTEM, USER, CALLS, RESULT_1, RESULT_2, ANSWER, USER, ANSWER]

    [found] = load_conversations(write(tmp_path, "", {"id": "a", "messages": messages}))

    assert [message.type for message in found.messages] == [
        "system",
        "human",
        "ai",
        "tool",
        "tool",
        "ai",
        "human",
        "ai",
    ]
    assert [message.id for message in found.messages][:2] == ["a-0", "a-1"]
    assert isinstance(found.messages[2], AIMessage)
    assert found.messages[2].tool_calls[0] == {
        "id": "1",
        "name": "look",
        "args": {"at": 3},
        "type": "tool_call",
    }
    assert isinstance(found.messages[3], ToolMessage)
    assert found.messages[3].tool_call_id == "1"
    assert found.turns == (Turn(0, 2, 6), Turn(6, 7, 8))
    assert [found.turn_at(position) for position in (0, 5, 6, 7, 8)] == [0, 0, 1, 1, 2]
    assert found.node_runs == 4  # agent, tools, agent; agent


@pytest.mark.parametrize(
    ("messages", "turns", "runs"),
    [
        ([USER], (Turn(0, 1, 1),), 1),
        ([USER, ANSWER, USER], (Turn(0, 1, 2), Turn(2, 3, 3)), 2),
        ([USER, CALL, RESULT_1], (Turn(0, 1, 3),), 3),
        ([USER, USER, ANSWER], (Turn(0, 2, 3),), 1),
    ],
    ids=["unanswered", "last unanswered", "ends with a result", "two in a row"],
)
def test_a_conversation_may_end_anywhere(
    tmp_path: Path, messages: list[Any], turns: tuple[Turn, ...], runs: int
) -> None:
    [found] = load_conversations(write(tmp_path, {"id": "a", "messages": messages}))

    assert found.turns == turns
    assert found.node_runs == runs


def test_the_sample() -> None:
    found = load_conversations()

    assert len(found) == 12
    assert all(8 <= len(each.messages) <= 20 and len(each.turns) > 1 for each in found)
    assert any(message.type == "tool" for each in found for message in each.messages)
    assert SAMPLE.stat().st_size < 64 * 1024  # it ships with the wheel


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({"messages": [USER]}, "'id' is not a text"),
        ({"id": "b", "messages": []}, "'messages' is not a list"),
        ({"id": "b", "messages": ["Hello"]}, "message 0 is not a JSON object"),
        ({"id": "b", "messages": [{"role": "user"}]}, "message 0: 'content' is not a text"),
        ({"id": "b", "messages": [{"role": "robot", "content": ""}]}, "has the role 'robot'"),
        ({"id": "b", "messages": [SYSTEM]}, "the user says nothing"),
        ({"id": "b", "messages": [ANSWER, USER]}, "message 0 is from the assistant"),
        ({"id": "b", "messages": [USER, ANSWER, ANSWER]}, "message 2 is a second assistant message"),
        ({"id": "b", "messages": [USER, RESULT_1]}, "message 1 answers '1'"),
        ({"id": "b", "messages": [USER, CALLS, RESULT_2, RESULT_1]}, "message 2 answers '2'"),
        ({"id": "b", "messages": [USER, CALLS, RESULT_1, ANSWER]}, "before tool call '2' was answered"),
        ({"id": "b", "messages": [USER, CALLS, RESULT_1]}, "tool call '2' is never answered"),
        ({"id": "b", "messages": [USER, CALL, RESULT_1, USER]}, "says nothing after a tool's result"),
        ({"id": "b", "messages": [USER, {**ANSWER, "tool_calls": 1}]}, "'tool_calls' is not a list"),
        (
            {
                "id": "b",
                "messages": [USER, {**ANSWER, "tool_calls": [{"id": "1", "name": "x", "args": "1"}]}],
            },
            "'args' of a tool call is not the text of a JSON object",
        ),
        ({"id": "a", "messages": [USER]}, "'a' was used before"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, line: Any, what: str) -> None:
    path = write(tmp_path, {"id": "a", "messages": [USER, ANSWER]}, line)

    with pytest.raises(InvalidInput) as caught:
        load_conversations(path)

    assert f"{path}, line 2: " in str(caught.value)
    assert what in str(caught.value)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no conversation"):
        load_conversations(write(tmp_path, ""))
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_conversations(tmp_path / "missing.jsonl")
