-- Checkpoints that a prune leaves out of sight, because a checkpoint that is kept rebuilds its DeltaChannels from
-- them. Both columns have constant defaults: no row is rewritten.

ALTER TABLE /* schema */checkpoints ADD COLUMN hidden boolean NOT NULL DEFAULT false;
ALTER TABLE /* schema */checkpoints ADD COLUMN hidden_parent_id text COLLATE "C";
COMMENT ON COLUMN /* schema */checkpoints.hidden IS 'Deleted for every reader; kept because a later checkpoint rebuilds its DeltaChannels, or its Sends, from this one.';
COMMENT ON COLUMN /* schema */checkpoints.hidden_parent_id IS 'The parent, if it is hidden; parent_checkpoint_id is then null.';
