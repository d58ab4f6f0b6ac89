"""How should the versions of a large channel be stored?

The bytes, the client's time and the rows to read of several schemes, on three channels that change step by step: see
``bench/growth.py``. Source of decisions 4 and 5. Nothing is sent to a server: rows are counted as PostgreSQL lays them
out, so that keys, chains and lists of hashes count as what they are. Bases are at hand when the next version is stored; a
saver that keeps a version's edits in memory, and not its payloads, rebuilds its base first.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ormsgpack
import zstandard
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import _messages_delta_reducer

from bench import conversations, growth
from bench.harness import Lab, Table
from pgcairn.codec.compression import Framer
from pgcairn.codec.edits import apply_edit, make_edit
from pgcairn.settings import Settings

NEEDS_SERVER = False

_MESSAGES = 600
_READ_EVERY = 7  # versions whose reading is timed; prime, so that no depth of a chain is left out
_SNAPSHOT_EVERY = 100  # DeltaChannel's default snapshot_frequency
_HASH_BYTES = 32
_GROUP_MASK = 15  # a chunk ends where these bits of an element's hash are 0: every 16 elements

# What a row takes besides its frame (PostgreSQL manual, 65.6 and 65.4): line pointer and header of the heap tuple and of
# the index tuple; texts with one byte of length; elements of arrays with four, aligned.
_HEAP_BYTES = 4 + 24
_INDEX_BYTES = 4 + 8
_THREAD_BYTES = 1 + 36
_VERSION_BYTES = 1 + len("00000000000000000000000000000009.0.3745401188473625")
_ID_BYTES = 1 + 36
_VALUE_KEY = _THREAD_BYTES + 1 + 9 + _VERSION_BYTES  # thread, namespace, channel, version
_WRITE_KEY = _THREAD_BYTES + 1 + _ID_BYTES + _ID_BYTES + 4  # thread, namespace, checkpoint, task, index
_CHUNK_KEY = _THREAD_BYTES + 1 + _HASH_BYTES
_TYPE_BYTES = 8
_FRAME_HEADER = 4
_ARRAY_BYTES = 24
_CHAIN_LINK = 56  # one version in an array of texts


def _row(key: int, frame: bytes, extra: int = 0) -> int:
    heap = _HEAP_BYTES + key + _TYPE_BYTES + _FRAME_HEADER + len(frame) + extra
    return _aligned(heap) + _aligned(_INDEX_BYTES + key)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


@dataclass(frozen=True)
class Version:
    """One version of a channel: value, what was written to get there, and both as the serializer makes them."""

    value: Any
    update: Any
    payload: bytes


class Scheme:
    """A way to store the versions of one channel. ``frame_bytes`` and ``row_bytes`` grow with each."""

    label = ""
    has_serializer = False
    """Whether ``store`` and ``load`` go from value and to value, not from payload and to payload."""

    def __init__(self) -> None:
        self.framer = Framer(Settings())
        self.frame_bytes = self.row_bytes = 0

    def store(self, version: Version) -> None:
        """Store the next version."""
        raise NotImplementedError

    def load(self, number: int) -> Any:
        """Read a version back from the stored rows."""
        raise NotImplementedError

    def rows(self, number: int) -> int:
        """How many rows that takes."""
        raise NotImplementedError

    def _count(self, key: int, frame: bytes, extra: int = 0) -> None:
        self.frame_bytes += len(frame)
        self.row_bytes += _row(key, frame, extra)


class Alone(Scheme):
    """Each version by itself."""

    label = "zstd, each version alone"

    def __init__(self) -> None:
        super().__init__()
        self._frames: list[bytes] = []

    def store(self, version: Version) -> None:
        """See ``Scheme``."""
        self._frames.append(self.framer.encode(version.payload))
        self._count(_VALUE_KEY, self._frames[-1])

    def load(self, number: int) -> bytes:
        """See ``Scheme``."""
        return self.framer.decode(self._frames[number])

    def rows(self, number: int) -> int:
        """See ``Scheme``."""
        return 1


class Deltas(Scheme):
    """Each version against an earlier one of its epoch.

    Args:
        label: Name.
        base: From a version's index in its epoch (> 0) to that of its base.
        length: A new epoch begins after so many versions; 0: only where a delta does not pay.
        keeps_chain: Whether a row holds the list of all the rows it rests on, or their first one only.
    """

    def __init__(self, label: str, base: Callable[[int], int], length: int, *, keeps_chain: bool) -> None:
        super().__init__()
        self.label = label
        self._base = base
        self._length = length
        self._keeps_chain = keeps_chain
        self._frames: list[bytes] = []
        self._epochs: list[int] = []  # of each version: where its epoch begins
        self._cached: list[bytes] = []  # the epoch's payloads, as a saver's cache holds some of them

    def store(self, version: Version) -> None:
        """See ``Scheme``."""
        payload, index = version.payload, len(self._cached)
        delta = None
        if index and (not self._length or index < self._length):
            delta = self.make(self._cached[self._base(index)], payload)
        if delta is None:
            self._cached = []
            self._epochs.append(len(self._frames))
            delta = self.make_full(payload)
        else:
            self._epochs.append(self._epochs[-1])
        self._cached.append(payload)
        self._frames.append(delta)
        links = len(self._chain(len(self._frames) - 1)) - 1
        chain = (
            0 if not links else _ARRAY_BYTES + links * _CHAIN_LINK if self._keeps_chain else _VERSION_BYTES
        )
        self._count(_VALUE_KEY, delta, chain)

    def load(self, number: int) -> bytes:
        """See ``Scheme``."""
        chain = self._chain(number)
        payload = self.framer.decode(self._frames[chain[-1]])
        for position in reversed(chain[:-1]):
            payload = self.apply(payload, self._frames[position], is_last=position == number)
        return payload

    def rows(self, number: int) -> int:
        """See ``Scheme``."""
        return len(self._chain(number))

    def _chain(self, number: int) -> list[int]:
        epoch = self._epochs[number]
        chain, index = [number], number - epoch
        while index:
            index = self._base(index)
            chain.append(epoch + index)
        return chain

    def make_full(self, payload: bytes) -> bytes:
        """A frame that stands alone."""
        return self.framer.encode(payload)

    def make(self, base: bytes, payload: bytes) -> bytes | None:
        """A frame that rests on a base; ``None`` if it does not pay."""
        raise NotImplementedError

    def apply(self, base: bytes, frame: bytes, *, is_last: bool) -> bytes:
        """Open it; the last one of a chain is where a wrong base would show."""
        raise NotImplementedError


class Edits(Deltas):
    """Deltas by ``pgcairn.codec.edits``, framed as pgcairn frames them (docs/payload-format.md)."""

    def make(self, base: bytes, payload: bytes) -> bytes | None:
        """See ``Deltas``."""
        edit = make_edit(base, payload)
        if edit is None:
            return None
        ranges, literal = edit
        inner = self.framer.encode(literal)
        return ormsgpack.packb((len(self._cached), len(payload), zlib.crc32(payload), ranges, inner))

    def apply(self, base: bytes, frame: bytes, *, is_last: bool) -> bytes:
        """See ``Deltas``."""
        _, _, checksum, ranges, inner = ormsgpack.unpackb(frame)
        payload = apply_edit(base, ranges, self.framer.decode(inner))
        if is_last and zlib.crc32(payload) != checksum:
            raise ValueError("the checksum does not match")
        return payload


class Dictionaries(Deltas):
    """Deltas by zstd with the base as raw dictionary."""

    def __init__(
        self, label: str, base: Callable[[int], int], length: int, *, keeps_chain: bool, level: int
    ) -> None:
        super().__init__(label, base, length, keeps_chain=keeps_chain)
        self._level = level
        self._compressed_to = 1.0

    def make_full(self, payload: bytes) -> bytes:
        """See ``Deltas``."""
        frame = super().make_full(payload)
        self._compressed_to = len(frame) / len(payload)
        return frame

    def make(self, base: bytes, payload: bytes) -> bytes | None:
        """See ``Deltas``. Pays if it is less than half of what a full frame would probably take."""
        parameters = zstandard.ZstdCompressionParameters.from_level(
            self._level,
            source_size=len(payload),
            dict_size=len(base),
            window_log=max((len(base) + len(payload)).bit_length(), zstandard.WINDOWLOG_MIN),
            write_checksum=1,
            write_content_size=1,
        )
        compressor = zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters)
        frame = compressor.compress(payload)
        return frame if len(frame) * 2 <= len(payload) * self._compressed_to else None

    def apply(self, base: bytes, frame: bytes, *, is_last: bool) -> bytes:
        """See ``Deltas``."""
        return zstandard.ZstdDecompressor(dict_data=_dictionary(base)).decompress(frame)


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


class Chunks(Scheme):
    """Chunks found by the hash of their content: a version is a list of hashes, a chunk is stored once.

    Chunks are the elements of a list or the items of a dict, one by one, or several of them, cut where an element's hash
    says so (as content-defined chunking does with bytes): a change touches one chunk, wherever it is.
    """

    has_serializer = True

    def __init__(self, label: str, serde: JsonPlusSerializer, mask: int) -> None:
        super().__init__()
        self.label = label
        self._serde = serde
        self._mask = mask
        self._chunks: dict[bytes, bytes] = {}
        self._versions: list[tuple[bytes, bytes]] = []  # (head, list of hashes)

    def store(self, version: Version) -> None:
        """See ``Scheme``."""
        dump = self._serde.dumps_typed
        if isinstance(version.value, dict):
            parts = [dump(name)[1] + dump(value)[1] for name, value in version.value.items()]
        else:
            parts = [dump(value)[1] for value in version.value]
        head = _head(version.value)
        hashes, chunk = [], b""
        for part in parts:
            digest = hashlib.blake2b(part, digest_size=_HASH_BYTES).digest()
            if not self._mask:
                self._keep(digest, part)
                hashes.append(digest)
                continue
            chunk += part
            if not digest[0] & self._mask:
                hashes.append(self._keep_grouped(chunk))
                chunk = b""
        if chunk:
            hashes.append(self._keep_grouped(chunk))
        listed = head + b"".join(hashes)
        self._versions.append((head, listed[len(head) :]))
        self._count(_VALUE_KEY, listed)

    def _keep_grouped(self, chunk: bytes) -> bytes:
        digest = hashlib.blake2b(chunk, digest_size=_HASH_BYTES).digest()
        self._keep(digest, chunk)
        return digest

    def _keep(self, digest: bytes, chunk: bytes) -> None:
        if digest not in self._chunks:
            self._chunks[digest] = self.framer.encode(chunk)
            self._count(_CHUNK_KEY, self._chunks[digest])

    def load(self, number: int) -> Any:
        """See ``Scheme``."""
        head, listed = self._versions[number]
        chunks = (
            self.framer.decode(self._chunks[listed[at : at + _HASH_BYTES]])
            for at in range(0, len(listed), _HASH_BYTES)
        )
        return self._serde.loads_typed(("msgpack", head + b"".join(chunks)))

    def rows(self, number: int) -> int:
        """See ``Scheme``."""
        return 1 + len(self._versions[number][1]) // _HASH_BYTES


def _head(value: Any) -> bytes:
    """What msgpack puts before the elements of a list or a dict."""
    empty = ormsgpack.packb(
        [None] * len(value) if isinstance(value, list) else dict.fromkeys(map(str, range(len(value))))
    )
    return empty[: 1 if len(value) < 16 else 3]


class DeltaChannel(Scheme):
    """LangGraph's own: the writes are the history, and every so often the value is stored whole."""

    label = f"DeltaChannel, a snapshot each {_SNAPSHOT_EVERY}"
    has_serializer = True

    def __init__(
        self, serde: JsonPlusSerializer, reducer: Callable[[Any, Sequence[Any]], Any], empty: Any
    ) -> None:
        super().__init__()
        self._serde = serde
        self._reducer = reducer
        self._empty = empty
        self._writes: list[bytes] = []
        self._snapshots: dict[int, bytes] = {}

    def store(self, version: Version) -> None:
        """See ``Scheme``."""
        self._writes.append(self.framer.encode(self._serde.dumps_typed(version.update)[1]))
        self._count(_WRITE_KEY, self._writes[-1], extra=1 + 24 + 1 + 8)  # task path, channel
        number = len(self._writes)
        if number % _SNAPSHOT_EVERY == 0:
            snapshot = self.framer.encode(self._serde.dumps_typed(_DeltaSnapshot(version.value))[1])
            self._snapshots[number] = snapshot
            self._count(_VALUE_KEY, snapshot)

    def load(self, number: int) -> Any:
        """See ``Scheme``."""
        start = self._start(number)
        value = self._empty
        if start:
            value = self._serde.loads_typed(("msgpack", self.framer.decode(self._snapshots[start]))).value
        writes = [
            self._serde.loads_typed(("msgpack", self.framer.decode(frame)))
            for frame in self._writes[start : number + 1]
        ]
        return self._reducer(value, writes) if writes else value

    def rows(self, number: int) -> int:
        """See ``Scheme``."""
        start = self._start(number)
        return bool(start) + number + 1 - start

    def _start(self, number: int) -> int:
        return (number + 1) // _SNAPSHOT_EVERY * _SNAPSHOT_EVERY


