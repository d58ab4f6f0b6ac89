"""The body of a checkpoint: all of it that is small, in one payload.

Layout (msgpack, before framing): ``[1, core_type, core, [[channel, type, payload], ...]]``. ``core`` is, by
the serializer, ``[fields, plain_values, metadata]``: the checkpoint without ``channel_values``; the values
that are exactly ``None``, ``bool``, ``int``, ``float`` or ``str``; and the exact metadata. Other small values
are serialized one by one, because a container would lose types that the serializer only keeps at the top
(a ``bytearray``). See docs/payload-format.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ormsgpack

from pgcairn.codec.compression import FrameError
from pgcairn.codec.serde import Codec
from pgcairn.errors import SerializationError

_FORMAT = 1


class Body(NamedTuple):
    """A checkpoint's small parts, serialized.

    Attributes:
        core_type: Type tag of ``core``.
        core: Fields, plain values and metadata.
        inline: (channel, type, payload) of the other small values.
    """

    core_type: str
    core: bytes
    inline: list[tuple[str, str, bytes]]


def pack(core_type: str, core: bytes, inline: list[tuple[str, str, bytes]]) -> bytes:
    """Put the parts into one payload."""
    return ormsgpack.packb((_FORMAT, core_type, core, inline))


def dump_core(
    codec: Codec, fields: dict[str, Any], plain_values: dict[str, Any], metadata: dict[str, Any]
) -> tuple[str, bytes]:
    """Serialize what every body holds.

    Raises:
        SerializationError: Naming the path of the leaf as the caller knows it.
    """
    try:
        return codec.dumps((fields, plain_values, metadata))
    except Exception:
        for value, path in (
            (fields, "$"),
            (plain_values, "$.channel_values"),
            (metadata, "$.metadata"),
        ):
            codec.dump(value, path)
        raise SerializationError("The serializer cannot carry the checkpoint.") from None


def unpack(payload: bytes) -> Body:
    """Take a payload apart.

    Raises:
        FrameError: It is not a body, or of a format that this version does not know.
    """
    try:
        number, *rest = ormsgpack.unpackb(payload)
        if number == _FORMAT:
            core_type, core, inline = rest
            return Body(
                core_type, core, [(channel, type_name, value) for channel, type_name, value in inline]
            )
    except Exception as error:
        raise FrameError(f"the body cannot be read ({error})") from error
    raise FrameError(f"the body has format {number!r}; this version reads {_FORMAT}")


def peek_id(body: Body) -> str | None:
    """Return the checkpoint's id without making any object of a type that is not msgpack's own.

    Returns:
        The id; ``None`` if the core is not msgpack, so that only its serializer can tell.

    Raises:
        FrameError: It is not ``[fields, plain values, metadata]``, or has no id.
    """
    if body.core_type != "msgpack":
        return None
    try:
        fields, _, _ = ormsgpack.unpackb(
            body.core, ext_hook=lambda code, inner: None, option=ormsgpack.OPT_NON_STR_KEYS
        )
        found = fields["id"]
    except Exception as error:
        raise FrameError(f"the body's core cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(found, str):
        raise FrameError(f"the body's core has no id, but {found!r}")
    return found


def load_core(codec: Codec, body: Body) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return fields, plain values and metadata of a body.

    Raises:
        FrameError: The serializer does not understand it.
    """
    core = codec.load(body.core_type, body.core)
    if isinstance(core, list | tuple) and len(core) == 3 and all(isinstance(part, dict) for part in core):
        fields, plain_values, metadata = core
        return fields, plain_values, metadata
    raise FrameError("the body's core is not [fields, plain values, metadata]")
