"""Outcome of each property of ActiveMQ's Replicated LevelDB Store: its own, and those of every LevelDB store. They are
set in [replication]; docs/replication.md has the tables.

Defaults are ActiveMQ's, as its documentation writes them. The texts are for operators, in the documentation and when a
value is refused: the reason, and the setting to use instead.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.config.kahadb_property import accepted, always, fixed, mapped, properties, refused
from tandemmq.config.section import size

SECTION: Final = "replication"
#: The size of a page of the index, in bytes.
PAGE_SIZE: Final = 8192
#: The smallest value that `store.index_cache_size` may be.
PAGES_MIN: Final = 16


def _pages(value: Any) -> int:
    """Convert the bytes of a cache to pages of the index."""
    return max(size(value) // PAGE_SIZE, PAGES_MIN)


_REPLICATED: Final = {
    ("replicas", "`3`"): accepted("Used when the set is founded. Later, commands add and remove voters."),
    ("securityToken", "–"): accepted("The same. It is proved, not sent."),
    ("zkAddress", "`127.0.0.1:2181`"): accepted("The same."),
    ("zkPassword", "–"): accepted("The same."),
    ("zkPath", "`/default`"): accepted("The same. Sets with different broker names can share it."),
    ("zkSessionTimeout", "`2s`"): accepted(
        "The same; the nodes also detect a failure themselves. ZooKeeper grants at least twice its tickTime."
    ),
    ("zkSessionTmeout", "`2s`"): mapped(f"{SECTION}.zk_session_timeout", "The spelling before ActiveMQ 5.11."),
    ("sync", "`quorum_mem`"): accepted(
        "The same, with a stronger default: see [sync](#the-setting-sync).",
    ),
    ("bind", "`tcp://0.0.0.0:61619`"): accepted(
        "The same, but all nodes listen, not only the master.",
    ),
    ("hostname", "–"): accepted("The same."),
    ("weight", "`1`"): accepted("The same."),
}

_LEVELDB: Final = {
    ("directory", "`LevelDB`"): mapped(
        "store.directory", "The store directory of this node. Two nodes never share one."
    ),
    ("readThreads", "`10`"): refused("There is no pool of reader threads. Remove the setting."),
    ("logSize", "`104857600`"): mapped("store.journal_max_file_length", "The length of a journal file."),
    ("verifyChecksums", "`false`"): always(
        "Everything that is read from the journal is verified; otherwise damage would be copied unnoticed."
    ),
    ("paranoidChecks", "`false`"): always("Damage is an error when it is found. It is repaired from the other nodes."),
    ("indexFactory", "two Java classes"): refused("A Java class. The index is a B+tree."),
    ("indexMaxOpenFiles", "`1000`"): refused(
        "The index is one file and a list of free pages. Remove the setting.",
    ),
    ("indexBlockRestartInterval", "`16`"): refused("The keys of the index are not delta-encoded. Remove the setting."),
    ("indexWriteBufferSize", "`6291456`"): refused(
        "Checkpoints write to the index. Set store.checkpoint_bytes, store.checkpoint_records or "
        "store.checkpoint_interval."
    ),
    ("indexBlockSize", "`4096`"): refused("The page size is fixed and stored in the index."),
    ("indexCacheSize", "`268435456`"): mapped(
        "store.index_cache_size", f"Bytes are converted to pages of {PAGE_SIZE} bytes.", _pages
    ),
    ("indexCompression", "`snappy`"): fixed(("none",), "The index holds positions, not messages, so it stays small."),
    ("logCompression", "`none`"): fixed(
        ("none",), "KahaDB's journal format has no compression. Clients can compress messages."
    ),
}

GROUPS: Final = {
    "Properties of the set": properties(SECTION, _REPLICATED),
    "Properties of every LevelDB store": properties(SECTION, _LEVELDB),
}
