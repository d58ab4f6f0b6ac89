-- Pruning threads and deleting runs: what goes, what stays out of sight because something kept rests on it.
--
-- The link of a checkpoint to its parent is in parent_checkpoint_id while the parent is visible, in
-- hidden_parent_id while it is hidden, whether the checkpoint itself is visible or hidden.

-- name: part_needed_checkpoints :part
-- The ancestors that the checkpoints of `rests` (checkpoint_ns, parent_id, langgraph_v, counters) cannot do without,
-- each with how far the need reaches beyond it: a DeltaChannel is rebuilt from as many ancestors as supersteps have
-- passed since its snapshot (all, where the counters are not understood), and below LangGraph's format 4 the Sends are
-- among the parent's writes. $1 thread. Index: checkpoints_pkey, writes_pkey, one probe per ancestor.
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
            CASE WHEN k.langgraph_v < 4 AND EXISTS (
                SELECT
                FROM /* schema */writes AS w
                WHERE w.thread_id = $1::text AND w.checkpoint_ns = k.checkpoint_ns
                    AND w.checkpoint_id = k.parent_id AND w.channel = '__pregel_tasks'
            ) THEN 1 END
        ) AS distance
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

-- name: select_prunable :many
-- What a prune of one thread removes: per namespace the ids, newest first. The root namespace comes last: a subgraph
-- call goes by its root checkpoint, so it must be gone before that is.
-- A namespace of a call (it has a ":") goes whole once its newest checkpoint's root checkpoint is stored and not
-- kept. Of every other namespace the newest visible checkpoints are kept. Hidden ones go that no kept one needs.
-- $1 thread, $2 how many to keep, $3 whether calls go with their root checkpoints.
-- Index: checkpoints_pkey, by its first column, once; then one probe per kept checkpoint and needed ancestor.
WITH RECURSIVE ranked AS MATERIALIZED (
    SELECT
        p.checkpoint_ns, p.checkpoint_id, p.hidden,
        row_number() OVER (PARTITION BY p.checkpoint_ns, p.hidden ORDER BY p.checkpoint_id DESC) AS place
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text
),
calls AS MATERIALIZED (
    SELECT r.checkpoint_ns
    FROM ranked AS r
    CROSS JOIN LATERAL (
        SELECT p.metadata -> 'parents' ->> '' AS root_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = r.checkpoint_ns AND p.checkpoint_id = r.checkpoint_id
        LIMIT 1
    ) AS h
    WHERE $3::bool AND r.place = 1 AND NOT r.hidden AND strpos(r.checkpoint_ns, ':') > 0
        AND h.root_id <> ALL (
            ARRAY(SELECT k.checkpoint_id FROM ranked AS k WHERE k.checkpoint_ns = '' AND NOT k.hidden AND k.place <= $2::int4)
        )
        AND EXISTS (
            SELECT
            FROM /* schema */checkpoints AS p
            WHERE p.thread_id = $1::text AND p.checkpoint_ns = '' AND p.checkpoint_id = h.root_id
        )
),
kept AS MATERIALIZED (
    SELECT r.checkpoint_ns, r.checkpoint_id
    FROM ranked AS r
    WHERE NOT r.hidden AND r.place <= $2::int4 AND r.checkpoint_ns NOT IN (SELECT c.checkpoint_ns FROM calls AS c)
),
rests AS (
    SELECT p.*
    FROM kept AS k
    CROSS JOIN LATERAL (
        SELECT
            p.checkpoint_ns, coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id, p.langgraph_v,
            p.metadata -> 'counters_since_delta_snapshot' AS counters
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = k.checkpoint_ns AND p.checkpoint_id = k.checkpoint_id
        LIMIT 1
    ) AS p
),
/* needed checkpoints */,
gone AS (
    (
        SELECT r.checkpoint_ns, r.checkpoint_id FROM ranked AS r WHERE NOT r.hidden
        EXCEPT
        SELECT k.checkpoint_ns, k.checkpoint_id FROM kept AS k
    )
    UNION ALL
    (
        SELECT r.checkpoint_ns, r.checkpoint_id FROM ranked AS r WHERE r.hidden
        EXCEPT
        SELECT n.checkpoint_ns, n.checkpoint_id FROM needed AS n
    )
)
SELECT g.checkpoint_ns, array_agg(g.checkpoint_id ORDER BY g.checkpoint_id DESC)
FROM gone AS g
GROUP BY g.checkpoint_ns
ORDER BY g.checkpoint_ns = '', g.checkpoint_ns

