"""Bounds and habits of a store: plain values; where they come from is not known here."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Bounds and habits of a store. Times in seconds, sizes in bytes; the names are those of ``[store]``."""

    journal_disk_sync_strategy: str = "always"  # always | periodic | never
    journal_disk_sync_interval: float = 1.0
    journal_max_file_length: int = 32 * MIB
    journal_max_write_batch_size: int = 4 * MIB
    checkpoint_interval: float = 5.0
    cleanup_interval: float = 1.0
    checkpoint_records: int = 50_000
    checkpoint_bytes: int = 64 * MIB
    look_interval: float = 0.5
    pending_bytes_max: int = 32 * MIB
    pending_operations_max: int = 20_000
