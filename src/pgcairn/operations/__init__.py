"""Operations on whole threads, beside the write path: pruning, deleting runs, copying."""
