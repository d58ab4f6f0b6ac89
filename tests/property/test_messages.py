"""Messages take a faster way than the serializer's own; bytes and messages must be the same on both."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from pgcairn.codec import messages
from pgcairn.codec.messages import is_as_assumed, serializer_of


class Rating(enum.Enum):
    """Nothing that msgpack knows."""

    GOOD = "good"


class Text(str):
    """Is a text, and more."""


class Part(BaseModel):
    """Something that providers leave in a message."""

    number: int = 1


class Remark(HumanMessage):
    """A class of the user's own."""

    weight: int = 0


_SERDE = JsonPlusSerializer()
_DUMPS, _LOADS = serializer_of(_SERDE)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_ODD = st.sampled_from(
    [Rating.GOOD, Text("odd"), Part(), (1, 2), {3}, b"bytes", float("nan"), HumanMessage("inner")]
)
_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | _TEXTS
_ANY = st.recursive(
    _PLAIN | _ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3)
)
_DICTS = st.dictionaries(_TEXTS | st.integers(0, 9), _ANY, max_size=2)
_CONTENTS = (
    _TEXTS | _TEXTS.map(Text) | st.lists(_TEXTS | st.dictionaries(_TEXTS, _ANY, max_size=2), max_size=2)
)
_RAW_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_PROVIDED: st.SearchStrategy[dict[Any, Any]] = (
    _DICTS | st.just({"tool_calls": [_RAW_CALL]}) | st.just({"tool_calls": []})
)
_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "additional_kwargs": _DICTS,
    "response_metadata": _DICTS,
    "name": st.none() | _TEXTS,
    "id": st.none() | _TEXTS,
}
_EXTRA = st.dictionaries(st.sampled_from(["extra", "example", "more"]), _PLAIN, max_size=1)
_CALLS = st.fixed_dictionaries(
    {"name": _TEXTS, "args": st.dictionaries(_TEXTS, _ANY, max_size=2), "id": st.none() | _TEXTS},
    optional={"type": st.just("tool_call"), "extras": _DICTS},
)
_BAD_CALLS = st.fixed_dictionaries(
    {"name": _TEXTS, "args": _TEXTS, "id": _TEXTS, "error": st.none() | _TEXTS}
)
_NO_TOKENS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
_COUNTS = st.integers(0, 99)
_USAGE = st.fixed_dictionaries(
    {"input_tokens": _COUNTS, "output_tokens": _COUNTS, "total_tokens": _COUNTS},
    optional={
        "input_token_details": st.dictionaries(st.sampled_from(["audio", "cache_read", "flex"]), _COUNTS),
        "output_token_details": st.dictionaries(st.sampled_from(["reasoning", "flex"]), _COUNTS),
        "cost": st.floats(0, 1),
    },
)


def _made(cls: type[BaseMessage], **own: st.SearchStrategy[Any]) -> st.SearchStrategy[BaseMessage]:
    fields = st.fixed_dictionaries({}, optional={**_COMMON, **own})
    return st.builds(lambda content, given, extra: cls(content, **given, **extra), _CONTENTS, fields, _EXTRA)


_ANSWERS = _made(
    AIMessage,
    additional_kwargs=_PROVIDED,
    tool_calls=st.lists(_CALLS, max_size=2),
    invalid_tool_calls=st.lists(_BAD_CALLS, max_size=1),
    usage_metadata=st.none() | _USAGE,
)
_RESULTS = st.builds(
    lambda message, call_id, status, artifact: ToolMessage(
        **{**dict(message), "type": "tool"}, tool_call_id=call_id, status=status, artifact=artifact
    ),
    _made(HumanMessage),
    _TEXTS,
    st.sampled_from(["success", "error"]),
    _ANY,
)
_MESSAGES = st.one_of(
    _made(HumanMessage),
    _made(SystemMessage),
    _made(Remark),
    _ANSWERS,
    _made(AIMessageChunk),
    _RESULTS,
)
# What somebody may do to a message after it was made, and no validation sees.
_CHANGES = st.dictionaries(
    st.sampled_from(
        ["content", "type", "name", "id", "tool_calls", "usage_metadata", "status", "additional_kwargs"]
    ),
    _ANY,
    max_size=1,
)


