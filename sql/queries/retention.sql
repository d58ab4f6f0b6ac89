-- Pruning threads and deleting runs: what goes, what stays out of sight because something kept rests on it.
--
-- The link of a checkpoint to its parent is in parent_checkpoint_id while the parent is visible, in
-- hidden_parent_id while it is hidden, whether the checkpoint itself is visible or hidden.
--
-- Rows that were named beforehand are looked up one by one (LATERAL, LIMIT 1 or OFFSET 0) and deleted by their place
-- (ctid), never joined: a join is planned by the mean size of a thread, and those worth pruning are far larger.

-- name: select_places :many
-- The checkpoints of a thread: per namespace the ids of the visible and of the hidden ones, in no order. $1 thread.
-- Index: checkpoints_pkey, by its first column.
SELECT
    p.checkpoint_ns,
    array_agg(p.checkpoint_id) FILTER (WHERE NOT p.hidden),
    array_agg(p.checkpoint_id) FILTER (WHERE p.hidden)
FROM /* schema */checkpoints AS p
WHERE p.thread_id = $1::text
GROUP BY p.checkpoint_ns

-- name: select_roots :many
-- The root checkpoints that some checkpoints' subgraph calls started from: (namespace, root checkpoint or null).
-- $1 thread, $2 namespaces, $3 checkpoints. Index: checkpoints_pkey, one probe per row.
SELECT g.checkpoint_ns, p.root_id
FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT p.metadata -> 'parents' ->> '' AS root_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
    LIMIT 1
) AS p

-- name: select_needed :many
-- The ancestors that checkpoints cannot do without: those of the named checkpoints, and those of all visible ones whose
-- id is above $4. A DeltaChannel is rebuilt from as many ancestors as supersteps have passed since its snapshot
-- (from all, where the counters are not understood); below LangGraph's format 4 the Sends are among the parent's writes.
-- $1 thread, $2 namespaces, $3 checkpoints, $4 id. Index: checkpoints_pkey, a range and one probe per ancestor;
-- writes_pkey, one range per checkpoint below format 4.
WITH RECURSIVE rests AS MATERIALIZED (
    SELECT p.*
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT
            p.checkpoint_ns, coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id, p.langgraph_v,
            p.metadata -> 'counters_since_delta_snapshot' AS counters
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1
    ) AS p
    UNION ALL
    SELECT
        p.checkpoint_ns, coalesce(p.hidden_parent_id, p.parent_checkpoint_id), p.langgraph_v,
        p.metadata -> 'counters_since_delta_snapshot'
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_id > $4::text AND NOT p.hidden
        AND (p.langgraph_v < 4 OR p.metadata ? 'counters_since_delta_snapshot')
),
needed (checkpoint_ns, checkpoint_id, distance) AS (
    SELECT k.checkpoint_ns, k.parent_id, d.distance
    FROM rests AS k
    CROSS JOIN LATERAL (
        SELECT greatest(
            CASE
                WHEN jsonb_typeof(k.counters) = 'object' THEN (
                    SELECT max(
                        CASE WHEN jsonb_typeof(x.value -> 1) = 'number'
                            THEN least((x.value ->> 1)::numeric, 1000000) ELSE 1000000
                        END
                    )::int4
                    FROM jsonb_each(k.counters) AS x
                )
                WHEN k.counters IS NOT NULL THEN 1000000
            END,
            CASE WHEN k.langgraph_v < 4 THEN (
                SELECT 1
                FROM /* schema */writes AS w
                WHERE w.thread_id = $1::text AND w.checkpoint_ns = k.checkpoint_ns
                    AND w.checkpoint_id = k.parent_id AND w.channel = '__pregel_tasks'
                LIMIT 1
            ) END
        ) AS distance
        OFFSET 0
    ) AS d
    WHERE k.parent_id IS NOT NULL AND d.distance >= 1
    UNION
    SELECT n.checkpoint_ns, p.parent_id, n.distance - 1
    FROM needed AS n
    CROSS JOIN LATERAL (
        SELECT coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = n.checkpoint_ns AND p.checkpoint_id = n.checkpoint_id
        LIMIT 1
    ) AS p
    WHERE n.distance > 1 AND p.parent_id IS NOT NULL
)
SELECT DISTINCT n.checkpoint_ns, n.checkpoint_id FROM needed AS n

