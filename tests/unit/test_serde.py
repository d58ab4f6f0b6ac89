"""Values to bytes and back: what LangGraph hands over comes back equal and of the same type."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections import deque
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send

from pgcairn.codec.compression import FrameError
from pgcairn.codec.serde import Codec
from pgcairn.errors import SerializationError
from pgcairn.settings import Settings
from tests.support.values import Color, Model, Number, Opaque, Point, Text, XorCipher, aes_serializer

_SERDE = JsonPlusSerializer()
_UTC = dt.timezone.utc

_EXACT: dict[str, Any] = {
    "none": None,
    "true": True,
    "NUL": "a\x00b",
    "empty text": "",
    "high text": "𝄞\uffff",
    "minus zero": -0.0,
    "1e16": 1e16,
    "1e300": 1e300,
    "5e-324": 5e-324,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "2**63": 2**63,
    "-2**63": -(2**63),
    "2**64-1": 2**64 - 1,
    "bytes": b"\x00\xff",
    "uuid": uuid.UUID(int=5),
    "decimal": decimal.Decimal("1.10"),
    "aware datetime": dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=_UTC),
    "other offset": dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "naive datetime": dt.datetime(2024, 1, 2, 3, 4, 5, 6),
    "date": dt.date(2024, 1, 2),
    "timedelta": dt.timedelta(days=-1, microseconds=1),
    "set": {1, "a", None},
    "frozenset": frozenset({b"x"}),
    "deque": deque([1, [2]]),
    "dataclass": Point(1, [Point("a")]),
    "pydantic": Model(name="n", inner=[1]),
    "str enum": Color.RED,
    "int enum": Number.ONE,
    "send": Send("node", {"x": 1}),
    "interrupt": Interrupt(value="why", id="i"),
    "human": HumanMessage("hi \x00", id="1"),
    "ai": AIMessage("yo", tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "x", "type": "tool_call"}]),
    "tool": ToolMessage("42", tool_call_id="x"),
    "int keys": {1: "a", -1: "b"},
    "nested": {"a": [{"b": (1, 2.0, None)}]},
}


def _same(found: Any, expected: Any) -> bool:
    """Equal and of one type all the way down, where the serializer keeps types."""
    if isinstance(expected, float):
        return type(found) is float and repr(found) == repr(expected)
    if isinstance(expected, list | deque):
        return (
            type(found) is type(expected) and len(found) == len(expected) and all(map(_same, found, expected))
        )
    if isinstance(expected, dict):
        return (
            type(found) is dict
            and list(found) == list(expected)
            and all(_same(found[key], value) for key, value in expected.items())
        )
    return type(found) is type(expected) and bool(found == expected)


def _codecs() -> dict[str, Codec]:
    return {
        "plain": Codec(_SERDE, Settings()),
        "aes": Codec(aes_serializer(), Settings()),
    }


def _there_and_back(codec: Codec, value: object) -> Any:
    type_name, payload = codec.dump(value, "$")
    assert type(payload) is bytes
    frame = codec.frame(payload, "$")
    return codec.load(codec.plain_type(codec.stored_type(type_name, frame)), codec.unframe(frame))


@pytest.mark.parametrize("codec", _codecs().values(), ids=_codecs())
@pytest.mark.parametrize("value", [_EXACT[name] for name in _EXACT], ids=list(_EXACT))
def test_values_come_back_as_they_went(codec: Codec, value: Any) -> None:
    expected = _SERDE.loads_typed(_SERDE.dumps_typed(value))
    # Tuples become lists inside msgpack, also for LangGraph's own savers.
    if value != _EXACT["nested"]:
        assert _same(expected, value), "the serializer itself does not keep it"
    assert _same(_there_and_back(codec, value), expected)
    wrapped = {"k": [value]}
    assert _same(_there_and_back(codec, wrapped), {"k": [expected]})


@pytest.mark.parametrize("codec", _codecs().values(), ids=_codecs())
def test_what_the_serializer_changes_is_changed_in_the_same_way(codec: Codec) -> None:
    for value in (
        Text("t"),
        "\ud800",
        [Text("t")],
        {"a": "x\udfff"},
        (1, 2),
        bytearray(b"ab"),
        [bytearray(b"ab")],
    ):
        try:
            expected = _SERDE.loads_typed(_SERDE.dumps_typed(value))
        except Exception:
            with pytest.raises(SerializationError):
                codec.dump(value, "$")
        else:
            assert _same(_there_and_back(codec, value), expected)


def test_a_bytearray_is_copied_when_the_call_is_made() -> None:
    # A worker thread compresses large payloads later; the node may have changed its state by then.
    value = bytearray(b"before")
    _, payload = Codec(_SERDE, Settings()).dump(value, "$")
    value[:] = b"after!"
    assert payload == b"before"
    assert type(_there_and_back(Codec(_SERDE, Settings()), value)) is bytearray


# --- errors that name the place --------------------------------------------------------------------

_BAD = Opaque()
_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)

_PLACES: dict[str, tuple[Any, str]] = {
    "itself": (_BAD, "$.x"),
    "list": ([1, 2, 3, {"y": _BAD}], "$.x[3].y"),
    "tuple": ((1, _BAD), "$.x[1]"),
    "dict": ({"a": {"b c": _BAD}}, "$.x.a.b c"),
    "set": ({_BAD}, "$.x[0]"),
    "deque": (deque([1, _BAD]), "$.x[1]"),
    "dataclass": (Point(1, [Point(_BAD)]), "$.x.y[0].x"),
    "pydantic": (Model(name="n", inner={"z": _BAD}), "$.x.inner.z"),
    "message": (HumanMessage("hi", additional_kwargs={"k": _BAD}), "$.x.additional_kwargs.k"),
    "send": (Send("node", {"a": _BAD}), "$.x.arg.a"),
    "key": ({"a": {(1, 2): 1, _BAD: 2}}, "$.x.a."),
    "2**64": ({"n": [2**64]}, "$.x.n[0]"),
    "-2**63-1": ([-(2**63) - 1], "$.x[0]"),
    "second of two": ([[1], [_BAD]], "$.x[1][0]"),
}


@pytest.mark.parametrize(("value", "path"), _PLACES.values(), ids=_PLACES)
def test_a_value_that_cannot_be_carried_is_found(value: Any, path: str) -> None:
    with pytest.raises(SerializationError) as raised:
        Codec(_SERDE, Settings()).dump(value, "$.", "x")
    assert raised.value.path.startswith(path)
    if not path.endswith("."):
        assert raised.value.path == path
    assert raised.value.path in str(raised.value)
    assert raised.value.__cause__ is not None
    assert not raised.value.retryable


def test_a_cycle_ends_in_an_error_too() -> None:
    for value in (_CYCLE, {"a": _CYCLE}):
        with pytest.raises(SerializationError, match=r"\$\.x"):
            Codec(_SERDE, Settings()).dump(value, "$.", "x")


def test_the_error_names_the_type_and_the_reason() -> None:
    with pytest.raises(
        SerializationError, match=r"the tests\.support\.values\.Opaque at \$\.x\[0\]: .*Opaque"
    ):
        Codec(_SERDE, Settings()).dump([_BAD], "$.", "x")
    with pytest.raises(SerializationError, match=r"the int at \$\[0\]: "):
        Codec(_SERDE, Settings()).dump([2**64], "$")


def test_too_large_a_value_is_named() -> None:
    with pytest.raises(SerializationError, match=r"\$\.channel_values\.x is too large: 2000 bytes") as raised:
        Codec(_SERDE, Settings(max_value_bytes=1024)).frame(b"x" * 2000, "$.channel_values.", "x")
    assert raised.value.path == "$.channel_values.x"


# --- encryption ------------------------------------------------------------------------------------


def test_the_stored_type_names_the_cipher() -> None:
    plain = Codec(_SERDE, Settings())
    assert plain.stored_type("msgpack", plain.frame(b"x", "$")) == "msgpack"
    assert plain.plain_type("msgpack") == "msgpack"
    sealed = Codec(EncryptedSerializer(XorCipher(), _SERDE), Settings())
    assert sealed.stored_type("msgpack", sealed.frame(b"x", "$")) == "msgpack+xor"
    assert sealed.plain_type("msgpack+xor") == "msgpack"
    assert sealed.plain_type("msgpack") == "msgpack"


def test_an_encrypting_subclass_is_used_whole() -> None:
    class Own(EncryptedSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "own", b"anything"

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            assert data == ("own", b"anything")
            return "read"

    codec = Codec(Own(XorCipher(), _SERDE), Settings())
    assert codec.dump(1, "$") == ("own", b"anything")
    assert _there_and_back(codec, 1) == "read"


def test_pickle_fallback_is_the_serializers_choice() -> None:
    codec = Codec(JsonPlusSerializer(pickle_fallback=True), Settings())
    assert codec.dump(_BAD, "$")[0] == "pickle"
    assert isinstance(_there_and_back(codec, _BAD), Opaque)


@pytest.mark.parametrize(
    ("type_name", "payload"), [("msgpack", b""), ("msgpack", b"\xc1"), ("unheard", b"x")]
)
def test_what_the_serializer_cannot_read_is_a_frame_error(type_name: str, payload: bytes) -> None:
    with pytest.raises(FrameError, match="the serializer cannot read it"):
        Codec(_SERDE, Settings()).load(type_name, payload)
