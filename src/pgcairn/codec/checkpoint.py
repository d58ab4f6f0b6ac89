"""From LangGraph's checkpoint to rows: what goes into the body, what gets a row of its own.

Owns the decision inline or row, the needs of unchanged values, and the merge of a checkpoint that is put
twice. Everything that reads a user's objects happens in ``EncodedPut.start``, synchronously, so that a node
that changes its state later cannot tear it; ``finish`` only works on bytes and may run in a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from pgcairn.codec import body as body_codec
from pgcairn.codec.body import Body
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec
from pgcairn.settings import Settings

_PLAIN_TYPES = frozenset((type(None), bool, int, float))


@dataclass(slots=True)
class EncodedPut:
    """A checkpoint as bytes.

    Attributes:
        versions: ``channel_versions`` as text.
        body: The small parts.
        large: (channel, version, type, payload) of the values that get rows.
        refs: Channel → version of everything that has a row.
        needs: (channel, version) of the rows that are not brought along.
        size_bytes: Serialized size of everything that was serialized.
    """

    versions: dict[str, str]
    body: Body
    large: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)
    needs: list[tuple[str, str]] = field(default_factory=list)
    size_bytes: int = 0

    def refs_json(self) -> str | None:
        """The references as they are stored."""
        return orjson.dumps(self.refs).decode() if self.refs else None


def encode_put(
    codec: Codec,
    settings: Settings,
    placements: Placements | None,
    checkpoint: Mapping[str, Any],
    metadata: dict[str, Any],
    new_versions: Mapping[str, Any],
    key: tuple[str, str],
) -> EncodedPut:
    """Serialize a checkpoint.

    Args:
        codec: The serializer.
        settings: ``inline_max_bytes``.
        placements: What is known to be stored; ``None`` to bring everything along.
        checkpoint: As LangGraph hands it over, with the values of all channels that have one.
        metadata: As it is to be read back.
        new_versions: Channels that changed. An unchanged channel is found under its existing version.
        key: (thread, namespace).

    Raises:
        SerializationError: A value cannot be carried; the error names its path.
    """
    inline_max = settings.inline_max_bytes
    channel_versions: Mapping[str, Any] = checkpoint.get("channel_versions") or {}
    fields = {name: value for name, value in checkpoint.items() if name != "channel_values"}
    plain: dict[str, Any] = {}
    inline: list[tuple[str, str, bytes]] = []
    encoded = EncodedPut({}, Body("", b"", inline))
    for channel, value in (checkpoint.get("channel_values") or {}).items():
        value_type = type(value)
        if value_type in _PLAIN_TYPES or (value_type is str and len(value) <= inline_max):
            plain[channel] = value
            continue
        raw_version = channel_versions.get(channel)
        version = None if raw_version is None else str(raw_version)
        if (
            version is not None
            and channel not in new_versions
            and placements is not None
            and placements.is_stored(*key, channel, version)
        ):
            encoded.refs[channel] = version
            encoded.needs.append((channel, version))
            continue
        type_name, payload = codec.dump(value, f"$.channel_values.{channel}")
        encoded.size_bytes += len(payload)
        # A DeltaChannel's snapshot is looked for under its version, also from checkpoints that do not carry it.
        if version is None or (len(payload) <= inline_max and not isinstance(value, _DeltaSnapshot)):
            inline.append((channel, type_name, payload))
            if version is not None:
                encoded.versions[channel] = version
        else:
            encoded.large.append((channel, version, type_name, payload))
            encoded.refs[channel] = version
    core_type, core = body_codec.dump_core(codec, fields, plain, metadata)
    encoded.body.core_type, encoded.body.core = core_type, core
    encoded.size_bytes += len(core)
    return encoded


def merge_put(
    codec: Codec, new: EncodedPut, stored_body: bytes, stored_refs: str | None
) -> tuple[bytes, str | None]:
    """Combine a checkpoint that is put again with what is stored under its id.

    The new checkpoint and metadata win; but a value that is stored under the same channel and version stays
    as it is, because other checkpoints share it.

    Raises:
        FrameError: The stored body cannot be read.
    """
    old = body_codec.unpack(codec.unframe(stored_body))
    old_fields, _, _ = body_codec.load_core(codec, old)
    old_versions = {name: str(v) for name, v in (old_fields.get("channel_versions") or {}).items()}
    old_inline = {channel: (channel, type_name, payload) for channel, type_name, payload in old.inline}
    old_refs: dict[str, str] = {} if stored_refs is None else orjson.loads(stored_refs)
    refs = dict(new.refs)
    inline: list[tuple[str, str, bytes]] = []
    for entry in new.body.inline:
        channel = entry[0]
        version = new.versions.get(channel)
        if version is not None and old_refs.get(channel) == version:
            refs[channel] = version
        elif version is not None and channel in old_inline and old_versions.get(channel) == version:
            inline.append(old_inline[channel])
        else:
            inline.append(entry)
    for channel, version in new.refs.items():
        if channel in old_inline and old_versions.get(channel) == version:
            del refs[channel]
            inline.append(old_inline[channel])
    merged = EncodedPut(new.versions, Body(new.body.core_type, new.body.core, inline), refs=refs)
    return codec.frame(merged.body.pack(), "$"), merged.refs_json()
