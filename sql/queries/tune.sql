-- What `pgcairn bench` and `pgcairn tune` ask the server beside what a saver asks it.

-- name: server_limits :one
-- Version, most sessions, those kept for superusers, sessions there are now (0 for roles that may not see others'), and
-- whether a commit waits for the disk.
SELECT
    current_setting('server_version'),
    current_setting('max_connections')::int4,
    current_setting('superuser_reserved_connections')::int4,
    (SELECT count(*)::int4 FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type = 'client backend'),
    current_setting('synchronous_commit'),
    current_setting('fsync')

-- name: drop_schema :script
-- Removes a schema that was made for a trial, with everything in it.
-- Locks: ACCESS EXCLUSIVE on its tables.
DROP SCHEMA IF EXISTS /* schema name */ CASCADE
