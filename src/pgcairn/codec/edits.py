"""Edits: a payload as what differs from an earlier one.

LangGraph hands over the whole value of a growing channel at every step. Serialized, it mostly repeats an earlier
version byte for byte: the same beginning, often the same end, and between them a few places that changed. So an edit is
a short list of ranges to copy from the base, and the bytes between them. Finding it takes comparisons of memory and a
few searches for short anchors, which is far cheaper than compression with the base as a dictionary, and finds as
much (docs/decisions/0005-edits.md).

Owns the search and the application of edits. Bytes only: which version is the base of which is decided in ``bases``.
"""

from __future__ import annotations

# Where two payloads differ, they mostly go on alike after a length that takes 1, 2, 3 or 5 bytes (msgpack's integers and
# headers), in the base and in the target. Pairs are tried in the order in which they are likely.
_RESYNC = sorted(
    ((skip_base, skip_target) for skip_base in (1, 2, 3, 5) for skip_target in (1, 2, 3, 5)),
    key=lambda pair: (pair[0] != pair[1], pair[0] + pair[1]),
)
# Bytes that must agree after a difference for it to count as a passing one. Shorter ones agree by chance (guess).
_PROOF_BYTES = 24
# What a search looks for in the base. Longer: differences that are close to each other are not told apart (guess).
_ANCHOR_BYTES = 24
# A copied range that is found by searching costs about 12 bytes as a range; shorter finds are not worth one (guess).
_MIN_FOUND_BYTES = 128
# A find of this length says where in the base the target goes on; shorter ones may be phrases that occur often (guess).
_SOLID_BYTES = 512
# How far from the current place a search looks at first, and how many bytes it may look through altogether for each
# byte of base and target: it bounds the time of an edit that is not there (guess: about 1 ns a byte).
_NEAR_BYTES = 4 * 1024
_NEAR_SKIP_BYTES = 16 * 1024
_SEARCH_FACTOR = 6
# Changes smaller than this are not searched for what they have in common with the base.
_MIN_SEARCHED_BYTES = 64
# More ranges than this mean that the payloads are not versions of one another.
_MAX_RANGES = 512


def make_edit(base: bytes, target: bytes) -> tuple[list[int], bytes] | None:
    """Express a payload by an earlier one.

    Args:
        base: The earlier payload.
        target: The payload.

    Returns:
        (ranges, literal): ``ranges`` is a flat list of (bytes to take from ``literal``, offset in the base, bytes to
        take from there); or ``None`` if less than half of the target comes from the base.
    """
    ranges: list[int] = []
    literals: list[bytes] = []
    literal_bytes = 0
    at_base = solid = at_target = 0
    base_end, target_end = len(base), len(target)
    affordable = target_end // 2
    budget = _SEARCH_FACTOR * (base_end + target_end)
    pending = tail = 0  # literal bytes before the next range; bytes at the end that both have in common
    tail_is_known = False
    while True:
        same = _common_prefix(base, at_base, base_end, target, at_target, target_end)
        if same:
            ranges += (pending, at_base, same)
            pending = 0
            at_base += same
            at_target += same
            if same >= _SOLID_BYTES:
                solid = at_base
        if at_target == target_end or len(ranges) >= 3 * _MAX_RANGES:
            break
        skip_target = 0
        if at_base < base_end:
            for skip_base, skip_target in _RESYNC:
                proof_at = at_target + skip_target
                if proof_at + _PROOF_BYTES > target_end:
                    continue
                proof = target[proof_at : proof_at + _PROOF_BYTES]
                if base.startswith(proof, at_base + skip_base, base_end):
                    at_base += skip_base
                    break
            else:
                skip_target = 0
                if not tail_is_known:
                    tail_is_known = True
                    tail = _common_suffix(base, at_base, base_end, target, at_target, target_end)
                    base_end -= tail
                    target_end -= tail
                if base_end - solid < _ANCHOR_BYTES or target_end - at_target < _MIN_SEARCHED_BYTES:
                    break
                found = _search(base, solid, at_base, base_end, target, at_target, target_end, budget)
                if found is None:
                    break
                at_base, skip_target, budget = found
        elif solid < base_end and tail_is_known and target_end - at_target >= _MIN_SEARCHED_BYTES:
            found = _search(base, solid, solid, base_end, target, at_target, target_end, budget)
            if found is None:
                break
            at_base, skip_target, budget = found
        else:
            break
        if skip_target:
            literals.append(target[at_target : at_target + skip_target])
            pending += skip_target
            literal_bytes += skip_target
            at_target += skip_target
        if literal_bytes > affordable:
            return None
    if at_target < target_end or tail or pending:
        if at_target < target_end:
            literals.append(target[at_target:target_end])
            pending += target_end - at_target
            literal_bytes += target_end - at_target
        ranges += (pending, base_end, tail)
    if literal_bytes > affordable:
        return None
    return ranges, b"".join(literals)