def _merge_files(value: dict[str, str], writes: Sequence[dict[str, str]]) -> dict[str, str]:
    merged = dict(value)
    for write in writes:
        merged.update(write)
    return merged


def _schemes(serde: JsonPlusSerializer, value: Any) -> list[Scheme]:
    def previous(index: int) -> int:
        return index - 1

    def skip(index: int) -> int:
        return index & (index - 1)

    reducer: Callable[[Any, Sequence[Any]], Any] = _messages_delta_reducer  # type: ignore[assignment]
    empty: Any = []
    if isinstance(value, dict):
        reducer, empty = _merge_files, {}
    return [
        Alone(),
        Edits("edits of the version before, 32 a chain", previous, 32, keeps_chain=False),
        Edits("edits of the version before, 64 a chain", previous, 64, keeps_chain=False),
        Edits("skip deltas, edits", skip, 0, keeps_chain=True),
        *(
            Dictionaries(
                f"skip deltas, zstd level {level} with dictionary", skip, 0, keeps_chain=True, level=level
            )
            for level in (1, 3)
        ),
        Chunks("chunks by content, one an element", serde, 0),
        Chunks(f"chunks by content, of about {_GROUP_MASK + 1} elements", serde, _GROUP_MASK),
        DeltaChannel(serde, reducer, empty),
    ]


