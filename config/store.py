"""The table [store]: where messages are kept, with which bounds and options.

Several stores in one broker (ActiveMQ's mKahaDB) have a table each, [[store.filtered_persistence_adapters]]: which
destinations go there, and the keys in which that store differs from [store].
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config.section import AnyCase, Listed, Path, Section
from tandemmq.config.units import Bytes, Count, Milliseconds, MillisecondsOrNever

KIB: Final = 1 << 10
MIB: Final = 1 << 20
#: Offsets in the journal are 32-bit signed numbers (KahaDB's Location).
JOURNAL_FILE_LENGTH_MAX: Final = (1 << 31) - 1
#: Journal files that fit the reserve, unless ``disk_reserve`` says otherwise: the next one, and what is on its way.
RESERVE_FILES: Final = 2


def _pattern(pattern: str) -> str:
    if any(character.isspace() for character in pattern) or not all(pattern.split(".")):
        raise ValueError('words with "." between them; "*" is any word, ">" at the end any that follow')
    return pattern


Pattern = Annotated[str, AfterValidator(_pattern)]


class StorePlaces(Section):
    """What there is once, however many stores a broker has."""

    directory: Path = "./tandemmq-data"
    """KahaDB's `directory`: journal files, the lock file and `index/`. Shared by a pair; each node
    of a replicated set has its own."""
    index_directory: Path | None = None
    """Where each broker keeps its index, in a directory of its name. Default: `index/` in `directory`."""
    file_mode: Literal["0600", "0640", "0660", "0644"] = "0600"
    """Of the files that the broker makes; directories get the same and x. `0640` lets a group read the journal, for the
    pipeline; `0660` lets brokers of two users share a directory."""
    ignore_unsafe_volume: Annotated[list[str], Listed] = Field([])
    """Objections to the volume, by name, that are overridden; `tandemmq doctor storage` shows the names. Unsafe, and
    shown as such."""


class StoreOptions(Section):
    """What may differ from store to store."""

    journal_max_file_length: Bytes = Field(32 * MIB, ge=64 * KIB, le=JOURNAL_FILE_LENGTH_MAX)
    """Length of a journal file."""
    journal_disk_sync_strategy: Annotated[Literal["always", "periodic", "never"], AnyCase] = "always"
    """When written messages are synced to disk: before each receipt, at an interval, or when the system likes. Only
    `always` survives a power loss."""
    journal_disk_sync_interval: Milliseconds = Field(1_000, ge=1)
    """Between syncs; `periodic` only."""
    clock_mark_interval: MillisecondsOrNever = 1_000
    """While messages or acknowledgements are written, a record of about 40 bytes shows the broker's clock so often at
    most, and at the start of each file; `tandemmq pipeline` tells by it when things were acknowledged. 0: never."""
    journal_max_write_batch_size: Bytes = Field(4 * MIB, ge=4 * KIB)
    """So much is written at once at most."""
    max_async_jobs: Count = Field(10_000, ge=1)
    """Operations on their way to the disk; with more, producers wait."""
    checkpoint_interval: MillisecondsOrNever = 5_000
    """Between checkpoints of the index, when there is something to write; 0: by the next three only."""
    checkpoint_records: Count = Field(50_000, ge=1)
    """A checkpoint begins when so many records wait for it."""
    checkpoint_bytes: Bytes = Field(64 * MIB, ge=64 * KIB)
    """A checkpoint begins when so many bytes wait for it."""
    recovery_budget: Milliseconds = Field(1_000, ge=10)
    """A checkpoint begins when reading the journal again after a crash would take longer than this."""
    failover_budget: Milliseconds = Field(500, ge=10)
    """A checkpoint begins when a take-over from it (fence, reading the journal again, handing over the queues; not the
    wait for the lock) would take longer than this."""
    index_cache_size: Count = Field(2_048, ge=16)
    """Pages of the index that are kept in memory."""
    cleanup_interval: MillisecondsOrNever = 1_000
    """Journal files that nobody needs go with a checkpoint, so often at most; 0: at a stop only."""
    cleanup_on_stop: bool = True
    """Journal files that nobody needs go with a clean stop, too."""
    archive_data_logs: bool = False
    """Journal files that nobody needs are moved to `directory_archive` with a manifest, not deleted."""
    directory_archive: Path | None = None
    """Where they are moved; nothing there is overwritten. Default: `data-archive/` in `directory`."""
    enable_compaction: bool = True
    """What lives in sparse journal files is copied forward, so that the journal stays below twice the live bytes and
    two files. False: one message that nobody takes keeps a whole file."""
    compaction_rate: Bytes = Field(32 * MIB, ge=64 * KIB)
    """So much is copied a second at most."""
    disk_reserve: Bytes | None = None
    """With less than this free on the volume, persistent messages are refused with the reason, until half as much again
    is free; acknowledgements, dead letters and the end of transactions go on. 0: until a journal file finds no room.
    Default: two journal files."""
    check_for_corrupt_journal_files: bool = False
    """Verify every byte of the journal at start, not only what is read then. Damage stops the start, with the messages
    concerned, unless `ignore_missing_journalfiles` steps over it."""
    ignore_missing_journalfiles: bool = False
    """Start although journal files are missing or damaged. The messages in them are lost, and told by id; what is
    damaged is kept in `quarantine/`."""
    failover_producers_audit_depth: Count = 2_048
    """Latest messages of a producer among which one that is sent again is known; 0: no such audit."""
    max_failover_producers_to_track: Count = 64
    """Producers of whom that is known; 0: no such audit."""
    purge_recovered_xa_transaction_strategy: Annotated[Literal["never", "commit", "rollback"], AnyCase] = "never"
    """What becomes at start of XA transactions that were prepared: they wait, or are ended so."""

    @property
    def disk_reserve_bytes(self) -> int:
        """The reserve that holds, ``disk_reserve`` or its default."""
        return RESERVE_FILES * self.journal_max_file_length if self.disk_reserve is None else self.disk_reserve


class FilteredStoreSettings(StoreOptions):
    """One of several stores; what was not said of it is as in [store] (``StoreSettings.of``)."""

    queue: Pattern | None = None
    """Queues by this pattern go to this store."""
    topic: Pattern | None = None
    """Topics by this pattern do. Without either, all that is left."""
    per_destination: bool = False
    """A store for each destination; only where neither `queue` nor `topic` is given."""

    @model_validator(mode="after")
    def _one_filter(self) -> Self:
        if self.queue is not None and self.topic is not None:
            raise ValueError("queue or topic, not both: a store more takes the other")
        if self.per_destination and (self.queue is not None or self.topic is not None):
            raise ValueError("per_destination without queue and topic: there it has no effect in ActiveMQ, either")
        return self


def _no_twins(adapters: tuple[FilteredStoreSettings, ...]) -> tuple[FilteredStoreSettings, ...]:
    filters = [(adapter.queue, adapter.topic) for adapter in adapters]
    if len(set(filters)) < len(filters):
        raise ValueError("a filter of its own in each table; one of them may have neither queue nor topic")
    return adapters


class StoreSettings(StoreOptions, StorePlaces):
    filtered_persistence_adapters: Annotated[tuple[FilteredStoreSettings, ...], AfterValidator(_no_twins)] = ()
    """Several stores in one broker, a table each, as ActiveMQ's mKahaDB has them."""

    scrub_rate: Bytes = 4 * MIB
    """So much of sealed journal files is read a second at most, in the background and from the disk, and compared with
    its checksums. 0: damage is found only where something is read for another reason."""
    scrub_interval: MillisecondsOrNever = 3_600_000
    """From the beginning of one such pass over all sealed files to the next one, if the pass is over by then; 0: one
    pass after each start."""

    @property
    def scrub_interval_seconds(self) -> float:
        return self.scrub_interval / 1_000 or math.inf

    def of(self, adapter: FilteredStoreSettings) -> StoreSettings:
        """[store] with what ``adapter`` says laid over it."""
        values: dict[str, Any] = {
            key: getattr(adapter, key) for key in adapter.model_fields_set if key in StoreOptions.model_fields
        }
        return self.model_copy(update={**values, "filtered_persistence_adapters": ()})
