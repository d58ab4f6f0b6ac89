"""Values to bytes and back. No I/O, no SQL."""
