-- Reading and replacing checkpoints. No source yields hidden ones: they are deleted, for every reader.

-- name: part_tuple :part
-- Everything of the checkpoints that `c` yields, one row each: its large values, each followed by those that it is an
-- edit of (place 1, 2, …; without a frame where one is missing), its pending writes in (task_path, task_id, idx) order and,
-- for LangGraph formats below 4, the Sends in its parent's writes, also when the parent is hidden.
-- Index: channel_values_pkey (one probe per large value and per version of its chain), writes_pkey (one range, two
-- below format 4).
SELECT
    c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.refs::text,
    v.channels, v.places, v.versions, v.types, v.frames,
    w.task_ids, w.channels, w.types, w.frames,
    s.types, s.frames
FROM /* source */ AS c
LEFT JOIN LATERAL (
    SELECT
        array_agg(r.channel) AS channels, array_agg(y.place) AS places, array_agg(y.version) AS versions,
        array_agg(y.type) AS types, array_agg(y.frame) AS frames
    FROM jsonb_each_text(c.refs) AS r (channel, version)
    CROSS JOIN LATERAL (
        SELECT x.chain, x.type, x.frame
        FROM /* schema */channel_values AS x
        WHERE x.thread_id = c.thread_id AND x.checkpoint_ns = c.checkpoint_ns
            AND x.channel = r.channel AND x.version = r.version
        LIMIT 1
    ) AS x
    CROSS JOIN LATERAL (
        SELECT 0::int8 AS place, r.version, x.type, x.frame
        UNION ALL
        SELECT b.place, b.version, e.type, e.frame
        FROM unnest(x.chain) WITH ORDINALITY AS b (version, place)
        LEFT JOIN LATERAL (
            SELECT e.type, e.frame
            FROM /* schema */channel_values AS e
            WHERE e.thread_id = c.thread_id AND e.checkpoint_ns = c.checkpoint_ns
                AND e.channel = r.channel AND e.version = b.version
            LIMIT 1
        ) AS e ON true
    ) AS y
) AS v ON true
LEFT JOIN LATERAL (
    SELECT
        array_agg(x.task_id) AS task_ids, array_agg(x.channel) AS channels,
        array_agg(x.type) AS types, array_agg(x.frame) AS frames
    FROM (
        SELECT w.task_id, w.channel, w.type, w.frame
        FROM /* schema */writes AS w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
            AND w.checkpoint_id = c.checkpoint_id
        ORDER BY w.task_path, w.task_id, w.idx
    ) AS x
) AS w ON true
LEFT JOIN LATERAL (
    SELECT array_agg(x.type) AS types, array_agg(x.frame) AS frames
    FROM (
        SELECT w.type, w.frame
        FROM /* schema */writes AS w
        WHERE c.langgraph_v < 4
            AND w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
            AND w.checkpoint_id = coalesce(c.hidden_parent_id, c.parent_checkpoint_id)
            AND w.channel = '__pregel_tasks'
        ORDER BY w.task_path, w.task_id, w.idx
    ) AS x
) AS s ON true

-- name: source_latest :part
-- The latest checkpoint of a namespace. $1 thread, $2 namespace.
-- Index: checkpoints_pkey, backwards, one row: the cost does not grow with the number of older checkpoints.
(
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text AND NOT p.hidden
    ORDER BY p.checkpoint_id DESC
    LIMIT 1
)

-- name: source_exact :part
-- One checkpoint. $1 thread, $2 namespace, $3 checkpoint. Index: checkpoints_pkey.
(
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text AND p.checkpoint_id = $3::text AND NOT p.hidden
)

-- name: source_many :part
-- The latest checkpoints of many namespaces, or exact ones, in one statement.
-- $1 threads, $2 namespaces, $3 checkpoints (null: the latest). Index: checkpoints_pkey, backwards, one row each.
(
    SELECT p.*
    FROM unnest($1::text[], $2::text[], $3::text[]) AS q (thread_id, checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT p.*
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = q.thread_id AND p.checkpoint_ns = q.checkpoint_ns
            AND p.checkpoint_id >= coalesce(q.checkpoint_id, '')
            AND p.checkpoint_id <= coalesce(q.checkpoint_id, U&'\+10FFFF')
            AND NOT p.hidden
        ORDER BY p.checkpoint_id DESC
        LIMIT 1
    ) AS p
)

