-- The write path. The coalescer's batch is one statement, therefore one round trip and one transaction.
-- It is put together from these parts, by what the batch holds: WITH <parts> <batch_result>.
-- Parameters are numbered within each part; the loader shifts them.

-- name: part_needs :part
-- Which items rest on a stored value that is gone (a delta's base, an unchanged large value).
-- $1 item numbers, $2 threads, $3 namespaces, $4 channels, $5 versions, $6 chains that bases must have (each the text
-- of an array; null: any); one entry per needed row.
-- Index: channel_values_pkey. Locks: FOR KEY SHARE on the needed rows until commit, so that no prune can
-- delete what this batch is about to point at.
held AS MATERIALIZED (
    SELECT n.ordinality
    FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        WITH ORDINALITY AS n (item, thread_id, checkpoint_ns, channel, version, chain, ordinality)
    JOIN /* schema */channel_values AS v
        ON v.thread_id = n.thread_id AND v.checkpoint_ns = n.checkpoint_ns
        AND v.channel = n.channel AND v.version = n.version
        AND (n.chain IS NULL OR coalesce(v.chain, '{}') = n.chain::text[])
    FOR KEY SHARE OF v
),
missing AS MATERIALIZED (
    SELECT DISTINCT n.item
    FROM unnest($1::int4[]) WITH ORDINALITY AS n (item, ordinality)
    WHERE n.ordinality NOT IN (SELECT held.ordinality FROM held)
)

-- name: part_values :part
-- Stores large channel values; a row that exists is kept as it is.
-- $1 item numbers, $2 threads, $3 namespaces, $4 channels, $5 versions, $6 chains (each the text of an array),
-- $7 types, $8 frames.
-- Index: channel_values_pkey. Locks: the new rows; and by an update that never comes about those that exist, so that
-- no prune can delete what this batch is about to point at.
stored_values AS (
    INSERT INTO /* schema */channel_values (thread_id, checkpoint_ns, channel, version, chain, type, frame)
    SELECT r.thread_id, r.checkpoint_ns, r.channel, r.version, r.chain::text[], r.type, r.frame
    FROM unnest(
        $1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[]
    ) AS r (item, thread_id, checkpoint_ns, channel, version, chain, type, frame)
    /* unless missing */
    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE SET type = excluded.type WHERE false
    RETURNING 1
)

-- name: part_checkpoints :part
-- Stores new checkpoints. One that exists already is left alone here and replaced by replace_checkpoint.
-- $1 item numbers, $2 threads, $3 namespaces, $4 ids, $5 parents, $6 runs, $7 LangGraph formats,
-- $8 metadata, $9 references, $10 bodies.
-- Index: checkpoints_pkey. Locks: the new rows.
stored_checkpoints AS (
    INSERT INTO /* schema */checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
    )
    SELECT
        r.thread_id, r.checkpoint_ns, r.checkpoint_id, r.parent_checkpoint_id, r.run_id, r.langgraph_v,
        r.metadata::jsonb, r.refs::jsonb, r.body
    FROM unnest(
        $1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int4[],
        $8::text[], $9::text[], $10::bytea[]
    ) AS r (
        item, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v,
        metadata, refs, body
    )
    /* unless missing */
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
    RETURNING 1
)

-- name: part_writes_kept :part
-- Stores ordinary pending writes; a row that exists is kept as it is.
-- $1 threads, $2 namespaces, $3 checkpoints, $4 tasks, $5 indexes, $6 paths, $7 channels, $8 types, $9 frames.
-- Index: writes_pkey. Locks: the new rows.
stored_writes AS (
    INSERT INTO /* schema */writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame
    )
    SELECT r.thread_id, r.checkpoint_ns, r.checkpoint_id, r.task_id, r.idx, r.task_path, r.channel, r.type, r.frame
    FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::int4[], $6::text[], $7::text[], $8::text[], $9::bytea[]
    ) AS r (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame)
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
)

-- name: part_writes_replaced :part
-- Stores special pending writes (errors, interrupts, resumes); a row that exists gets the new value and
-- keeps its task path.
-- $1 threads, $2 namespaces, $3 checkpoints, $4 tasks, $5 indexes, $6 paths, $7 channels, $8 types, $9 frames.
-- Index: writes_pkey. Locks: the new and the replaced rows.
replaced_writes AS (
    INSERT INTO /* schema */writes AS w (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame
    )
    SELECT r.thread_id, r.checkpoint_ns, r.checkpoint_id, r.task_id, r.idx, r.task_path, r.channel, r.type, r.frame
    FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::int4[], $6::text[], $7::text[], $8::text[], $9::bytea[]
    ) AS r (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame)
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
    DO UPDATE SET channel = excluded.channel, type = excluded.type, frame = excluded.frame
)

-- name: part_result :part
-- How many checkpoints were new, and how many values; which items were left out because a needed value is gone.
SELECT
    /* count checkpoints */ AS new_checkpoints,
    /* count values */ AS new_values,
    /* list missing */ AS missing_items

-- name: unless_missing :part
WHERE NOT EXISTS (SELECT FROM missing WHERE missing.item = r.item)

