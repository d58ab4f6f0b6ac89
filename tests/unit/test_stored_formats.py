"""Bytes that an earlier pgcairn stored. They must stay readable for ever: add to this file, never edit it."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from pgcairn.codec import body as body_codec
from pgcairn.codec.serde import Codec
from pgcairn.reader import replay
from pgcairn.settings import Settings
from pgcairn.storage.repository import StoredTuple
from tests.support.values import XorCipher, aes_serializer

KEY = ("thread", "ns")
TEXT = b"A cairn marks a way walked. " * 20
CHECKPOINT: dict[str, Any] = {
    "v": 4,
    "id": "1ef00000-0000-6000-8000-000000000001",
    "ts": "2024-01-01T00:00:00+00:00",
    "channel_values": {
        "none": None,
        "flag": True,
        "big": 2**63,
        "minus zero": -0.0,
        "text": "NUL \x00 and more",
        "list": [1, "a", {"b": 1e16}],
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"ab"),
        "when": dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc),
    },
    "channel_versions": {"list": "00000000000000000000000000000001.0000000000000000", "old": 3},
    "versions_seen": {"node": {"list": "1"}},
    "updated_channels": ["list"],
}
METADATA: dict[str, Any] = {"source": "loop", "step": 1, "parents": {}, "nul": "\x00"}

# --- version 0.1.0 ----------------------------------------------------------------------------------

PLAIN_FRAME = "AGsvzWJjYWlybg=="
ZSTD_FRAME = "ASi1L/1kMAElAQDgQSBjYWlybiBtYXJrcyBhIHdheSB3YWxrZWQuIAEARPhqOgFR9CZ9"
ZSTD_FRAME_LEVEL_9 = "ASi1L/1ksBIlAQDgQSBjYWlybiBtYXJrcyBhIHdheSB3YWxrZWQuIAEARM730wkPiINN"
XOR_FRAME = "AgN4b3JUfeB6qDFlVHBUVbUUdTY0PCc7dTg0Jz4mdTR1IjQsdSI0OT4wMXt1VFURrT9vVAShcyg="
AES_FRAME = (
    "AgNhZXPtjR9cOXZqx8rwz3sda5U74wjjoe5931pbCY5S3pnKnqi1W7DZEkzZ7yhbHNcOZyafwS8QU0y7OzVnT7dElCmBsAPP//+N"
    "4wVMnQak1+rKAfsYdw=="
)
AES_PLAIN_FRAME = "AgNhZXNZdmjKdo6oK2iU/wcyLulGogNtQFoOOoXAAAJ6cL/2lMy8bmK0FGWajXg="
BODY_FRAME = (
    "ASi1L/1k1wDFCgC0EZQBp21zZ3BhY2vFATGThqF2BKJpZNkkMWVmMC02MDAwLTgxonRzuTIwMjQtMDEtMDFUMDA6K7BjaGFubmVs"
    "X3ZlcnNpb25zgqRsaXN02TExLjAwo29sZAOtX3NlZW6BpG5vZGWBoTGwdXBkYXRlZF9zkYWkbm9uZcCkZmxhZ8OjYmlnz4AAqm1p"
    "bnVzIHplcm/LgACkdGV4dK5OVUwgACBhbmQgbW9yZYSmc291cmNlpGxvb3Ckc3RlcAGncGFyZW50c4CjbnVsoQCUk8QQkwGhYYGh"
    "YstDQcN5N+CAAJOlYnl0ZXPEAgD/k6lieXRlYXJyYXnEAmFik6R3aGVuPsc7A5SoZGF0ZXRpbWUyrWZyb21pc29mb3JtYXQZANCF"
    "bm2AVVQTCtKya6mBRksL3XB3MBTcMJ6LbUxfYUsKfgUABizCCgFhRsqJuhYADWcHsApF7gEYA2AUBHo="
)
AES_BODY_FRAME = (
    "AgNhZXN7bfRLV9bBtIlsWmddK9l45twPloP1DoVdIzVD17QqMCT96Zr39uAIw4ti99BQ5DUwYXshupfLJUK8eX1HXNPA5+opWjdr"
    "LgzzxgEXdmCPCNmqDDpLj/p+gozuvHEDCz5efvz3DVCO2WIBlRA3nXj/bZTVoovv3hNyb0X5fWrFLKlMicbXKfl5ulVXXpy0C4MX"
    "z0wKUzPy4K6I5yI2/Od/gLrEi5BBRR7fQN8i98WCT6m18kc+hj7SqjTSmGhY9/QDZqwQBZqIU6NlM+SkCoMr25vWNS86eQqsAqVe"
    "KUcoXB+R2mApnXPOguR8SqzoFtpEVJZo8fPCtNNB4xNOj7ZXzngkMeY2mjJ0b0hQazaodAAi5l81U+CO87uWQ1xNK0GM817pD9Y4"
    "2ZgnoGMD7bar1uJk7smhHNvdlZ8EZnAOaylg4YqP4BTMfRweI8U5kjL364ZI6tzEbW/GBCnyrXNTrk2FRh5FExfmesv/llwD9ySh"
    "5XntVuBDXs8J6BUooJ5+iWXLhxi5"
)

# --- tests ------------------------------------------------------------------------------------------

_SERDE = JsonPlusSerializer()
_PLAIN = Codec(_SERDE, Settings())
_XOR = Codec(EncryptedSerializer(XorCipher(), _SERDE), Settings())
_AES = Codec(aes_serializer(), Settings())


@pytest.mark.parametrize(
    ("codec", "literal", "payload"),
    [
        (_PLAIN, PLAIN_FRAME, b"cairn"),
        (_PLAIN, ZSTD_FRAME, TEXT),
        (_PLAIN, ZSTD_FRAME_LEVEL_9, TEXT * 9),
        (_XOR, XOR_FRAME, TEXT),
        (_AES, AES_FRAME, TEXT),
        (_AES, AES_PLAIN_FRAME, b"cairn"),
    ],
)
def test_frames(codec: Codec, literal: str, payload: bytes) -> None:
    assert codec.unframe(base64.b64decode(literal)) == payload


@pytest.mark.parametrize(("codec", "literal"), [(_PLAIN, BODY_FRAME), (_AES, AES_BODY_FRAME)])
def test_bodies_of_format_1(codec: Codec, literal: str) -> None:
    frame = base64.b64decode(literal)
    body = body_codec.unpack(codec.unframe(frame))
    assert [channel for channel, _, _ in body.inline] == ["list", "bytes", "bytearray", "when"]
    arrays = dict.fromkeys(StoredTuple._fields[6:])
    found = replay(codec, StoredTuple("thread", "ns", CHECKPOINT["id"], None, frame, None, **arrays))
    assert found.checkpoint == CHECKPOINT
    values = found.checkpoint["channel_values"]
    assert {name: type(value) for name, value in values.items()} == {
        name: type(value) for name, value in CHECKPOINT["channel_values"].items()
    }
    assert repr(values["minus zero"]) == "-0.0"
    assert found.metadata == METADATA


def test_a_plain_frame_is_made_as_ever() -> None:
    # zstd's output may change with its version; what needs no library may not.
    assert base64.b64encode(_PLAIN.frame(b"cairn", "$")).decode() == PLAIN_FRAME
