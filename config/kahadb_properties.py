"""The treatment of each of ActiveMQ's settings of a store: the table of ``config.kahadb``.

Defaults are ActiveMQ's, as its documentation writes them. Operators read the texts in the documentation and in errors:
the effect here, or why a value is refused and what to set instead.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.config import store
from tandemmq.config.kahadb_property import accepted, always, fixed, mapped, never, properties, read_as, refused


def _sync_strategy(is_synced: Any) -> str:
    return "always" if read_as(bool, is_synced) else "never"


_JAVA: Final = "A Java object of ActiveMQ's configuration."

_KAHADB: Final = {
    ("directory", "`activemq-data/<broker>/KahaDB`"): accepted("Journal, lock file, and indexes below `index/`."),
    ("indexDirectory", "`directory`"): accepted("Each broker keeps its own index below it. A pair shares the journal."),
    ("journalMaxFileLength", "`32mb`"): accepted("From 64 KiB to 2 GiB."),
    ("journalMaxWriteBatchSize", "`4mb`"): accepted("A larger message is written alone."),
    ("journalDiskSyncStrategy", "`ALWAYS`"): accepted("Case-insensitive. Only `always` survives a power loss."),
    ("journalDiskSyncInterval", "`1000`"): accepted(),
    ("enableJournalDiskSyncs", "`true`"): mapped(
        "store.journal_disk_sync_strategy", "Deprecated. `true` becomes `always`, `false` `never`.", _sync_strategy
    ),
    ("preallocationScope", "`ENTIRE_JOURNAL`"): fixed(
        ("entire_journal_async", "entire_journal"),
        "The next file is always allocated in advance, so acknowledgements have room on a full disk. The first file "
        "of a new master is short, and grows.",
    ),
    ("preallocationStrategy", "`SPARSE_FILE`"): fixed(
        ("zeros", "chunked_zeros"),
        "Zeros are written, in pieces of 1 MiB. A sparse or cloned file reserves no space, so a write could fail.",
    ),
    ("checksumJournalFiles", "`true`"): always("Each batch has a checksum, which is verified on each read."),
    ("checkForCorruptJournalFiles", "`false`"): accepted(
        "`true`: the whole journal is verified at the start. If it is damaged, the broker names the affected messages "
        "and does not start, unless `ignore_missing_journalfiles` is set. `false`: files are verified as they are read."
    ),
    ("ignoreMissingJournalfiles", "`false`"): accepted(
        "Also skips damage. The affected messages are lost, and their ids are logged. Damaged bytes are kept in "
        "`quarantine/`."
    ),
    ("archiveDataLogs", "`false`"): accepted("Moving a file is safe against crashes."),
    ("directoryArchive", "`<directory>/data-archive`"): accepted(
        "Another volume is possible. Files are never overwritten."
    ),
    ("checkpointInterval", "`5000`"): accepted(
        "0: only `checkpoint_records`, `checkpoint_bytes` and `recovery_budget` limit recovery after a crash."
    ),
    ("cleanupInterval", "`30000`"): accepted("0: files stay until the broker stops."),
    ("cleanupOnStop", "`true`"): accepted(),
    ("enableAckCompaction", "`true`"): mapped(
        "store.enable_compaction", "Compaction copies all live records of sparse files, not only acknowledgements."
    ),
    ("compactAcksAfterNoGC", "`10`"): refused(
        "Compaction begins when the journal is larger than two files and twice its live bytes. Set compaction_rate, "
        "or enable_compaction = false."
    ),
    ("compactAcksIgnoresStoreGrowth", "`false`"): always(
        "Compaction also runs while the store grows. compaction_rate limits its cost."
    ),
    ("failoverProducersAuditDepth", "`2048`"): accepted("0: the audit is off. It is written only when it has changed."),
    ("maxFailoverProducersToTrack", "`64`"): accepted("0: the audit is off."),
    ("concurrentStoreAndDispatchQueues", "`true`"): never(
        "A message is delivered only when it is durable. Many messages share one sync."
    ),
    ("concurrentStoreAndDispatchTopics", "`false`"): never(
        "Durable subscribers get a message only when it is durable."
    ),
    ("maxAsyncJobs", "`10000`"): accepted("Maximum of operations waiting for the disk. Beyond it, producers wait."),
    ("forceRecoverIndex", "`false`"): never(
        "Use `tandemmq store rebuild-index`. As a setting, it would rebuild the index at every start."
    ),
    ("archiveCorruptedIndex", "`false`"): always("An unusable index is renamed, never deleted."),
    ("purgeRecoveredXATransactionStrategy", "`NEVER`"): accepted("Case-insensitive."),
    ("indexCacheSize", "`10000`"): accepted(
        "In index pages. Changes since the last checkpoint take memory of their own."
    ),
    ("indexWriteBatchSize", "`1000`"): refused(
        "A checkpoint writes all changed pages. Set checkpoint_records, checkpoint_bytes or checkpoint_interval."
    ),
    ("enableIndexWriteAsync", "`false`"): always("A separate thread writes the index."),
    ("enableIndexDiskSyncs", "`true`"): always("Each checkpoint is synced, or it would not limit recovery."),
    ("enableIndexRecoveryFile", "`true`"): always("Pages in use are never overwritten, so none can be torn."),
    ("enableIndexPageCaching", "`true`"): always("index_cache_size sets the number of cached pages."),
    ("useIndexLFRUEviction", "`false`"): never("Least recently used pages leave the cache."),
    ("indexLFUEvictionFactor", "`0.2`"): refused("Part of useIndexLFRUEviction. Set index_cache_size."),
    ("enableSubscriptionStatistics", "`false`"): always("Counts and bytes are always known."),
    ("databaseLockedWaitDelay", "`10000`"): mapped("locker.lock_acquire_sleep_interval", "Deprecated."),
    ("dataFileFactory", "–"): refused(_JAVA),
    ("transactionIdTransformer", "–"): refused(_JAVA),
    ("usageManager", "–"): refused(_JAVA + " Set disk_reserve and broker.memory_limit."),
    ("brokerService", "–"): refused(_JAVA),
    ("brokerName", "–"): refused("Set broker.name."),
    ("scheduledThreadPoolExecutor", "–"): refused(_JAVA),
    ("statistics", "–"): refused(_JAVA + " `tandemmq status` shows the figures."),
}

_LOCKER: Final = {
    ("useLock", "`true`"): accepted("Without a lock, the journal still has its fence.", key="locker.use_lock"),
    ("stopOnError", "`false`"): always(
        "A master without a proof of ownership always becomes a standby.", key="locker.stop_on_error"
    ),
    ("lockKeepAlivePeriod", "`0`"): accepted(
        "On by default. 0 switches it off, which is reported as unsafe.", key="locker.lock_keep_alive_period"
    ),
    ("locker", "`shared-file-locker`"): accepted("The kind of lock.", key="locker.type"),
    ("lockAcquireSleepInterval", "`10000`"): accepted(
        "Varies by up to 10 % at random.", key="locker.lock_acquire_sleep_interval"
    ),
    ("failIfLocked", "`false`"): accepted("For every kind of lock.", key="locker.fail_if_locked"),
}

_TRANSACTIONS: Final = "In ActiveMQ, it is only for the journal of transactions. "
# Attributes of the database lockers, and of the shared-file locker.
_LOCKER_KINDS: Final = {
    ("directory", "that of the store"): accepted("Directory of the lock file of `shared-file`."),
    ("dataSource", "–"): accepted("An SQLAlchemy URL. Required for both kinds of database lock."),
    ("statements", "–"): accepted(
        "The table `[locker.statements]`: names, SQL, `?` parameters and their order as in ActiveMQ."
    ),
    ("queryTimeout", "`-1`"): accepted("In seconds. A wait for an answer is always limited."),
    ("createTablesOnStartup", "`false`"): accepted("On by default."),
    ("leaseHolderId", "the broker's name"): accepted("A second broker with the same id is refused."),
    ("maxAllowableDiffFromDBTime", "`0`"): accepted(
        "A larger difference is a warning. Leases always use the clock of the database."
    ),
    ("handleStartException", "–"): refused(
        "An error at the first poll ends the start. Later errors are logged once, and the lock is polled again."
    ),
    ("exceptionHandler", "–"): refused("A Java object. docs/troubleshooting.md has the result of each failure."),
}

_MKAHADB: Final = {
    ("directory", "`activemq-data/mKahaDB`"): accepted("The parent directory of the stores."),
    ("filteredPersistenceAdapters", "–"): accepted(
        "One table `[[store.filtered_persistence_adapters]]` per store, with the keys of `[store]` that differ."
    ),
    ("queue", "–"): accepted("Pattern of the queues of a store.", key="store.filtered_persistence_adapters.queue"),
    ("topic", "–"): accepted("Pattern of the topics of a store.", key="store.filtered_persistence_adapters.topic"),
    ("perDestination", "`false`"): accepted(
        "Refused together with a pattern: it has no effect there.",
        key="store.filtered_persistence_adapters.per_destination",
    ),
    ("persistenceAdapter", "–"): refused("In the table of the store, set the keys that differ."),
    ("usage", "–"): refused("Set disk_reserve in the table of the store."),
    ("transactionStore", "–"): refused(_JAVA),
    ("tempQueue", "–"): refused("Temporary queues are never stored."),
    ("tempTopic", "–"): refused("Temporary topics are never stored."),
    ("journalMaxFileLength", "`32mb`"): accepted(_TRANSACTIONS + "Here it is for every store."),
    ("journalWriteBatchSize", "`4mb`"): refused(_TRANSACTIONS + "Set journal_max_write_batch_size."),
    ("journalCleanupInterval", "`30000`"): refused(_TRANSACTIONS + "Set cleanup_interval."),
    ("checkForCorruption", "`true`"): refused(_TRANSACTIONS + "Set check_for_corrupt_journal_files."),
}

_BROKER: Final = {
    ("storeOpenWireVersion", "`11`"): fixed(
        (11,), "Messages are written in OpenWire version 11. Older versions are read.", "broker.store_open_wire_version"
    ),
    ("persistJMSRedelivered", "`false`"): never(
        "The delivery count is written when a message is returned, not before its first delivery.",
        key="broker.persist_jms_redelivered",
    ),
    ("prioritizedMessages", "`false`"): never(
        "Set prioritized_messages in [[destinations]].", key="broker.prioritized_messages"
    ),
}

_SYSTEM: Final = {
    ("defaultPageSize", "`4096`"): refused("The index has one page size."),
    ("defaultWriteBatchSize", "`1000`"): refused("Set checkpoint_records."),
    ("defaultPageCacheSize", "`100`"): refused("Set index_cache_size."),
    ("maxKahaDBTxSize", "`10485760`"): refused("Set checkpoint_records to limit the memory of a checkpoint."),
    ("org.apache.kahadb.journal.CALLER_BUFFER_APPENDER", "`false`"): refused("There is one way to write."),
    ("org.apache.kahadb.journal.appender.WRITE_STAT_WINDOW", "`0`"): refused("`tandemmq status` shows the figures."),
    ("org.apache.activemq.kahaDB.files.skipMetadataUpdate", "`false`"): always(
        "Files are allocated before they are written, so fdatasync writes no metadata."
    ),
    ("org.apache.activemq.store.kahadb.LOG_SLOW_ACCESS_TIME", "`0`"): refused("`tandemmq status` shows the figures."),
    ("org.apache.activemq.store.kahadb.CANCELED_TASK_MOD_METRIC", "`0`"): refused(
        "A message is stored before it is delivered, so no task is cancelled."
    ),
    ("org.apache.activemq.store.kahadb.ASYNC_EXECUTOR_MAX_THREADS", "`1`"): refused("One thread owns the journal."),
    ("MaximumFileNameLength", "`64`"): refused("Names are those of ActiveMQ's default."),
    ("MaximumDirNameLength", "`200`"): refused("Names are those of ActiveMQ's default."),
    ("java.nio.channels.FileLock.broken", "`false`"): never(
        "For a single broker without file locks, set use_lock = false.", key="locker.file_lock_broken"
    ),
    ("org.apache.activemq.store.kahadb.MultiKahaDBTransactionStore.localXaFormatId", "`61616`"): refused(
        "The format is always this default."
    ),
}

KAHADB: Final = properties("store", _KAHADB)
LOCKER: Final = properties("locker", _LOCKER)
LOCKER_KINDS: Final = properties("locker", _LOCKER_KINDS)
MKAHADB: Final = properties("store", _MKAHADB)
GROUPS: Final = {
    "KahaDB": KAHADB,
    "Lock (`[locker]`)": LOCKER,
    "Kinds of lock (`[locker]`)": LOCKER_KINDS,
    "mKahaDB": MKAHADB,
    "IO exception handlers (`[io_exception_handler]`)": store.HANDLER,
    "Broker": (*properties("broker", _BROKER), *store.BROKER),
    "System properties": properties("store", _SYSTEM),
}
