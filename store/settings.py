"""Settings of a store, as plain values.

`broker.settings.store` copies the operator's settings by name. The defaults are for tools and tests without settings; a
test ensures that they equal the operator's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of a store, named as in ``[store]``. Times in seconds, sizes in bytes."""

    journal_disk_sync_strategy: str = "always"  # always | periodic | never
    journal_disk_sync_interval: float = 1.0
    clock_mark_interval: float = 1.0  # between two records with the time; infinite: no such records
    journal_max_file_length: int = 32 * MIB
    journal_max_write_batch_size: int = 4 * MIB
    checkpoint_interval: float = 5.0
    cleanup_interval: float = 1.0
    checkpoint_records: int = 50_000
    checkpoint_bytes: int = 64 * MIB
    fence_check_interval: float = 0.5
    recovery_budget: float = 1.0  # limit for a replay after a crash
    failover_budget: float = 0.5  # limit for fence, replay and load of a take-over
    archive_data_logs: bool = False
    directory_archive: str | None = None
    check_for_corrupt_journal_files: bool = False
    ignore_missing_journalfiles: bool = False
    failover_producers_audit_depth: int = 2048  # sequence numbers for each producer; 0: no audit
    max_failover_producers_to_track: int = 64  # 0: no audit
    purge_recovered_xa_transaction_strategy: str = "never"  # never | commit | rollback
    enable_compaction: bool = True
    compaction_rate: int = 32 * MIB  # limit of bytes copied per second
    cleanup_on_stop: bool = True
    disk_reserve: int = 64 * MIB  # if less is free on the volume, producers are refused
    index_cache_size: int = 2048  # pages
    pending_bytes_max: int = 32 * MIB
    max_async_jobs: int = 10_000