-- name: select_runs :many
-- The visible checkpoints of some runs: per thread and namespace the ids, newest first; the root namespace last.
-- $1 runs. Index: checkpoints_run_id_idx.
SELECT p.thread_id, p.checkpoint_ns, array_agg(p.checkpoint_id ORDER BY p.checkpoint_id DESC)
FROM /* schema */checkpoints AS p
WHERE p.run_id = ANY ($1::text[]) AND p.run_id IS NOT NULL AND NOT p.hidden
GROUP BY p.thread_id, p.checkpoint_ns
ORDER BY p.thread_id, p.checkpoint_ns = '', p.checkpoint_ns

-- name: lock_checkpoints :one
-- Waits for whoever is replacing or removing one of these checkpoints, and keeps others from it.
-- $1 thread, $2 namespaces, $3 checkpoints, sorted by key.
-- Index: checkpoints_pkey, one probe per row. Locks: FOR UPDATE on the rows, in the order of the key, until commit.
SELECT count(*)
FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
    FOR UPDATE
) AS locked

-- name: remove_checkpoints :one
-- Removes checkpoints: deletes them with their writes, or hides those that a checkpoint beside them still needs.
-- After lock_checkpoints, in a statement of its own, so that it decides on what others have committed by then.
-- How many visible ones went out of sight, how many of them only were hidden, how many writes were deleted.
-- $1 thread, $2 namespaces, $3 checkpoints, $4 no checkpoint below this id rests on one of them ('' if not known).
-- Index: checkpoints_pkey, writes_pkey. Locks: the removed and the hidden rows.
WITH RECURSIVE gone AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.checkpoint_id
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
),
rests AS (
    SELECT
        p.checkpoint_ns, coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id, p.langgraph_v,
        p.metadata -> 'counters_since_delta_snapshot' AS counters
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = ANY (ARRAY(SELECT DISTINCT g.checkpoint_ns FROM gone AS g))
        AND p.checkpoint_id >= $4::text AND NOT p.hidden
        AND (p.langgraph_v < 4 OR p.metadata ? 'counters_since_delta_snapshot')
        AND (p.checkpoint_ns, p.checkpoint_id) NOT IN (SELECT g.checkpoint_ns, g.checkpoint_id FROM gone AS g)
),
/* needed checkpoints */,
doomed AS MATERIALIZED (
    SELECT p.checkpoint_ns, p.checkpoint_id
    FROM (
        SELECT g.checkpoint_ns, g.checkpoint_id FROM gone AS g
        EXCEPT
        SELECT n.checkpoint_ns, n.checkpoint_id FROM needed AS n
    ) AS g
    CROSS JOIN LATERAL (
        SELECT p.checkpoint_ns, p.checkpoint_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        LIMIT 1
    ) AS p
),
hidden AS (
    UPDATE /* schema */checkpoints AS p
    SET hidden = true
    FROM (
        SELECT g.checkpoint_ns, g.checkpoint_id FROM gone AS g
        INTERSECT
        SELECT n.checkpoint_ns, n.checkpoint_id FROM needed AS n
    ) AS g
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        AND NOT p.hidden
    RETURNING 1
),
deleted_writes AS (
    DELETE FROM /* schema */writes AS w
    USING doomed AS d
    WHERE w.thread_id = $1::text AND w.checkpoint_ns = d.checkpoint_ns AND w.checkpoint_id = d.checkpoint_id
    RETURNING 1
),
deleted AS (
    DELETE FROM /* schema */checkpoints AS p
    USING doomed AS d
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = d.checkpoint_ns AND p.checkpoint_id = d.checkpoint_id
    RETURNING p.hidden
)
SELECT
    (SELECT count(*) FROM hidden) + (SELECT count(*) FROM deleted WHERE NOT deleted.hidden),
    (SELECT count(*) FROM hidden),
    (SELECT count(*) FROM deleted_writes)

