-- Whole threads.

-- name: lock_values_of_threads :one
-- Waits for whoever is about to refer to a value of these threads, and keeps others from it. $1 threads.
-- Must be a statement of its own before delete_threads: one statement would decide on a snapshot from before the
-- wait, and leave a checkpoint that refers to a value that it deletes.
-- A client that falls silent after this must not keep the locks: its transaction ends after 5 s of silence.
-- Index: channel_values_pkey, by its first column. Locks: FOR UPDATE on the values, until commit.
SELECT count(*), set_config('idle_in_transaction_session_timeout', '5s', true)
FROM (
    SELECT
    FROM /* schema */channel_values
    WHERE thread_id = ANY ($1::text[])
    ORDER BY thread_id, checkpoint_ns, channel, version
    FOR UPDATE
) AS locked

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
