"""What is refused before anything is connected."""

from __future__ import annotations

import pytest

from pgcairn import AsyncPostgresSaver, InvalidInput
from pgcairn.settings import Driver


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("dsn", ["localhost/app", "postgresql://h/app?no_such_option=1", "host='x"])
async def test_a_connection_string_that_cannot_be_read(dsn: str, driver: Driver) -> None:
    with pytest.raises(InvalidInput, match="connection string cannot be read"):
        async with AsyncPostgresSaver.from_conn_string(dsn, driver=driver):
            pass
