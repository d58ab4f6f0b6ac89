"""Frames: nothing that was damaged is ever read as something else."""

from __future__ import annotations

import hashlib
import os
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard

from pgcairn.codec import compression
from pgcairn.codec.compression import PLAIN, SEALED, ZSTD, ZSTD_WITH_DICTIONARY, FrameError, Framer
from pgcairn.settings import Settings
from tests.support.values import XorCipher, aes_serializer

_TEXT = b"The quick brown fox jumps over the lazy dog. " * 30
_NOISE = random.Random(1).randbytes(700)
# 512 and 65,792 are where zstd's size field changes its width or has a low byte of zero.
_PAYLOADS = [
    b"",
    b"x",
    _TEXT[:63],
    _TEXT[:64],
    _TEXT[:257],
    _TEXT[:512],
    _TEXT,
    _TEXT * 4,
    _NOISE,
    _TEXT * 50,
]


def _framers() -> dict[str, Framer]:
    return {
        "default": Framer(Settings()),
        "all compressed": Framer(Settings(compress_min_bytes=0)),
        "none compressed": Framer(Settings(compress_min_bytes=1024**3)),
        "level 9": Framer(Settings(compression_level=9)),
        "level -7": Framer(Settings(compression_level=-7)),
        "aes": Framer(Settings(), aes_serializer().cipher),
    }


@pytest.mark.parametrize("framer", _framers().values(), ids=_framers())
@pytest.mark.parametrize("payload", _PAYLOADS, ids=len)
@pytest.mark.parametrize("in_thread", [False, True])
def test_what_goes_in_comes_out(framer: Framer, payload: bytes, in_thread: bool) -> None:
    frame = framer.encode(payload, in_thread=in_thread)
    assert type(frame) is bytes
    decoded = framer.decode(frame, in_thread=in_thread)
    assert type(decoded) is bytes
    assert decoded == payload


def test_the_kind_is_chosen_by_size_and_gain() -> None:
    framer = Framer(Settings())
    assert framer.encode(_TEXT[:63])[0] == PLAIN
    assert framer.encode(_TEXT[:64])[:2] == bytes((ZSTD_WITH_DICTIONARY, 1))
    assert framer.encode((_TEXT * 4)[:4095])[:2] == bytes((ZSTD_WITH_DICTIONARY, 1))
    assert framer.encode((_TEXT * 4)[:4096])[0] == ZSTD
    assert framer.encode(_NOISE)[0] == PLAIN
    assert len(framer.encode(_NOISE)) == len(_NOISE) + 5
    assert Framer(Settings(), XorCipher()).encode(b"x")[:5] == bytes((SEALED, 3)) + b"xor"


@pytest.mark.parametrize("framer", _framers().values(), ids=_framers())
@pytest.mark.parametrize("payload", _PAYLOADS[:-1], ids=len)
def test_no_flipped_bit_is_read_as_something_else(framer: Framer, payload: bytes) -> None:
    frame = framer.encode(payload)
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            try:
                decoded = framer.decode(bytes(damaged))
            except FrameError:
                continue
            # zstd ignores one bit of its header (RFC 8878, 3.1.1.1.1.3); it changes nothing.
            assert decoded == payload, f"byte {position}, bit {bit}"
            # And with a dictionary another place in it may hold the same bytes.
            if frame[0] != ZSTD_WITH_DICTIONARY:
                assert (position, bit) == (5, 4), f"byte {position}, bit {bit} is not protected"


@pytest.mark.parametrize("framer", _framers().values(), ids=_framers())
@pytest.mark.parametrize("payload", _PAYLOADS[:-1], ids=len)
def test_nothing_that_was_cut_or_continued_is_read(framer: Framer, payload: bytes) -> None:
    frame = framer.encode(payload)
    for length in range(len(frame)):
        with pytest.raises(FrameError):
            framer.decode(frame[:length])
    for tail in (b"\x00", b"x", frame, frame[1:], zstandard.compress(b"more")):
        with pytest.raises(FrameError):
            framer.decode(frame + tail)


