-- Whole threads.

-- name: delete_threads :one
-- Deletes everything of some threads and says how many rows went. $1 threads.
-- Index: the primary keys, by their first column. Locks: the deleted rows.
WITH c AS (
    DELETE FROM /* schema */checkpoints WHERE thread_id = ANY ($1::text[]) RETURNING 1
),
v AS (
    DELETE FROM /* schema */channel_values WHERE thread_id = ANY ($1::text[]) RETURNING 1
),
w AS (
    DELETE FROM /* schema */writes WHERE thread_id = ANY ($1::text[]) RETURNING 1
)
SELECT (SELECT count(*) FROM c) + (SELECT count(*) FROM v) + (SELECT count(*) FROM w)
