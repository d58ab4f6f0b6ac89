"""Types for tests of serialization; the serializer finds them by module and name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from pydantic import BaseModel, ConfigDict


class Color(str, enum.Enum):
    """A text that is an enum."""

    RED = "red"


class Number(enum.IntEnum):
    """A number that is an enum."""

    ONE = 1


class Text(str):
    """A subclass of ``str``."""

    __slots__ = ()


@dataclass
class Point:
    """A dataclass."""

    x: Any
    y: Any = 0


class Model(BaseModel):
    """A pydantic model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str
    inner: Any = None


class Opaque:
    """Nothing that a serializer knows."""


class XorCipher(CipherProtocol):
    """A cipher that only a test may use: the same bytes each time."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """See ``CipherProtocol``."""
        return "xor", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """See ``CipherProtocol``."""
        if ciphername != "xor":
            raise ValueError(f"unknown cipher {ciphername}")
        return bytes(byte ^ 0x55 for byte in ciphertext)


def aes_serializer() -> EncryptedSerializer:
    """LangGraph's own encrypting serializer with a fixed key."""
    return EncryptedSerializer.from_pycryptodome_aes(key=b"sixteen bytes ab")
