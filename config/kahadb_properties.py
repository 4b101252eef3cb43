"""What becomes of each of ActiveMQ's settings of a store, one by one: the table of ``config.kahadb``.

Defaults are ActiveMQ's, as its documentation would write them. What is said of a property is said to operators, in the
documentation and when a value is refused: why, and what to set instead.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.config import database_locker_properties, io_exception_handler
from tandemmq.config.kahadb_property import accepted, always, fixed, mapped, never, properties, read_as, refused


def _sync_strategy(is_synced: Any) -> str:
    return "always" if read_as(bool, is_synced) else "never"


_JAVA: Final = "A Java object that ActiveMQ's own configuration wires in; there is nothing to wire here."

_KAHADB: Final = {
    ("directory", "`activemq-data/<broker>/KahaDB`"): accepted(
        "The journal, the lock file, and indexes below `index/`."
    ),
    ("indexDirectory", "`directory`"): accepted(
        "Each broker keeps an index of its own in a directory of its name there; a pair shares the journal alone."
    ),
    ("journalMaxFileLength", "`32mb`"): accepted("As there. At least 64 KiB, less than 2 GiB."),
    ("journalMaxWriteBatchSize", "`4mb`"): accepted("As there. One larger message is still written, alone."),
    ("journalDiskSyncStrategy", "`ALWAYS`"): accepted(
        "As there, in any case of letters. Only `always` survives a power loss."
    ),
    ("journalDiskSyncInterval", "`1000`"): accepted("As there."),
    ("enableJournalDiskSyncs", "`true`"): mapped(
        "store.journal_disk_sync_strategy",
        "Deprecated there as well: `true` is read as `always`, `false` as `never`.",
        _sync_strategy,
    ),
    ("preallocationScope", "`ENTIRE_JOURNAL`"): fixed(
        ("entire_journal_async", "entire_journal"),
        "The next journal file is always made whole, and ahead of time: so acknowledgements find room on a full disk."
        " Only the first one of a term as master begins short, and grows.",
    ),
    ("preallocationStrategy", "`SPARSE_FILE`"): fixed(
        ("zeros", "chunked_zeros"),
        "Zeros are really written, in pieces of 1 MiB. A sparse file, or one that the file system clones, has a "
        "length and no room: the disk would be full in the middle of it.",
    ),
    ("checksumJournalFiles", "`true`"): always(
        "Every batch is written with its checksum, and verified when it is read: without, damage is found by nobody."
    ),
    ("checkForCorruptJournalFiles", "`false`"): accepted(
        "Every byte of the journal is verified at start. Damage stops it, with the ids of the messages concerned, "
        "unless `ignore_missing_journalfiles` steps over it. Without, files are verified as they are read."
    ),
    ("ignoreMissingJournalfiles", "`false`"): accepted(
        "As there, and for what is damaged, too: the messages concerned are lost, and told by id. Nothing is deleted:"
        " damaged bytes are kept in `quarantine/`. Without, the start is refused."
    ),
    ("archiveDataLogs", "`false`"): accepted("As there, and durably: a file is in one place at least at any moment."),
    ("directoryArchive", "`<directory>/data-archive`"): accepted(
        "As there. Another volume will do. Nothing is overwritten."
    ),
    ("checkpointInterval", "`5000`"): accepted(
        "As there; 0 leaves `checkpoint_records`, `checkpoint_bytes` and `recovery_budget`, which bound what a start "
        "after a crash reads again."
    ),
    ("cleanupInterval", "`30000`"): accepted(
        "As there; 0: files stay until the broker stops. What can go is known here without a search."
    ),
    ("cleanupOnStop", "`true`"): accepted("As there."),
    ("enableAckCompaction", "`true`"): mapped(
        "store.enable_compaction",
        "Compaction here copies all that lives in sparse files, messages too, not acknowledgements alone.",
    ),
    ("compactAcksAfterNoGC", "`10`"): refused(
        "Compaction does not count idle rounds: it begins when the journal is larger than twice its live bytes and "
        "two files. Set compaction_rate, or enable_compaction = false."
    ),
    ("compactAcksIgnoresStoreGrowth", "`false`"): always(
        "Compaction runs while the store grows: that is when the bound matters. compaction_rate limits what it costs."
    ),
    ("failoverProducersAuditDepth", "`2048`"): accepted(
        "As there; 0 switches the audit off. Only what changed is written to the journal."
    ),
    ("maxFailoverProducersToTrack", "`64`"): accepted("As there; 0 switches the audit off."),
    ("concurrentStoreAndDispatchQueues", "`true`"): never(
        "A message is given out only when it is durable: one that is consumed first can be lost with its effects "
        "kept. Many messages share one sync instead."
    ),
    ("concurrentStoreAndDispatchTopics", "`false`"): never(
        "A message is given to durable subscribers only when it is durable."
    ),
    ("maxAsyncJobs", "`10000`"): accepted(
        "So many operations may be on their way to the disk; with more, producers wait, as there."
    ),
    ("forceRecoverIndex", "`false`"): never(
        "Once is enough: `tandemmq store rebuild-index` builds the index from the journal alone. As a setting it "
        "would do so at every start."
    ),
    ("archiveCorruptedIndex", "`false`"): always(
        "An index that cannot be used is always set aside under another name, never deleted."
    ),
    ("purgeRecoveredXATransactionStrategy", "`NEVER`"): accepted("As there, in any case of letters."),
    ("indexCacheSize", "`10000`"): accepted("As there, in pages of the index. What is new is in memory besides."),
    ("indexWriteBatchSize", "`1000`"): refused(
        "Pages are not written as they become many, but all together by a checkpoint. Set checkpoint_records, "
        "checkpoint_bytes or checkpoint_interval."
    ),
    ("enableIndexWriteAsync", "`false`"): always(
        "The index is written by a thread of its own, beside the journal; nobody waits for it."
    ),
    ("enableIndexDiskSyncs", "`true`"): always(
        "A checkpoint of the index is synced, or it would not bound what a start reads again."
    ),
    ("enableIndexRecoveryFile", "`true`"): always(
        "No page in use is ever written over, so none can be torn and none must be kept twice."
    ),
    ("enableIndexPageCaching", "`true`"): always("Pages are kept in memory; index_cache_size says how many."),
    ("useIndexLFRUEviction", "`false`"): never(
        "Pages that were not used of late leave the cache. A message does not touch the index, so a cleverer order "
        "would gain nothing."
    ),
    ("indexLFUEvictionFactor", "`0.2`"): refused("Part of useIndexLFRUEviction. Set index_cache_size."),
    ("enableSubscriptionStatistics", "`false`"): always(
        "Every queue and durable subscription knows its count and bytes at any moment; it costs nothing to have them."
    ),
    ("databaseLockedWaitDelay", "`10000`"): mapped("locker.lock_acquire_sleep_interval", "Deprecated there as well."),
    ("dataFileFactory", "–"): refused(_JAVA),
    ("transactionIdTransformer", "–"): refused(_JAVA),
    ("usageManager", "–"): refused(_JAVA + " Set disk_reserve, and broker.memory_limit."),
    ("brokerService", "–"): refused(_JAVA),
    ("brokerName", "–"): refused("Of the broker, not of its store: set broker.name."),
    ("scheduledThreadPoolExecutor", "–"): refused(_JAVA),
    ("statistics", "–"): refused(_JAVA + " `tandemmq status` shows the figures."),
}

_LOCKER: Final = {
    ("useLock", "`true`"): accepted("As there. Without a lock the journal is still fenced.", key="locker.use_lock"),
    ("stopOnError", "`false`"): always(
        "A master that cannot prove its ownership always gives up, and stands by again: whoever goes on may be one of"
        " two masters.",
        key="locker.stop_on_error",
    ),
    ("lockKeepAlivePeriod", "`0`"): accepted(
        "As there, and on by default. 0, off, is shown as unsafe.", key="locker.lock_keep_alive_period"
    ),
    ("locker", "`shared-file-locker`"): accepted("The kind of lock.", key="locker.type"),
    ("lockAcquireSleepInterval", "`10000`"): accepted(
        "As there; a tenth more or less at random.", key="locker.lock_acquire_sleep_interval"
    ),
    ("failIfLocked", "`false`"): accepted("As there, for every kind of lock.", key="locker.fail_if_locked"),
}

_MKAHADB: Final = {
    ("directory", "`activemq-data/mKahaDB`"): accepted("The parent of the stores."),
    ("filteredPersistenceAdapters", "–"): accepted(
        "A table `[[store.filtered_persistence_adapters]]` for each store; any other key of `[store]` that may differ"
        " stands in it, too."
    ),
    ("queue", "–"): accepted("The pattern of a store's queues.", key="store.filtered_persistence_adapters.queue"),
    ("topic", "–"): accepted("The pattern of a store's topics.", key="store.filtered_persistence_adapters.topic"),
    ("perDestination", "`false`"): accepted(
        "As there, and only where it has an effect: refused beside a pattern.",
        key="store.filtered_persistence_adapters.per_destination",
    ),
    ("persistenceAdapter", "–"): refused("What differs in that store stands in its table itself."),
    ("usage", "–"): refused("A store has no limit of its own. Set disk_reserve in its table."),
    ("transactionStore", "–"): refused(_JAVA),
    ("tempQueue", "–"): refused("Temporary queues are never stored."),
    ("tempTopic", "–"): refused("Temporary topics are never stored."),
    ("journalMaxFileLength", "`32mb`"): accepted(
        "There of the journal of transactions alone, here of every store's journal."
    ),
    ("journalWriteBatchSize", "`4mb`"): refused(
        "There of the journal of transactions alone. Set journal_max_write_batch_size."
    ),
    ("journalCleanupInterval", "`30000`"): refused("There of the journal of transactions alone. Set cleanup_interval."),
    ("checkForCorruption", "`true`"): refused(
        "There of the journal of transactions alone. Set check_for_corrupt_journal_files."
    ),
}

_BROKER: Final = {
    ("storeOpenWireVersion", "`11`"): fixed(
        (11,),
        "Messages are written as OpenWire version 11 has them; older ones are read.",
        key="broker.store_open_wire_version",
    ),
    ("persistJMSRedelivered", "`false`"): never(
        "How often a message was delivered is written when it comes back; nothing is written before a first delivery.",
        key="broker.persist_jms_redelivered",
    ),
    ("prioritizedMessages", "`false`"): never(
        "Said for each destination: set prioritized_messages in [[destinations]].", key="broker.prioritized_messages"
    ),
}

_JVM: Final = "A property of ActiveMQ's process. "
_SYSTEM: Final = {
    ("defaultPageSize", "`4096`"): refused(_JVM + "Pages of our index have one size, written in the index itself."),
    ("defaultWriteBatchSize", "`1000`"): refused(_JVM + "Set checkpoint_records."),
    ("defaultPageCacheSize", "`100`"): refused(_JVM + "Set index_cache_size."),
    ("maxKahaDBTxSize", "`10485760`"): refused(
        _JVM + "A checkpoint needs memory by checkpoint_records, and no files for what does not fit."
    ),
    ("org.apache.kahadb.journal.CALLER_BUFFER_APPENDER", "`false`"): refused(_JVM + "There is one way to write."),
    ("org.apache.kahadb.journal.appender.WRITE_STAT_WINDOW", "`0`"): refused(
        _JVM + "`tandemmq status` shows the figures."
    ),
    ("org.apache.activemq.kahaDB.files.skipMetadataUpdate", "`false`"): always(
        _JVM + "Files have their length before they are written, so fdatasync has no metadata to write."
    ),
    ("org.apache.activemq.store.kahadb.LOG_SLOW_ACCESS_TIME", "`0`"): refused(
        _JVM + "`tandemmq status` shows the figures."
    ),
    ("org.apache.activemq.store.kahadb.CANCELED_TASK_MOD_METRIC", "`0`"): refused(
        _JVM + "Nothing is given out before it is stored, so nothing is cancelled."
    ),
    ("org.apache.activemq.store.kahadb.ASYNC_EXECUTOR_MAX_THREADS", "`1`"): refused(
        _JVM + "One thread owns the journal."
    ),
    ("MaximumFileNameLength", "`64`"): refused(_JVM + "Names are those that ActiveMQ's default makes."),
    ("MaximumDirNameLength", "`200`"): refused(_JVM + "Names are those that ActiveMQ's default makes."),
    ("java.nio.channels.FileLock.broken", "`false`"): never(
        _JVM + "A lock that cannot be had is none. Where there is a single broker, set use_lock = false.",
        key="locker.file_lock_broken",
    ),
    ("org.apache.activemq.store.kahadb.MultiKahaDBTransactionStore.localXaFormatId", "`61616`"): refused(
        _JVM + "The format that marks a local transaction over several stores is that default."
    ),
}

KAHADB: Final = properties("store", _KAHADB)
LOCKER: Final = properties("locker", _LOCKER)
MKAHADB: Final = properties("store", _MKAHADB)
GROUPS: Final = {
    "KahaDB": KAHADB,
    "Lock (`[locker]`)": LOCKER,
    "Kinds of lock (`[locker]`)": database_locker_properties.KINDS,
    "mKahaDB": MKAHADB,
    "IO exception handlers (`[io_exception_handler]`)": io_exception_handler.HANDLER,
    "Broker": (*properties("broker", _BROKER), *io_exception_handler.BROKER),
    "System properties": properties("store", _SYSTEM),
}
