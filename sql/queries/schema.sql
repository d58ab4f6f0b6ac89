-- What is installed, and the lock under which it is changed.

-- name: installed_tables :one
-- Whether the schema exists, whether it holds pgcairn's version table, whether it holds the tables by
-- which the official saver's installation is known, and whether it holds others of names that pgcairn needs; and the
-- encoding of the database.
-- $1 schema name (as text, not quoted).
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname = $1::text),
    EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname = 'schema_version'
    ),
    EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname IN ('checkpoint_migrations', 'checkpoint_blobs', 'checkpoint_writes')
    ),
    EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname IN ('checkpoints', 'channel_values', 'writes')
    ),
    current_setting('server_encoding')

-- name: applied_migrations :many
-- The migrations that were applied, oldest first.
SELECT m.version, m.name, m.digest
FROM /* schema */schema_version AS m
ORDER BY m.version

-- name: record_migration :execrows
-- Notes that a migration was applied. $1 version, $2 name, $3 digest.
INSERT INTO /* schema */schema_version (version, name, digest)
VALUES ($1::int4, $2::text, $3::text)

-- name: try_setup_lock :one
-- Takes the lock under which one process at a time changes the schema, or says false. $1 lock key.
-- Locks: a transaction-level advisory lock, which poolers in transaction mode keep.
SELECT pg_try_advisory_xact_lock($1::int8)

-- name: create_schema :script
CREATE SCHEMA /* schema name */

-- name: create_version_table :script
CREATE TABLE /* schema */schema_version (
    version     integer PRIMARY KEY,
    name        text NOT NULL,
    digest      text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
)

-- name: create_metadata_index :script
-- Optional: serves metadata filters of alist over many threads; every checkpoint then costs one more index insert.
-- Locks: SHARE on the table while it is built: writes wait.
CREATE INDEX IF NOT EXISTS checkpoints_metadata_idx
ON /* schema */checkpoints USING gin (metadata jsonb_path_ops)
