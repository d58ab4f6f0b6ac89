"""The searchable form of metadata: JSON that PostgreSQL takes, the same for metadata and filters."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import uuid
from typing import Any

import pytest

from pgcairn.codec.metadata import searchable
from tests.support.values import Color, Number, Opaque, Point, Text

_WHEN = dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.timezone.utc)


class _Key(enum.Enum):
    A = "a"


def _jsonb(metadata: dict[Any, Any]) -> Any:
    """Read it as PostgreSQL would: no NUL, no surrogate, no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = searchable(metadata)
    text.encode()
    found = json.loads(text, parse_constant=refuse)
    characters = json.dumps(found, ensure_ascii=False).replace("\\\\u0000", "")
    assert "\\u0000" not in characters
    assert not any("\ud800" <= character <= "\udfff" for character in characters)
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\x00b", "ab"),
        ({"k\x00": ["\x00", {"d": "x\x00"}]}, {"k": ["", {"d": "x"}]}),
        ("a\ud800b", "ab"),
        ({"\udfff": ["x\ud800"]}, {"": ["x"]}),
        ("\\u0000", "\\u0000"),
        (math.nan, None),
        ([math.inf, -math.inf], [None, None]),
        (2**64, 2**64),
        (-(10**300), -(10**300)),
        (1e16, 1e16),
        ((1, 2), [1, 2]),
        ({3}, [3]),
        (_WHEN, "2024-01-02T03:04:00+00:00"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (decimal.Decimal("1.5"), "Decimal('1.5')"),
        (b"x", "b'x'"),
        (Point(1, "\x00"), {"x": 1, "y": ""}),
        (Color.RED, "red"),
        (Number.ONE, 1),
        (Text("t"), "t"),
        ({1: "a", None: "b", False: "c", 1.5: "f", _WHEN: "d", _Key.A: "e"}, None),
    ],
)
def test_anything_becomes_json(value: object, expected: object) -> None:
    # Alone it goes the fast way; beside a NUL or a huge number it goes the thorough one.
    alone = _jsonb({"k": value})
    thorough = _jsonb({"k": value, "nul": "\x00", "huge": 2**70})
    assert alone["k"] == thorough["k"], "metadata and filters must agree"
    if expected is not None or value is math.nan:
        assert alone["k"] == expected


def test_what_json_has_no_form_for_is_its_repr() -> None:
    opaque = Opaque()
    assert _jsonb({"k": [opaque]}) == {"k": [repr(opaque)]}
    assert _jsonb({"k": [opaque, "\x00"]}) == {"k": [repr(opaque), ""]}


def test_exotic_keys_are_text() -> None:
    assert _jsonb({(1, 2): "x"}) == {"(1, 2)": "x"}


def test_nothing_is_an_empty_object() -> None:
    assert searchable({}) == "{}"
