"""Which tests concern a marked line: by its module, or by its name where others are quicker.

The quickest that are likely to fail come first. A module that is named here carries safety arguments, and has marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.mutants.changes import Mutant
from tests.mutants.marks import Mark

_CRASH = ("tests/crash/test_crash_explorer.py", "tests/crash/test_power_loss.py")
_INDEX = (
    "tests/unit/index/test_index.py",
    "tests/unit/index/test_crash_points.py",
    "tests/unit/index/test_recovery.py",
)
_JOURNAL = ("tests/unit/journal/test_writer.py", "tests/unit/journal/test_files.py")
_LEASES = (
    "tests/contract/locker/test_lease_database.py",
    "tests/contract/locker/test_proofs.py",
    "tests/contract/locker/test_lease_rows.py",
)
_SUBMISSIONS = ("tests/unit/store/writer/test_submissions.py",)
_NEW_MESSAGES = ("tests/unit/store/writer/test_new_messages.py",)
_END = (
    "tests/unit/store/writer/test_journal_end.py",
    "tests/unit/store/writer/test_storage_thread.py",
    "tests/unit/store/recovery/test_fence.py",
    "tests/unit/store/test_store.py",
    *_SUBMISSIONS,
)
_PROMOTION = (
    "tests/unit/store/recovery/test_damage_of_a_set.py",
    "tests/unit/store/recovery/test_late_promotion.py",
    "tests/unit/store/recovery/test_promotion_reads.py",
    "tests/unit/store/recovery/test_fence.py",
    "tests/unit/store/recovery/test_standby.py",
)
_MQTT = "tests/unit/broker/protocols/mqtt"
_MQTT_CRASHES = (f"{_MQTT}/test_session_crashes.py", "tests/crash/test_mqtt_sessions.py")
_HORIZON = "tests/unit/store/recovery/test_horizon.py"
_AUTHORITY = "tests/contract/test_authority.py"
_SET = "tests/unit/broker/replication"
_RULES = (f"{_SET}/test_rules.py", f"{_SET}/test_stories.py", f"{_SET}/test_replica.py")
_ENDED_OWNERS = ("tests/unit/store/state/test_ended_owners.py",)
_RECLAIMING = (
    "tests/unit/store/maintenance/test_reclaiming.py",
    "tests/unit/store/maintenance/test_compaction.py",
    "tests/unit/store/maintenance/test_decided_stays_decided.py",
    "tests/unit/store/test_store.py",
    *_CRASH,
)

BY_MODULE: Final[Mapping[str, tuple[str, ...]]] = {
    "broker/admin/api/message_work.py": ("tests/unit/broker/admin/api/test_messages.py",),
    "broker/engine/dead_letters.py": ("tests/unit/broker/engine/test_dead_letters.py",),
    "broker/ha/mastership.py": ("tests/unit/broker/ha/test_hanging.py", "tests/unit/broker/ha/test_mastership.py"),
    "broker/mqtt/endings.py": ("tests/unit/broker/mqtt/test_endings.py", "tests/crash/test_mqtt_sessions.py"),
    "broker/net/transport.py": ("tests/unit/broker/net/test_server.py", "tests/unit/broker/net/test_transport.py"),
    "broker/protocols/mqtt/delivering.py": (f"{_MQTT}/test_session_delivering.py", *_MQTT_CRASHES),
    "broker/protocols/mqtt/kept_records.py": (f"{_MQTT}/test_session_subscribing.py", *_MQTT_CRASHES),
    "broker/protocols/mqtt/outgoing.py": (f"{_MQTT}/test_session_delivering.py", *_MQTT_CRASHES),
    "broker/protocols/mqtt/publishing.py": (f"{_MQTT}/test_session_publishing.py", *_MQTT_CRASHES),
    "broker/protocols/mqtt/subscribing.py": (f"{_MQTT}/test_session_subscribing.py",),
    "broker/replication/authority.py": (f"{_SET}/test_authority.py", _AUTHORITY),
    "broker/replication/copy.py": (f"{_SET}/test_copy.py",),
    "broker/replication/election.py": (f"{_SET}/test_election.py",),
    "broker/replication/election_timer.py": _RULES,
    "broker/replication/follower.py": _RULES,
    "broker/replication/handshake.py": ("tests/unit/broker/replication/test_handshake.py",),
    "broker/replication/leader.py": _RULES,
    "broker/replication/marks.py": (f"{_SET}/test_marks.py",),
    "broker/replication/positions.py": ("tests/unit/broker/replication/test_positions.py",),
    "broker/replication/promise.py": ("tests/unit/broker/replication/test_promise.py",),
    "broker/replication/replica.py": _RULES,
    "broker/replication/state.py": _RULES,
    "broker/replication/stream.py": (f"{_SET}/test_stream.py",),
    "broker/replication/tcp.py": ("tests/unit/broker/replication/test_tcp.py",),
    "broker/replication/term.py": (f"{_SET}/test_term.py",),
    "broker/replication/voter.py": _RULES,
    "broker/replication/voters.py": ("tests/unit/broker/replication/test_voters.py",),
    "index/copy.py": ("tests/unit/index/test_copy.py", "tests/crash/test_replacements.py"),
    "index/freelist.py": _INDEX,
    "index/index.py": ("tests/crash/test_replacements.py", *_INDEX),
    "index/page.py": ("tests/unit/index/test_damage.py",),
    "index/pages.py": _INDEX,
    "index/recovery.py": ("tests/unit/index/test_damage.py",),
    "index/roots.py": ("tests/unit/index/test_damage.py",),
    "journal/files.py": ("tests/unit/journal/test_files.py", *_JOURNAL, *_CRASH),
    "journal/scan.py": ("tests/unit/store/recovery/test_promotion_reads.py", "tests/unit/journal/test_scan.py"),
    "journal/writer.py": (*_JOURNAL, *_CRASH),
    "locker/contract.py": ("tests/contract/locker/test_memory.py", *_LEASES),
    "locker/sql/database.py": ("tests/contract/locker/test_proofs.py", "tests/contract/locker/test_transaction.py"),
    "locker/kubernetes/api.py": ("tests/contract/locker/test_kubernetes_lease.py",),
    "locker/kubernetes/lease.py": ("tests/contract/locker/test_kubernetes_lease.py",),
    "locker/sql/lease.py": _LEASES,
    "locker/sql/lease_database.py": _LEASES,
    "locker/leased.py": _LEASES,
    "locker/memory.py": (
        "tests/contract/locker/test_memory.py",
        "tests/contract/locker/test_proofs.py",
        "tests/contract/locker/test_own_kinds.py",
    ),
    "locker/shared_file.py": (
        "tests/contract/locker/test_proofs.py",
        "tests/contract/locker/test_shared_file.py",
        "tests/contract/locker/test_own_kinds.py",
    ),
    "locker/sql/lease_table.py": ("tests/contract/locker/test_lease_rows.py",),
    "locker/zookeeper/locker.py": ("tests/contract/locker/test_zookeeper.py",),
    "locker/zookeeper/touches.py": (
        "tests/contract/locker/test_zookeeper_touches.py",
        "tests/contract/locker/test_zookeeper.py",
    ),
    "store/membership.py": ("tests/unit/store/test_membership.py",),
    "store/maintenance/archive.py": ("tests/unit/store/maintenance/test_archive.py", *_CRASH),
    "store/maintenance/compaction.py": ("tests/unit/store/maintenance/test_compaction.py", *_CRASH),
    "store/state/file_states.py": (
        "tests/unit/store/maintenance/test_reclaiming.py",
        "tests/unit/store/recovery/test_fence.py",
        *_RECLAIMING,
    ),
    "store/recovery/follow.py": (*_PROMOTION, "tests/unit/store/damage/test_damage.py", _HORIZON),
    "store/recovery/header_reader.py": (*_PROMOTION, "tests/unit/store/damage/test_damage.py", _HORIZON),
    "store/records/headers.py": ("tests/unit/store/records/test_headers.py", "tests/unit/store/recovery/test_fence.py"),
    "store/recovery/index_trust.py": (
        "tests/unit/store/recovery/test_standby.py",
        "tests/unit/store/damage/test_damage.py",
    ),
    "store/writer/journal_end.py": _END,
    "store/writer/new_messages.py": _NEW_MESSAGES,
    "store/writer/submissions.py": _SUBMISSIONS,
    "store/writer/outcomes.py": ("tests/unit/store/maintenance/test_decided_stays_decided.py",),
    "store/state/copies.py": ("tests/unit/store/state/test_copies.py",),
    "store/kahadb/minimal.py": ("tests/crash/test_replacements.py", "tests/unit/store/kahadb/test_index.py"),
    "store/migration/offline_epoch.py": ("tests/unit/store/migration/test_offline_epoch.py",),
    "store/state/open_transactions.py": _RECLAIMING,
    "store/recovery/promotion.py": (*_PROMOTION, "tests/unit/store/migration/test_offline_epoch.py", _AUTHORITY),
    "store/migration/sealing.py": ("tests/crash/test_replacements.py",),
    "store/several/standbys.py": ("tests/unit/store/several/test_several.py", "tests/crash/test_several_stores.py"),
    "store/standby.py": ("tests/unit/store/takeover/test_takeover.py",),
    "store/state/state.py": _RECLAIMING,
    "store/storage_thread.py": _END,
    "store/store.py": _END,
    "store/takeover/take_over.py": ("tests/unit/store/takeover/test_takeover.py", *_CRASH),
    "store/maintenance/upkeep.py": ("tests/unit/store/maintenance/test_upkeep.py", *_RECLAIMING),
}

_ZOOKEEPER = "tests/contract/locker/test_zookeeper.py"

BY_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "authority-begins-before-header": (_AUTHORITY,),
    "behind-the-horizon-is-not-listed": (_HORIZON,),
    "end-marker-where-it-may-be": (_AUTHORITY,),
    "half-a-tick-before": (f"{_ZOOKEEPER}::test_a_proof_counts_from_the_last_touch_known_to_the_leader",),
    "index-waits-for-final": (_HORIZON,),
    "leader-heard-before-write": (f"{_ZOOKEEPER}::test_a_renewal_syncs_before_it_writes",),
    "needed-by-the-index-stays": (_HORIZON,),
    "newest-is-sorted": _NEW_MESSAGES,
    "newest-of-the-audit": _NEW_MESSAGES,
    "newest-of-the-index": _NEW_MESSAGES,
    "newest-of-the-tails": _NEW_MESSAGES,
    "node-is-still-ours": (
        f"{_ZOOKEEPER}::test_a_write_that_was_not_answered_is_found_to_be_ours",
        f"{_ZOOKEEPER}::test_a_node_that_says_another_name_is_not_ours",
        f"{_ZOOKEEPER}::test_a_node_that_went_after_somebody_wrote_it_is_not_ours",
    ),
    "node-margin": (f"{_ZOOKEEPER}::test_a_proof_counts_from_the_last_touch_known_to_the_leader",),
    "node-proved-when-taken": (
        f"{_ZOOKEEPER}::test_a_session_that_ended_after_writing_its_node_has_no_lock",
        f"{_ZOOKEEPER}::test_who_cannot_prove_it_yet_after_a_silence_has_it_a_few_polls_later",
        f"{_ZOOKEEPER}::test_the_proof_goes_by_what_the_servers_granted",
    ),
    "node-renewed-before": (f"{_ZOOKEEPER}::test_a_proof_counts_from_before_the_servers_were_asked",),
    "node-written-before": (f"{_ZOOKEEPER}::test_a_proof_counts_from_before_the_servers_were_asked", _ZOOKEEPER),
    "own-unlinks-are-synced-each": (_HORIZON,),
    "promotion-asks-the-authority": (_AUTHORITY,),
    "promotion-is-final": (_AUTHORITY,),
    "promotions-end-marker-where-it-may-be": (_AUTHORITY,),
    "read-up-to-the-horizon": (_HORIZON,),
    "submitted-is-known": _NEW_MESSAGES,
    "the-end-pins-its-messages": ("tests/unit/store/maintenance/test_reclaiming.py",),
    "who-ended-has-no-entries": _ENDED_OWNERS,
    "who-ended-holds-nothing": _ENDED_OWNERS,
}

# Modules whose tests need a program that pip does not install: tried where CI has it.
NEED_SERVICE: Final = frozenset({"locker/zookeeper/locker.py", "locker/zookeeper/touches.py"})

# Changed, the program does the same: why nothing can catch these.
EQUIVALENT: Final[Mapping[str, str]] = {}


def concerned(mark: Mark) -> tuple[str, ...]:
    """Test files and node ids, in the order in which they are to run. Raises KeyError."""
    return BY_NAME.get(mark.name) or BY_MODULE[mark.path]


def is_equivalent(mutant: Mutant) -> bool:
    return mutant.name in EQUIVALENT