def _parts(message: Any) -> Any:
    """All there is of a message, in its order; texts, so that NaN is equal to NaN."""
    if not isinstance(message, BaseMessage):
        return repr(message)
    return repr((type(message), message.__dict__, sorted(message.model_fields_set), message.model_extra))


def test_the_installed_packages_do_what_is_assumed() -> None:
    assert is_as_assumed()
    assert _SERDE.dumps_typed != _DUMPS


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@given(_MESSAGES, _CHANGES)
@example(AIMessage("", additional_kwargs={"tool_calls": [_RAW_CALL]}), {"tool_calls": []})
@example(AIMessage(""), {"usage_metadata": {**_NO_TOKENS, "cost": 0.5}})
@example(AIMessage(""), {"usage_metadata": {**_NO_TOKENS, "total_tokens": "1"}})
@example(AIMessage(""), {"usage_metadata": {**_NO_TOKENS, "input_token_details": {"audio": 1.0}}})
@example(
    AIMessage(""), {"tool_calls": [{"name": "a", "args": {}, "id": "c", "type": "tool_call", "more": 1}]}
)
@example(AIMessage(""), {"tool_calls": [{"name": "a", "args": {}, "id": "c"}]})
@example(
    AIMessage(""), {"tool_calls": [{"name": "a", "args": {"b": Rating.GOOD}, "id": "c", "type": "tool_call"}]}
)
@example(HumanMessage(""), {"id": 5})
@example(HumanMessage(""), {"content": 5})
def test_bytes_and_messages_are_those_of_the_serializer(
    message: BaseMessage, changes: dict[str, Any]
) -> None:
    message.__dict__.update({name: value for name, value in changes.items() if name in message.__dict__})
    try:
        typed = _SERDE.dumps_typed(message)
    except Exception as error:
        with pytest.raises(type(error)):
            _DUMPS(message)
        return
    assert _DUMPS(message) == typed
    assert _DUMPS([{"a": message}]) == _SERDE.dumps_typed([{"a": message}])
    assert _parts(_LOADS(typed)) == _parts(_SERDE.loads_typed(typed))


@given(_MESSAGES)
def test_loaded_messages_share_nothing(message: BaseMessage) -> None:
    typed = _DUMPS(message)
    one, other = _LOADS(typed), _LOADS(typed)
    if isinstance(one, BaseMessage):
        before = _parts(other)
        one.name = "changed"
        one.additional_kwargs["more"] = 1
        assert _parts(other) == before


@pytest.mark.parametrize(
    "value", [None, b"bytes", bytearray(b"bytes"), 1, "text", [], {"a": 1}, {1, 2}, Part()]
)
def test_other_values_are_as_ever(value: Any) -> None:
    typed = _DUMPS(value)
    assert typed == _SERDE.dumps_typed(value)
    assert _LOADS(typed) == value


class _Own(JsonPlusSerializer):
    pass


@pytest.mark.parametrize("serde", [_Own(), JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: data)])
def test_a_serializer_that_is_not_exactly_langgraphs_is_used_as_it_is(serde: JsonPlusSerializer) -> None:
    assert serializer_of(serde) == (serde.dumps_typed, serde.loads_typed)


@pytest.mark.parametrize("name", ["dumps_typed", "loads_typed"])
def test_what_somebody_put_in_place_of_a_method_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serde = JsonPlusSerializer()
    with monkeypatch.context() as changed:
        changed.setattr(serde, name, lambda value: value)
        assert serializer_of(serde) == (serde.dumps_typed, serde.loads_typed)
    assert serializer_of(serde) != (serde.dumps_typed, serde.loads_typed)
    monkeypatch.setattr(JsonPlusSerializer, name, lambda self, value: value)
    assert serializer_of(serde) == (serde.dumps_typed, serde.loads_typed)


def test_another_langchain_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(known._replace(fields=known.fields - {"name"}) for known in messages._KNOWN)
    monkeypatch.setattr(messages, "_KNOWN", others)
    is_as_assumed.cache_clear()
    try:
        assert serializer_of(_SERDE) == (_SERDE.dumps_typed, _SERDE.loads_typed)
    finally:
        is_as_assumed.cache_clear()
