-- Copying threads, on the server.

-- name: lock_copy_target :one
-- Lets one copy at a time look whether a thread exists and make it. Must be a statement of its own before copy_thread.
-- $1 target thread, $2 a number of our own, so that nobody else's locks are met.
-- Locks: a transaction-level advisory lock, which poolers in transaction mode keep.
SELECT pg_advisory_xact_lock(hashtextextended($1::text, $2::int8)) IS NULL

-- name: copy_thread :one
-- Copies everything of a thread to one that has nothing: checkpoints, hidden ones too, the values that they need (a
-- prune may be about to collect others), and writes. Whether
-- the target had anything (then nothing is copied), and how many rows of each were copied.
-- $1 source, $2 target. Index: the primary keys, by their first column. Locks: the new rows.
WITH taken AS MATERIALIZED (
    SELECT
        EXISTS (SELECT FROM /* schema */checkpoints AS p WHERE p.thread_id = $2::text)
        OR EXISTS (SELECT FROM /* schema */channel_values AS v WHERE v.thread_id = $2::text)
        OR EXISTS (SELECT FROM /* schema */writes AS w WHERE w.thread_id = $2::text) AS is_taken
),
/* referenced values */,
/* needed values */,
copied_values AS (
    INSERT INTO /* schema */channel_values (thread_id, checkpoint_ns, channel, version, chain, type, frame)
    SELECT $2::text, v.checkpoint_ns, v.channel, v.version, v.chain, v.type, v.frame
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND NOT (SELECT taken.is_taken FROM taken)
        -- Hashed, however many there are; a join could be planned for a few.
        AND (v.checkpoint_ns, v.channel, v.version) IN (
            SELECT n.checkpoint_ns, n.channel, n.version FROM needed AS n GROUP BY 1, 2, 3 OFFSET 0
        )
    RETURNING 1
),
copied_checkpoints AS (
    INSERT INTO /* schema */checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, created_at, langgraph_v, metadata,
        refs, body, hidden, hidden_parent_id
    )
    SELECT
        $2::text, p.checkpoint_ns, p.checkpoint_id, p.parent_checkpoint_id, p.run_id, p.created_at, p.langgraph_v,
        p.metadata, p.refs, p.body, p.hidden, p.hidden_parent_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND NOT (SELECT taken.is_taken FROM taken)
    RETURNING 1
),
copied_writes AS (
    INSERT INTO /* schema */writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame
    )
    SELECT
        $2::text, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.frame
    FROM /* schema */writes AS w
    WHERE w.thread_id = $1::text AND NOT (SELECT taken.is_taken FROM taken)
    RETURNING 1
)
SELECT
    taken.is_taken,
    (SELECT count(*) FROM copied_checkpoints), (SELECT count(*) FROM copied_values), (SELECT count(*) FROM copied_writes)
FROM taken
