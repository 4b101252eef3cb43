"""Which tests concern a marked line: by its module, or by its name where others are quicker.

The quickest that are likely to fail come first. A module that is named here carries safety arguments, and has marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.mutants.changes import Mutant
from tests.mutants.marks import Mark

_CRASH = ("tests/crash/test_crash_explorer.py", "tests/crash/test_power_loss.py")
_INDEX = ("tests/index/test_index.py", "tests/index/test_crash_points.py", "tests/index/test_recovery.py")
_JOURNAL = ("tests/journal/test_writer.py", "tests/journal/test_files.py")
_LEASES = ("tests/locker/test_lease_database.py", "tests/locker/test_proofs.py", "tests/locker/test_lease_rows.py")
_END = (
    "tests/store/test_journal_end.py",
    "tests/store/test_storage_thread.py",
    "tests/store/test_fence.py",
    "tests/store/test_store.py",
)
_PROMOTION = (
    "tests/store/test_late_promotion.py",
    "tests/store/test_promotion_reads.py",
    "tests/store/test_fence.py",
    "tests/store/test_standby.py",
)
_ENDED_OWNERS = ("tests/store/test_ended_owners.py",)
_RECLAIMING = ("tests/store/test_reclaiming.py", "tests/store/test_compaction.py", "tests/store/test_store.py", *_CRASH)

BY_MODULE: Final[Mapping[str, tuple[str, ...]]] = {
    "broker/ha.py": ("tests/ha/test_hanging.py", "tests/ha/test_mastership.py"),
    "broker/transport.py": ("tests/broker/test_server.py", "tests/broker/test_transport.py"),
    "index/copy.py": ("tests/index/test_copy.py", "tests/crash/test_replacements.py"),
    "index/freelist.py": _INDEX,
    "index/index.py": ("tests/crash/test_replacements.py", *_INDEX),
    "index/page.py": ("tests/index/test_damage.py",),
    "index/pages.py": _INDEX,
    "index/recovery.py": ("tests/index/test_damage.py",),
    "index/roots.py": ("tests/index/test_damage.py",),
    "journal/files.py": ("tests/journal/test_files.py", *_JOURNAL, *_CRASH),
    "journal/scan.py": ("tests/store/test_promotion_reads.py", "tests/journal/test_scan.py"),
    "journal/writer.py": (*_JOURNAL, *_CRASH),
    "locker/contract.py": ("tests/locker/test_memory.py", *_LEASES),
    "locker/database.py": ("tests/locker/test_proofs.py", "tests/locker/test_transaction.py"),
    "locker/kubernetes_api.py": ("tests/locker/test_kubernetes_lease.py",),
    "locker/kubernetes_lease.py": ("tests/locker/test_kubernetes_lease.py",),
    "locker/lease.py": _LEASES,
    "locker/lease_database.py": _LEASES,
    "locker/leased.py": _LEASES,
    "locker/memory.py": (
        "tests/locker/test_memory.py",
        "tests/locker/test_proofs.py",
        "tests/locker/test_own_kinds.py",
    ),
    "locker/shared_file.py": (
        "tests/locker/test_proofs.py",
        "tests/locker/test_shared_file.py",
        "tests/locker/test_own_kinds.py",
    ),
    "locker/sql_lease.py": ("tests/locker/test_lease_rows.py",),
    "locker/zookeeper.py": ("tests/locker/test_zookeeper.py",),
    "locker/zookeeper_touches.py": ("tests/locker/test_zookeeper_touches.py", "tests/locker/test_zookeeper.py"),
    "store/archive.py": ("tests/store/test_archive.py", *_CRASH),
    "store/compaction.py": ("tests/store/test_compaction.py", *_CRASH),
    "store/file_states.py": ("tests/store/test_reclaiming.py", "tests/store/test_fence.py", *_RECLAIMING),
    "store/follow.py": (*_PROMOTION, "tests/store/test_damage.py"),
    "store/header_reader.py": (*_PROMOTION, "tests/store/test_damage.py"),
    "store/headers.py": ("tests/store/test_headers.py", "tests/store/test_fence.py"),
    "store/index_trust.py": ("tests/store/test_standby.py", "tests/store/test_damage.py"),
    "store/journal_end.py": _END,
    "store/kahadb/minimal.py": ("tests/crash/test_replacements.py", "tests/kahadb/test_index.py"),
    "store/offline_epoch.py": ("tests/store/test_offline_epoch.py",),
    "store/open_transactions.py": _RECLAIMING,
    "store/promotion.py": (*_PROMOTION, "tests/store/test_offline_epoch.py"),
    "store/sealing.py": ("tests/crash/test_replacements.py",),
    "store/several/standbys.py": ("tests/store/test_several.py", "tests/crash/test_several_stores.py"),
    "store/standby.py": ("tests/store/test_takeover.py",),
    "store/state.py": _RECLAIMING,
    "store/storage_thread.py": _END,
    "store/store.py": _END,
    "store/takeover/take_over.py": ("tests/store/test_takeover.py", *_CRASH),
    "store/upkeep.py": ("tests/store/test_upkeep.py", *_RECLAIMING),
}

_ZOOKEEPER = "tests/locker/test_zookeeper.py"

BY_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "half-a-tick-before": (
        f"{_ZOOKEEPER}::test_a_proof_counts_from_the_last_touch_that_the_leader_was_told_of_in_the_worst_case",
    ),
    "leader-heard-before-write": (f"{_ZOOKEEPER}::test_a_renewal_syncs_before_it_writes",),
    "node-is-still-ours": (
        f"{_ZOOKEEPER}::test_a_write_that_was_not_answered_is_found_to_be_ours",
        f"{_ZOOKEEPER}::test_a_node_that_says_another_name_is_not_ours",
        f"{_ZOOKEEPER}::test_a_node_that_went_after_somebody_wrote_it_is_not_ours",
    ),
    "node-margin": (
        f"{_ZOOKEEPER}::test_a_proof_counts_from_the_last_touch_that_the_leader_was_told_of_in_the_worst_case",
    ),
    "node-proved-when-taken": (
        f"{_ZOOKEEPER}::test_a_session_that_ended_right_after_our_node_was_written_has_not_taken_the_lock",
        f"{_ZOOKEEPER}::test_who_cannot_prove_it_yet_after_a_silence_has_it_a_few_polls_later",
        f"{_ZOOKEEPER}::test_the_proof_goes_by_what_the_servers_granted",
    ),
    "node-renewed-before": (f"{_ZOOKEEPER}::test_a_proof_counts_from_before_the_servers_were_asked",),
    "node-written-before": (f"{_ZOOKEEPER}::test_a_proof_counts_from_before_the_servers_were_asked", _ZOOKEEPER),
    "the-end-pins-its-messages": ("tests/store/test_reclaiming.py",),
    "who-ended-has-no-entries": _ENDED_OWNERS,
    "who-ended-holds-nothing": _ENDED_OWNERS,
}

# Modules whose tests need a program that pip does not install: tried where CI has it.
NEED_SERVICE: Final = frozenset({"locker/zookeeper.py", "locker/zookeeper_touches.py"})

# Changed, the program does the same: why nothing can catch these.
EQUIVALENT: Final[Mapping[str, str]] = {}


def concerned(mark: Mark) -> tuple[str, ...]:
    """Test files and node ids, in the order in which they are to run. Raises KeyError."""
    return BY_NAME.get(mark.name) or BY_MODULE[mark.path]


def is_equivalent(mutant: Mutant) -> bool:
    return mutant.name in EQUIVALENT
