"""Fixtures of this folder."""

from tests.support.shared import dsn, schema, shared_database

__all__ = ["dsn", "schema", "shared_database"]
