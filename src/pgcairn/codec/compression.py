"""Frames: the bytes that are stored, each with a checksum and a size that is known before it is allocated.

A frame starts with one byte that names its kind (docs/payload-format.md):

====  ==============================================================================================
0x00  plain: CRC-32 of the payload (4 bytes, big endian), then the payload
0x01  zstd: one zstd frame with content size and checksum
0x02  sealed: length of the cipher's name (1 byte), the name, then the ciphertext of another frame
0x03  edit: what a payload differs in from an earlier version of the same value (see ``bases``)
0x04  zstd with a dictionary: its number (1 byte), then one zstd frame with content size and checksum
====  ==============================================================================================
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import ormsgpack
import zstandard

from pgcairn.codec.bases import Edit, Lineage, new_epoch
from pgcairn.settings import Settings

PLAIN = 0x00
ZSTD = 0x01
SEALED = 0x02
EDIT = 0x03
ZSTD_WITH_DICTIONARY = 0x04
# What LangGraph's serializer writes again and again is half of a small payload. With a dictionary that knows it
# (bench/train_dictionary.py) a body of 842 bytes becomes 243 bytes in 3.4 µs instead of 428 in 7.8, a write of 284 117
# instead of 236; from 4 KB on it costs more than it saves (bench/compression_levels.py).
_DICTIONARY_BELOW_BYTES = 4 * 1024
# Then, up to this size, the client's CPU is worth more than the bytes: twelve messages, 6.8 KB, become 3.4 KB in 30 µs
# instead of 2.7 KB in 46, which was a tenth of all CPU of a superstep (bench/profile_client.py).
_FAST_BELOW_BYTES = 16 * 1024
_FAST_LEVEL = -1
# The new bytes of an edit are few, and stay for long: those of a workspace of files become a tenth smaller than at level 1
# (bench/storage_workspace.py).
_SPARE_LEVEL = 3

_PLAIN_MARK = b"\x00"
_ZSTD_MARK = b"\x01"
_EDIT_MARK = b"\x03"
_DICTIONARY_MARK = b"\x04\x01"
_CHECKSUM_BYTES = 4
_ZSTD_HEADER_BYTES = 18  # at most, by the format


class FrameError(ValueError):
    """A frame is corrupt, of an unknown kind, or larger than allowed. The caller adds where it was found."""


class Cipher(Protocol):
    """What LangGraph's ``CipherProtocol`` offers."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Return the cipher's name and the ciphertext."""
        ...

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plaintext."""
        ...


