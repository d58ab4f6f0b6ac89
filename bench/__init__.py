"""The benchmarks: one file, one question. ``python -m bench list`` names them."""

# In the order of the questions a reader has.
BENCHES = (
    "raw_supersteps",
    "raw_single_caller",
    "chat_graph",
    "with_round_trip",
    "client_cpu",
    "drivers",
    "reads",
    "read_history",
    "read_messages",
    "storage_chat",
    "storage_workspace",
    "prune_copy",
    "delta_history",
    "profile_client",
    "lanes",
    "read_grouping",
    "inline_threshold",
    "compression_levels",
    "delta_schemes",
)
