"""Micro benches of the client's hot functions, for comparing two states of the code.

    python -m pytest bench/test_micro.py --benchmark-autosave

Not part of ``make test``.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from bench.loads import messages, text
from pgcairn.coalescer import PutItem, WritesItem, assemble
from pgcairn.codec.checkpoint import encode_put
from pgcairn.codec.compression import Framer
from pgcairn.codec.messages import serializer_of
from pgcairn.codec.serde import Codec
from pgcairn.connection.psycopg_wire import _pack
from pgcairn.settings import Settings

_VERSION = "00000000000000000000000000000009.0.3745401188473625"
_CHECKPOINT_ID = "1f000009-aaaa-6bbb-8ccc-ddddeeeeffff"


@pytest.mark.parametrize("as_objects", [False, True], ids=["dicts", "objects"])
def test_encode_put(benchmark: Any, as_objects: bool) -> None:
    codec = Codec(JsonPlusSerializer(), Settings())
    checkpoint = {
        "v": 4,
        "id": _CHECKPOINT_ID,
        "ts": "2026-01-01T00:00:00.000000+00:00",
        "channel_values": {"messages": messages(10, as_objects=as_objects), "step": 7},
        "channel_versions": {"messages": _VERSION, "step": _VERSION},
        "versions_seen": {"agent": {"messages": _VERSION}},
        "updated_channels": ["messages"],
    }
    metadata = {"source": "loop", "step": 7, "parents": {}}
    new_versions = {"messages": _VERSION, "step": _VERSION}
    key = ("thread", "")
    encoded = benchmark(encode_put, codec, 1024, None, checkpoint, metadata, new_versions, key)
    assert encoded.large is not None


def _conversation() -> list[BaseMessage]:
    call = {"name": "look", "args": {"query": "x"}, "id": "c", "type": "tool_call"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    turn = (
        HumanMessage(text(240, seed=1), id="h"),
        AIMessage("", tool_calls=[call], id="a"),
        ToolMessage(text(240, seed=2), tool_call_id="c", name="look", id="t"),
        AIMessage(text(350, seed=3), id="b", usage_metadata=usage),
    )
    return list(turn * 4)


@pytest.mark.parametrize("way", ["pgcairn", "langgraph"])
def test_dump_messages(benchmark: Any, way: str) -> None:
    serde = JsonPlusSerializer()
    dumps = serializer_of(serde)[0] if way == "pgcairn" else serde.dumps_typed
    assert benchmark(dumps, _conversation()) == serde.dumps_typed(_conversation())


@pytest.mark.parametrize("way", ["pgcairn", "langgraph"])
def test_load_messages(benchmark: Any, way: str) -> None:
    serde = JsonPlusSerializer()
    loads = serializer_of(serde)[1] if way == "pgcairn" else serde.loads_typed
    assert benchmark(loads, serde.dumps_typed(_conversation())) == _conversation()


@pytest.mark.parametrize("size", [200, 600, 6000])
def test_frame(benchmark: Any, size: int) -> None:
    framer = Framer(Settings())
    payload = text(size, seed=1).encode()
    assert framer.decode(benchmark(framer.encode, payload)) == payload


def test_assemble(benchmark: Any) -> None:
    items = []
    for number in range(128):
        thread = f"thread-{number * 7919 % 1000}-{number}"
        row = (thread, "", _CHECKPOINT_ID, None, None, 4, "{}", '{"messages":"9"}', b"body")
        value = (thread, "", "messages", _VERSION, "msgpack", b"value")
        items.append(PutItem(thread_id=thread, row=row, values=(value,)))
        write = (thread, "", _CHECKPOINT_ID, "task", 0, "path", "messages", "msgpack", b"write")
        items.append(WritesItem(thread_id=thread, writes=(write,), replace=False))
    batch = benchmark(assemble, items)
    assert batch.rows == 3 * 128


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "with nulls"])
def test_pack(benchmark: Any, nulls: bool) -> None:
    elements: list[bytes | None] = [_CHECKPOINT_ID.encode()] * 256
    if nulls:
        elements[::8] = [None] * 32
    assert len(benchmark(_pack, elements, 25)) > 256 * 4
