"""The searchable form of metadata: JSON that PostgreSQL accepts, whatever the metadata holds.

JSONB has no NUL characters, no lone surrogates, no NaN and no infinities. The exact metadata is kept in the
checkpoint's body; this form is only what filters are compared with, so filters go through the same function.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS
# JSON text of a NUL or a surrogate; orjson itself refuses surrogates, so this finds NULs and escapes alike.
_SUSPECT = b"\\u0000"


def searchable(metadata: Mapping[str, Any]) -> str:
    """Return metadata, or a filter on it, as JSON text for a ``jsonb`` parameter.

    Values that JSON has no form for are represented by their ``repr``; NULs and lone surrogates are left out of strings.
    """
    try:
        text = orjson.dumps(metadata, default=_fallback, option=_OPTIONS)
        if _SUSPECT not in text:
            return text.decode()
    except (TypeError, ValueError):  # orjson: ints above 64 bits, surrogates, exotic keys
        pass
    return json.dumps(_clean(metadata), ensure_ascii=False, allow_nan=False)


def _fallback(value: object) -> object:
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _clean_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_clean_key(key): _clean(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(child) for child in value]
    try:
        return _clean(orjson.loads(orjson.dumps(value, default=_fallback, option=_OPTIONS)))
    except (TypeError, ValueError):
        return _clean_text(repr(value))


def _clean_key(key: object) -> str:
    if not isinstance(key, str):
        # As it is without this detour: a filter may take the other way.
        with contextlib.suppress(TypeError, ValueError):
            (key,) = orjson.loads(orjson.dumps({key: None}, option=_OPTIONS))
    return _clean_text(str(key))


def _clean_text(text: str) -> str:
    return "".join(c for c in text if c != "\x00" and not "\ud800" <= c <= "\udfff")