-- name: select_runs :many
-- The visible checkpoints of some runs: per thread and namespace the ids, newest first; the root namespace last.
-- $1 runs. Index: checkpoints_run_id_idx.
SELECT p.thread_id, p.checkpoint_ns, array_agg(p.checkpoint_id ORDER BY p.checkpoint_id DESC)
FROM /* schema */checkpoints AS p
WHERE p.run_id = ANY ($1::text[]) AND p.run_id IS NOT NULL AND NOT p.hidden
GROUP BY p.thread_id, p.checkpoint_ns
ORDER BY p.thread_id, p.checkpoint_ns = '', p.checkpoint_ns

-- name: lock_checkpoints :one
-- Waits for whoever is replacing or removing one of these checkpoints, and keeps others from it. Must be a statement of
-- its own before hide_checkpoints and delete_checkpoints: those find rows by their place, which must not change under
-- them, or a part of what belongs together would stay. $1 thread, $2 namespaces, $3 checkpoints, sorted by key.
-- A client that falls silent after this must not keep the locks: its transaction ends after 5 s of silence.
-- Index: checkpoints_pkey, one probe per row. Locks: FOR UPDATE on the rows, in the order of the key, until commit.
SELECT count(*), set_config('idle_in_transaction_session_timeout', '5s', true)
FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
    FOR UPDATE
) AS locked

-- name: hide_checkpoints :execrows
-- Takes visible checkpoints out of sight, after lock_checkpoints. $1 thread, $2 namespaces, $3 checkpoints.
-- Index: checkpoints_pkey, one probe per row. Locks: the rows, until commit.
WITH found AS MATERIALIZED (
    SELECT p.ctid
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT p.ctid
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
            AND NOT p.hidden
        LIMIT 1
    ) AS p
)
UPDATE /* schema */checkpoints AS p
SET hidden = true
WHERE p.thread_id = $1::text AND p.ctid = ANY (ARRAY(SELECT f.ctid FROM found AS f))

-- name: delete_checkpoints :one
-- Deletes checkpoints with their writes, after lock_checkpoints. How many of them were visible, how many writes went.
-- $1 thread, $2 namespaces, $3 checkpoints.
-- Index: checkpoints_pkey and writes_pkey, one probe per checkpoint. Locks: the rows, until commit.
WITH found AS MATERIALIZED (
    SELECT p.ctid, p.checkpoint_ns, p.checkpoint_id
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT p.ctid, p.checkpoint_ns, p.checkpoint_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1
    ) AS p
),
deleted_writes AS (
    DELETE FROM /* schema */writes AS w
    WHERE w.thread_id = $1::text AND w.ctid = ANY (
        ARRAY(
            SELECT x.ctid
            FROM found AS f
            CROSS JOIN LATERAL (
                SELECT w.ctid
                FROM /* schema */writes AS w
                WHERE w.thread_id = $1::text AND w.checkpoint_ns = f.checkpoint_ns
                    AND w.checkpoint_id = f.checkpoint_id
                OFFSET 0
            ) AS x
        )
    )
    RETURNING 1
),
deleted AS (
    DELETE FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.ctid = ANY (ARRAY(SELECT f.ctid FROM found AS f))
    RETURNING p.hidden
)
SELECT (SELECT count(*) FROM deleted WHERE NOT deleted.hidden), (SELECT count(*) FROM deleted_writes)

-- name: prepare_operation :one
-- Settles for this transaction that a client that falls silent does not keep its locks, and that nothing is compiled: the
-- planner takes a thread's references for far more than they are, and compiling takes longer than the deletion.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true), set_config('jit', 'off', true)

-- name: delete_range :one
-- Deletes the checkpoints of a namespace up to an id, with all writes in that range: five times as fast as
-- delete_checkpoints, but it does not look at what it deletes. How many checkpoints and writes went, and how many
-- checkpoints had writes without being there themselves. The caller rolls back if that is not what was expected.
-- $1 thread, $2 namespace, $3 highest id that goes.
-- Index: checkpoints_pkey and writes_pkey, a range of each. Locks: the rows, until commit.
WITH deleted AS (
    DELETE FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text AND p.checkpoint_id <= $3::text
    RETURNING p.checkpoint_id
),
deleted_writes AS (
    DELETE FROM /* schema */writes AS w
    WHERE w.thread_id = $1::text AND w.checkpoint_ns = $2::text AND w.checkpoint_id <= $3::text
    RETURNING w.checkpoint_id
)
SELECT
    (SELECT count(*) FROM deleted),
    (SELECT count(*) FROM deleted_writes),
    (
        SELECT count(*)
        FROM (SELECT w.checkpoint_id FROM deleted_writes AS w EXCEPT SELECT d.checkpoint_id FROM deleted AS d) AS early
    )

