"""Bytes that an earlier pgcairn stored. They must stay readable for ever: add to this file, never edit it."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from pgcairn.codec import body as body_codec
from pgcairn.codec.bases import Bases, new_epoch
from pgcairn.codec.serde import Codec
from pgcairn.reader import replay
from pgcairn.settings import Settings
from pgcairn.storage.repository import StoredTuple
from tests.support.values import XorCipher, aes_serializer

KEY = ("thread", "ns")
TEXT = b"A cairn marks a way walked. " * 20
KNOWN_TEXT = (
    b"langchain_core.messages.ai AIMessage additional_kwargs response_metadata tool_calls invalid_tool_calls "
    b"usage_metadata model_validate_json "
)
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
DICTIONARY_FRAME = "BAEotS/9JIolAQA4ICAgICAgIAr8jWkJuKQ5ZyVQywG5PcY0IOAnR2+ZnvPCnSBRnHJC"
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

# Edits of TEXT, and a value that rests on three others (its eighth version: on the seventh, the fifth and the first).
EDIT_FRAME = "A5UBzQJCzkUIm/KWAADNAjASzQIwAMQXANF/izBZb3UgY2FuIHdhbGsgYmFjay4="
EDIT_ZSTD_FRAME = "A5UBzQNwzqn90zKWAADMjM0BQMyMzQGkxCYBKLUv/WRAAL0AAIBTdG9uZSBvbiBzdG9uZS4gAQBaRp1Ld2jtJA=="
XOR_EDIT_FRAME = "AgN4b3JWwFSYVxebEF3Op8NVVZhXZUeYV2VVkUJVhCreZQw6IHU2NDt1IjQ5PnU3NDY+ew=="
AES_EDIT_FRAME = (
    "AgNhZXNP5h96zf9Ioqd/iD+dps+8sD2aLZLd6+jO0UK5n08QmzBbio8q94vFUYzbpeqFPlzFcTclsJV4hugYzzIXN/E7dzWfHzYY"
    "WQyYW03O5Gq6"
)
CHAIN_BODY_FRAME = (
    "ASi1L/1kJgClBQAUCZQBp21zZ3BhY2vFARiThqF2BKJpZNkkMWVmMC02MDAwLTg4onRzuTIwMjQtMDEtMDFUMDA6MDA6MDgrsGNo"
    "YW5uZWxfdmVyc2lvbnOCqG1lc3NhZ2Vz2TE4LjAwoW6tX3NlZW6AsHVwZGF0ZWRfc5GBoW4Ig6Zzb3VyY2WkbG9vcKRzdGVwCKdw"
    "YXJlbnRzgJANABUrWMdy9QMhgNWJgUz5AhFhXCx3wBjOC8AKpe8rGAOcPmuR"
)
CHAIN_FRAME_8 = (
    "A5UHzQdwzqqvJpKZAAACAQPNBydGzQcqAMRMAJ8qazAc2URzdGVwIDI3IG9mIGEgd2F5IHRoYXQgaXMgbG9uZyBlbm91Z2ggZm9y"
    "IGEgcm93IG9mIGl0cyBvd24sIDE1NTg2OTY3Nw=="
)
CHAIN_FRAME_7 = (
    "A5UGzQcqzle2qjCZAAACAQPNBpvMjM0GngDEkgAC8pPSG9lEc3RlcCAyNSBvZiBhIHdheSB0aGF0IGlzIGxvbmcgZW5vdWdoIGZv"
    "ciBhIHJvdyBvZiBpdHMgb3duLCAxMjM3MzQzNzXZRHN0ZXAgMjYgb2YgYSB3YXkgdGhhdCBpcyBsb25nIGVub3VnaCBmb3IgYSBy"
    "b3cgb2YgaXRzIG93biwgMTM5MTg0MzQ0"
)
CHAIN_FRAME_5 = (
    "A5UEzQaezhmww2aZAAACAQPNBYbNARXNBYkAxIYBKLUv/WQWAL0DAEQGGdlDc3RlcCAyMSBvZiBhIHdheSB0aGF0IGlzIGxvbmcg"
    "ZW5vdWdoIGZvciBhIHJvdyBvZiBpdHMgb3duLCA3MzMzNzg1OTI4NDMyMTUxMjM5NjM1MDQ3M9lENDEwOTQ3MjI1NgYAAUcADAPO"
    "BS8HDjOQN0QB108ogQ=="
)
CHAIN_FRAME_1 = (
    "ASi1L/1kiQTNCQC0DtwAFdk7c3RlcCAwIG9mIGEgd2F5IHRoYXQgaXMgbG9uZyBlbm91Z2ggZm9yIGEgcm93IG9mIGl0cyBvd24s"
    "IDDZPjE3OTE52T8yNjMzNTLZQDMyMTM4MTM0NTA2ODE2NTk4OTg3NdlBNjE3MTA1MDQ3MjcxNjIxNzg0MDU0NTI4OTU3NzI5NTHZ"
    "QjE3OTE5MDAw2UMxMTA1NDAxODkyMzY4NDAzMjM3Mzk4MDQzNDIxNzI5NzM2NTY3MjY2MjU2MzI0MzYyMjQ3ODkwNjA0Nzg0NjE4"
    "MzYwODk1NDMxNjQyMTIwNjMzNTIwMDAoIKBzVwM52OU87I054ms69+U87F0d9o054jU99zVxLvLldNhhMSlKRxAu57qW57oWzzW6"
    "lnMFjsNcGBxRuBXPJQqWzx0IFc8JgCDPq90G0w=="
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
        (_PLAIN, DICTIONARY_FRAME, KNOWN_TEXT),
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


@pytest.mark.parametrize(
    ("codec", "literal", "payload"),
    [
        (_PLAIN, EDIT_FRAME, TEXT + b"You can walk back."),
        (_PLAIN, EDIT_ZSTD_FRAME, TEXT[:140] + b"Stone on stone. " * 20 + TEXT[140:]),
        (_XOR, XOR_EDIT_FRAME, TEXT + b"You can walk back."),
        (_AES, AES_EDIT_FRAME, TEXT + b"You can walk back."),
    ],
)
def test_frames_of_edits(codec: Codec, literal: str, payload: bytes) -> None:
    frames = [base64.b64decode(literal), codec.frame(TEXT, "$")]
    found, lineage = codec.unframe_chain(["2.0", "1.0"], frames)
    assert found == payload
    assert (lineage.number, lineage.versions, lineage.root) == (1, ("2.0", "1.0"), TEXT)


def test_an_edit_is_made_as_ever() -> None:
    lineage = new_epoch("1.0", TEXT).extended("2.0", TEXT + b"You can walk back.")
    assert lineage is not None
    frame = _PLAIN.frame_edit(lineage, TEXT + b"You can walk back.", "$")
    assert base64.b64encode(frame).decode() == EDIT_FRAME


_VALUE_COLUMNS = ("value_channels", "value_places", "value_versions", "value_types", "value_frames")


def test_a_value_that_rests_on_three_others() -> None:
    frames = [base64.b64decode(each) for each in (CHAIN_FRAME_8, CHAIN_FRAME_7, CHAIN_FRAME_5, CHAIN_FRAME_1)]
    versions = [f"{number:032}.{0:016}" for number in (8, 7, 5, 1)]
    arrays: dict[str, Any] = dict.fromkeys(StoredTuple._fields[6:])
    arrays.update(
        value_channels=["messages"] * 4,
        value_places=[0, 1, 2, 3],
        value_versions=versions,
        value_types=["msgpack"] * 4,
        value_frames=frames,
    )
    stored = StoredTuple(
        *("thread", "ns", "1ef00000-0000-6000-8000-000000000008", None),
        base64.b64decode(CHAIN_BODY_FRAME),
        f'{{"messages":"{versions[0]}"}}',
        **arrays,
    )
    mixed: dict[str, Any] = {name: [arrays[name][each] for each in (2, 0, 3, 1)] for name in _VALUE_COLUMNS}
    in_disorder = stored._replace(**mixed)
    for each in (stored, in_disorder):
        bases = Bases(1_000_000)
        found = replay(_PLAIN, each, bases)
        assert found.checkpoint["channel_values"] == {
            "messages": [
                f"step {step} of a way that is long enough for a row of its own, {step * step * step * 7919}"
                for step in range(28)
            ],
            "n": 8,
        }
        lineage = bases.find(("thread", "ns", "messages"))
        assert lineage is not None
        assert (lineage.number, lineage.versions) == (7, tuple(versions))
