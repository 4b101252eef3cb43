"""Copy-on-write B+tree of bytes in db.data, with its free list checkpointed in db.free. Plain blocking code.

with Index.open(directory) as index:
    for _ in index.checkpoint([(b"key", b"value")], meta=b"up to here"):
        pass
    index.get(b"key")
"""

from tandemmq.index.errors import IndexClosed, IndexDamaged, IndexFailed, IndexInUse, IndexStolen, IndexTrouble
from tandemmq.index.index import Index, Statistics

__all__ = [
    "Index",
    "IndexClosed",
    "IndexDamaged",
    "IndexFailed",
    "IndexInUse",
    "IndexStolen",
    "IndexTrouble",
    "Statistics",
]
