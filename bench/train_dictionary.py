"""Makes the dictionary that small payloads are compressed with: ``python -m bench.train_dictionary FILE``.

It knows what LangGraph's serializer writes again and again: the fields of a checkpoint, the classes and fields of messages,
and some of what agents and their users say. A dictionary that was shipped (``src/pgcairn/codec/dictionary_<n>.zdict``)
is never made anew: what it compressed must stay readable. A better one is a file with the next number.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import zstandard
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send

from pgcairn.codec import body
from pgcairn.codec.serde import Codec
from pgcairn.settings import Settings

# 4 KB compress bodies a fifth worse, 16 KB nothing better (bench/compression_levels.py).
_BYTES = 8192
_SENTENCES = """
Sure, I can help you with that. Could you please give me more details? Thank you for your patience.
Let me look that up for you. One moment, please. Here is what I found. I am sorry for the inconvenience.
Is there anything else I can help you with? Please let me know if you have any other questions.
I have updated your account. Your order has been placed. The total amount is $ and will be charged to the card.
Would you like to proceed? Do you want me to continue? Yes, please. No, thank you. That is correct.
I could not find any results for this. Please try again later. The request failed with an error.
Based on the information you provided, the next step is to check the status. First, Then, Finally,
What is the difference between the two? How do I change my email address? Can you explain how this works?
I would like to cancel my subscription. When will it arrive? Which one do you recommend? Why did this happen?
You are a helpful assistant. Answer the question based on the context below. Use the tools when you need to.
If you do not know the answer, say that you do not know. Do not make up information. Be concise and polite.
The following is a summary of the conversation so far: The user asked about the document and the assistant
Here are the steps: 1. Open the settings 2. Select the option 3. Click on Save 4. Restart the application
def main(): return None import json from typing import Any class for in range(10): if not value: raise ValueError(
SELECT name, count(*) FROM users WHERE created_at > GROUP BY name ORDER BY count DESC LIMIT 10;
There are several ways to do this. For example, you can use the following code: ```python ``` This means that
"""
_PHRASES = [
    part.strip() for part in _SENTENCES.replace("\n", " ").replace("? ", "?|").replace(". ", ".|").split("|")
]
_NODES = [
    "agent",
    "tools",
    "model",
    "reviewer",
    "planner",
    "retrieve",
    "generate",
    "supervisor",
    "call_model",
    "chatbot",
    "summarize",
    "router",
    "human",
    "assistant",
    "executor",
    "researcher",
]
_TOOLS = ("search", "get_weather", "calculator", "lookup", "retrieve", "execute_sql", "send_email")


class _Samples:
    def __init__(self) -> None:
        self._draw = random.Random(7)
        self._codec = Codec(JsonPlusSerializer(), Settings())

    def all(self) -> list[bytes]:
        """Payloads of every kind, about as often as graphs write them."""
        made = [self._checkpoint() for _ in range(3000)]
        for _ in range(2500):
            made += [self._dump(self._message()), self._dump([self._message()])]
            made.append(b"".join(self._dump(self._message()) for _ in range(self._draw.choice((1, 1, 2, 4)))))
        for _ in range(800):
            made += [self._dump(self._plain()), self._dump([self._plain()])]
            made.append(self._dump({"messages": [self._message()]}))
        for _ in range(100):
            made.append(self._dump(Send(self._draw.choice(_NODES), {"messages": [self._message()]})))
            made.append(self._dump((Interrupt(value={"question": self._say(50)}, id=self._uuid()),)))
        return made

    def _dump(self, value: object) -> bytes:
        return self._codec.dump(value, "$")[1]

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._draw.getrandbits(128), version=4))

    def _number(self, below: int) -> int:
        return self._draw.randrange(below)

    def _say(self, characters: int) -> str:
        said = " ".join(self._draw.choice(_PHRASES) for _ in range(characters // 20 + 2))
        start = self._number(max(1, len(said) - characters))
        return said[start : start + characters]

    def _plain(self) -> dict[str, str]:
        role = self._draw.choice(("user", "assistant", "system", "tool"))
        return {"role": role, "content": self._say(self._number(400)), "id": self._uuid()}

    def _message(self) -> AnyMessage:
        kind = self._draw.random()
        if kind < 0.3:
            return HumanMessage(self._say(20 + self._number(380)), id=self._uuid())
        if kind < 0.55:
            return AIMessage(self._say(20 + self._number(480)), id=self._uuid())
        if kind < 0.7:
            return self._answer_with_usage()
        call = f"call_{self._uuid()[:24]}"
        tool = self._draw.choice(_TOOLS)
        if kind < 0.82:
            arguments: dict[str, Any] = {"query": self._say(20), "id": str(self._number(9999))}
            calls = [{"name": tool, "args": arguments, "id": call, "type": "tool_call"}]
            return AIMessage("", id=self._uuid(), tool_calls=calls)
        if kind < 0.95:
            found = json.dumps({"id": self._number(9999), "status": "ok", "result": self._say(60)})
            return ToolMessage(found, tool_call_id=call, name=tool, id=self._uuid())
        return SystemMessage(self._say(200), id=self._uuid())

    def _answer_with_usage(self) -> AIMessage:
        counted = {name: self._number(9000) for name in ("input_tokens", "output_tokens", "total_tokens")}
        return AIMessage(
            self._say(20 + self._number(280)),
            id=f"lc_run--{self._uuid()}",
            response_metadata={
                "token_usage": {
                    "completion_tokens": self._number(900),
                    "prompt_tokens": self._number(9000),
                    "total_tokens": self._number(9000),
                    "completion_tokens_details": {"audio_tokens": 0, "reasoning_tokens": 0},
                    "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
                },
                "model_provider": "openai",
                "model_name": "gpt-",
                "system_fingerprint": "fp_",
                "id": "chatcmpl-",
                "finish_reason": "stop",
                "logprobs": None,
            },
            usage_metadata={
                **counted,  # type: ignore[typeddict-item]
                "input_token_details": {"audio": 0, "cache_read": 0},
                "output_token_details": {"audio": 0, "reasoning": 0},
            },
        )

    def _version(self) -> str:
        return f"{1 + self._number(900):032}.{self._draw.random():016}"

    def _checkpoint(self) -> bytes:
        draw = self._draw
        nodes = draw.sample(_NODES, draw.randrange(1, 4))
        versions = [self._version() for _ in range(3)]
        channels = ["__start__", "messages", *(f"branch:to:{node}" for node in nodes)]
        if draw.random() < 0.2:
            channels.append("__pregel_tasks")
        channel_versions = {channel: draw.choice(versions) for channel in channels}
        seen: dict[str, dict[str, str]] = {"__input__": {}, "__start__": {"__start__": draw.choice(versions)}}
        seen.update({node: {f"branch:to:{node}": draw.choice(versions)} for node in nodes})
        at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=draw.random() * 3e7)
        fields = {
            "v": 4,
            "ts": at.isoformat(),
            "id": str(uuid6()),
            "channel_versions": channel_versions,
            "versions_seen": seen,
            "updated_channels": draw.sample(sorted(channels), 2),
        }
        plain = {} if draw.random() < 0.4 else {f"branch:to:{draw.choice(nodes)}": None}
        core_type, core = body.dump_core(self._codec, fields, plain, self._metadata())
        inline = []
        if draw.random() < 0.2:
            inline.append(("__start__", *self._codec.dump({"messages": [self._message()]}, "$")))
        return body.pack(core_type, core, inline)

    def _metadata(self) -> dict[str, Any]:
        draw = self._draw
        source = draw.choice(("loop", "loop", "loop", "input", "update"))
        metadata: dict[str, Any] = {"source": source, "step": self._number(300), "parents": {}}
        if draw.random() < 0.4:
            metadata["run_id"] = self._uuid()
        if draw.random() < 0.3:
            metadata |= {"user_id": self._uuid(), "thread_id": self._uuid()}
        if draw.random() < 0.2:
            metadata |= {"graph_id": "agent", "assistant_id": self._uuid(), "langgraph_version": "1.2.0"}
        if draw.random() < 0.3:
            counters = (self._number(99), self._number(99))
            metadata["counters_since_delta_snapshot"] = {"messages": counters}
        return metadata


def main(path: str) -> None:
    """Train on samples that are the same every time, and write the dictionary."""
    dictionary = zstandard.train_dictionary(_BYTES, _Samples().all(), level=3)
    Path(path).write_bytes(dictionary.as_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
