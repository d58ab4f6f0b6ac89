-- Examining what is stored (pgcairn doctor). Every question about more than one row is answered by one statement, so
-- on one snapshot: what somebody removes at that moment is there with all that rests on it, or gone with it.
-- References that are no JSON object refer to nothing; while a thread has such a checkpoint, none of its values counts
-- as orphaned.

-- name: doctor_threads :many
-- Threads that have a row in any table, in their order, each found from the one before.
-- $1 only threads after this one, $2 most rows.
-- Index: checkpoints_pkey, channel_values_pkey, writes_pkey, one probe each per thread.
WITH RECURSIVE found (thread_id) AS (
    SELECT least(
        (SELECT min(p.thread_id) FROM /* schema */checkpoints AS p WHERE p.thread_id > $1::text),
        (SELECT min(v.thread_id) FROM /* schema */channel_values AS v WHERE v.thread_id > $1::text),
        (SELECT min(w.thread_id) FROM /* schema */writes AS w WHERE w.thread_id > $1::text)
    )
    UNION ALL
    SELECT least(
        (SELECT min(p.thread_id) FROM /* schema */checkpoints AS p WHERE p.thread_id > f.thread_id),
        (SELECT min(v.thread_id) FROM /* schema */channel_values AS v WHERE v.thread_id > f.thread_id),
        (SELECT min(w.thread_id) FROM /* schema */writes AS w WHERE w.thread_id > f.thread_id)
    )
    FROM found AS f
    WHERE f.thread_id IS NOT NULL
)
SELECT f.thread_id
FROM found AS f
WHERE f.thread_id IS NOT NULL
LIMIT $2::int4

-- name: doctor_checkpoints :many
-- A page of a thread's checkpoints, hidden ones too: key, parent (visible or hidden), whether it is hidden and whether
-- its parent is (null: the parent is not stored), body, references, and those references that have no row.
-- $1 thread, $2 and $3 namespace and id of the last row seen, $4 rows.
-- Index: checkpoints_pkey; one probe per parent. channel_values_pkey, one probe per reference.
SELECT
    c.checkpoint_ns, c.checkpoint_id, k.parent_id, c.hidden, k.is_marked_hidden, a.hidden, c.body, c.refs::text,
    m.channels, m.versions
FROM (
    SELECT p.*
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND (p.thread_id, p.checkpoint_ns, p.checkpoint_id) > ($1::text, $2::text, $3::text)
    ORDER BY p.thread_id, p.checkpoint_ns, p.checkpoint_id
    LIMIT $4::int4
) AS c
CROSS JOIN LATERAL (
    SELECT
        coalesce(c.hidden_parent_id, c.parent_checkpoint_id) AS parent_id,
        c.hidden_parent_id IS NOT NULL AS is_marked_hidden
) AS k
LEFT JOIN LATERAL (
    SELECT p.hidden
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = c.checkpoint_ns AND p.checkpoint_id = k.parent_id
    LIMIT 1
) AS a ON true
LEFT JOIN LATERAL (
    SELECT array_agg(r.channel) AS channels, array_agg(r.version) AS versions
    FROM jsonb_each_text(CASE WHEN jsonb_typeof(c.refs) = 'object' THEN c.refs END) AS r (channel, version)
    WHERE NOT EXISTS (
        SELECT
        FROM /* schema */channel_values AS v
        WHERE v.thread_id = $1::text AND v.checkpoint_ns = c.checkpoint_ns
            AND v.channel = r.channel AND v.version = r.version
        OFFSET 0
    )
) AS m ON true
ORDER BY c.checkpoint_ns, c.checkpoint_id

