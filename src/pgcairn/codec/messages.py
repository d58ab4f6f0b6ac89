"""LangChain's messages to the bytes of LangGraph's serializer and back, without pydantic.

Owns the way past ``model_dump`` and validation for messages of the four common classes whose parts are plain.
Everything else goes the serializer's own way, and so does everything if LangChain, pydantic or LangGraph no longer
do what is assumed here, which is compared once when the first codec is made. Never touches framing or a database.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Dumps = Callable[[Any], tuple[str, bytes]]
Loads = Callable[[tuple[str, bytes]], Any]

_DUMPS_TYPED, _LOADS_TYPED = JsonPlusSerializer.dumps_typed, JsonPlusSerializer.loads_typed
_PYDANTIC_V2 = 5  # the extension code of LangGraph's serializer
_END = ormsgpack.packb("model_validate_json")
_LOADS_OPTION = ormsgpack.OPT_NON_STR_KEYS
_BASE_FIELDS = frozenset({"content", "additional_kwargs", "response_metadata", "type", "name", "id"})
_TOOL_CALL_KEYS = {"name", "args", "id", "type"}
_TOKEN_COUNTS = {"input_tokens", "output_tokens", "total_tokens"}
_TOKEN_DETAILS = {
    "input_token_details": {"audio", "cache_creation", "cache_read"},
    "output_token_details": {"audio", "reasoning"},
}


class _Known(NamedTuple):
    cls: type[BaseMessage]
    kind: str
    fields: frozenset[str]
    validators: frozenset[str]
    # Whether validation would change none of the fields that this class adds.
    is_plain: Callable[[dict[str, Any]], bool]

    @property
    def start(self) -> bytes:
        """How the serializer begins such a message: an array of four, the module, the name."""
        return b"\x94" + ormsgpack.packb(self.cls.__module__) + ormsgpack.packb(self.cls.__name__)


def serializer_of(serde: SerializerProtocol) -> tuple[Dumps, Loads]:
    """What turns values to typed bytes and back: faster for messages where the serializer is LangGraph's own.

    The bytes are those of ``serde``, and what comes back is equal to what ``serde`` gives, to the last attribute.
    """
    if _is_langgraphs_own(serde) and is_as_assumed():
        return _make_dumps(serde), _make_loads(serde)
    return serde.dumps_typed, serde.loads_typed


def _is_langgraphs_own(serde: SerializerProtocol) -> TypeGuard[JsonPlusSerializer]:
    return (
        type(serde) is JsonPlusSerializer
        and not getattr(serde, "_custom_unpack_ext_hook", True)
        # Nobody replaced them, of the class or of this one.
        and getattr(serde.dumps_typed, "__func__", None) is _DUMPS_TYPED
        and getattr(serde.loads_typed, "__func__", None) is _LOADS_TYPED
    )


@functools.cache
def is_as_assumed() -> bool:
    """Whether the installed LangChain, pydantic and LangGraph do with the known messages what is assumed here."""
    try:
        serde = JsonPlusSerializer()
        dumps, loads = _make_dumps(serde), _make_loads(serde)
        return all(_has_assumed_shape(known) for known in _KNOWN) and all(
            dumps(sample) == serde.dumps_typed(sample)
            and _parts(loads(serde.dumps_typed(sample)))
            == _parts(serde.loads_typed(serde.dumps_typed(sample)))
            for sample in _samples()
        )
    except Exception:
        return False


def _has_assumed_shape(known: _Known) -> bool:
    from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

    decorators = known.cls.__pydantic_decorators__
    return (
        frozenset(known.cls.model_fields) == known.fields
        and frozenset(decorators.model_validators) == known.validators
        and not decorators.field_validators
        and not decorators.validators
        and not decorators.root_validators
        and not decorators.field_serializers
        and not decorators.model_serializers
        and not decorators.computed_fields
        and not known.cls.__pydantic_post_init__
        and not known.cls.__private_attributes__
        and (known.cls.__module__, known.cls.__name__) in SAFE_MSGPACK_TYPES
    )


def _samples() -> list[BaseMessage]:
    call = {"name": "look", "args": {"a": [1, {"b": None}]}, "id": "c1", "type": "tool_call"}
    usage = {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
        "input_token_details": {"cache_read": 1},
    }
    return [
        HumanMessage("said", id="1", name="someone", additional_kwargs={"a": {"b": (1, 2.5)}}),
        SystemMessage([{"type": "text", "text": "told"}, "more"]),
        AIMessage("", tool_calls=[call], usage_metadata=usage, response_metadata={"model": "m"}),
        ToolMessage("found", tool_call_id="c1", artifact={"rows": [1]}, status="error"),
    ]


def _parts(message: BaseMessage) -> tuple[Any, ...]:
    return (
        type(message),
        list(message.__dict__.items()),
        message.__pydantic_fields_set__,
        message.__pydantic_extra__,
        message.__pydantic_private__,
    )


def _make_dumps(serde: JsonPlusSerializer) -> Dumps:
    packb, extension, other, option = (
        ormsgpack.packb,
        ormsgpack.Ext,
        jsonplus._msgpack_default,
        jsonplus._option,
    )
    of_class = {known.cls: (known.start, known.fields) for known in _KNOWN}.get

    def default(value: Any) -> Any:
        if (found := of_class(type(value))) is not None and not value.__pydantic_extra__:
            start, names = found
            fields = value.__dict__
            if fields.keys() == names:
                try:
                    packed = packb(fields, default=_refuse, option=option)
                except ormsgpack.MsgpackEncodeError:
                    return other(value)
                return extension(_PYDANTIC_V2, start + packed + _END)
        return other(value)

    def dumps(value: Any) -> tuple[str, bytes]:
        if value is None or isinstance(value, bytes | bytearray):
            return serde.dumps_typed(value)
        try:
            return "msgpack", packb(value, default=default, option=option)
        except ormsgpack.MsgpackEncodeError:
            return serde.dumps_typed(value)

    return dumps


def _make_loads(serde: JsonPlusSerializer) -> Loads:
    unpackb, other, end_length = ormsgpack.unpackb, serde._unpack_ext_hook, len(_END)
    # The second byte tells the length of the module's name, in which the known classes differ.
    by_length = {known.start[1:2]: (known.start, len(known.start), known) for known in _KNOWN}.get

    def hook(code: int, data: bytes) -> Any:
        if code == _PYDANTIC_V2 and (found := by_length(data[1:2])) is not None:
            start, length, (cls, kind, names, _, is_plain) = found
            if data.startswith(start) and data.endswith(_END):
                fields = unpackb(data[length:-end_length], ext_hook=hook, option=_LOADS_OPTION)
                if (
                    type(fields) is dict
                    and fields.keys() == names
                    and fields["type"] == kind
                    and _is_plain_message(fields)
                    and is_plain(fields)
                ):
                    made = cls.__new__(cls)
                    _set(made, "__dict__", fields)
                    _set(made, "__pydantic_fields_set__", set(names))
                    _set(made, "__pydantic_extra__", {})
                    _set(made, "__pydantic_private__", None)
                    return made
        return other(code, data)

    def loads(typed: tuple[str, bytes]) -> Any:
        if typed[0] != "msgpack":
            return serde.loads_typed(typed)
        return unpackb(typed[1], ext_hook=hook, option=_LOADS_OPTION)

    return loads


_set = object.__setattr__


def _refuse(value: Any) -> Any:
    raise TypeError


def _is_plain_message(fields: Mapping[str, Any]) -> bool:
    content, name, identity = fields["content"], fields["name"], fields["id"]
    return (
        (
            type(content) is str
            or (type(content) is list and all(type(each) in (str, dict) for each in content))
        )
        and type(fields["additional_kwargs"]) is dict
        and type(fields["response_metadata"]) is dict
        and (name is None or type(name) is str)
        and (identity is None or type(identity) is str)
    )


def _is_plain(_: dict[str, Any]) -> bool:
    return True


def _is_plain_result(fields: dict[str, Any]) -> bool:
    return type(fields["tool_call_id"]) is str and fields["status"] in ("success", "error")


def _is_plain_answer(fields: dict[str, Any]) -> bool:
    calls, usage = fields["tool_calls"], fields["usage_metadata"]
    if fields["invalid_tool_calls"] != [] or type(calls) is not list:
        return False
    if calls:
        if not all(map(_is_plain_call, calls)):
            return False
    # Validation would parse what providers left there.
    elif "tool_calls" in fields["additional_kwargs"]:
        return False
    return usage is None or _is_plain_usage(usage)


def _is_plain_call(call: Any) -> bool:
    return (
        type(call) is dict
        and call.keys() == _TOOL_CALL_KEYS
        and type(call["name"]) is str
        and type(call["args"]) is dict
        and all(type(key) is str for key in call["args"])
        and ((id := call["id"]) is None or type(id) is str)
        and call["type"] == "tool_call"
    )


def _is_plain_usage(usage: Any) -> bool:
    if type(usage) is not dict or not usage.keys() >= _TOKEN_COUNTS:
        return False
    for key, value in usage.items():
        if (names := _TOKEN_DETAILS.get(key)) is None:
            if key not in _TOKEN_COUNTS or type(value) is not int:
                return False
        elif type(value) is not dict or not all(k in names and type(v) is int for k, v in value.items()):
            return False
    return True


_KNOWN = (
    _Known(HumanMessage, "human", _BASE_FIELDS, frozenset(), _is_plain),
    _Known(SystemMessage, "system", _BASE_FIELDS, frozenset(), _is_plain),
    _Known(
        AIMessage,
        "ai",
        _BASE_FIELDS | {"tool_calls", "invalid_tool_calls", "usage_metadata"},
        frozenset({"_backwards_compat_tool_calls"}),
        _is_plain_answer,
    ),
    _Known(
        ToolMessage,
        "tool",
        _BASE_FIELDS | {"tool_call_id", "artifact", "status"},
        frozenset({"coerce_args"}),
        _is_plain_result,
    ),
)