def test_a_claim_above_the_bound_is_refused_before_it_is_allocated() -> None:
    framer = Framer(Settings(max_value_bytes=10 * 1024**2))
    frame = bytearray(Framer(Settings()).encode(b"\x00" * (11 * 1024**2)))
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="claims 11534336 bytes, above max_value_bytes=10485760"):
            framer.decode(bytes(frame))
        # The header: magic (4), descriptor (1), window (1), size (4). Claim 3.9 GB.
        body = frame.index(b"\x28\xb5\x2f\xfd")
        size = frame.index((11 * 1024**2).to_bytes(4, "little"), body)
        frame[size : size + 4] = b"\xff" * 4
        with pytest.raises(FrameError, match="claims"):
            Framer(Settings()).decode(bytes(frame))
        assert tracemalloc.get_traced_memory()[1] < 1024**2
    finally:
        tracemalloc.stop()


def test_a_payload_above_the_bound_is_refused() -> None:
    framer = Framer(Settings(max_value_bytes=1024))
    assert framer.decode(framer.encode(b"x" * 1024)) == b"x" * 1024
    with pytest.raises(FrameError, match="1025 bytes are above max_value_bytes=1024"):
        framer.encode(b"x" * 1025)


def test_a_frame_without_its_size_is_refused() -> None:
    body = zstandard.ZstdCompressor(write_content_size=False).compress(_TEXT)
    with pytest.raises(FrameError):
        Framer(Settings()).decode(b"\x01" + body)


@pytest.mark.parametrize("kind", [5, 6, 0x7F, 0xFF])
def test_an_unknown_kind_is_named(kind: int) -> None:
    with pytest.raises(FrameError, match=f"0x{kind:02x}"):
        Framer(Settings()).decode(bytes((kind,)) + b"rest")


def test_a_sealed_frame_needs_a_cipher_that_opens_it() -> None:
    sealed = Framer(Settings(), XorCipher()).encode(_TEXT)
    assert _TEXT not in sealed
    with pytest.raises(FrameError, match="not one that decrypts"):
        Framer(Settings()).decode(sealed)
    with pytest.raises(FrameError, match="cannot be decrypted"):
        Framer(Settings(), aes_serializer().cipher).decode(sealed)
    with pytest.raises(FrameError, match="cannot be decrypted"):
        Framer(Settings(), XorCipher()).decode(bytes((SEALED,)))


def test_compression_comes_before_encryption() -> None:
    sealed = Framer(Settings(), aes_serializer().cipher).encode(_TEXT)
    assert len(sealed) < len(_TEXT) / 4


def test_plain_frames_are_refused_where_encryption_is_expected_unless_allowed() -> None:
    for frame in (Framer(Settings()).encode(b"x"), Framer(Settings()).encode(_TEXT), b""):
        with pytest.raises(FrameError, match="not encrypted"):
            Framer(Settings(), XorCipher()).decode(frame)
    lenient = Framer(Settings(allow_plaintext=True), XorCipher())
    assert lenient.decode(Framer(Settings()).encode(_TEXT)) == _TEXT
    assert lenient.decode(lenient.encode(_TEXT)) == _TEXT
    assert lenient.encode(_TEXT)[0] == SEALED


def test_a_seal_inside_a_seal_is_refused() -> None:
    framer = Framer(Settings(), XorCipher())
    name, twice = XorCipher().encrypt(framer.encode(b"x"))
    with pytest.raises(FrameError, match="0x02"):
        framer.decode(bytes((SEALED, len(name))) + name.encode() + twice)


def test_the_plain_checksum_is_crc_32() -> None:
    assert Framer(Settings()).encode(b"x") == b"\x00" + zlib.crc32(b"x").to_bytes(4, "big") + b"x"


def test_random_bytes_are_never_read() -> None:
    framer = Framer(Settings())
    for _ in range(500):
        with pytest.raises(FrameError):
            framer.decode(os.urandom(random.Random(2).randrange(5, 60)))


def test_the_dictionary_is_the_one_that_was_shipped() -> None:
    content = Path(compression.__file__).with_name("dictionary_1.zdict").read_bytes()
    assert hashlib.sha256(content).hexdigest() == (
        "09ff99054527ae8bb71ccf80cc6bbdd5cfb04ad407b59af569000224f02bae0a"
    )
    with pytest.raises(FrameError, match="dictionary 02 is unknown"):
        Framer(Settings()).decode(b"\x04\x02" + Framer(Settings()).encode(_TEXT)[2:])