async def run(lab: Lab) -> None:
    """Measure."""
    texts = conversations.texts(lab.conversations)
    for title, steps in (
        (f"A chat that grows to {_MESSAGES} messages", growth.chat(texts, _MESSAGES)),
        (
            f"A workspace: {growth.FILES} files are added, then {growth.EDITS} times one is edited",
            growth.workspace(),
        ),
        (
            f"A chat of {_MESSAGES} messages, summarised every {growth.SUMMARISE_EVERY}",
            growth.summarised_chat(texts, _MESSAGES),
        ),
    ):
        _compare(lab, title, list(steps))


@dataclass
class _Timed:
    """A scheme with everything stored in it, and seconds per version: one item a round."""

    scheme: Scheme
    store: list[float]
    load: list[float]


def _compare(lab: Lab, title: str, steps: list[tuple[Any, Any]]) -> None:
    serde = JsonPlusSerializer()
    versions = [Version(value, update, serde.dumps_typed(value)[1]) for value, update in steps]
    read = range(0, len(versions), _READ_EVERY)
    timed: dict[str, _Timed] = {}
    dumping, loading = [], []
    for number in range(lab.rounds):
        dumping.append(_mean_seconds(lambda version: serde.dumps_typed(version.value), versions))
        loading.append(_mean_seconds(lambda at: serde.loads_typed(("msgpack", versions[at].payload)), read))
        schemes = _schemes(serde, versions[0].value)
        start = number % len(schemes)
        for scheme in (*schemes[start:], *schemes[:start]):
            each = timed.setdefault(scheme.label, _Timed(scheme, [], []))
            each.scheme = scheme
            each.store.append(_mean_seconds(scheme.store, versions))
            each.load.append(_mean_seconds(scheme.load, read))
    _check([each.scheme for each in timed.values()], versions, read)
    lab.samples[title] = {
        label: [
            {"store_seconds": store, "load_seconds": load, "row_bytes": each.scheme.row_bytes}
            for store, load in zip(each.store, each.load, strict=True)
        ]
        for label, each in timed.items()
    }
    total = sum(len(version.payload) for version in versions)
    dump, load = statistics.median(dumping), statistics.median(loading)
    lab.tables.append(
        Table(
            f"{title}: {len(versions)} versions, {total / 1e6:,.1f} MB",
            (
                "scheme",
                "KB of frames",
                "KB of rows",
                "µs of CPU to store a version",
                "its codec alone",
                "µs of CPU to read one",
                "its codec alone",
                "rows to read",
                "most",
            ),
            [
                ("the serializer alone", "", "", f"{dump * 1e6:,.0f}", "", f"{load * 1e6:,.0f}", "", "", ""),
                *(_cells(timed[each.label], dump, load, len(versions)) for each in schemes),
            ],
        )
    )