-- name: doctor_values :many
-- A page of a thread's values, and what they are edits of as far as it is not in the page, each once.
-- Whether it belongs to the page, key, chain, type, frame.
-- $1 thread, $2, $3 and $4 namespace, channel and version of the last row seen, $5 rows.
-- Index: channel_values_pkey, one range, and one probe per base.
WITH page AS MATERIALIZED (
    SELECT v.checkpoint_ns, v.channel, v.version, v.chain, v.type, v.frame
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text
        AND (v.thread_id, v.checkpoint_ns, v.channel, v.version) > ($1::text, $2::text, $3::text, $4::text)
    ORDER BY v.thread_id, v.checkpoint_ns, v.channel, v.version
    LIMIT $5::int4
),
bases AS MATERIALIZED (
    SELECT p.checkpoint_ns, p.channel, b.version
    FROM page AS p
    CROSS JOIN LATERAL unnest(p.chain) AS b (version)
    EXCEPT
    SELECT p.checkpoint_ns, p.channel, p.version FROM page AS p
)
SELECT true AS is_own, p.checkpoint_ns, p.channel, p.version, p.chain, p.type, p.frame
FROM page AS p
UNION ALL
SELECT false, b.checkpoint_ns, b.channel, b.version, v.chain, v.type, v.frame
FROM bases AS b
CROSS JOIN LATERAL (
    SELECT v.chain, v.type, v.frame
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text AND v.checkpoint_ns = b.checkpoint_ns
        AND v.channel = b.channel AND v.version = b.version
    LIMIT 1
) AS v

-- name: doctor_writes :many
-- A page of a thread's pending writes: key, channel, type, frame.
-- $1 thread, $2, $3, $4 and $5 namespace, checkpoint, task and index of the last row seen, $6 rows.
-- Index: writes_pkey.
SELECT w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.channel, w.type, w.frame
FROM /* schema */writes AS w
WHERE w.thread_id = $1::text
    AND (w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx)
    > ($1::text, $2::text, $3::text, $4::text, $5::int4)
ORDER BY w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx
LIMIT $6::int4

-- name: doctor_orphaned_values :many
-- Values of a thread that no checkpoint, visible or hidden, refers to, and that nothing that one refers to is an edit
-- of. Those with the longest chain first: a value goes before what it rests on. Namespace, channel, version, how many
-- there are in all. $1 thread, $2 most rows or null.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column, once.
WITH referenced AS MATERIALIZED (
    SELECT DISTINCT p.checkpoint_ns, r.channel, r.version
    FROM /* schema */checkpoints AS p
    CROSS JOIN LATERAL jsonb_each_text(CASE WHEN jsonb_typeof(p.refs) = 'object' THEN p.refs END)
        AS r (channel, version)
    WHERE p.thread_id = $1::text
),
held AS MATERIALIZED (
    SELECT v.checkpoint_ns, v.channel, v.version, v.chain
    FROM /* schema */channel_values AS v
    WHERE v.thread_id = $1::text
),
orphans AS MATERIALIZED (
    SELECT h.checkpoint_ns, h.channel, h.version FROM held AS h
    EXCEPT
    (
        SELECT r.checkpoint_ns, r.channel, r.version FROM referenced AS r
        UNION
        SELECT h.checkpoint_ns, h.channel, b.version
        FROM referenced AS r
        JOIN held AS h ON h.checkpoint_ns = r.checkpoint_ns AND h.channel = r.channel AND h.version = r.version
        CROSS JOIN LATERAL unnest(h.chain) AS b (version)
    )
)
SELECT o.checkpoint_ns, o.channel, o.version, count(*) OVER ()
FROM orphans AS o
JOIN held AS h ON h.checkpoint_ns = o.checkpoint_ns AND h.channel = o.channel AND h.version = o.version
WHERE NOT EXISTS (
    SELECT
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.refs IS NOT NULL AND jsonb_typeof(p.refs) <> 'object'
)
ORDER BY coalesce(cardinality(h.chain), 0) DESC, o.checkpoint_ns, o.channel, o.version
LIMIT $2::int4

