-- What DeltaChannels are rebuilt from: ancestors, their writes, the values that rebuilding starts from.

-- name: select_delta_path :many
-- The ancestors of a checkpoint, nearest first, until every channel's nearest stored value is found or ruled out.
-- $1 thread, $2 namespace, $3 checkpoint or null for the latest, $4 channels, $5 true for the checkpoint that was asked for,
-- false to go on from an ancestor, $6 how many bytes to gather before the walk pauses.
-- One row per ancestor: id; its references, if they name a channel that is still open; its body, if it may hold one; and
-- whether the walk paused here although there may be more. An ancestor whose counters say that each open channel lives
-- some supersteps after its last snapshot holds no value of any of them, so its body stays where it is. The checkpoint's
-- own counters bound the walk if they list every channel. Hidden ancestors are walked through; the checkpoint that was
-- asked for must not be one.
-- Index: checkpoints_pkey, one probe per ancestor.
WITH RECURSIVE start AS (
    SELECT
        coalesce(p.hidden_parent_id, p.parent_checkpoint_id) AS parent_id,
        (
            SELECT CASE WHEN $5::bool AND count(*) = count(b.steps) THEN least(max(b.steps), 2147483647)::int4 END
            FROM (
                SELECT
                    CASE WHEN jsonb_typeof(x.counter) = 'number' AND x.counter > '0' THEN x.counter::numeric END
                FROM unnest($4::text[]) AS c (channel)
                CROSS JOIN LATERAL (
                    SELECT p.metadata -> 'counters_since_delta_snapshot' -> c.channel -> 1
                ) AS x (counter)
            ) AS b (steps)
        ) AS steps_left
    FROM /* schema */checkpoints AS p
    WHERE p.thread_id = $1::text AND p.checkpoint_ns = $2::text
        AND p.checkpoint_id >= coalesce($3::text, '')
        AND p.checkpoint_id <= coalesce($3::text, U&'\+10FFFF')
        AND NOT (p.hidden AND $5::bool)
    ORDER BY p.checkpoint_id DESC
    LIMIT 1
),
walk (depth, checkpoint_id, parent_id, refs, body, open_channels, steps_left, bytes_left) AS (
    SELECT
        0, NULL::text COLLATE "C", s.parent_id, NULL::jsonb, NULL::bytea, $4::text[],
        coalesce(s.steps_left, 2147483647), $6::int8
    FROM start AS s
    UNION ALL
    SELECT
        w.depth + 1, a.checkpoint_id, coalesce(a.hidden_parent_id, a.parent_checkpoint_id),
        CASE WHEN a.refs ?| w.open_channels THEN a.refs END,
        CASE WHEN x.needs_body THEN a.body END,
        CASE
            WHEN a.refs ?| w.open_channels
                THEN ARRAY(SELECT c.channel FROM unnest(w.open_channels) AS c (channel) WHERE NOT a.refs ? c.channel)
            ELSE w.open_channels
        END,
        w.steps_left - 1,
        -- 100: a row without a body, about.
        w.bytes_left - 100 - CASE WHEN x.needs_body THEN octet_length(a.body) ELSE 0 END
    FROM walk AS w
    -- A subquery with a limit, so that the whole key is looked up: a join may be planned for a thread of few rows, and
    -- compare the ids of all of them.
    CROSS JOIN LATERAL (
        SELECT a.checkpoint_id, a.hidden_parent_id, a.parent_checkpoint_id, a.refs, a.body, a.metadata
        FROM /* schema */checkpoints AS a
        WHERE a.thread_id = $1::text AND a.checkpoint_ns = $2::text AND a.checkpoint_id = w.parent_id
            -- Never computed, only counted: it makes a scan of the table look dear. Else a plan that was made while the
            -- table was small, and is kept until the next ANALYZE, reads all of it for each ancestor.
            AND CASE
                WHEN a.checkpoint_id = ''
                    THEN coalesce(
                        to_tsvector('simple'::regconfig, a.checkpoint_ns), to_tsvector('simple'::regconfig, a.thread_id),
                        to_tsvector('simple'::regconfig, a.checkpoint_id), to_tsvector('simple'::regconfig, a.run_id)
                    ) IS NOT NULL
                ELSE true
            END
        LIMIT 1
    ) AS a
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT
            FROM unnest(w.open_channels) AS c (channel)
            WHERE NOT coalesce(a.refs ? c.channel, false)
                AND NOT coalesce(
                    a.metadata -> 'counters_since_delta_snapshot' -> c.channel -> 1 > '0'::jsonb, false
                )
        ) AS needs_body
        -- Decided once, not in each place that asks.
        OFFSET 0
    ) AS x
    WHERE w.steps_left > 0 AND w.bytes_left > 0 AND w.open_channels <> '{}'
)
SELECT w.checkpoint_id, w.refs::text, w.body, w.steps_left <= 0 OR w.bytes_left <= 0
FROM walk AS w
WHERE w.depth > 0
ORDER BY w.depth

-- name: select_delta_rows :many
-- Writes of the checkpoints on a path, each channel's as far as its own value, and those values with all rows that they
-- are decoded from.
-- $1 thread, $2 namespace, $3 checkpoints of the path, nearest first, $4 and $5 channels and how many checkpoints of the
-- path each goes back, $6 and $7 channels and versions of the values.
-- Writes come first: channel, place on the path (1, 2, …), task, type, frame; the oldest checkpoint first, within one in
-- (task_path, task_id, idx) order. Then the values: channel, place in the chain (0 for the value itself, -1, -2, … for
-- what it rests on, in the chain's order), version, type, frame; type and frame are null where a row is missing.
-- Index: writes_pkey, one range per checkpoint; channel_values_pkey, one probe per row.
SELECT f.channel, f.place, f.task_id, f.type, f.frame
FROM (
    SELECT w.channel, a.place::int4 AS place, w.task_path, w.task_id, w.idx, w.type, w.frame
    FROM unnest($3::text[]) WITH ORDINALITY AS a (checkpoint_id, place)
    CROSS JOIN LATERAL (
        SELECT w.channel, w.task_path, w.task_id, w.idx, w.type, w.frame
        FROM /* schema */writes AS w
        WHERE w.thread_id = $1::text AND w.checkpoint_ns = $2::text AND w.checkpoint_id = a.checkpoint_id
            AND w.channel = ANY ($4::text[])
    ) AS w
    JOIN unnest($4::text[], $5::int4[]) AS c (channel, places) ON c.channel = w.channel AND a.place <= c.places
    UNION ALL
    SELECT s.channel, (1 - r.number)::int4, '', r.version, 0, x.type, x.frame
    FROM unnest($6::text[], $7::text[]) AS s (channel, version)
    LEFT JOIN LATERAL (
        SELECT v.chain
        FROM /* schema */channel_values AS v
        WHERE v.thread_id = $1::text AND v.checkpoint_ns = $2::text
            AND v.channel = s.channel AND v.version = s.version
        LIMIT 1
    ) AS v ON true
    CROSS JOIN LATERAL unnest(array_prepend(s.version COLLATE "C", v.chain)) WITH ORDINALITY AS r (version, number)
    LEFT JOIN LATERAL (
        SELECT x.type, x.frame
        FROM /* schema */channel_values AS x
        WHERE x.thread_id = $1::text AND x.checkpoint_ns = $2::text
            AND x.channel = s.channel AND x.version = r.version
        LIMIT 1
    ) AS x ON true
) AS f
ORDER BY f.place DESC, f.task_path, f.task_id, f.idx
