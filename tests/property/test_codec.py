"""Any value through the serializer and a frame, any damage to a frame, any array to PostgreSQL's format."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.array import ListBinaryDumper

from pgcairn.codec import body as body_codec
from pgcairn.codec.compression import FrameError
from pgcairn.codec.metadata import searchable
from pgcairn.codec.serde import Codec
from pgcairn.connection.pool import Query
from pgcairn.connection.psycopg_wire import encode
from pgcairn.errors import SerializationError
from pgcairn.settings import Settings
from tests.support.values import aes_serializer

_SERDE = JsonPlusSerializer()
_CODECS = [
    Codec(_SERDE, Settings()),
    Codec(_SERDE, Settings(compress_min_bytes=0)),
    Codec(aes_serializer(), Settings()),
]

_TEXTS = st.text(st.characters(codec="utf-8"))
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    _TEXTS,
    st.binary(),
    st.uuids(),
    st.decimals(allow_nan=False),
    # The serializer stores the ISO form, which has no fold.
    st.datetimes(timezones=st.sampled_from([None, dt.timezone.utc])).map(lambda when: when.replace(fold=0)),
    st.frozensets(st.integers(0, 9)),
)
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=20)


@given(_VALUES, st.sampled_from(_CODECS), st.booleans())
def test_values_come_back(value: Any, codec: Codec, in_thread: bool) -> None:
    type_name, payload = codec.dump(value, "$")
    frame = codec.frame(payload, "$", in_thread=in_thread)
    assert codec.unframe(frame) == payload
    found = codec.load(codec.plain_type(codec.stored_type(type_name, frame)), codec.unframe(frame))
    assert repr(found) == repr(value)  # the same types, NaN and -0.0 all the way down


@given(
    st.recursive(_LEAVES | st.text(), st.lists, max_leaves=8)
    | st.dictionaries(st.text(), _LEAVES | st.text())
)
def test_what_cannot_be_carried_is_an_error_with_a_path(value: Any) -> None:
    failure: SerializationError | None = None
    try:
        _CODECS[0].dump(value, "$")
    except SerializationError as error:
        failure = error
    assert failure is None or failure.path.startswith("$")


@given(
    st.binary(max_size=2000) | st.binary(min_size=1, max_size=9).map(lambda part: part * 300),
    st.sampled_from(_CODECS),
    st.data(),
)
def test_damage_is_never_read_as_another_payload(payload: bytes, codec: Codec, data: st.DataObject) -> None:
    frame = bytearray(codec.frame(payload, "$"))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        assert codec.unframe(bytes(frame)) == payload


@given(st.binary(max_size=200))
def test_nothing_but_frames_and_bodies_is_read(rubbish: bytes) -> None:
    for read in (_CODECS[0].unframe, body_codec.unpack):
        with contextlib.suppress(FrameError):
            read(rubbish)


@given(
    _TEXTS,
    st.binary(max_size=50),
    st.lists(st.tuples(_TEXTS, _TEXTS, st.binary(max_size=50)), max_size=5),
)
def test_bodies_come_back(core_type: str, core: bytes, inline: list[tuple[str, str, bytes]]) -> None:
    assert body_codec.unpack(body_codec.pack(core_type, core, inline)) == (core_type, core, inline)


@given(st.dictionaries(st.text() | st.integers(), _LEAVES | st.text() | st.lists(st.text()), max_size=4))
def test_metadata_is_always_json_for_postgresql(metadata: dict[Any, Any]) -> None:
    text = searchable(metadata)
    text.encode()
    assert text.startswith("{")
    assert "\\u0000" not in text.replace("\\\\", "")
    assert "NaN" not in text or '"' in text


# --- arrays -----------------------------------------------------------------------------------------

# PostgreSQL's text has no NUL; psycopg would choose another integer type for small numbers.
_ARRAYS: dict[str, st.SearchStrategy[Any]] = {
    "text[]": st.lists(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"))),
    "bytea[]": st.lists(st.none() | st.binary()),
    "int4[]": st.lists(st.integers(2**15, 2**31 - 1)),
}
_OIDS = {"text[]": 25, "bytea[]": 17, "int4[]": 23}


@given(st.sampled_from(sorted(_ARRAYS)), st.data())
def test_arrays_are_packed_as_psycopg_packs_them(type_name: str, data: st.DataObject) -> None:
    values: list[Any] = data.draw(_ARRAYS[type_name])
    [found] = encode(Query("x", "", (type_name,)), [values])
    assert found is not None
    dumper = Transformer().get_dumper(values, PyFormat.BINARY)
    element_type = _OIDS[type_name].to_bytes(4, "big")
    if not values:
        assert found == bytes(8) + element_type
        return
    if all(value is None for value in values):
        # psycopg does not know the elements' type then, and writes text.
        head = struct.pack(">ii", 1, 1) + element_type + struct.pack(">ii", len(values), 1)
        assert found == head + b"\xff\xff\xff\xff" * len(values)
        return
    assert isinstance(dumper, ListBinaryDumper)
    assert found == bytes(dumper.dump(values) or b"")
