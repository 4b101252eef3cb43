"""What becomes of each of ActiveMQ's settings of a store, one by one: the table of ``config.kahadb``.

Defaults are ActiveMQ's, as its documentation would write them. What is said of a property is said to operators, in the
documentation and when a value is refused: why, and what to set instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from config import database_locker_properties, io_exception_handler
from config.kahadb_property import Outcome, Property, is_true, snake_case


def _accepted(name: str, default: str, here: str, key: str = "") -> Property:
    return Property(name, default, Outcome.ACCEPTED, here, key or f"store.{snake_case(name)}")


def _mapped(
    name: str, default: str, target: str, here: str, convert: Callable[[Any], Any] = lambda value: value
) -> Property:
    return Property(name, default, Outcome.MAPPED, here, f"store.{snake_case(name)}", target, convert)


def _fixed(name: str, default: str, values: tuple[bool | int | str, ...], here: str, key: str = "") -> Property:
    return Property(name, default, Outcome.FIXED, here, key or f"store.{snake_case(name)}", values=values)


def _refused(name: str, default: str, here: str) -> Property:
    return Property(name, default, Outcome.REFUSED, here, f"store.{snake_case(name)}")


def _sync_strategy(is_synced: Any) -> str:
    return "always" if is_true(is_synced) else "never"


_JAVA: Final = "A Java object that ActiveMQ's own configuration wires in; there is nothing to wire here."

KAHADB: Final = (
    _accepted(
        "directory", "`activemq-data/<broker>/KahaDB`", "The journal, the lock file, and indexes below `index/`."
    ),
    _accepted(
        "indexDirectory",
        "`directory`",
        "Each broker keeps an index of its own in a directory of its name there; a pair shares the journal alone.",
    ),
    _accepted("journalMaxFileLength", "`32mb`", "As there. At least 64 KiB, less than 2 GiB."),
    _accepted("journalMaxWriteBatchSize", "`4mb`", "As there. One larger message is still written, alone."),
    _accepted(
        "journalDiskSyncStrategy", "`ALWAYS`", "As there, in any case of letters. Only `always` survives a power loss."
    ),
    _accepted("journalDiskSyncInterval", "`1000`", "As there."),
    _mapped(
        "enableJournalDiskSyncs",
        "`true`",
        "store.journal_disk_sync_strategy",
        "Deprecated there as well: `true` is read as `always`, `false` as `never`.",
        _sync_strategy,
    ),
    _fixed(
        "preallocationScope",
        "`ENTIRE_JOURNAL`",
        ("entire_journal_async", "entire_journal"),
        "The next journal file is always made whole, and ahead of time: so acknowledgements find room on a full disk. "
        "Only the first one of a term as master begins short, and grows.",
    ),
    _fixed(
        "preallocationStrategy",
        "`SPARSE_FILE`",
        ("zeros", "chunked_zeros"),
        "Zeros are really written, in pieces of 1 MiB. A sparse file, or one that the file system clones, has a length "
        "and no room: the disk would be full in the middle of it.",
    ),
    _fixed(
        "checksumJournalFiles",
        "`true`",
        (True,),
        "Every batch is written with its checksum, and verified when it is read: without, damage is found by nobody.",
    ),
    _accepted(
        "checkForCorruptJournalFiles",
        "`false`",
        "Every byte of the journal is verified at start. Damage stops it, with the ids of the messages concerned, "
        "unless `ignore_missing_journalfiles` steps over it. Without, files are verified as they are read.",
    ),
    _accepted(
        "ignoreMissingJournalfiles",
        "`false`",
        "As there, and for what is damaged, too: the messages concerned are lost, and told by id. Nothing is deleted: "
        "damaged bytes are kept in `quarantine/`. Without, the start is refused.",
    ),
    _accepted("archiveDataLogs", "`false`", "As there, and durably: a file is in one place at least at any moment."),
    _accepted(
        "directoryArchive", "`<directory>/data-archive`", "As there. Another volume will do. Nothing is overwritten."
    ),
    _accepted(
        "checkpointInterval",
        "`5000`",
        "As there; 0 leaves `checkpoint_records`, `checkpoint_bytes` and `recovery_budget`, which bound what a start "
        "after a crash reads again.",
    ),
    _accepted(
        "cleanupInterval",
        "`30000`",
        "As there; 0: files stay until the broker stops. What can go is known here without a search.",
    ),
    _accepted("cleanupOnStop", "`true`", "As there."),
    _mapped(
        "enableAckCompaction",
        "`true`",
        "store.enable_compaction",
        "Compaction here copies all that lives in sparse files, messages too, not acknowledgements alone.",
    ),
    _refused(
        "compactAcksAfterNoGC",
        "`10`",
        "Compaction does not count idle rounds: it begins when the journal is larger than twice its live bytes and two "
        "files. Set compaction_rate, or enable_compaction = false.",
    ),
    _fixed(
        "compactAcksIgnoresStoreGrowth",
        "`false`",
        (True,),
        "Compaction runs while the store grows: that is when the bound matters. compaction_rate limits what it costs.",
    ),
    _accepted(
        "failoverProducersAuditDepth",
        "`2048`",
        "As there; 0 switches the audit off. Only what changed is written to the journal.",
    ),
    _accepted("maxFailoverProducersToTrack", "`64`", "As there; 0 switches the audit off."),
    _fixed(
        "concurrentStoreAndDispatchQueues",
        "`true`",
        (False,),
        "A message is given out only when it is durable: one that is consumed first can be lost with its effects kept. "
        "Many messages share one sync instead.",
    ),
    _fixed(
        "concurrentStoreAndDispatchTopics",
        "`false`",
        (False,),
        "A message is given to durable subscribers only when it is durable.",
    ),
    _accepted(
        "maxAsyncJobs",
        "`10000`",
        "So many operations may be on their way to the disk; with more, producers wait, as there.",
    ),
    _fixed(
        "forceRecoverIndex",
        "`false`",
        (False,),
        "Once is enough: `tandemmq store rebuild-index` builds the index from the journal alone. As a setting it would "
        "do so at every start.",
    ),
    _fixed(
        "archiveCorruptedIndex",
        "`false`",
        (True,),
        "An index that cannot be used is always set aside under another name, never deleted.",
    ),
    _accepted("purgeRecoveredXATransactionStrategy", "`NEVER`", "As there, in any case of letters."),
    _accepted("indexCacheSize", "`10000`", "As there, in pages of the index. What is new is in memory besides."),
    _refused(
        "indexWriteBatchSize",
        "`1000`",
        "Pages are not written as they become many, but all together by a checkpoint. Set checkpoint_records, "
        "checkpoint_bytes or checkpoint_interval.",
    ),
    _fixed(
        "enableIndexWriteAsync",
        "`false`",
        (True,),
        "The index is written by a thread of its own, beside the journal; nobody waits for it.",
    ),
    _fixed(
        "enableIndexDiskSyncs",
        "`true`",
        (True,),
        "A checkpoint of the index is synced, or it would not bound what a start reads again.",
    ),
    _fixed(
        "enableIndexRecoveryFile",
        "`true`",
        (True,),
        "No page in use is ever written over, so none can be torn and none must be kept twice.",
    ),
    _fixed(
        "enableIndexPageCaching",
        "`true`",
        (True,),
        "Pages are kept in memory; index_cache_size says how many.",
    ),
    _fixed(
        "useIndexLFRUEviction",
        "`false`",
        (False,),
        "Pages that were not used of late leave the cache. A message does not touch the index, so a cleverer order "
        "would gain nothing.",
    ),
    _refused("indexLFUEvictionFactor", "`0.2`", "Part of useIndexLFRUEviction. Set index_cache_size."),
    _fixed(
        "enableSubscriptionStatistics",
        "`false`",
        (True,),
        "Every queue and durable subscription knows its count and bytes at any moment; it costs nothing to have them.",
    ),
    _mapped(
        "databaseLockedWaitDelay",
        "`10000`",
        "locker.lock_acquire_sleep_interval",
        "Deprecated there as well.",
    ),
    _refused("dataFileFactory", "–", _JAVA),
    _refused("transactionIdTransformer", "–", _JAVA),
    _refused("usageManager", "–", _JAVA + " Set disk_reserve, and broker.memory_limit."),
    _refused("brokerService", "–", _JAVA),
    _refused("brokerName", "–", "Of the broker, not of its store: set broker.name."),
    _refused("scheduledThreadPoolExecutor", "–", _JAVA),
    _refused("statistics", "–", _JAVA + " `tandemmq status` shows the figures."),
)

LOCKER: Final = (
    _accepted("useLock", "`true`", "As there. Without a lock the journal is still fenced.", "locker.use_lock"),
    _fixed(
        "stopOnError",
        "`false`",
        (True,),
        "A master that cannot prove its ownership always gives up, and stands by again: whoever goes on may be one of "
        "two masters.",
        "locker.stop_on_error",
    ),
    _accepted(
        "lockKeepAlivePeriod",
        "`0`",
        "As there, and on by default. 0, off, is shown as unsafe.",
        "locker.lock_keep_alive_period",
    ),
    _accepted("locker", "`shared-file-locker`", "The kind of lock.", "locker.type"),
    _accepted(
        "lockAcquireSleepInterval",
        "`10000`",
        "As there; a tenth more or less at random.",
        "locker.lock_acquire_sleep_interval",
    ),
    _accepted("failIfLocked", "`false`", "As there, for every kind of lock.", "locker.fail_if_locked"),
)

MKAHADB: Final = (
    _accepted("directory", "`activemq-data/mKahaDB`", "The parent of the stores."),
    _accepted(
        "filteredPersistenceAdapters",
        "–",
        "A table `[[store.filtered_persistence_adapters]]` for each store; any other key of `[store]` that may differ "
        "stands in it, too.",
    ),
    _accepted("queue", "–", "The pattern of a store's queues.", "store.filtered_persistence_adapters.queue"),
    _accepted("topic", "–", "The pattern of a store's topics.", "store.filtered_persistence_adapters.topic"),
    _accepted(
        "perDestination",
        "`false`",
        "As there, and only where it has an effect: refused beside a pattern.",
        "store.filtered_persistence_adapters.per_destination",
    ),
    _refused("persistenceAdapter", "–", "What differs in that store stands in its table itself."),
    _refused("usage", "–", "A store has no limit of its own. Set disk_reserve in its table."),
    _refused("transactionStore", "–", _JAVA),
    _refused("tempQueue", "–", "Temporary queues are never stored."),
    _refused("tempTopic", "–", "Temporary topics are never stored."),
    _accepted(
        "journalMaxFileLength", "`32mb`", "There of the journal of transactions alone, here of every store's journal."
    ),
    _refused(
        "journalWriteBatchSize",
        "`4mb`",
        "There of the journal of transactions alone. Set journal_max_write_batch_size.",
    ),
    _refused("journalCleanupInterval", "`30000`", "There of the journal of transactions alone. Set cleanup_interval."),
    _refused(
        "checkForCorruption",
        "`true`",
        "There of the journal of transactions alone. Set check_for_corrupt_journal_files.",
    ),
)

BROKER: Final = (
    _fixed(
        "storeOpenWireVersion",
        "`11`",
        (11,),
        "Messages are written as OpenWire version 11 has them; older ones are read.",
        "broker.store_open_wire_version",
    ),
    _fixed(
        "persistJMSRedelivered",
        "`false`",
        (False,),
        "That a message was given out before is known while its master lives; it is not written to the journal.",
        "broker.persist_jms_redelivered",
    ),
    _fixed(
        "prioritizedMessages",
        "`false`",
        (False,),
        "Said for each destination: set prioritized_messages in [[destinations]].",
        "broker.prioritized_messages",
    ),
)

_JVM: Final = "A property of ActiveMQ's process. "
SYSTEM: Final = (
    _refused("defaultPageSize", "`4096`", _JVM + "Pages of our index have one size, written in the index itself."),
    _refused("defaultWriteBatchSize", "`1000`", _JVM + "Set checkpoint_records."),
    _refused("defaultPageCacheSize", "`100`", _JVM + "Set index_cache_size."),
    _refused(
        "maxKahaDBTxSize",
        "`10485760`",
        _JVM + "A checkpoint needs memory by checkpoint_records, and no files for what does not fit.",
    ),
    _refused("org.apache.kahadb.journal.CALLER_BUFFER_APPENDER", "`false`", _JVM + "There is one way to write."),
    _refused(
        "org.apache.kahadb.journal.appender.WRITE_STAT_WINDOW", "`0`", _JVM + "`tandemmq status` shows the figures."
    ),
    _fixed(
        "org.apache.activemq.kahaDB.files.skipMetadataUpdate",
        "`false`",
        (True,),
        _JVM + "Files have their length before they are written, so fdatasync has no metadata to write.",
    ),
    _refused(
        "org.apache.activemq.store.kahadb.LOG_SLOW_ACCESS_TIME", "`0`", _JVM + "`tandemmq status` shows the figures."
    ),
    _refused(
        "org.apache.activemq.store.kahadb.CANCELED_TASK_MOD_METRIC",
        "`0`",
        _JVM + "Nothing is given out before it is stored, so nothing is cancelled.",
    ),
    _refused(
        "org.apache.activemq.store.kahadb.ASYNC_EXECUTOR_MAX_THREADS",
        "`1`",
        _JVM + "One thread owns the journal.",
    ),
    _refused("MaximumFileNameLength", "`64`", _JVM + "Names are those that ActiveMQ's default makes."),
    _refused("MaximumDirNameLength", "`200`", _JVM + "Names are those that ActiveMQ's default makes."),
    _fixed(
        "java.nio.channels.FileLock.broken",
        "`false`",
        (False,),
        _JVM + "A lock that cannot be had is none. Where there is a single broker, set use_lock = false.",
        "locker.file_lock_broken",
    ),
    _refused(
        "org.apache.activemq.store.kahadb.MultiKahaDBTransactionStore.localXaFormatId",
        "`61616`",
        _JVM + "The format that marks a local transaction over several stores is that default.",
    ),
)

GROUPS: Final = {
    "KahaDB": KAHADB,
    "Lock (`[locker]`)": LOCKER,
    "Kinds of lock (`[locker]`)": database_locker_properties.KINDS,
    "mKahaDB": MKAHADB,
    "IO exception handlers (`[io_exception_handler]`)": io_exception_handler.HANDLER,
    "Broker": (*BROKER, *io_exception_handler.BROKER),
    "System properties": SYSTEM,
}