-- name: delete_unneeded_values :one
-- Deletes the values of a thread that no checkpoint needs; how many there were. It does not lock them first, so it may
-- have waited for somebody who was about to refer to one: the caller looks for what is missing in a statement of its own,
-- and rolls back. $1 thread.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column. Locks: the deleted rows, until commit.
WITH /* referenced values */,
/* needed values */,
deleted AS (
    DELETE FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text
        -- Hashed, however many there are; a join could be planned for a few.
        AND (v.checkpoint_ns, v.channel, v.version) NOT IN (
            SELECT n.checkpoint_ns, n.channel, n.version FROM needed AS n
        )
    RETURNING 1
)
SELECT count(*) FROM deleted

-- name: select_missing_values :one
-- Whether a checkpoint of a thread refers to a value that is not there, or to one that rests on such a value. $1 thread.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column, and one probe per value that is referred to.
WITH /* referenced values */,
/* needed values */
SELECT EXISTS (
    SELECT n.checkpoint_ns, n.channel, n.version FROM needed AS n
    EXCEPT
    SELECT v.checkpoint_ns, v.channel, v.version FROM /* schema */channel_values AS v WHERE v.thread_id = $1::text
)

-- name: relink_checkpoints :execrows
-- Brings links up to date, those of the named checkpoints and of all whose id is above $4: a parent that is gone is no
-- parent any more, one that is hidden, or that is visible again, changes its column. A checkpoint below LangGraph's
-- format 4 keeps the link to a parent that was never stored as long as its Sends are there.
-- $1 thread, $2 namespaces, $3 checkpoints, $4 id.
-- Index: checkpoints_pkey, a range, one probe per checkpoint and one for its parent; writes_pkey. Locks: the changed rows.
WITH linked AS MATERIALIZED (
    SELECT p.*
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT p.ctid, p.checkpoint_ns, p.langgraph_v, p.parent_checkpoint_id, p.hidden_parent_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1
    ) AS p
    UNION
    SELECT p.ctid, p.checkpoint_ns, p.langgraph_v, p.parent_checkpoint_id, p.hidden_parent_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_id > $4::text
),
relinked AS MATERIALIZED (
    SELECT
        c.ctid AS place, c.parent_checkpoint_id, c.hidden_parent_id,
        CASE WHEN p.hidden = false THEN k.link END AS parent_id,
        CASE WHEN p.hidden OR (p.hidden IS NULL AND c.langgraph_v < 4 AND (
            SELECT true
            FROM /* schema */writes AS w
            WHERE w.thread_id = $1::text AND w.checkpoint_ns = c.checkpoint_ns
                AND w.checkpoint_id = k.link AND w.channel = '__pregel_tasks'
            LIMIT 1
        )) THEN k.link END AS hidden_id
    FROM linked AS c
    CROSS JOIN LATERAL (SELECT coalesce(c.hidden_parent_id, c.parent_checkpoint_id) AS link) AS k
    LEFT JOIN LATERAL (
        SELECT p.hidden
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = c.checkpoint_ns AND p.checkpoint_id = k.link
        LIMIT 1
    ) AS p ON true
    WHERE k.link IS NOT NULL
)
UPDATE /* schema */checkpoints AS c
SET parent_checkpoint_id = l.parent_id, hidden_parent_id = l.hidden_id
FROM relinked AS l
WHERE c.thread_id = $1::text AND c.ctid = l.place
    AND (l.parent_checkpoint_id IS DISTINCT FROM l.parent_id OR l.hidden_parent_id IS DISTINCT FROM l.hidden_id)

-- name: part_referenced_values :part
-- The values that the checkpoints of a thread refer to, visible or hidden. $1 thread.
-- Index: checkpoints_pkey, by its first column.
referenced AS MATERIALIZED (
    SELECT DISTINCT p.checkpoint_ns, r.channel, r.version
    FROM /* schema */checkpoints AS p
    CROSS JOIN LATERAL jsonb_each_text(p.refs) AS r (channel, version)
    WHERE p.thread_id = $1::text
)

