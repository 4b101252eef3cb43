"""The table [store]: places, bounds and options of the stored messages.

Several stores in one broker (ActiveMQ's mKahaDB) have a table each, [[store.filtered_persistence_adapters]]: its
destinations, and the keys in which that store differs from [store].

``io_exception_handler`` holds ActiveMQ's settings of DefaultIOExceptionHandler, LeaseLockerIOExceptionHandler and
JDBCIOExceptionHandler, and the broker's own settings for its end. There is no choice of handlers. One table
(broker.ha.states) has the result of each failure, by type, errno and SQLSTATE; ``tandemmq doctor errors`` prints it. So
nearly every setting is either already the behaviour of that table, or would allow two masters at the same time.
Properties and defaults are those of ActiveMQ 5.17.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config.kahadb_property import always, fixed, mapped, never, properties, refused
from tandemmq.config.section import AnyCase, Bytes, Count, Listed, Milliseconds, MillisecondsOrNever, Path, Section

SECTION: Final = "io_exception_handler"


class IOExceptionHandlerSettings(Section):
    """Table [io_exception_handler]: each key in it is one of ActiveMQ's, see HANDLER."""


_HANDLER: Final = {
    ("ioExceptionHandler", "`defaultIOExceptionHandler`"): fixed(
        (
            "lease-locker",
            "leaselockerioexceptionhandler",
            "org.apache.activemq.util.leaselockerioexceptionhandler",
            "jdbc",
            "jdbcioexceptionhandler",
            "org.apache.activemq.store.jdbc.jdbcioexceptionhandler",
        ),
        "If a failure puts ownership in doubt, clients are disconnected and served again only with the lock, as with "
        "the lease-locker handler. This holds for all locks and stores.",
        key="io_exception_handler.type",
    ),
    ("ignoreAllErrors", "`false`"): never(
        "After a failed write or sync the content of the disk is unknown, so the master stops confirming."
    ),
    ("ignoreNoSpaceErrors", "`true`"): always(
        "On a full disk the master stays master while `store.disk_reserve` lasts, for acknowledgements. Producers wait "
        "or are refused with the reason."
    ),
    ("noSpaceMessage", "`space`"): refused("A full disk is recognised by its errno (ENOSPC, EDQUOT). Leave it out."),
    ("ignoreSQLExceptions", "`true`; lease-locker and JDBC: `false`"): never(
        "After a database error the master continues until its last proof of ownership expires, then becomes a standby."
    ),
    ("sqlExceptionMessage", "– (all match)"): refused(
        "Database errors are recognised by their SQLSTATE. Leave it out."
    ),
    ("stopStartConnectors", "`false`; lease-locker and JDBC: `true`"): always(
        "A master that cannot continue disconnects its clients, so they connect to the other broker. It serves again "
        "when it is master again, in the same process."
    ),
    ("resumeCheckSleepPeriod", "`5000`"): mapped(
        "locker.retry_interval",
        "The longest pause before a demoted broker tries again. The first pause is 0.2 s; each further one doubles.",
    ),
    ("systemExitOnShutdown", "`false`"): never(
        "A demotion does not end the process: the broker becomes a standby. A failed first start or an internal "
        "error ends it with exit code 1."
    ),
}

_BROKER: Final = {
    ("restartAllowed", "`true`"): always("A demoted broker becomes a standby again."),
    ("systemExitOnShutdown", "`false`"): never(
        "The process ends only by SIGTERM, Ctrl-C, a failed first start or an internal error."
    ),
    ("systemExitOnShutdownExitCode", "`0`"): refused(
        "Exit codes: 0 after SIGTERM, 1 if the broker cannot continue, 2 for wrong settings."
    ),
}

HANDLER: Final = properties(SECTION, _HANDLER)
BROKER: Final = properties("broker", _BROKER)