def _mean_seconds(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    """CPU time of one item: nothing here waits, and other processes should not count."""
    gc.collect()
    started = time.thread_time()
    for item in items:
        work(item)
    return (time.thread_time() - started) / len(items)


def _check(schemes: Sequence[Scheme], versions: Sequence[Version], read: Sequence[int]) -> None:
    for scheme in schemes:
        for number in read if scheme.has_serializer else range(len(versions)):
            version = versions[number]
            if scheme.load(number) != (version.value if scheme.has_serializer else version.payload):
                raise RuntimeError(f"{scheme.label}: version {number} does not come back as it was.")


def _cells(timed: _Timed, dump: float, load: float, count: int) -> tuple[str, ...]:
    scheme = timed.scheme
    store, fetch = statistics.median(timed.store), statistics.median(timed.load)
    rows = [scheme.rows(number) for number in range(count)]
    if scheme.has_serializer:
        times = (f"{store * 1e6:,.0f}", "", f"{fetch * 1e6:,.0f}", "")
    else:
        times = (
            f"{(dump + store) * 1e6:,.0f}",
            f"{store * 1e6:,.0f}",
            f"{(load + fetch) * 1e6:,.0f}",
            f"{fetch * 1e6:,.0f}",
        )
    return (
        scheme.label,
        f"{scheme.frame_bytes / 1e3:,.0f}",
        f"{scheme.row_bytes / 1e3:,.0f}",
        *times,
        f"{statistics.mean(rows):.1f}",
        f"{max(rows)}",
    )