-- name: part_needed_values :part
-- The values that checkpoints refer to (`referenced`: checkpoint_ns, channel, version), and those that are needed to
-- decode them. $1 thread. Index: channel_values_pkey, one probe per value that is referred to.
needed AS (
    SELECT r.checkpoint_ns, r.channel, r.version FROM referenced AS r
    UNION
    SELECT r.checkpoint_ns, r.channel, b.version
    FROM referenced AS r
    CROSS JOIN LATERAL (
        SELECT v.chain
        FROM /* schema */channel_values AS v
        WHERE v.thread_id = $1::text AND v.checkpoint_ns = r.checkpoint_ns
            AND v.channel = r.channel AND v.version = r.version
        LIMIT 1
    ) AS v
    CROSS JOIN LATERAL unnest(v.chain) AS b (version)
)

-- name: select_unreferenced :many
-- The values of a thread that no checkpoint needs: namespace, channel, version. Those with the longest chain come first:
-- what rests on a value must go before it, or a writer could build on what has lost its base. $1 thread.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column.
WITH /* referenced values */,
/* needed values */
SELECT g.checkpoint_ns, g.channel, g.version
FROM (
    SELECT v.checkpoint_ns, v.channel, v.version, coalesce(cardinality(v.chain), 0) AS length, false AS is_needed
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text
    UNION ALL
    SELECT n.checkpoint_ns, n.channel, n.version, 0, true FROM needed AS n
) AS g
GROUP BY g.checkpoint_ns, g.channel, g.version
HAVING NOT bool_or(g.is_needed)
ORDER BY max(g.length) DESC

-- name: lock_values :one
-- Waits for whoever is about to refer to one of these values, and keeps others from it.
-- $1 thread, $2 namespaces, $3 channels, $4 versions, sorted by key.
-- A client that falls silent after this must not keep the locks: its transaction ends after 5 s of silence.
-- Index: channel_values_pkey, one probe per row. Locks: FOR UPDATE on the rows, in the order of the key, until commit.
SELECT count(*), set_config('idle_in_transaction_session_timeout', '5s', true)
FROM unnest($2::text[], $3::text[], $4::text[]) AS g (checkpoint_ns, channel, version)
CROSS JOIN LATERAL (
    SELECT
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND v.checkpoint_ns = g.checkpoint_ns
        AND v.channel = g.channel AND v.version = g.version
    FOR UPDATE
) AS locked

-- name: delete_values :one
-- Deletes those of some values that no checkpoint needs; how many there were. After lock_values, in a statement of its
-- own: who was waited for may have referred to one of them. What rests on them must be among them, or have gone.
-- $1 thread, $2 namespaces, $3 channels, $4 versions.
-- Index: checkpoints_pkey by its first column, channel_values_pkey. Locks: the deleted rows.
WITH garbage AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.channel, g.version
    FROM unnest($2::text[], $3::text[], $4::text[]) AS g (checkpoint_ns, channel, version)
),
referenced AS MATERIALIZED (
    SELECT DISTINCT p.checkpoint_ns, r.channel, r.version
    FROM /* schema */checkpoints AS p
    CROSS JOIN LATERAL jsonb_each_text(p.refs) AS r (channel, version)
    WHERE p.thread_id = $1::text
        AND p.checkpoint_ns = ANY (ARRAY(SELECT DISTINCT g.checkpoint_ns FROM garbage AS g))
        AND r.channel = ANY (ARRAY(SELECT DISTINCT g.channel FROM garbage AS g))
),
/* needed values */,
doomed AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.channel, g.version FROM garbage AS g
    EXCEPT
    SELECT n.checkpoint_ns, n.channel, n.version FROM needed AS n
),
deleted AS (
    DELETE FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND v.ctid = ANY (
        ARRAY(
            SELECT x.ctid
            FROM doomed AS d
            CROSS JOIN LATERAL (
                SELECT v.ctid
                FROM /* schema */channel_values AS v
                WHERE v.thread_id = $1::text AND v.checkpoint_ns = d.checkpoint_ns
                    AND v.channel = d.channel AND v.version = d.version
                LIMIT 1
            ) AS x
        )
    )
    RETURNING 1
)
SELECT count(*) FROM deleted
