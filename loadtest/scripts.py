"""What is said in a thread: made up from a seed, or read from a file of conversations.

Client and service both know the script of a thread by its id, so the client sends what the user says and the
service's model answers what the assistant says. Standard library only: it is imported by Locust's process.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Like recorded chats of support agents: medians of messages in tau-bench's conversations, in characters.
_USER_CHARACTERS = (60, 200)
_ANSWER_CHARACTERS = (150, 500)
_RESULT_CHARACTERS = (200, 900)
_TOOL_SHARE = 0.6
_TURNS = (5, 9)
_SCRIPTS = 64


@dataclass(frozen=True)
class ScriptTurn:
    """One turn: what the user says, at most one round of tools, the answer.

    Attributes:
        calls: Name and arguments of each tool call; none if the model answers at once.
        results: What each call returns.
    """

    user: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    results: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Script:
    """A conversation. A thread that goes on after its end begins again."""

    turns: tuple[ScriptTurn, ...]
    tool_turns: tuple[ScriptTurn, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(turn for turn in self.turns if turn.calls)
        object.__setattr__(self, "tool_turns", found or (_ASKING,))

    def turn(self, number: int, *, with_tool: bool = False) -> ScriptTurn:
        """The turn of a number from 1 on.

        Args:
            with_tool: One that calls a tool, because a person is to be asked for consent.
        """
        turns = self.tool_turns if with_tool else self.turns
        return turns[(number - 1) % len(turns)]


_ASKING = ScriptTurn("Please go ahead.", (("apply", {"confirmed": True}),), ("done",), "It is done.")


class Scripts:
    """The scripts, and which thread plays which."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts

    def of(self, thread_id: str) -> Script:
        """The script of a thread: the same in every process."""
        return self._scripts[zlib.crc32(thread_id.encode()) % len(self._scripts)]


def load(path: Path | None) -> Scripts:
    """The conversations of a file (see ``bench/conversations.py`` for its lines), or made up ones.

    Of a turn with several rounds of tools the first is played, so that a turn takes one or three steps of the graph.
    System messages are left out: they are the model's, not the state's.

    Raises:
        ValueError: The file holds no conversation.
    """
    if path is None:
        return Scripts([_made_up(random.Random(seed)) for seed in range(_SCRIPTS)])
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [_recorded(json.loads(line)["messages"]) for line in lines if line.strip()]
    usable = [Script(tuple(turns)) for turns in found if turns]
    if not usable:
        raise ValueError(f"{path} holds no conversation.")
    return Scripts(usable)


def _recorded(messages: list[dict[str, Any]]) -> list[ScriptTurn]:
    turns: list[ScriptTurn] = []
    user: str | None = None
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    results: list[str] = []
    answer: str | None = None

    def close() -> None:
        if user is not None and answer is not None:
            turns.append(ScriptTurn(user, calls, tuple(results[: len(calls)]), answer))

    for message in messages:
        if message["role"] == "user":
            close()
            user, calls, results, answer = message["content"], (), [], None
        elif message["role"] == "assistant":
            asked = message.get("tool_calls") or []
            if asked and not calls:
                calls = tuple((call["name"], json.loads(call["args"])) for call in asked)
            elif not asked:
                answer = message["content"]
        elif message["role"] == "tool":
            results.append(message["content"])
    close()
    return turns


def _made_up(random_: random.Random) -> Script:
    words = ["".join(random_.choices(_SYLLABLES, k=random_.randint(1, 3))) for _ in range(300)]

    def text(bounds: tuple[int, int]) -> str:
        length = random_.randint(*bounds)
        return " ".join(random_.choices(words, k=length // 5))[:length]

    turns = []
    for _ in range(random_.randint(*_TURNS)):
        has_tool = random_.random() < _TOOL_SHARE
        calls = (("look_up", {"key": text((10, 20)), "limit": random_.randint(1, 50)}),) if has_tool else ()
        results = (text(_RESULT_CHARACTERS),) if has_tool else ()
        turns.append(ScriptTurn(text(_USER_CHARACTERS), calls, results, text(_ANSWER_CHARACTERS)))
    return Script(tuple(turns))


_SYLLABLES = [first + second for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u", "en", "ar")]
