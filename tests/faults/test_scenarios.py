"""Every fault, for some seconds, while 24 writers and readers work: a pause, not an error."""

from __future__ import annotations

import pytest

from tests.faults.scenarios import SCENARIOS, Stage
from tests.support.server import PostgresServer


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_fault_is_a_pause(durable_server: PostgresServer, driver: str, name: str) -> None:
    dsn = durable_server.dsn(durable_server.create_database())
    outcome = await SCENARIOS[name](Stage(durable_server, dsn, driver, seconds=1.0))
    assert outcome.problems == []
    assert outcome.errors == {}
    assert outcome.faults > 0
    assert outcome.acknowledged > 0