-- name: doctor_orphaned_writes :many
-- A page of the checkpoints that have pending writes but no row, hidden or visible, and that no stored checkpoint names
-- as its parent (below LangGraph's format 4 such writes hold its Sends). Namespace, checkpoint, how many writes.
-- $1 thread, $2 and $3 namespace and checkpoint of the last row seen, $4 rows.
-- Index: writes_pkey and checkpoints_pkey, by their first column.
SELECT g.checkpoint_ns, g.checkpoint_id, g.writes
FROM (
    SELECT w.checkpoint_ns, w.checkpoint_id, count(*) AS writes
    FROM /* schema */writes AS w
    WHERE w.thread_id = $1::text AND (w.thread_id, w.checkpoint_ns, w.checkpoint_id) > ($1::text, $2::text, $3::text)
    GROUP BY w.checkpoint_ns, w.checkpoint_id
) AS g
WHERE NOT EXISTS (
        SELECT
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
    )
    AND NOT EXISTS (
        SELECT
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns
            AND coalesce(p.hidden_parent_id, p.parent_checkpoint_id) = g.checkpoint_id
    )
ORDER BY g.checkpoint_ns, g.checkpoint_id
LIMIT $4::int4

-- name: doctor_unneeded_hidden :many
-- Hidden checkpoints that no visible one descends from. Namespace, id, how many there are in all.
-- $1 thread, $2 most rows or null.
-- Index: checkpoints_pkey, by its first column; one probe per hidden ancestor.
WITH RECURSIVE needed (checkpoint_ns, checkpoint_id) AS (
    SELECT p.checkpoint_ns, p.hidden_parent_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND NOT p.hidden AND p.hidden_parent_id IS NOT NULL
    UNION
    SELECT n.checkpoint_ns, a.parent_id
    FROM needed AS n
    CROSS JOIN LATERAL (
        SELECT coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.checkpoint_ns = n.checkpoint_ns AND p.checkpoint_id = n.checkpoint_id
        LIMIT 1
    ) AS a
    WHERE a.parent_id IS NOT NULL
),
unneeded AS (
    SELECT p.checkpoint_ns, p.checkpoint_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.hidden
    EXCEPT
    SELECT n.checkpoint_ns, n.checkpoint_id FROM needed AS n
)
SELECT u.checkpoint_ns, u.checkpoint_id, count(*) OVER ()
FROM unneeded AS u
ORDER BY u.checkpoint_ns, u.checkpoint_id
LIMIT $2::int4

-- name: doctor_lost_calls :many
-- Namespaces of subgraph calls (they have a ":") whose root checkpoint is not stored, by their newest visible
-- checkpoint. Namespace, that checkpoint, its root checkpoint, how many there are in all.
-- $1 thread, $2 most rows or null.
-- Index: checkpoints_pkey, by its first column; one probe per call.
SELECT c.checkpoint_ns, c.checkpoint_id, c.root_id, count(*) OVER ()
FROM (
    SELECT DISTINCT ON (p.checkpoint_ns)
        p.checkpoint_ns, p.checkpoint_id, p.metadata -> 'parents' ->> '' AS root_id
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND NOT p.hidden AND strpos(p.checkpoint_ns, ':') > 0
    ORDER BY p.checkpoint_ns, p.checkpoint_id DESC
) AS c
WHERE c.root_id IS NOT NULL AND NOT EXISTS (
    SELECT
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = '' AND p.checkpoint_id = c.root_id AND NOT p.hidden
)
ORDER BY c.checkpoint_ns
LIMIT $2::int4

-- name: doctor_isolation :one
-- The isolation level of the transaction.
SELECT current_setting('transaction_isolation')

-- name: doctor_delete_values :many
-- Deletes those of some values that still no checkpoint refers to, and that nothing that stays is an edit of: what a
-- checkpoint refers to, and every value that is not one of these. Namespace, channel, version and bytes of what went.
-- After lock_values, in a statement of its own: who was waited for may refer to one by now. Therefore nothing
-- goes unless the transaction is READ COMMITTED.
-- $1 thread, $2 namespaces, $3 channels, $4 versions.
-- Index: checkpoints_pkey and channel_values_pkey, by their first column. Locks: the deleted rows.
WITH candidates AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.channel, g.version
    FROM unnest($2::text[], $3::text[], $4::text[]) AS g (checkpoint_ns, channel, version)
),
referenced AS MATERIALIZED (
    SELECT DISTINCT p.checkpoint_ns, r.channel, r.version
    FROM /* schema */checkpoints AS p
    CROSS JOIN LATERAL jsonb_each_text(CASE WHEN jsonb_typeof(p.refs) = 'object' THEN p.refs END)
        AS r (channel, version)
    WHERE p.thread_id = $1::text
),
staying AS (
    SELECT v.checkpoint_ns, v.channel, b.version
    FROM /* schema */channel_values AS v
    CROSS JOIN LATERAL unnest(v.chain) AS b (version)
    WHERE v.thread_id = $1::text
        AND (
            (v.checkpoint_ns, v.channel, v.version) NOT IN (SELECT g.checkpoint_ns, g.channel, g.version FROM candidates AS g)
            OR (v.checkpoint_ns, v.channel, v.version) IN (SELECT r.checkpoint_ns, r.channel, r.version FROM referenced AS r)
        )
),
doomed AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.channel, g.version FROM candidates AS g
    EXCEPT
    (
        SELECT r.checkpoint_ns, r.channel, r.version FROM referenced AS r
        UNION
        SELECT s.checkpoint_ns, s.channel, s.version FROM staying AS s
    )
)
DELETE FROM /* schema */channel_values AS v
USING doomed AS d
WHERE v.thread_id = $1::text AND v.checkpoint_ns = d.checkpoint_ns
    AND v.channel = d.channel AND v.version = d.version
    AND current_setting('transaction_isolation') = 'read committed'
    AND NOT EXISTS (
        SELECT
        FROM /* schema */checkpoints AS p
        WHERE p.thread_id = $1::text AND p.refs IS NOT NULL AND jsonb_typeof(p.refs) <> 'object'
    )
