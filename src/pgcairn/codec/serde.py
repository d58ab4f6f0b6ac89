"""Values to typed bytes and back, by the serializer that LangGraph was given.

Owns the use of the serializer, the error that names the path of a leaf it cannot carry, and the order
"compress, then encrypt". Never touches a database.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import SendProtocol

from pgcairn.codec.bases import Lineage
from pgcairn.codec.compression import Cipher, FrameError, Framer, payload_bytes
from pgcairn.codec.messages import serializer_of
from pgcairn.errors import SerializationError
from pgcairn.settings import Settings


class Codec:
    """A serializer together with the framing of its output.

    Args:
        serde: LangGraph's serializer. Of an ``EncryptedSerializer`` the inner serializer and the cipher are
            used apart, so that values are compressed before they are encrypted.
        settings: See ``Framer``.
    """

    def __init__(self, serde: SerializerProtocol, settings: Settings) -> None:
        cipher: Cipher | None = None
        # A subclass that replaces the methods knows what it does; it is used whole.
        if (
            isinstance(serde, EncryptedSerializer)
            and type(serde).dumps_typed is EncryptedSerializer.dumps_typed
            and type(serde).loads_typed is EncryptedSerializer.loads_typed
        ):
            cipher = serde.cipher
            serde = serde.serde
        self._framer = Framer(settings, cipher)
        self.dumps, self._loads = serializer_of(serde)
        self._cipher = cipher
        self._in_thread_min_bytes = settings.compress_in_thread_min_bytes

    def dump(self, value: object, path: str, name: str = "") -> tuple[str, bytes]:
        """Serialize a value to (type, payload).

        Args:
            value: What to serialize.
            path: Where it sits, for the error: ``$.channel_values.``.
            name: The end of the path: ``messages``.

        Raises:
            SerializationError: The serializer cannot carry it; the error names the path of the leaf.
        """
        try:
            type_name, payload = self.dumps(value)
        except Exception as error:
            raise self._refused(value, path + name, error) from error
        # A bytearray is its own payload; it may change before a worker thread has compressed it.
        return type_name, payload if type(payload) is bytes else bytes(payload)

    def load(self, type_name: str, payload: bytes) -> Any:
        """Deserialize a payload.

        Raises:
            FrameError: The serializer does not understand it.
        """
        try:
            return self._loads((type_name, payload))
        except Exception as error:
            raise FrameError(f"the serializer cannot read it ({type(error).__name__}: {error})") from error

    def frame(self, payload: bytes, path: str, name: str = "", *, in_thread: bool = False) -> bytes:
        """Compress, checksum and, with an encrypting serializer, encrypt a payload.

        Raises:
            SerializationError: The payload is larger than ``max_value_bytes``.
        """
        try:
            return self._framer.encode(payload, in_thread=in_thread)
        except FrameError as error:
            raise _too_large(path + name, error) from error

    def frame_edit(
        self, lineage: Lineage, payload: bytes, path: str, name: str = "", *, in_thread: bool = False
    ) -> bytes:
        """Frame a payload as the newest edit of its lineage; otherwise as ``frame``.

        Raises:
            SerializationError: The payload is larger than ``max_value_bytes``.
        """
        try:
            return self._framer.encode_edit(lineage, payload, in_thread=in_thread)
        except FrameError as error:
            raise _too_large(path + name, error) from error

    def unframe(self, frame: bytes, *, in_thread: bool = False) -> bytes:
        """Open a frame.

        Raises:
            FrameError: It is corrupt, too large, or not encrypted where it should be.
        """
        return self._framer.decode(frame, in_thread=in_thread)

    def unframe_chain(
        self, versions: Sequence[str], frames: Sequence[bytes], *, in_thread: bool = False
    ) -> tuple[bytes, Lineage]:
        """Open the frame of a value and those that it rests on; see ``Framer.decode_chain``.

        Raises:
            FrameError: One is corrupt, too large, not encrypted where it should be, or not the base of the next.
        """
        return self._framer.decode_chain(versions, frames, in_thread=in_thread)

    def load_frame(self, stored_type: str, frame: bytes) -> Any:
        """Open a frame that stands alone and deserialize its payload.

        Raises:
            FrameError: See ``unframe`` and ``load``.
        """
        return self.load(self.plain_type(stored_type), self.unframe(frame))

    def stored_type(self, type_name: str, frame: bytes) -> str:
        """The type tag to store beside a frame: with an encrypting serializer it ends in the cipher's name."""
        if self._cipher is None:
            return type_name
        return f"{type_name}+{frame[2 : 2 + frame[1]].decode()}"

    def plain_type(self, stored_type: str) -> str:
        """The serializer's type tag of a stored one."""
        return stored_type if self._cipher is None else stored_type.split("+", 1)[0]

    @property
    def seals(self) -> bool:
        """Whether every frame is encrypted, and can be decrypted."""
        return self._cipher is not None

    def wants_thread(self, payload_bytes: int) -> bool:
        """Whether compressing or decompressing this many bytes would stall the event loop noticeably."""
        return payload_bytes >= self._in_thread_min_bytes

    def opens_in_thread(self, frame: bytes) -> bool:
        """Whether opening this frame would stall the event loop noticeably."""
        return payload_bytes(frame) >= self._in_thread_min_bytes

    def _refused(self, value: object, path: str, error: Exception) -> SerializationError:
        leaf_path, leaf, reason = self._find_leaf(value, path, error, depth=0)
        type_name = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        return SerializationError(
            f"The serializer cannot carry the {type_name} at {leaf_path}: {reason}.", path=leaf_path
        )

    def _find_leaf(
        self, value: object, path: str, error: Exception, depth: int
    ) -> tuple[str, object, Exception]:
        # Only runs after a failure, so it may try every child by itself. The depth is bounded because the
        # serializer refuses deep nesting (and cycles) by an error of its own.
        if depth < 64:
            for child_path, child in _children(value, path):
                try:
                    self.dumps(child)
                except Exception as child_error:
                    return self._find_leaf(child, child_path, child_error, depth + 1)
        return path, value, error


def _too_large(path: str, error: FrameError) -> SerializationError:
    return SerializationError(
        f"The value at {path} is too large: {error}.",
        path=path,
        hint="Keep large objects in an object store and their address in the state, or raise max_value_bytes.",
    )


def _children(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"{path}.{key}<key>", key
            yield f"{path}.{key}", child
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for position, child in enumerate(value):
            yield f"{path}[{position}]", child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name)
    elif isinstance(fields := getattr(type(value), "model_fields", None), Mapping):
        for name in fields:
            yield f"{path}.{name}", getattr(value, name, None)
    elif isinstance(value, SendProtocol):
        yield f"{path}.arg", value.arg