-- name: source_page_of_namespace :part
-- A page of one namespace's checkpoints, newest first.
-- $1 thread, $2 namespace, $3 only this checkpoint or null, $4 only ids below this or null, $5 metadata
-- that must be contained, $6 rows. Index: checkpoints_pkey, backwards.
(
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text
        AND p.checkpoint_id >= coalesce($3::text, '')
        AND p.checkpoint_id <= coalesce($3::text, U&'\+10FFFF')
        AND p.checkpoint_id < coalesce($4::text, U&'\+10FFFF')
        AND NOT p.hidden
        AND p.metadata @> $5::text::jsonb
    ORDER BY p.checkpoint_id DESC
    LIMIT $6::int4
)

-- name: source_page_of_thread :part
-- A page of one thread's checkpoints over all namespaces, newest first.
-- $1 thread, $2 only this checkpoint or null, $3 only ids below this or null, $4 metadata that must be
-- contained, $5 and $6 id and namespace of the last row seen or null, $7 rows. Index: checkpoints_pkey.
(
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND NOT p.hidden
        AND ($2::text IS NULL OR p.checkpoint_id = $2::text)
        AND ($3::text IS NULL OR p.checkpoint_id < $3::text)
        AND p.metadata @> $4::text::jsonb
        AND (
            $5::text IS NULL OR p.checkpoint_id < $5::text
            OR (p.checkpoint_id = $5::text AND p.checkpoint_ns > $6::text)
        )
    ORDER BY p.checkpoint_id DESC, p.checkpoint_ns
    LIMIT $7::int4
)

-- name: source_page_of_all :part
-- A page of all checkpoints, newest first. No index serves this order: it reads the table once per page.
-- $1 only ids below this or null, $2 metadata that must be contained, $3, $4 and $5 id, thread and namespace
-- of the last row seen or null, $6 rows.
(
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE NOT p.hidden
        AND ($1::text IS NULL OR p.checkpoint_id < $1::text)
        AND p.metadata @> $2::text::jsonb
        AND (
            $3::text IS NULL OR p.checkpoint_id < $3::text
            OR (p.checkpoint_id = $3::text AND (p.thread_id, p.checkpoint_ns) > ($4::text, $5::text))
        )
    ORDER BY p.checkpoint_id DESC, p.thread_id, p.checkpoint_ns
    LIMIT $6::int4
)

-- name: order_newest :part
ORDER BY c.checkpoint_id DESC, c.thread_id, c.checkpoint_ns

-- name: lock_checkpoint :one
-- The body and the references of a checkpoint that is about to be replaced, and whether it is hidden.
-- $1 thread, $2 namespace, $3 checkpoint.
-- A client that falls silent after this must not keep the lock: its transaction ends after 5 s of silence.
-- Index: checkpoints_pkey. Locks: the row, until commit.
SELECT p.body, p.refs::text, p.hidden, set_config('idle_in_transaction_session_timeout', '5s', true)
FROM /* schema */checkpoints AS p
WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text AND p.checkpoint_id = $3::text
FOR UPDATE

-- name: replace_checkpoint :execrows
-- Gives a checkpoint a new body and new metadata, and brings it back into sight; its parent and its creation time
-- stay. Does nothing if a value that it would refer to is gone: a prune may have come between the batch that
-- brought the value and this statement.
-- $1 thread, $2 namespace, $3 checkpoint, $4 run, $5 LangGraph format, $6 metadata, $7 references, $8 body.
-- Index: checkpoints_pkey, channel_values_pkey. Locks: the row; FOR KEY SHARE on the values; until commit.
WITH held AS MATERIALIZED (
    SELECT
    FROM jsonb_each_text($7::text::jsonb) AS r (channel, version)
    JOIN /* schema */channel_values AS v
        ON v.thread_id = $1::text AND v.checkpoint_ns = $2::text
        AND v.channel = r.channel AND v.version = r.version
    FOR KEY SHARE OF v
)
UPDATE /* schema */checkpoints
SET
    run_id = $4::text, langgraph_v = $5::int4, metadata = $6::text::jsonb, refs = $7::text::jsonb, body = $8::bytea,
    hidden = false
WHERE thread_id = $1::text AND checkpoint_ns = $2::text AND checkpoint_id = $3::text
    AND (SELECT count(*) FROM held) = (SELECT count(*) FROM jsonb_each_text($7::text::jsonb))
