"""From LangGraph's checkpoint to bytes: what goes into the body, what gets a row of its own.

Owns the decision inline or row, the needs of unchanged values, and the merge of a checkpoint that is put
twice. Everything that reads a user's objects happens in ``encode_put``, synchronously, so that a node that
changes its state later cannot tear it; what follows works on bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from pgcairn.codec import body as body_codec
from pgcairn.codec.body import Body
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec

_PLAIN_TYPES = frozenset((type(None), bool, int, float))


class LargeValue(NamedTuple):
    """A serialized value that gets a row."""

    channel: str
    version: str
    type: str
    payload: bytes


class EncodedPut(NamedTuple):
    """A checkpoint as bytes, before framing.

    Attributes:
        body: Payload of the body.
        large: The values that get rows.
        refs: Channel → version of everything that has a row; ``None`` when there is none.
        needs: (channel, version) of the rows that are not brought along.
        size_bytes: Serialized size of everything that had to be serialized.
    """

    body: bytes
    large: list[LargeValue] | None
    refs: dict[str, str] | None
    needs: list[tuple[str, str]] | None
    size_bytes: int


def encode_put(
    codec: Codec,
    inline_max_bytes: int,
    placements: Placements | None,
    checkpoint: Mapping[str, Any],
    metadata: dict[str, Any],
    new_versions: Mapping[str, Any],
    key: tuple[str, str],
) -> EncodedPut:
    """Serialize a checkpoint.

    Args:
        codec: The serializer.
        inline_max_bytes: Values up to this serialized size stay in the body.
        placements: What is known to be stored; ``None`` to bring everything along.
        checkpoint: As LangGraph hands it over, with the values of all channels that have one.
        metadata: As it is to be read back.
        new_versions: Channels that changed. An unchanged channel is found under its existing version.
        key: (thread, namespace).

    Raises:
        SerializationError: A value cannot be carried; the error names its path.
    """
    fields = dict(checkpoint)
    values: Mapping[str, Any] = fields.pop("channel_values", None) or {}
    channel_versions: Mapping[str, Any] = fields.get("channel_versions") or {}
    plain: dict[str, Any] = {}
    inline: list[tuple[str, str, bytes]] = []
    large: list[LargeValue] | None = None
    refs: dict[str, str] | None = None
    needs: list[tuple[str, str]] | None = None
    size_bytes = 0
    for channel, value in values.items():
        value_type = type(value)
        if value_type in _PLAIN_TYPES or (value_type is str and len(value) <= inline_max_bytes):
            plain[channel] = value
            continue
        raw_version = channel_versions.get(channel)
        version = None if raw_version is None else str(raw_version)
        if (
            version is not None
            and channel not in new_versions
            and placements is not None
            and placements.is_stored(key, channel, version)
        ):
            refs, needs = refs or {}, needs or []
            refs[channel] = version
            needs.append((channel, version))
            continue
        type_name, payload = codec.dump(value, "$.channel_values.", channel)
        size_bytes += len(payload)
        # A DeltaChannel's snapshot is looked for under its version, also from checkpoints that do not carry it.
        if version is None or (len(payload) <= inline_max_bytes and value_type is not _DeltaSnapshot):
            inline.append((channel, type_name, payload))
        else:
            refs, large = refs or {}, large or []
            refs[channel] = version
            large.append(LargeValue(channel, version, type_name, payload))
    core_type, core = body_codec.dump_core(codec, fields, plain, metadata)
    body = body_codec.pack(core_type, core, inline)
    return EncodedPut(body, large, refs, needs, size_bytes + len(body))


def refs_json(refs: dict[str, str] | None) -> str | None:
    """References as they are stored."""
    return orjson.dumps(refs).decode() if refs else None


def merge_put(
    codec: Codec, new_frame: bytes, new_refs: str | None, stored_frame: bytes, stored_refs: str | None
) -> tuple[bytes, str | None]:
    """Combine the body of a checkpoint that is put again with what is stored under its id.

    The new checkpoint and metadata win; but a value that is stored under the same channel and version stays
    as it is, because other checkpoints may share it.

    Returns:
        The body's frame and the references to store.

    Raises:
        FrameError: The stored body cannot be read.
    """
    old, old_versions, old_refs = _open(codec, stored_frame, stored_refs)
    new, versions, refs = _open(codec, new_frame, new_refs)
    old_inline = {entry[0]: entry for entry in old.inline}

    def unchanged(channel: str) -> bool:
        return channel in versions and versions[channel] == old_versions.get(channel)

    inline: list[tuple[str, str, bytes]] = []
    for entry in new.inline:
        channel = entry[0]
        if unchanged(channel) and channel in old_refs:
            refs[channel] = old_refs[channel]
        else:
            inline.append(old_inline.get(channel, entry) if unchanged(channel) else entry)
    for channel in list(refs):
        if unchanged(channel) and channel in old_inline:
            del refs[channel]
            inline.append(old_inline[channel])
    body = body_codec.pack(new.core_type, new.core, inline)
    return codec.frame(body, "$"), refs_json(refs)


def _open(codec: Codec, frame: bytes, refs: str | None) -> tuple[Body, dict[str, str], dict[str, str]]:
    body = body_codec.unpack(codec.unframe(frame))
    fields, _, _ = body_codec.load_core(codec, body)
    versions = {name: str(version) for name, version in (fields.get("channel_versions") or {}).items()}
    return body, versions, {} if refs is None else orjson.loads(refs)
