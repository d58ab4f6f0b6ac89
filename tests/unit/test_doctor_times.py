"""The time in a checkpoint's id decides what may be swept."""

from __future__ import annotations

import datetime as dt
import time
import uuid

import pytest
from langgraph.checkpoint.base.id import uuid6

from pgcairn.operations.doctor import Kind, Severity, time_in_id

# RFC 9562, appendix A: the same moment in versions 1, 6 and 7.
_MOMENT = dt.datetime(2022, 2, 22, 19, 22, 22, tzinfo=dt.timezone.utc).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "c232ab00-9414-11ec-b3c8-9f6bdeced846",
        "1ec9414c-232a-6b00-b3c8-9f6bdeced846",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "1EC9414C-232A-6B00-B3C8-9F6BDECED846",
    ],
)
def test_the_examples_of_the_standard(text: str) -> None:
    assert time_in_id(text) == pytest.approx(_MOMENT, abs=1e-3)


def test_the_ids_that_langgraph_makes() -> None:
    before = time.time()
    made = time_in_id(str(uuid6()))
    assert made is not None
    assert before - 1 <= made <= time.time() + 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "stub",
        str(uuid.UUID(int=1 << 127, version=4)),
        str(uuid.UUID(int=1 << 127, version=5)),
        "1ec9414c232a6b00b3c89f6bdeced846",  # not as LangGraph writes them
        "{1ec9414c-232a-6b00-b3c8-9f6bdeced846}",
        "1ec9414c-232a-6b00-03c8-9f6bdeced846",  # another variant
    ],
)
def test_other_ids_tell_no_time(text: str) -> None:
    assert time_in_id(text) is None


def test_every_kind_has_a_severity_and_a_meaning() -> None:
    assert {kind.severity for kind in Kind} == set(Severity)
    assert len({kind.meaning for kind in Kind}) == len(Kind)
