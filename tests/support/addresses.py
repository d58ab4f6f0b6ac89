"""Connection strings as URLs, because asyncpg reads only that form; psycopg reads it too."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict


def url(
    *,
    host: str,
    port: int,
    user: str,
    password: str = "",
    database: str = "postgres",
    options: dict[str, str] | None = None,
) -> str:
    """A ``postgresql://`` URL. A ``host`` that starts with ``/`` is a directory of unix sockets."""
    secret = f":{quote(password, safe='')}" if password else ""
    query = dict(options or {})
    if host.startswith("/"):
        query["host"] = host
        query["port"] = str(port)
        where = ""
    else:
        where = f"{host}:{port}"
    tail = f"?{urlencode(query)}" if query else ""
    return f"postgresql://{quote(user, safe='')}{secret}@{where}/{quote(database, safe='')}{tail}"


def with_changes(
    dsn: str,
    *,
    host: str | None = None,
    port: int | None = None,
    database: str | None = None,
    user: str | None = None,
    password: str | None = None,
) -> str:
    """``dsn`` with another host, port, database, user or password; everything else stays."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    old_host = parts.pop("host", "127.0.0.1")
    old_port = parts.pop("port", "5432")
    old_database = parts.pop("dbname", "postgres")
    old_user = parts.pop("user", "postgres")
    old_password = parts.pop("password", "")
    return url(
        host=host or old_host,
        port=port or int(old_port),
        user=user or old_user,
        password=password or old_password,
        database=database or old_database,
        options=parts,
    )


def host_and_port(dsn: str) -> tuple[str, int]:
    """Where ``dsn`` points to."""
    parts = conninfo_to_dict(dsn)
    return str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)


def database_of(dsn: str) -> str:
    """The name of the database that ``dsn`` points to."""
    return str(conninfo_to_dict(dsn).get("dbname") or "postgres")