RETURNING v.checkpoint_ns, v.channel, v.version, octet_length(v.frame)

-- name: doctor_lock_writes :one
-- Waits for whoever is changing a pending write of these checkpoints. How many there are.
-- $1 thread, $2 namespaces, $3 checkpoints, sorted by key.
-- Index: writes_pkey, one range per checkpoint. Locks: FOR UPDATE on the writes, in the order of the key, until commit.
SELECT count(*)
FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
CROSS JOIN LATERAL (
    SELECT
    FROM /* schema */writes AS w
    WHERE w.thread_id = $1::text AND w.checkpoint_ns = g.checkpoint_ns AND w.checkpoint_id = g.checkpoint_id
    ORDER BY w.task_id, w.idx
    FOR UPDATE
) AS locked

-- name: doctor_delete_writes :many
-- Deletes the pending writes of those of some checkpoints that still have no row, and that no checkpoint names as its
-- parent. Namespace, checkpoint and bytes, a row per write. After doctor_lock_writes, in a statement of its own, in a
-- READ COMMITTED transaction: otherwise nothing goes.
-- $1 thread, $2 namespaces, $3 checkpoints.
-- Index: writes_pkey, checkpoints_pkey. Locks: the deleted rows.
WITH doomed AS MATERIALIZED (
    SELECT g.checkpoint_ns, g.checkpoint_id
    FROM unnest($2::text[], $3::text[]) AS g (checkpoint_ns, checkpoint_id)
    WHERE NOT EXISTS (
            SELECT
            FROM /* schema */checkpoints AS p
            WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns AND p.checkpoint_id = g.checkpoint_id
        )
        AND NOT EXISTS (
            SELECT
            FROM /* schema */checkpoints AS p
            WHERE p.thread_id = $1::text AND p.checkpoint_ns = g.checkpoint_ns
                AND coalesce(p.hidden_parent_id, p.parent_checkpoint_id) = g.checkpoint_id
        )
)
DELETE FROM /* schema */writes AS w
USING doomed AS d
WHERE w.thread_id = $1::text AND w.checkpoint_ns = d.checkpoint_ns AND w.checkpoint_id = d.checkpoint_id
    AND current_setting('transaction_isolation') = 'read committed'
RETURNING w.checkpoint_ns, w.checkpoint_id, octet_length(w.frame)
