-- What `pgcairn demo` asks the server beside what a saver asks it.

-- name: schema_bytes :one
-- Bytes that the tables of a schema take on disk, with indexes and out-of-line values. $1 schema name (as
-- text, not quoted).
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relkind = 'r'

-- name: count_sessions :one
-- Sessions of an application in the current database, whatever they do. $1 application name.
SELECT count(*)
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name = $1::text