class Framer:
    """Makes and opens frames.

    Args:
        settings: ``compression_level``, ``compress_min_bytes``, ``max_value_bytes``, ``allow_plaintext``.
        cipher: Seals every frame; compression comes first, because ciphertext does not compress.
    """

    def __init__(self, settings: Settings, cipher: Cipher | None = None) -> None:
        self._settings = settings
        self._cipher = cipher
        self._small_compressor = _new_small_compressor(settings.compression_level)
        self._compressor = _new_compressor(settings.compression_level)
        self._spare_compressor = _new_compressor(max(_SPARE_LEVEL, settings.compression_level))
        self._fast_compressor = _new_compressor(min(_FAST_LEVEL, settings.compression_level))
        self._small_decompressor = _new_small_decompressor()
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, payload: bytes, *, in_thread: bool = False) -> bytes:
        """Frame a payload.

        Args:
            payload: The bytes to keep.
            in_thread: Use a compressor of its own: zstd contexts must not be shared between threads.

        Raises:
            FrameError: The payload is larger than ``max_value_bytes``.
        """
        self._check_size(payload)
        return self._seal(self._encode_open(payload, in_thread))

    def encode_edit(self, lineage: Lineage, payload: bytes, *, in_thread: bool = False) -> bytes:
        """Frame a payload as the newest edit of its lineage.

        Raises:
            FrameError: The payload is larger than ``max_value_bytes``.
        """
        self._check_size(payload)
        ranges, literal = lineage.edits[0]
        checksum = zlib.crc32(payload)
        inner = self._encode_open(literal, in_thread, spare=True)
        packed = ormsgpack.packb((lineage.number, len(payload), checksum, ranges, inner))
        return self._seal(_EDIT_MARK + packed)

    def _check_size(self, payload: bytes) -> None:
        size = len(payload)
        if size > self._settings.max_value_bytes:
            raise FrameError(f"{size} bytes are above max_value_bytes={self._settings.max_value_bytes}")

    def _encode_open(self, payload: bytes, in_thread: bool, *, spare: bool = False) -> bytes:
        """Frame without encryption; ``spare`` prefers fewer bytes where others prefer less time."""
        size = len(payload)
        level = self._settings.compression_level
        frame = b""
        if size >= self._settings.compress_min_bytes:
            if size < _DICTIONARY_BELOW_BYTES:
                compressor = _new_small_compressor(level) if in_thread else self._small_compressor
                frame = _DICTIONARY_MARK + compressor.compress(payload)
            else:
                if in_thread:
                    compressor = _new_compressor(max(_SPARE_LEVEL, level) if spare else level)
                elif spare:
                    compressor = self._spare_compressor
                elif size < _FAST_BELOW_BYTES:
                    compressor = self._fast_compressor
                else:
                    compressor = self._compressor
                frame = _ZSTD_MARK + compressor.compress(payload)
        if not frame or len(frame) > size + 1 + _CHECKSUM_BYTES:
            frame = _PLAIN_MARK + zlib.crc32(payload).to_bytes(_CHECKSUM_BYTES, "big") + payload
        return frame

    def _seal(self, frame: bytes) -> bytes:
        if self._cipher is None:
            return frame
        name, ciphertext = self._cipher.encrypt(frame)
        encoded_name = name.encode()
        return bytes((SEALED, len(encoded_name))) + encoded_name + ciphertext

    def decode(self, frame: bytes, *, in_thread: bool = False) -> bytes:
        """Open a frame and return its payload.

        Args:
            frame: What is stored.
            in_thread: See ``encode``.

        Raises:
            FrameError: The frame is corrupt, too large, or not encrypted where it should be.
        """
        return self._decode_open(self._opened(frame), in_thread)

    def decode_chain(
        self, versions: Sequence[str], frames: Sequence[bytes], *, in_thread: bool = False
    ) -> tuple[bytes, Lineage]:
        """Open the frame of a value and those that it rests on; return its payload and its lineage.

        Args:
            versions: The value's own version, then those of its chain in their order.
            frames: Theirs.
            in_thread: See ``encode``.

        Raises:
            FrameError: A frame is corrupt, or one is not what the next was made from.
        """
        if len(frames) == 1:
            payload = self.decode(frames[0], in_thread=in_thread)
            return payload, new_epoch(versions[0], payload)
        steps = [self._decode_edit(self._opened(frame), in_thread) for frame in frames[:-1]]
        number, size, checksum, _ = steps[0]
        if number < 0 or number.bit_count() != len(steps):
            raise FrameError("its number does not fit its chain")
        edits = tuple(edit for _, _, _, edit in steps)
        base = self.decode(frames[-1], in_thread=in_thread)
        lineage = Lineage(tuple(versions), number, base, edits)
        try:
            payload = lineage.payload()
        except ValueError as error:
            raise FrameError(f"it does not fit its base ({error})") from error
        if len(payload) != size or zlib.crc32(payload) != checksum:
            raise FrameError("the checksum does not match: it was made from another base")
        return payload, lineage

    def _decode_edit(self, frame: bytes, in_thread: bool) -> tuple[int, int, int, Edit]:
        """(number, size, checksum, edit) of an edit's frame."""
        if frame[:1] != _EDIT_MARK:
            raise FrameError("it is not an edit, but has a chain")
        try:
            number, size, checksum, ranges, inner = ormsgpack.unpackb(memoryview(frame)[1:])
            sizes = ranges[2::3]
            numbers = (number, size, checksum, *ranges)
            fits = (
                type(inner) is bytes
                and len(ranges) % 3 == 0
                and all(type(each) is int and each >= 0 for each in numbers)
            )
        except Exception as error:
            raise FrameError(f"the edit cannot be read ({error})") from error
        if not fits:
            raise FrameError("the edit is malformed")
        if size > self._settings.max_value_bytes:
            raise FrameError(
                f"it claims {size} bytes, above max_value_bytes={self._settings.max_value_bytes}"
            )
        literal = self._decode_open(inner, in_thread)
        if sum(sizes) + len(literal) != size:
            raise FrameError("the edit's sizes do not add up")
        return number, size, checksum, Edit(ranges, literal)

    def _opened(self, frame: bytes) -> bytes:
        if frame[:1] == b"\x02":
            return self._unseal(frame)
        if self._cipher is not None and not self._settings.allow_plaintext:
            raise FrameError("the value is not encrypted, but the serializer is one that encrypts")
        return frame

    def _unseal(self, frame: bytes) -> bytes:
        if self._cipher is None:
            raise FrameError("the value is encrypted, but the serializer is not one that decrypts")
        try:
            length = frame[1]
            name, ciphertext = frame[2 : 2 + length].decode(), frame[2 + length :]
            return self._cipher.decrypt(name, ciphertext)
        except Exception as error:
            raise FrameError(f"the value cannot be decrypted ({type(error).__name__}: {error})") from error

    def _decode_open(self, frame: bytes, in_thread: bool) -> bytes:
        if not frame:
            raise FrameError("the frame is empty")
        kind = frame[0]
        if kind == PLAIN:
            payload = frame[5:]
            if len(frame) < 5 or zlib.crc32(payload).to_bytes(4, "big") != frame[1:5]:
                raise FrameError("the checksum does not match")
            return payload
        if kind == EDIT:
            raise FrameError("it is an edit, but has no chain")
        decompressor = self._decompressor
        body = memoryview(frame)[1:]
        if kind == ZSTD_WITH_DICTIONARY:
            if frame[1:2] != b"\x01":
                raise FrameError(f"dictionary {frame[1:2].hex()} is unknown to this version")
            decompressor = _new_small_decompressor() if in_thread else self._small_decompressor
            body = body[1:]
        elif kind != ZSTD:
            raise FrameError(f"frames of kind 0x{kind:02x} are unknown to this version")
        elif in_thread:
            decompressor = zstandard.ZstdDecompressor()
        try:
            size = zstandard.frame_content_size(body)
            # Without a size, or with none at all, zstd's library would not look at the checksum. Empty
            # payloads are always plain, so such a frame is one whose header was damaged.
            if size <= 0:
                raise FrameError("the frame does not say its size")
            if size > self._settings.max_value_bytes:
                raise FrameError(
                    f"it claims {size} bytes, above max_value_bytes={self._settings.max_value_bytes}"
                )
            return decompressor.decompress(body, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise FrameError(f"zstd: {error}") from error


@lru_cache(maxsize=32)
def _dictionary(level: int | None) -> zstandard.ZstdCompressionDict:
    """The dictionary, prepared for compression at a level or, with ``None``, for nothing but decompression."""
    content = Path(__file__).with_name("dictionary_1.zdict").read_bytes()
    dictionary = zstandard.ZstdCompressionDict(content)
    if level is not None:
        dictionary.precompute_compress(level=level)
    return dictionary


def _new_small_compressor(level: int) -> zstandard.ZstdCompressor:
    # Its number is in our frame; zstd's own number would be four bytes more.
    return zstandard.ZstdCompressor(
        level=level,
        dict_data=_dictionary(level),
        write_checksum=True,
        write_content_size=True,
        write_dict_id=False,
    )


def _new_small_decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_dictionary(None))


def payload_bytes(frame: bytes) -> int:
    """About how large the payload of a frame is, at little cost: as it claims, or as the frame if it is encrypted or an edit."""
    if frame[:1] != _ZSTD_MARK:
        return len(frame)
    try:
        return max(len(frame), zstandard.frame_content_size(frame[1 : 1 + _ZSTD_HEADER_BYTES]))
    except zstandard.ZstdError:
        return len(frame)


def is_sealed(frame: bytes) -> bool:
    """Whether a frame is encrypted, so that only who has the key can look inside."""
    return frame[:1] == b"\x02"


def _new_compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
