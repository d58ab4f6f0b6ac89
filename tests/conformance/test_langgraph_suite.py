"""LangGraph's published suite for checkpointers, on every driver and every kind of connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES, Capability
from langgraph.checkpoint.conformance.report import ProgressCallbacks

from pgcairn import AsyncPostgresSaver, Settings
from tests.support.savers import VARIANTS


def is_claimed(capability: Capability) -> bool:
    """Whether the saver has it: all basic ones, and every extended one that it implements."""
    method = f"a{capability.value}"
    return capability in BASE_CAPABILITIES or getattr(AsyncPostgresSaver, method) is not getattr(
        BaseCheckpointSaver, method
    )


@pytest.mark.parametrize("capability", [each.value for each in Capability if is_claimed(each)])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_capability(dsn: str, schema: str, variant: str, capability: str) -> None:
    failures: list[str] = []

    @checkpointer_test(name=variant)
    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with VARIANTS[variant](dsn, Settings(schema=schema)) as saver:
            await saver.setup()
            yield saver

    def note(_: str, name: str, passed: bool, text: str | None) -> None:
        if not passed:
            failures.append(f"{name}\n{text}")

    report = await validate(
        factory, capabilities={capability}, progress=ProgressCallbacks(on_test_result=note)
    )

    assert not failures, "\n".join(failures)
    result = report.results[capability]
    assert result.passed is True
    assert result.tests_passed > 0
