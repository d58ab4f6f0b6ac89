"""Values of channels that grow or change step by step: what is stored again at every version if nothing helps.

Each function yields (value, update): the channel's whole value after a step, and what a node wrote to get there. Values
share their elements, so a list of all of them takes little memory. Nothing may be changed.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage

Growth = Iterator[tuple[Any, Any]]

FILES = 100
FILE_CHARACTERS = 4096
EDITS = 100
SUMMARISE_EVERY = 40
_KEPT = 8  # messages that outlive a summary

_VERB_TEXT = "load save parse render merge split check fetch apply build close count"
_NOUN_TEXT = "order invoice ticket user account payload header cursor report window batch token route"
_VERBS, _NOUNS = _VERB_TEXT.split(), _NOUN_TEXT.split()


def chat(texts: Iterator[str], count: int) -> Growth:
    """A list of messages, one more at every step."""
    messages: list[AnyMessage] = []
    for number in range(count):
        message = _message(texts, number)
        messages = [*messages, message]
        yield messages, [message]


def summarised_chat(texts: Iterator[str], count: int) -> Growth:
    """A list of messages that a summary replaces every ``SUMMARISE_EVERY`` steps, but for the last few."""
    messages: list[AnyMessage] = []
    for number in range(count):
        message = _message(texts, number)
        update: list[Any] = [message]
        if number and number % SUMMARISE_EVERY == 0:
            dropped, messages = messages[:-_KEPT], messages[-_KEPT:]
            update = [*(RemoveMessage(id=each.id or "") for each in dropped), message]
        messages = [*messages, message]
        yield messages, update


def workspace() -> Growth:
    """A dict of files, name to content: one more at every step, then at every step some lines of one of them change."""
    draw = random.Random(0)
    files: dict[str, str] = {}
    for number in range(FILES):
        name, content = f"src/app/{draw.choice(_NOUNS)}_{number:03d}.py", _source(draw)
        files = files | {name: content}
        yield files, {name: content}
    names = list(files)
    for _ in range(EDITS):
        name = draw.choice(names)
        content = _edited(draw, files[name])
        files = files | {name: content}
        yield files, {name: content}


def _message(texts: Iterator[str], number: int) -> AnyMessage:
    identity = str(uuid.UUID(int=random.Random(number).getrandbits(128), version=4))
    kind = AIMessage if number % 2 else HumanMessage
    return kind(next(texts), id=identity)


def _line(draw: random.Random) -> str:
    verb, noun, other = draw.choice(_VERBS), draw.choice(_NOUNS), draw.choice(_NOUNS)
    return draw.choice(
        (
            f"    {noun} = {verb}_{other}({other}, limit={draw.randrange(1000)})",
            f"    if {noun}.{other}_count > {draw.randrange(100)}:\n        return {verb}_{noun}({noun})",
            f"    # {verb} the {noun} before the {other} is used",
            f'    logger.info("{verb} {noun} %s", {other}.id)',
            f"    for {noun} in self.{other}s:\n        {noun}.{verb}({draw.randrange(10)})",
            f"    assert {noun} is not None and {other} != {draw.randrange(10_000)}",
        )
    )


def _source(draw: random.Random) -> str:
    parts = ["from __future__ import annotations\n\nimport logging\n\nlogger = logging.getLogger(__name__)\n"]
    size = len(parts[0])
    while size < FILE_CHARACTERS:
        arguments = ", ".join(draw.sample(_NOUNS, 3))
        body = "\n".join(_line(draw) for _ in range(draw.randint(3, 9)))
        name = f"{draw.choice(_VERBS)}_{draw.choice(_NOUNS)}_{draw.randrange(1000)}"
        parts.append(f"\n\ndef {name}(self, {arguments}):\n{body}\n    return {draw.choice(_NOUNS)}\n")
        size += len(parts[-1])
    return "".join(parts)[:FILE_CHARACTERS]


def _edited(draw: random.Random, content: str) -> str:
    lines = content.split("\n")
    at = draw.randrange(len(lines) - 4)
    changed = "\n".join(_line(draw) for _ in range(draw.randint(1, 3))).split("\n")
    return "\n".join([*lines[:at], *changed, *lines[at + draw.randint(1, 3) :]])
