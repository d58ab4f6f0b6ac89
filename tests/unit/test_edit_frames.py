"""Frames of edits: a value is rebuilt from exactly what it was made from, or it is an error."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib
from typing import Any

import ormsgpack
import pytest

from pgcairn.codec.bases import Lineage, new_epoch
from pgcairn.codec.compression import EDIT, SEALED, FrameError, Framer
from pgcairn.settings import Settings
from tests.support.values import XorCipher, aes_serializer

_RANDOM = random.Random(11)
_WORDS = [_RANDOM.randbytes(6).hex().encode() for _ in range(200)]


def _text(words: int) -> bytes:
    return b" ".join(_RANDOM.choices(_WORDS, k=words))


def _framers() -> dict[str, Framer]:
    return {
        "default": Framer(Settings()),
        "all compressed": Framer(Settings(compress_min_bytes=0)),
        "none compressed": Framer(Settings(compress_min_bytes=1024**3)),
        "xor": Framer(Settings(), XorCipher()),
        "aes": Framer(Settings(), aes_serializer().cipher),
    }


_EACH_FRAMER = pytest.mark.parametrize("framer", _framers().values(), ids=_framers())

# Appended, replaced in the middle, dropped at the beginning, appended much.
_START = _text(40)
_STEPS = [_START, _START + b" one more", _START[:200] + b"<changed>" + _START[220:]]
_STEPS += [_STEPS[2][100:], _STEPS[2][100:] + b" and " + _text(10)]


class Stored:
    """What was put, version by version, as the tables hold it."""

    def __init__(self, framer: Framer, payloads: list[bytes], *, in_thread: bool = False) -> None:
        self.lineages: list[Lineage] = []
        self.frames: dict[str, bytes] = {}
        for number, payload in enumerate(payloads):
            version = f"{number}.0"
            lineage = self.lineages[-1].extended(version, payload) if self.lineages else None
            if lineage is None:
                assert number == 0, "every step is an edit"
                lineage = new_epoch(version, payload)
                self.frames[version] = framer.encode(payload, in_thread=in_thread)
            else:
                self.frames[version] = framer.encode_edit(lineage, payload, in_thread=in_thread)
            self.lineages.append(lineage)

    def of(self, number: int) -> tuple[tuple[str, ...], list[bytes]]:
        """Versions and frames that a read of this one gets."""
        versions = self.lineages[number].versions
        return versions, [self.frames[version] for version in versions]


def _edit_frame(*fields: Any) -> bytes:
    return bytes((EDIT,)) + ormsgpack.packb(fields)


# --- round trips ------------------------------------------------------------------------------------


@_EACH_FRAMER
@pytest.mark.parametrize("in_thread", [False, True])
def test_what_goes_in_comes_out(framer: Framer, in_thread: bool) -> None:
    stored = Stored(framer, _STEPS, in_thread=in_thread)
    for number, payload in enumerate(_STEPS):
        found, lineage = framer.decode_chain(*stored.of(number), in_thread=in_thread)
        assert type(found) is bytes
        assert found == payload
        assert lineage == stored.lineages[number], "the next version can be made from it"


def test_an_edit_is_small_and_sealed_where_the_rest_is() -> None:
    plain = Stored(Framer(Settings()), _STEPS)
    assert plain.frames["1.0"][0] == EDIT
    assert len(plain.frames["1.0"]) < 50
    sealed = Stored(Framer(Settings(), XorCipher()), _STEPS)
    assert all(frame[:5] == bytes((SEALED, 3)) + b"xor" for frame in sealed.frames.values())
    assert b"one more" in plain.frames["1.0"]
    assert b"one more" not in sealed.frames["1.0"]


def test_literals_are_compressed() -> None:
    framer = Framer(Settings())
    base = _text(200)
    added = b"the same again " * 100
    stored = Stored(framer, [base, base + added])
    assert len(stored.frames["1.0"]) < 150
    assert framer.decode_chain(*stored.of(1))[0] == base + added


def test_plain_bases_under_sealed_edits_are_read_where_they_are_allowed() -> None:
    plain, sealing = Framer(Settings()), Framer(Settings(), XorCipher())
    lenient = Framer(Settings(allow_plaintext=True), XorCipher())
    stored = Stored(plain, _STEPS[:1])
    lineage = stored.lineages[0].extended("1.0", _STEPS[1])
    assert lineage is not None
    frames = [sealing.encode_edit(lineage, _STEPS[1]), stored.frames["0.0"]]
    assert lenient.decode_chain(lineage.versions, frames)[0] == _STEPS[1]
    with pytest.raises(FrameError, match="not encrypted"):
        sealing.decode_chain(lineage.versions, frames)


# --- damage -----------------------------------------------------------------------------------------


def _flips(frame: bytes) -> list[bytes]:
    # A cipher that authenticates is slow, and looks at all bits alike.
    bits = range(8) if frame[2:5] != b"aes" else range(1)
    found = []
    for position in range(len(frame)):
        for bit in bits:
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            found.append(bytes(damaged))
    return found


@_EACH_FRAMER
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_flipped_bit_is_read_as_something_else(framer: Framer, place: int) -> None:
    stored = Stored(framer, _STEPS[:4])
    versions, frames = stored.of(3)
    assert len(frames) == 3
    same = 0
    for damaged in _flips(frames[place]):
        try:
            found, lineage = framer.decode_chain(versions, [*frames[:place], damaged, *frames[place + 1 :]])
        except FrameError:
            continue
        assert found == _STEPS[3]
        # What the next version is made from may not be wrong either.
        following = lineage.extended("4.0", _STEPS[4])
        assert following is not None
        assert following.versions[1:] == stored.lineages[0].versions
        assert following.payload() == _STEPS[4]
        same += 1
    # Bits that change nothing: a few of zstd's, and more with a dictionary, which may hold the same bytes in two places; and
    # what an edit that is only a step says about itself.
    assert same <= (8 * 12 if place == 1 else 8)


@pytest.mark.parametrize("name", ["default", "xor"])
def test_no_other_byte_is_read_as_something_else(name: str) -> None:
    framer = _framers()[name]
    stored = Stored(framer, _STEPS[:2])
    versions, [frame, base] = stored.of(1)
    for position in range(len(frame)):
        for value in range(256):
            damaged = frame[:position] + bytes((value,)) + frame[position + 1 :]
            try:
                found = framer.decode_chain(versions, [damaged, base])[0]
            except FrameError:
                continue
            assert found == _STEPS[1], (position, value)


@_EACH_FRAMER
def test_nothing_that_was_cut_or_continued_is_read(framer: Framer) -> None:
    stored = Stored(framer, _STEPS[:2])
    versions, [frame, base] = stored.of(1)
    for length in range(len(frame)):
        with pytest.raises(FrameError):
            framer.decode_chain(versions, [frame[:length], base])
    for tail in (b"\x00", b"x", frame, base):
        with contextlib.suppress(FrameError):  # msgpack ends where it ends
            assert framer.decode_chain(versions, [frame + tail, base])[0] == _STEPS[1]
        with pytest.raises(FrameError):
            framer.decode_chain(versions, [frame, base + tail])


# --- not what it was made from ----------------------------------------------------------------------


@_EACH_FRAMER
def test_another_base_is_an_error(framer: Framer) -> None:
    stored = Stored(framer, _STEPS)
    versions, [frame, _] = stored.of(1)
    one_byte_else = bytes((_START[0] ^ 1,)) + _START[1:]
    for wrong in (one_byte_else, _START[::-1], _START[1:], b""):
        with pytest.raises(FrameError):
            framer.decode_chain(versions, [frame, framer.encode(wrong)])


def test_another_base_of_the_same_size_is_named() -> None:
    framer = Framer(Settings())
    versions, [frame, _] = Stored(framer, _STEPS).of(1)
    with pytest.raises(FrameError, match="another base"):
        framer.decode_chain(versions, [frame, framer.encode(_START[::-1])])
    with pytest.raises(FrameError, match="beyond its base"):
        framer.decode_chain(versions, [frame, framer.encode(_START[:-1])])


@_EACH_FRAMER
def test_a_chain_that_is_not_the_right_one_is_an_error(framer: Framer) -> None:
    stored = Stored(framer, _STEPS)
    versions, [third, second, first] = stored.of(3)
    for wrong in (
        [second, third, first],
        [third, first, second],
        [first, second, third],
        [third, second],
        [third, first],
        [third],
        [second],
        [third, second, third, first],
        [third, third, first],
        [third, first, first],
        [third, second, first, first],
    ):
        with pytest.raises(FrameError):
            framer.decode_chain(versions[: len(wrong)], wrong)


def test_an_edit_without_its_chain_and_a_whole_frame_with_one_are_named() -> None:
    framer = Framer(Settings())
    stored = Stored(framer, _STEPS)
    with pytest.raises(FrameError, match="it is an edit, but has no chain"):
        framer.decode(stored.frames["1.0"])
    with pytest.raises(FrameError, match="it is an edit, but has no chain"):
        framer.decode_chain(["1.0"], [stored.frames["1.0"]])
    with pytest.raises(FrameError, match="it is not an edit, but has a chain"):
        framer.decode_chain(["0.0", "0.0"], [stored.frames["0.0"], stored.frames["0.0"]])
    with pytest.raises(FrameError):
        framer.decode_chain(["1.0", "0.0"], [b"", stored.frames["0.0"]])


def test_an_edit_within_an_edit_is_refused() -> None:
    base = b"0123456789"
    inner = _edit_frame(1, 10, zlib.crc32(base), [0, 0, 10], Framer(Settings()).encode(b""))
    outer = _edit_frame(1, 10, zlib.crc32(base), [0, 0, 10], inner)
    with pytest.raises(FrameError):
        Framer(Settings()).decode_chain(["1.0", "0.0"], [outer, Framer(Settings()).encode(base)])


def test_sealed_and_plain_edits_are_told_apart() -> None:
    plain, sealing = Framer(Settings()), Framer(Settings(), XorCipher())
    versions, [frame, base] = Stored(plain, _STEPS).of(1)
    _, [sealed_frame, sealed_base] = Stored(sealing, _STEPS).of(1)
    with pytest.raises(FrameError, match="not encrypted"):
        sealing.decode_chain(versions, [frame, base])
    with pytest.raises(FrameError, match="not encrypted"):
        sealing.decode_chain(versions, [frame, sealed_base])
    with pytest.raises(FrameError, match="not encrypted"):
        sealing.decode_chain(versions, [sealed_frame, base])
    with pytest.raises(FrameError, match="not one that decrypts"):
        plain.decode_chain(versions, [sealed_frame, base])
    with pytest.raises(FrameError, match="cannot be decrypted"):
        Framer(Settings(), aes_serializer().cipher).decode_chain(versions, [sealed_frame, sealed_base])


# --- malformed --------------------------------------------------------------------------------------

_BASE = b"0123456789"
_EMPTY = Framer(Settings()).encode(b"")
_ONE = Framer(Settings()).encode(b"x")
_SUM = zlib.crc32(_BASE)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (1, 10, _SUM, [0, 0, 10]),
        (1, 10, _SUM, [0, 0, 10], _EMPTY, 0),
        (1, 10, _SUM, [0, 0], _EMPTY),
        (1, 10, _SUM, [0, 0, 10, 0], _EMPTY),
        (1, 10, _SUM, [0, 0, 9], _EMPTY),
        (1, 10, _SUM, [0, 0, 11], _EMPTY),
        (1, 11, _SUM, [0, 0, 11], _EMPTY),
        (1, 10, _SUM, [0, 1, 10], _EMPTY),
        (1, 10, _SUM, [0, 0, 15, 0, 0, -5], _EMPTY),
        (1, 10, _SUM, [0, -1, 10], _EMPTY),
        (1, 10, _SUM, [1, 0, 10], _EMPTY),
        (1, 10, _SUM, [0, 0, 10], _ONE),
        (1, 10, _SUM, [2, 0, 9], _ONE),
        (1, 10, _SUM, [0, 0, 9], _ONE),
        (1, 10, _SUM, [-1, 0, 10, 1, 0, 0], _EMPTY),
        (1, 10, _SUM ^ 1, [0, 0, 10], _EMPTY),
        (1, 10, -_SUM, [0, 0, 10], _EMPTY),
        (1, -10, _SUM, [0, 0, -10], _EMPTY),
        (1, 10.0, _SUM, [0, 0, 10], _EMPTY),
        ("1", 10, _SUM, [0, 0, 10], _EMPTY),
        (None, 10, _SUM, [0, 0, 10], _EMPTY),
        (True, 10, _SUM, [0, 0, 10], _EMPTY),
        (1, 10, _SUM, [0, 0, 10.0], _EMPTY),
        (1, 10, _SUM, [0, False, 10], _EMPTY),
        (1, 10, _SUM, [0, 0, "10"], _EMPTY),
        (1, 10, _SUM, [[0, 0, 10]], _EMPTY),
        (1, 10, _SUM, {"0": 10}, _EMPTY),
        (1, 10, _SUM, "010", _EMPTY),
        (1, 10, _SUM, None, _EMPTY),
        (1, 10, _SUM, [0, 0, 10], b""),
        (1, 10, _SUM, [0, 0, 10], b"\x00"),
        (1, 10, _SUM, [0, 0, 10], None),
        (1, 10, _SUM, [0, 0, 10], "text"),
        (1, 10, _SUM, [0, 2**64 - 1, 10], _EMPTY),
        (1, 10, _SUM, [0, 0, 2**64 - 1], _EMPTY),
        (1, 2**64 - 1, _SUM, [0, 0, 2**64 - 1], _EMPTY),
        (1, 10, _SUM, [], _EMPTY),
    ],
)
def test_a_malformed_edit_is_refused(fields: tuple[Any, ...]) -> None:
    framer = Framer(Settings())
    with pytest.raises(FrameError):
        framer.decode_chain(["1.0", "0.0"], [_edit_frame(*fields), framer.encode(_BASE)])


def test_the_malformed_ones_differ_from_one_that_is_read() -> None:
    framer = Framer(Settings())
    frame = _edit_frame(1, 10, _SUM, [0, 0, 10], _EMPTY)
    assert framer.decode_chain(["1.0", "0.0"], [frame, framer.encode(_BASE)])[0] == _BASE


@pytest.mark.parametrize("number", [0, 3, 6, 7, -1, -2])
def test_a_number_that_does_not_fit_the_chain_is_refused(number: int) -> None:
    # It decides what the next version rests on.
    framer = Framer(Settings())
    frame = _edit_frame(number, 10, _SUM, [0, 0, 10], _EMPTY)
    with pytest.raises(FrameError):
        framer.decode_chain(["1.0", "0.0"], [frame, framer.encode(_BASE)])


def test_rubbish_after_the_mark_is_refused() -> None:
    framer = Framer(Settings())
    for size in range(1, 60):
        with pytest.raises(FrameError):
            framer.decode_chain(
                ["1.0", "0.0"], [bytes((EDIT,)) + _RANDOM.randbytes(size), framer.encode(_BASE)]
            )


# --- bounds -----------------------------------------------------------------------------------------


def test_a_claim_above_the_bound_is_refused_before_it_is_allocated() -> None:
    framer = Framer(Settings(max_value_bytes=1024**2))
    base = framer.encode(b"\x00" * 1024**2)
    twelve_times = [0, 1, 1024**2 - 1] * 12
    frame = _edit_frame(1, 12 * (1024**2 - 1), 0, twelve_times, _EMPTY)
    lying = _edit_frame(1, 1024**2, 0, twelve_times, _EMPTY)
    hidden = _edit_frame(1, 1024**2 - 12, 0, [*twelve_times, 0, 0, -11 * 1024**2], _EMPTY)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="claims 12582900 bytes, above max_value_bytes=1048576"):
            framer.decode_chain(["1.0", "0.0"], [frame, base])
        for each in (lying, hidden):
            with pytest.raises(FrameError):
                framer.decode_chain(["1.0", "0.0"], [each, base])
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024**2
    finally:
        tracemalloc.stop()


def test_a_payload_above_the_bound_is_refused() -> None:
    framer = Framer(Settings(max_value_bytes=1024))
    base = _text(60)[:700]
    lineage = new_epoch("0.0", base).extended("1.0", base + bytes(324))
    assert lineage is not None
    framer.encode_edit(lineage, base + bytes(324))
    with pytest.raises(FrameError, match="1025 bytes are above max_value_bytes=1024"):
        framer.encode_edit(lineage, base + bytes(325))