-- name: relink_checkpoints :execrows
-- Brings the links of a thread's checkpoints up to date: a parent that is gone is no parent any more, one that is
-- hidden, or that is visible again, changes its column. A checkpoint below LangGraph's format 4 keeps the link to a
-- parent that was never stored as long as its Sends are there.
-- $1 thread, $2 namespaces, or null for all, $3 only checkpoints from this id on.
-- Index: checkpoints_pkey; one probe per checkpoint for its parent. Locks: the changed rows.
UPDATE /* schema */checkpoints AS c
SET parent_checkpoint_id = l.parent_id, hidden_parent_id = l.hidden_id
FROM (
    SELECT
        c.checkpoint_ns, c.checkpoint_id,
        CASE WHEN p.hidden = false THEN k.link END AS parent_id,
        CASE WHEN p.hidden OR (p.hidden IS NULL AND c.langgraph_v < 4 AND EXISTS (
            SELECT
            FROM /* schema */writes AS w
            WHERE w.thread_id = $1::text AND w.checkpoint_ns = c.checkpoint_ns
                AND w.checkpoint_id = k.link AND w.channel = '__pregel_tasks'
        )) THEN k.link END AS hidden_id
    FROM /* schema */checkpoints AS c
    CROSS JOIN LATERAL (SELECT coalesce(c.hidden_parent_id, c.parent_checkpoint_id) AS link) AS k
    LEFT JOIN LATERAL (
        SELECT p.hidden
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = c.checkpoint_ns AND p.checkpoint_id = k.link
        LIMIT 1
    ) AS p ON true
    WHERE c.thread_id = $1::text AND ($2::text[] IS NULL OR c.checkpoint_ns = ANY ($2::text[]))
        AND c.checkpoint_id >= $3::text AND k.link IS NOT NULL
) AS l
WHERE c.thread_id = $1::text AND c.checkpoint_ns = l.checkpoint_ns AND c.checkpoint_id = l.checkpoint_id
    AND (c.parent_checkpoint_id IS DISTINCT FROM l.parent_id OR c.hidden_parent_id IS DISTINCT FROM l.hidden_id)

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
-- The values of a thread that no checkpoint needs: per namespace and channel the versions. $1 thread.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column.
WITH referenced AS MATERIALIZED (
    SELECT DISTINCT p.checkpoint_ns, r.channel, r.version
    FROM /* schema */checkpoints AS p
    CROSS JOIN LATERAL jsonb_each_text(p.refs) AS r (channel, version)
    WHERE p.thread_id = $1::text
),
/* needed values */
SELECT g.checkpoint_ns, g.channel, array_agg(g.version)
FROM (
    SELECT v.checkpoint_ns, v.channel, v.version FROM /* schema */channel_values AS v WHERE v.thread_id = $1::text
    EXCEPT
    SELECT n.checkpoint_ns, n.channel, n.version FROM needed AS n
) AS g
GROUP BY g.checkpoint_ns, g.channel

-- name: lock_values :one
-- Waits for whoever is about to refer to one of these values, and keeps others from it.
-- $1 thread, $2 namespaces, $3 channels, $4 versions, sorted by key.
-- Index: channel_values_pkey, one probe per row. Locks: FOR UPDATE on the rows, in the order of the key, until commit.
SELECT count(*)
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
-- own: who was waited for may have referred to one of them.
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
    USING doomed AS d
    WHERE v.thread_id = $1::text AND v.checkpoint_ns = d.checkpoint_ns
        AND v.channel = d.channel AND v.version = d.version
    RETURNING 1
)
SELECT count(*) FROM deleted
