CREATE SCHEMA "pgcairn";

CREATE TABLE "pgcairn".schema_version (
    version     integer PRIMARY KEY,
    name        text NOT NULL,
    digest      text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);

-- migration 0001_pre_initial
-- The tables of a new installation.
-- Text keys are COLLATE "C": byte order equals the order of LangGraph's ids, comparisons are cheap, and an
-- operating-system upgrade cannot change the order of an index.
-- Compressed bytes are stored EXTERNAL: a second compression by the server would cost and gain nothing.

CREATE TABLE "pgcairn".checkpoints (
    thread_id             text COLLATE "C" NOT NULL,
    checkpoint_ns         text COLLATE "C" NOT NULL,
    checkpoint_id         text COLLATE "C" NOT NULL,
    parent_checkpoint_id  text COLLATE "C",
    run_id                text COLLATE "C",
    created_at            timestamptz NOT NULL DEFAULT now(),
    langgraph_v           integer NOT NULL,
    metadata              jsonb NOT NULL,
    refs                  jsonb,
    body                  bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
COMMENT ON TABLE "pgcairn".checkpoints IS 'One row per LangGraph checkpoint.';
COMMENT ON COLUMN "pgcairn".checkpoints.langgraph_v IS 'LangGraph''s checkpoint format; below 4 the Sends are in the parent''s writes.';
COMMENT ON COLUMN "pgcairn".checkpoints.metadata IS 'For filtering; the exact metadata is in body.';
COMMENT ON COLUMN "pgcairn".checkpoints.refs IS 'Channel -> version of the values that are in channel_values; null when all are in body.';
COMMENT ON COLUMN "pgcairn".checkpoints.body IS 'Frame: checkpoint without its large values, and exact metadata (docs/payload-format.md).';

CREATE INDEX checkpoints_run_id_idx ON "pgcairn".checkpoints (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE "pgcairn".channel_values (
    thread_id      text COLLATE "C" NOT NULL,
    checkpoint_ns  text COLLATE "C" NOT NULL,
    channel        text COLLATE "C" NOT NULL,
    version        text COLLATE "C" NOT NULL,
    chain          text[] COLLATE "C",
    type           text COLLATE "C" NOT NULL,
    frame          bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);
COMMENT ON TABLE "pgcairn".channel_values IS 'Channel values too large to travel inside their checkpoint; a row is never replaced.';
COMMENT ON COLUMN "pgcairn".channel_values.chain IS 'Versions whose frames are needed to decode this one, nearest first; null for a frame that stands alone.';

CREATE TABLE "pgcairn".writes (
    thread_id      text COLLATE "C" NOT NULL,
    checkpoint_ns  text COLLATE "C" NOT NULL,
    checkpoint_id  text COLLATE "C" NOT NULL,
    task_id        text COLLATE "C" NOT NULL,
    idx            integer NOT NULL,
    task_path      text COLLATE "C" NOT NULL,
    channel        text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    frame          bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
COMMENT ON TABLE "pgcairn".writes IS 'Pending writes of tasks; they may arrive before their checkpoint, so there is no foreign key.';

-- Prunes and deletes leave many dead rows at once; the default of 20 % lets a large table bloat for days.
ALTER TABLE "pgcairn".checkpoints SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE "pgcairn".channel_values SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE "pgcairn".writes SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

ALTER TABLE "pgcairn".checkpoints ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE "pgcairn".channel_values ALTER COLUMN frame SET STORAGE EXTERNAL;
ALTER TABLE "pgcairn".writes ALTER COLUMN frame SET STORAGE EXTERNAL;

INSERT INTO "pgcairn".schema_version (version, name, digest) VALUES (1, '0001_pre_initial', '6d253b7f08cc87248c7aed6946cfb5761e347399a15434a1fdc68d3568ccaa65');

-- migration 0002_pre_hidden_checkpoints
-- Checkpoints that a prune leaves out of sight, because a checkpoint that is kept rebuilds its DeltaChannels from
-- them. Both columns have constant defaults: no row is rewritten.

ALTER TABLE "pgcairn".checkpoints ADD COLUMN hidden boolean NOT NULL DEFAULT false;
ALTER TABLE "pgcairn".checkpoints ADD COLUMN hidden_parent_id text COLLATE "C";
COMMENT ON COLUMN "pgcairn".checkpoints.hidden IS 'Deleted for every reader; kept because a later checkpoint rebuilds its DeltaChannels, or its Sends, from this one.';
COMMENT ON COLUMN "pgcairn".checkpoints.hidden_parent_id IS 'The parent, if it is hidden; parent_checkpoint_id is then null.';

INSERT INTO "pgcairn".schema_version (version, name, digest) VALUES (2, '0002_pre_hidden_checkpoints', '475ca57737a7f80885498a3b2b684e2fe498e4fe998f5559616fb220c66e6f59');
