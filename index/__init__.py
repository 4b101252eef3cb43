"""Copy-on-write B+tree of bytes in db.data, with its free list checkpointed in db.free. Plain blocking code."""