def apply_edit(base: bytes, ranges: list[int], literal: bytes) -> bytes:
    """Rebuild a payload from its base.

    Raises:
        ValueError: The edit does not fit the base.
    """
    parts: list[bytes] = []
    taken = 0
    base_size = len(base)
    for position in range(0, len(ranges), 3):
        take, offset, length = ranges[position : position + 3]
        if take:
            parts.append(literal[taken : taken + take])
            taken += take
        if take < 0 or offset < 0 or length < 0 or offset + length > base_size:
            raise ValueError("the edit reaches beyond its base")
        if length:
            parts.append(base[offset : offset + length])
    if taken != len(literal):
        raise ValueError("the edit does not use all of its bytes")
    return b"".join(parts)


def _search(
    base: bytes,
    low: int,
    at_base: int,
    base_end: int,
    target: bytes,
    at_target: int,
    target_end: int,
    budget: int,
) -> tuple[int, int, int] | None:
    """Find where the base goes on as the target does a little later.

    Returns:
        (place in the base, bytes of the target before it, budget that is left), or ``None``.
    """
    skip = 0
    is_far = False
    far_budget = budget // 2
    while budget > 0:
        anchor_at = at_target + skip
        is_spent = not is_far and (skip > _NEAR_SKIP_BYTES or budget < far_budget)
        if anchor_at + _ANCHOR_BYTES > target_end or is_spent:
            if is_far:
                return None
            is_far, skip = True, 0  # much was taken away, or what follows was somewhere else
            continue
        anchor = target[anchor_at : anchor_at + _ANCHOR_BYTES]
        until = base_end if is_far else min(base_end, at_base + _NEAR_BYTES + 4 * skip)
        hit = base.find(anchor, at_base, until)
        budget -= (until if hit < 0 else hit) - at_base + 32  # each attempt costs something
        if hit < 0 and low < at_base:
            hit = base.find(anchor, low, min(base_end, at_base + _ANCHOR_BYTES))
            budget -= (at_base if hit < 0 else hit) - low
        if hit >= 0:
            back = _common_suffix(base, low, hit, target, at_target, anchor_at)
            ahead_end = min(base_end, hit + _MIN_FOUND_BYTES)
            ahead = _common_prefix(base, hit, ahead_end, target, anchor_at, target_end)
            if back + ahead >= _MIN_FOUND_BYTES:
                return hit - back, skip - back, budget
        skip += 32 + skip // 8
    return None


def _common_prefix(a: bytes, i: int, end_a: int, b: bytes, j: int, end_b: int) -> int:
    """How many bytes agree from ``a[i]`` and ``b[j]`` on. Halves the range that holds the first difference."""
    most = min(end_a - i, end_b - j)
    if most <= 0 or a[i] != b[j]:
        return 0
    low, high = 0, 1024
    while low < most:  # in growing steps, so that the cost is that of what agrees
        high = min(high, most)
        if a[i + low : i + high] != b[j + low : j + high]:
            break
        low, high = high, high * 4
    else:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        if a[i + low : i + middle] == b[j + low : j + middle]:
            low = middle
        else:
            high = middle
    return low


def _common_suffix(a: bytes, i: int, end_a: int, b: bytes, j: int, end_b: int) -> int:
    """How many bytes agree at the ends of ``a[i:end_a]`` and ``b[j:end_b]``."""
    high = min(end_a - i, end_b - j)
    if high <= 0 or a[end_a - 1] != b[end_b - 1]:
        return 0
    if a[end_a - high : end_a] == b[end_b - high : end_b]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if a[end_a - middle : end_a - low] == b[end_b - middle : end_b - low]:
            low = middle
        else:
            high = middle
    return low