-- name: count_checkpoints :part
(SELECT count(*) FROM stored_checkpoints)

-- name: count_values :part
(SELECT count(*) FROM stored_values)

-- name: count_none :part
0::int8

-- name: list_missing :part
(SELECT array_agg(missing.item) FROM missing)

-- name: list_none :part
NULL::int4[]

-- name: insert_checkpoint :execrows
-- The batch of one checkpoint without large values: the same as part_checkpoints, without its arrays.
-- $1 thread, $2 namespace, $3 id, $4 parent, $5 run, $6 LangGraph format, $7 metadata, $8 references, $9 body.
-- Index: checkpoints_pkey. Locks: the new row.
INSERT INTO /* schema */checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
)
VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::text, $6::int4, $7::text::jsonb, $8::text::jsonb, $9::bytea
)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING

-- name: insert_checkpoint_on_base :one
-- The batch of one checkpoint that needs one stored value: the same as part_needs and part_checkpoints, without their
-- arrays. Says how many checkpoints and values were new, and whether the needed value is there.
-- $1 thread, $2 namespace, $3 id, $4 parent, $5 run, $6 LangGraph format, $7 metadata, $8 references, $9 body,
-- $10 needed channel, $11 needed version.
-- Index: channel_values_pkey, checkpoints_pkey. Locks: as the parts.
WITH base AS MATERIALIZED (
    SELECT 1
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND v.checkpoint_ns = $2::text
        AND v.channel = $10::text AND v.version = $11::text
    FOR KEY SHARE
),
stored_checkpoint AS (
    INSERT INTO /* schema */checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
    )
    SELECT
        $1::text, $2::text, $3::text, $4::text, $5::text, $6::int4, $7::text::jsonb, $8::text::jsonb, $9::bytea
    FROM base
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM stored_checkpoint), 0::int8, EXISTS (SELECT FROM base)

-- name: insert_checkpoint_and_value :one
-- The batch of one checkpoint with one large value that stands alone: the same as part_values and part_checkpoints,
-- without their arrays. Says how many checkpoints and values were new, and true.
-- $1 thread, $2 namespace, $3 id, $4 parent, $5 run, $6 LangGraph format, $7 metadata, $8 references, $9 body,
-- $10 channel, $11 version, $12 type, $13 frame.
-- Index: channel_values_pkey, checkpoints_pkey. Locks: as the parts.
WITH stored_value AS (
    INSERT INTO /* schema */channel_values (thread_id, checkpoint_ns, channel, version, type, frame)
    VALUES ($1::text, $2::text, $10::text, $11::text, $12::text, $13::bytea)
    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE SET type = excluded.type WHERE false
    RETURNING 1
),
stored_checkpoint AS (
    INSERT INTO /* schema */checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
    )
    VALUES (
        $1::text, $2::text, $3::text, $4::text, $5::text, $6::int4, $7::text::jsonb, $8::text::jsonb, $9::bytea
    )
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM stored_checkpoint), (SELECT count(*) FROM stored_value), true

-- name: insert_checkpoint_and_edit :one
-- The batch of one checkpoint with one large value that is an edit of a stored one: the same as part_needs, part_values
-- and part_checkpoints, without their arrays. Says how many checkpoints and values were new, and whether the base is
-- there, with the rest of the chain as its own.
-- $1 thread, $2 namespace, $3 id, $4 parent, $5 run, $6 LangGraph format, $7 metadata, $8 references, $9 body,
-- $10 channel, $11 version, $12 chain (the text of an array), $13 type, $14 frame, $15 version of the base.
-- Index: channel_values_pkey, checkpoints_pkey. Locks: as the parts.
WITH base AS MATERIALIZED (
    SELECT 1
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND v.checkpoint_ns = $2::text
        AND v.channel = $10::text AND v.version = $15::text
        AND coalesce(v.chain, '{}') = ($12::text::text[])[2:]
    FOR KEY SHARE
),
stored_value AS (
    INSERT INTO /* schema */channel_values (thread_id, checkpoint_ns, channel, version, chain, type, frame)
    SELECT $1::text, $2::text, $10::text, $11::text, $12::text::text[], $13::text, $14::bytea
    FROM base
    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE SET type = excluded.type WHERE false
    RETURNING 1
),
stored_checkpoint AS (
    INSERT INTO /* schema */checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
    )
    SELECT
        $1::text, $2::text, $3::text, $4::text, $5::text, $6::int4, $7::text::jsonb, $8::text::jsonb, $9::bytea
    FROM base
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM stored_checkpoint), (SELECT count(*) FROM stored_value), EXISTS (SELECT FROM base)

-- name: insert_write :execrows
-- The batch of one ordinary pending write: the same as part_writes_kept, without its arrays.
-- $1 thread, $2 namespace, $3 checkpoint, $4 task, $5 index, $6 path, $7 channel, $8 type, $9 frame.
-- Index: writes_pkey. Locks: the new row.
INSERT INTO /* schema */writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame
)
VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::int4, $6::text, $7::text, $8::text, $9::bytea
)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
