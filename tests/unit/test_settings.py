"""Settings: every range is enforced, every name is known, nothing changes afterwards."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pgcairn.errors import SettingsError
from pgcairn.settings import _RANGES, Settings

_NUMBERS = [field.name for field in dataclasses.fields(Settings) if field.type in ("int", "float")]


def _with(name: str, value: Any) -> Settings:
    # The two sizes bound each other.
    rest = {"max_size": 10_000} if name == "min_size" else {"min_size": 0} if name == "max_size" else {}
    return Settings(**{**rest, name: value})


def test_every_number_has_a_range() -> None:
    assert sorted(_NUMBERS) == sorted(name for name, _, _ in _RANGES)


@pytest.mark.parametrize(("name", "low", "high"), _RANGES)
def test_both_ends_of_a_range_are_allowed_and_nothing_beyond(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(_with(name, value), name) == value
    step = 1 if isinstance(low, int) and low != 0 else 0.0005
    for value in (low - step, high + 1, math.nan, math.inf, -math.inf):
        with pytest.raises(SettingsError, match=name):
            _with(name, value)


@pytest.mark.parametrize("name", _NUMBERS)
@pytest.mark.parametrize("value", [None, "10", True, [1]])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        _with(name, value)


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_counts_are_whole_numbers(field: dataclasses.Field[Any]) -> None:
    if field.type == "int":
        low = next(low for name, low, _ in _RANGES if name == field.name)
        with pytest.raises(SettingsError, match=field.name):
            _with(field.name, low + 0.5)


def test_the_defaults_are_in_range() -> None:
    assert Settings() == Settings()


@pytest.mark.parametrize(
    "schema", ["a", "My Schema", 'quo"te', "схема", "x" * 63, "é" * 31, "a.b", "$1", "%s"]
)
def test_any_name_is_a_schema(schema: str) -> None:
    assert Settings(schema=schema).schema == schema


@pytest.mark.parametrize("schema", ["", "x" * 64, "é" * 32, "a\x00b", "a\ud800", "\udfff"])
def test_a_name_that_postgresql_would_cut_or_refuse_is_none(schema: str) -> None:
    with pytest.raises(SettingsError, match="schema"):
        Settings(schema=schema)


def test_drivers_are_known_by_name() -> None:
    with pytest.raises(SettingsError, match="psycopg"):
        Settings(driver="pg8000")  # type: ignore[arg-type]


def test_sizes_of_the_pool_fit_together() -> None:
    with pytest.raises(SettingsError, match="min_size=3 is above max_size=2"):
        Settings(min_size=3, max_size=2)


def test_settings_are_frozen_and_replaced_by_copies() -> None:
    settings = Settings(lanes=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.lanes = 4  # type: ignore[misc]
    changed = settings.replace(page_rows=7)
    assert (changed.lanes, changed.page_rows, settings.page_rows) == (3, 7, Settings().page_rows)


def test_an_unknown_setting_is_named_together_with_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=r"Unknown setting\(s\) max_sise, x\. Known are: schema, .*max_size"
    ):
        Settings().replace(max_sise=1, x=2)
    with pytest.raises(SettingsError, match="lanes=0"):
        Settings().replace(lanes=0)


def test_a_password_is_not_shown() -> None:
    def secret() -> str:
        return "hunter2"

    assert "password" not in repr(Settings(password=secret))