KIB: Final = 1 << 10
MIB: Final = 1 << 20
#: Offsets in the journal are 32-bit signed numbers (KahaDB's Location).
JOURNAL_FILE_LENGTH_MAX: Final = (1 << 31) - 1
#: Journal files that fit into the default reserve: the next one, and the data on its way.
RESERVE_FILES: Final = 2


def _pattern(pattern: str) -> str:
    if any(character.isspace() for character in pattern) or not all(pattern.split(".")):
        raise ValueError('words with "." between them; "*" is any word, ">" at the end all following words')
    return pattern


Pattern = Annotated[str, AfterValidator(_pattern)]


class StorePlaces(Section):
    """Settings that exist once, whatever the number of stores."""

    directory: Path = "./tandemmq-data"
    """KahaDB's `directory`: journal files, the lock file and `index/`. A pair shares it; each node of a replicated set
    has its own."""
    index_directory: Path | None = None
    """Directory of the indexes, with a subdirectory for each broker. Default: `index/` in `directory`."""
    file_mode: Literal["0600", "0640", "0660", "0644"] = "0600"
    """Mode of new files; directories also get x. `0640`: a group can read the journal, for the pipeline. `0660`:
    brokers of two users can share the directory."""
    ignore_unsafe_volume: Annotated[list[str], Listed] = Field([])
    """Names of objections to the volume that are ignored; `tandemmq doctor storage` shows the names. Unsafe; `status`
    warns."""


class StoreOptions(Section):
    """Settings that may differ from store to store."""

    journal_max_file_length: Bytes = Field(32 * MIB, ge=64 * KIB, le=JOURNAL_FILE_LENGTH_MAX)
    """Length of a journal file."""
    journal_disk_sync_strategy: Annotated[Literal["always", "periodic", "never"], AnyCase] = "always"
    """Time at which written messages are synced to disk: before each receipt, at an interval, or when the system
    decides. Only `always` survives a power loss."""
    journal_disk_sync_interval: Milliseconds = Field(1_000, ge=1)
    """Interval of syncs with `periodic`."""
    clock_mark_interval: MillisecondsOrNever = 1_000
    """Shortest interval between records (about 40 bytes) with the broker's clock, written with other records and at the
    start of each file. `tandemmq pipeline` uses them to date acknowledgements. 0: none."""
    journal_max_write_batch_size: Bytes = Field(4 * MIB, ge=4 * KIB)
    """Maximum bytes of one write to the journal."""
    max_async_jobs: Count = Field(10_000, ge=1)
    """Maximum number of operations that wait for the disk; beyond it, producers wait."""
    checkpoint_interval: MillisecondsOrNever = 5_000
    """Interval of checkpoints of the index, if there is something to write. 0: only the next four settings start
    one."""
    checkpoint_records: Count = Field(50_000, ge=1)
    """Number of waiting records that starts a checkpoint."""
    checkpoint_bytes: Bytes = Field(64 * MIB, ge=64 * KIB)
    """Number of waiting bytes that starts a checkpoint."""
    recovery_budget: Milliseconds = Field(1_000, ge=10)
    """A checkpoint starts when replaying the journal after a crash would take longer."""
    failover_budget: Milliseconds = Field(500, ge=10)
    """A checkpoint starts when a take-over (fence, replay of the journal, loading of queues; not the wait for the lock)
    would take longer."""
    index_cache_size: Count = Field(2_048, ge=16)
    """Pages of the index that are kept in memory."""
    cleanup_interval: MillisecondsOrNever = 1_000
    """Shortest interval between removals of unneeded journal files, at a checkpoint. 0: only at a stop."""
    cleanup_on_stop: bool = True
    """Remove unneeded journal files at a clean stop, too."""
    archive_data_logs: bool = False
    """Move unneeded journal files to `directory_archive`, with a manifest, instead of deleting them."""
    directory_archive: Path | None = None
    """Directory of archived journal files; nothing there is overwritten. Default: `data-archive/` in `directory`."""
    enable_compaction: bool = True
    """Copy live records out of sparse journal files, so that the journal stays below twice the live bytes plus two
    files. False: one message that is not consumed keeps a whole file."""
    compaction_rate: Bytes = Field(32 * MIB, ge=64 * KIB)
    """Maximum bytes that compaction copies in a second."""
    disk_reserve: Bytes | None = None
    """Free space below which persistent messages wait or are refused, until half as much again is free.
    Acknowledgements, dead letters and the end of transactions continue. 0: until a journal file has no space. Default:
    two journal files."""
    check_for_corrupt_journal_files: bool = False
    """Verify every byte of the journal at start. Damage stops the start and names the messages, unless
    `ignore_missing_journalfiles` is set."""
    ignore_missing_journalfiles: bool = False
    """Start although journal files are missing or damaged. The messages in them are lost and reported by id; damaged
    bytes are kept in `quarantine/`."""
    failover_producers_audit_depth: Count = 2_048
    """Latest messages of a producer among which a repeated one is recognised; 0: none."""
    max_failover_producers_to_track: Count = 64
    """Producers whose repeated messages are recognised; 0: none."""
    purge_recovered_xa_transaction_strategy: Annotated[Literal["never", "commit", "rollback"], AnyCase] = "never"
    """Result of prepared XA transactions at start: they wait, are committed, or are rolled back."""

    @property
    def disk_reserve_bytes(self) -> int:
        """Effective reserve: ``disk_reserve`` or its default."""
        return RESERVE_FILES * self.journal_max_file_length if self.disk_reserve is None else self.disk_reserve


