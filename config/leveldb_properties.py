"""What becomes of each property of ActiveMQ's Replicated LevelDB Store, one by one: its own, and those that every
LevelDB store has. They are given in [replication]; docs/replication.md prints the tables.

Defaults are ActiveMQ's, as its documentation writes them. What is said of a property is said to operators, in the
documentation and when a value is refused: why, and what to set instead.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.config.kahadb_property import accepted, always, fixed, mapped, properties, refused
from tandemmq.config.units import size

SECTION: Final = "replication"
#: Of a page of our index, in bytes.
PAGE_SIZE: Final = 8192
#: The least that `store.index_cache_size` may be.
PAGES_MIN: Final = 16


def _pages(value: Any) -> int:
    """Bytes of a cache as pages of our index."""
    return max(size(value) // PAGE_SIZE, PAGES_MIN)


_REPLICATED: Final = {
    ("replicas", "`3`"): accepted("As there, for the founding. Afterwards voters are added and removed by command."),
    ("securityToken", "–"): accepted("As there. It is proved, not sent."),
    ("zkAddress", "`127.0.0.1:2181`"): accepted("As there."),
    ("zkPassword", "–"): accepted("As there."),
    ("zkPath", "`/default`"): accepted("As there, and sets with different brokers' names may share it."),
    ("zkSessionTimeout", "`2s`"): accepted(
        "As there, and the others find out by themselves, too. ZooKeeper may grant more: not under twice its tickTime."
    ),
    ("zkSessionTmeout", "`2s`"): mapped(f"{SECTION}.zk_session_timeout", "Its spelling before 5.11."),
    ("sync", "`quorum_mem`"): accepted(
        "As there, with a stronger default: see [sync](#what-a-receipt-promises-sync).",
    ),
    ("bind", "`tcp://0.0.0.0:61619`"): accepted(
        "As there, but every node listens at all times, not only the master.",
    ),
    ("hostname", "–"): accepted("As there."),
    ("weight", "`1`"): accepted("As there."),
}

_LEVELDB: Final = {
    ("directory", "`LevelDB`"): mapped(
        "store.directory", "The directory of this node's store. No two nodes share one."
    ),
    ("readThreads", "`10`"): refused(
        "There is no pool of threads that read, so there is nothing to set. Leave it out."
    ),
    ("logSize", "`104857600`"): mapped("store.journal_max_file_length", "Length of a journal file."),
    ("verifyChecksums", "`false`"): always(
        "Everything that is read from the journal is verified: without, damage is found by nobody, and copied."
    ),
    ("paranoidChecks", "`false`"): always(
        "Damage is an error as soon as it is found: the node stands back until it has what is damaged from the others."
    ),
    ("indexFactory", "two Java classes"): refused("A Java class. The index here is a B+tree of our own."),
    ("indexMaxOpenFiles", "`1000`"): refused(
        "The index is one file, beside the list of its free pages. Leave it out.",
    ),
    ("indexBlockRestartInterval", "`16`"): refused("Keys of the index are not delta-encoded. Leave it out."),
    ("indexWriteBufferSize", "`6291456`"): refused(
        "What is new goes to the index by checkpoints. Set store.checkpoint_bytes, store.checkpoint_records or "
        "store.checkpoint_interval."
    ),
    ("indexBlockSize", "`4096`"): refused("Pages of the index have one size, written in the index itself."),
    ("indexCacheSize", "`268435456`"): mapped(
        "store.index_cache_size", f"Bytes there, pages here: so many pages of {PAGE_SIZE} bytes as fit.", _pages
    ),
    ("indexCompression", "`snappy`"): fixed(("none",), "The index holds positions, not messages: it stays small."),
    ("logCompression", "`none`"): fixed(
        ("none",), "The journal is in KahaDB's format, which has no compression. Clients can compress what they send."
    ),
}

GROUPS: Final = {
    "Properties of the set": properties(SECTION, _REPLICATED),
    "Properties of every LevelDB store": properties(SECTION, _LEVELDB),
}
