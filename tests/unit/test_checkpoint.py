"""A checkpoint to bytes: what is inline, what has a row, what is needed; and one that is put twice."""

from __future__ import annotations

from typing import Any

import orjson
import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from pgcairn.codec import body as body_codec
from pgcairn.codec.checkpoint import EncodedPut, encode_put, merge_put, refs_json
from pgcairn.codec.compression import FrameError
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec
from pgcairn.errors import SerializationError
from pgcairn.settings import Settings
from tests.support.values import Opaque, Text

_CODEC = Codec(JsonPlusSerializer(), Settings())
_KEY = ("t", "")
_INLINE = 100
_LARGE = ["x" * 200]
_SMALL = ["s"]


def _encode(
    values: dict[str, Any],
    *,
    versions: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    placements: Placements | None = None,
    metadata: dict[str, Any] | None = None,
    inline_max_bytes: int = _INLINE,
) -> EncodedPut:
    versions = dict.fromkeys(values, "1") if versions is None else versions
    checkpoint = {"v": 4, "id": "c", "channel_values": values, "channel_versions": versions}
    return encode_put(
        _CODEC,
        inline_max_bytes,
        placements,
        checkpoint,
        metadata or {},
        versions if new is None else new,
        _KEY,
    )


def _read(payload: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Fields, plain values, other inline values, metadata."""
    body = body_codec.unpack(payload)
    fields, plain, metadata = body_codec.load_core(_CODEC, body)
    return fields, plain, {name: _CODEC.load(kind, value) for name, kind, value in body.inline}, metadata


def test_small_values_are_inline_and_large_ones_have_rows() -> None:
    encoded = _encode(
        {"small": _SMALL, "large": _LARGE, "n": None, "i": 1, "text": "y" * 100, "long": "y" * 101}
    )
    fields, plain, inline, _ = _read(encoded.body)
    assert plain == {"n": None, "i": 1, "text": "y" * 100}
    assert inline == {"small": _SMALL}
    assert "channel_values" not in fields
    assert encoded.large is not None
    assert {(value.channel, value.version) for value in encoded.large} == {("large", "1"), ("long", "1")}
    assert encoded.refs == {"large": "1", "long": "1"}
    assert encoded.needs is None
    assert encoded.size_bytes >= len(encoded.body) + sum(len(value.payload) for value in encoded.large)


def test_the_limit_is_the_serialized_size() -> None:
    payload = _CODEC.dump(["x" * 90], "$")[1]
    assert _encode({"x": ["x" * 90]}, inline_max_bytes=len(payload)).large is None
    assert _encode({"x": ["x" * 90]}, inline_max_bytes=len(payload) - 1).large is not None
    assert _encode({"x": []}, inline_max_bytes=0).refs == {"x": "1"}
    assert _encode({"x": 1}, inline_max_bytes=0).refs is None


def test_plain_values_are_of_exactly_plain_types() -> None:
    encoded = _encode({"b": True, "f": -0.0, "s": "", "sub": Text("t"), "bytes": b"x"})
    _, plain, inline, _ = _read(encoded.body)
    assert list(plain) == ["b", "f", "s"]
    assert repr(plain["f"]) == "-0.0"
    assert set(inline) == {"sub", "bytes"}


def test_a_delta_snapshot_always_has_a_row_if_it_has_a_version() -> None:
    encoded = _encode({"d": _DeltaSnapshot([])})
    assert encoded.refs == {"d": "1"}
    assert _encode({"d": _DeltaSnapshot([])}, versions={}).refs is None


def test_a_value_without_a_version_is_inline_however_large() -> None:
    encoded = _encode({"x": _LARGE}, versions={})
    assert (encoded.large, encoded.refs) == (None, None)
    assert _read(encoded.body)[2] == {"x": _LARGE}


def test_an_unchanged_value_is_needed_only_if_it_is_known_to_be_stored() -> None:
    placements = Placements(10)
    assert _encode({"x": _LARGE}, new={}, placements=placements).needs is None
    placements.remember(_KEY, {"x": "1"})
    encoded = _encode({"x": Opaque()}, new={}, placements=placements)  # not even serialized
    assert (encoded.needs, encoded.refs, encoded.large) == ([("x", "1")], {"x": "1"}, None)
    changed = _encode({"x": _LARGE}, placements=placements)
    assert changed.needs is None
    assert changed.large is not None
    other = _encode({"x": _LARGE}, versions={"x": "2"}, new={}, placements=placements)
    assert other.needs is None
    whole = _encode({"x": _LARGE}, new={}, placements=None)
    assert whole.needs is None
    assert whole.large is not None


def test_versions_of_other_types_become_text() -> None:
    assert _encode({"x": _LARGE}, versions={"x": 7}).refs == {"x": "7"}


def test_the_exact_metadata_is_in_the_body() -> None:
    metadata = {"a": "x\x00", "f": 1e16, "n": [None]}
    assert _read(_encode({}, metadata=metadata).body)[3] == metadata


@pytest.mark.parametrize(
    ("values", "metadata", "path"),
    [
        ({"x": [1, {"y": Opaque()}]}, {}, "$.channel_values.x[1].y"),
        ({"x": 2**64}, {}, "$.channel_values.x"),
        ({}, {"a": {"b": Opaque()}}, "$.metadata.a.b"),
    ],
)
def test_errors_name_the_path(values: dict[str, Any], metadata: dict[str, Any], path: str) -> None:
    with pytest.raises(SerializationError) as raised:
        _encode(values, metadata=metadata)
    assert raised.value.path == path


def test_references_are_json() -> None:
    assert refs_json(None) is None
    assert refs_json({}) is None
    assert orjson.loads(refs_json({'a"': "1"}) or "") == {'a"': "1"}


def test_a_body_of_another_kind_is_refused() -> None:
    for payload, reason in (
        (ormsgpack.packb([2, "future"]), "format 2; this version reads 1"),
        (ormsgpack.packb([1, "t"]), "cannot be read"),
        (ormsgpack.packb([1, "t", b"", [1]]), "cannot be read"),
        (ormsgpack.packb(1), "cannot be read"),
        (b"", "cannot be read"),
    ):
        with pytest.raises(FrameError, match=reason):
            body_codec.unpack(payload)
    cores: list[Any] = [[{}, {}], [{}, {}, 1], 5, None]
    for core in cores:
        kind, payload = _CODEC.dump(core, "$")
        with pytest.raises(FrameError, match="core"):
            body_codec.load_core(_CODEC, body_codec.Body(kind, payload, []))


# --- put twice --------------------------------------------------------------------------------------


def _merged(stored: EncodedPut, new: EncodedPut) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Plain values, inline values and references after the second put."""
    body, refs = merge_put(
        _CODEC,
        _CODEC.frame(new.body, "$"),
        refs_json(new.refs),
        _CODEC.frame(stored.body, "$"),
        refs_json(stored.refs),
    )
    _, plain, inline, metadata = _read(_CODEC.unframe(body))
    assert metadata == {"put": 2}
    return plain, inline, orjson.loads(refs) if refs else {}


_OLD_ROW, _NEW_ROW = ["old" * 100], ["new" * 100]
_OLD, _NEW = ["old"], ["new"]


@pytest.mark.parametrize(
    ("old", "new", "same_version", "inline", "refs"),
    [
        (_OLD, _NEW, True, {"x": _OLD}, {}),
        (_OLD, _NEW, False, {"x": _NEW}, {}),
        (_OLD, _NEW_ROW, True, {"x": _OLD}, {}),
        (_OLD, _NEW_ROW, False, {}, {"x": "2"}),
        (_OLD_ROW, _NEW, True, {}, {"x": "1"}),
        (_OLD_ROW, _NEW, False, {"x": _NEW}, {}),
        (_OLD_ROW, _NEW_ROW, True, {}, {"x": "1"}),
        (_OLD_ROW, _NEW_ROW, False, {}, {"x": "2"}),
    ],
)
def test_a_stored_value_of_the_same_version_stays(
    old: Any, new: Any, same_version: bool, inline: dict[str, Any], refs: dict[str, str]
) -> None:
    second = {"x": "1" if same_version else "2"}
    found = _merged(_encode({"x": old}), _encode({"x": new}, versions=second, metadata={"put": 2}))
    assert found == ({}, inline, refs)


def test_the_second_put_decides_which_channels_there_are() -> None:
    second = _encode({"y": _NEW, "n": 2}, versions={"y": "1", "n": "2"}, metadata={"put": 2})
    assert _merged(_encode({"x": _OLD_ROW, "z": _OLD, "n": 1}), second) == ({"n": 2}, {"y": _NEW}, {})


def test_values_without_a_version_are_replaced() -> None:
    first, second = _encode({"x": _OLD}, versions={}), _encode({"x": _NEW}, versions={}, metadata={"put": 2})
    assert _merged(first, second) == ({}, {"x": _NEW}, {})


def test_a_stored_body_that_cannot_be_read_is_an_error() -> None:
    new = _CODEC.frame(_encode({}).body, "$")
    with pytest.raises(FrameError):
        merge_put(_CODEC, new, None, new[:-1], None)


# --- placements -------------------------------------------------------------------------------------


def test_placements_forget_what_was_unused_for_longest() -> None:
    placements = Placements(2)
    for name in ("a", "b"):
        placements.remember((name, ""), {"x": "1"})
    placements.remember(("a", ""), {"y": "2"})
    placements.remember(("c", ""), {"x": "1"})
    assert len(placements) == 2
    assert placements.is_stored(("a", ""), "x", "1")
    assert placements.is_stored(("a", ""), "y", "2")
    assert not placements.is_stored(("b", ""), "x", "1")
    assert not placements.is_stored(("a", "other"), "x", "1")
    placements.remember(("a", ""), {"x": "2"})
    assert not placements.is_stored(("a", ""), "x", "1")


def test_placements_keep_a_copy() -> None:
    placements, versions = Placements(2), {"x": "1"}
    placements.remember(_KEY, versions)
    versions["x"] = "2"
    assert placements.is_stored(_KEY, "x", "1")