class FilteredStoreSettings(StoreOptions):
    """Store among several; missing values are as in [store] (``StoreSettings.of``)."""

    queue: Pattern | None = None
    """Queues of this pattern use this store."""
    topic: Pattern | None = None
    """Topics of this pattern use this store. Without `queue` and `topic`: all other destinations."""
    per_destination: bool = False
    """A store for each destination; only without `queue` and `topic`."""

    @model_validator(mode="after")
    def _one_filter(self) -> Self:
        if self.queue is not None and self.topic is not None:
            raise ValueError("queue or topic, not both: use another store for the other")
        if self.per_destination and (self.queue is not None or self.topic is not None):
            raise ValueError("per_destination without queue and topic: with them it has no effect, as in ActiveMQ")
        return self


def _no_twins(adapters: tuple[FilteredStoreSettings, ...]) -> tuple[FilteredStoreSettings, ...]:
    filters = [(adapter.queue, adapter.topic) for adapter in adapters]
    if len(set(filters)) < len(filters):
        raise ValueError("a different filter in each table; one of them may have neither queue nor topic")
    return adapters


class StoreSettings(StoreOptions, StorePlaces):
    filtered_persistence_adapters: Annotated[tuple[FilteredStoreSettings, ...], AfterValidator(_no_twins)] = ()
    """Several stores in one broker, a table each, as in ActiveMQ's mKahaDB."""

    scrub_rate: Bytes = 4 * MIB
    """Maximum bytes of sealed journal files that are read from the disk in a second, in the background, to verify their
    checksums. 0: off; damage is found only when a record is read."""
    scrub_interval: MillisecondsOrNever = 3_600_000
    """Interval between the starts of two scrubs of all sealed files; a longer scrub delays the next one. 0: one after
    each start."""

    @property
    def scrub_interval_seconds(self) -> float:
        return self.scrub_interval / 1_000 or math.inf

    def of(self, adapter: FilteredStoreSettings) -> StoreSettings:
        """Return [store] with the values of ``adapter`` in place of its own."""
        values: dict[str, Any] = {
            key: getattr(adapter, key) for key in adapter.model_fields_set if key in StoreOptions.model_fields
        }
        return self.model_copy(update={**values, "filtered_persistence_adapters": ()})
