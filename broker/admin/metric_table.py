"""Every metric of a scrape: name, kind, meaning, labels, and the place of its value in a status (``GET /status``).

The exposition (broker.admin.metrics) and the table in docs/metrics.md are both made from it. Units are base units,
named at the end of a name; names of counters, and only those, end in ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "tandemmq_"
UNITS: Final = ("seconds", "bytes")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Named:
    """A metric. ``name`` is without the prefix. ``path``: the keys of a status that lead to the value, with dots
    between; empty if a function of broker.admin.metrics makes one sample for each combination of ``labels``."""

    name: str
    kind: Kind
    meaning: str
    path: str = ""
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def unit(self) -> str:
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


def _counter(name: str, meaning: str, path: str = "", labels: tuple[str, ...] = ()) -> Named:
    return Named(name, Kind.COUNTER, meaning, path, labels)


def _gauge(name: str, meaning: str, path: str = "", labels: tuple[str, ...] = ()) -> Named:
    return Named(name, Kind.GAUGE, meaning, path, labels)


def _histogram(name: str, meaning: str, path: str = "") -> Named:
    return Named(name, Kind.HISTOGRAM, meaning, path or f"measured.{name}")


def _counted(name: str, meaning: str) -> Named:
    """Return the metric of a count in ``counts``, with the same name."""
    return (_counter if name.endswith("_total") else _gauge)(name, meaning, f"counts.{name}")


#: The metrics by subject. A master has all except those of a standby; a node of a set also has those of a set.
GROUPS: Final[dict[str, tuple[Named, ...]]] = {
    "The broker": (
        _gauge("broker_info", "1; its labels identify the broker.", labels=("name", "version")),
        _gauge("role", "1 for the role that the broker has, 0 for the others.", labels=("role",)),
        _gauge("phase", "1 for the present phase of the broker, 0 for the others.", labels=("phase",)),
        _gauge("epoch", "Epoch of the master.", "epoch"),
        _gauge("problems", "Reasons why the broker is not healthy.", "problems"),
        _gauge("uptime_seconds", "Seconds since the process began.", "uptime_seconds"),
        _gauge("loop_pause_max_seconds", "Longest delay of the event loop.", "loop_lag_seconds.max"),
        _histogram(
            "loop_lag_seconds",
            "Delay of the event loop, measured 20 times a second.",
            "loop_lag_seconds",
        ),
        _counted(
            "log_lines_dropped_total",
            "Lines of the log that were not written because the output was too slow or failed.",
        ),
        _counted("certificates_expiring", "Files with an expired or soon expiring certificate or revocation list."),
        _counted("certificates_expired", "Files with an expired certificate or revocation list."),
        _gauge("certificate_remaining_seconds", "Time until the first in a file expires.", labels=("file", "kind")),
        _counted("overlong_steps_total", "Client inputs that kept the event loop busy for more than 50 ms."),
    ),
    "Lock and mastership": (
        _gauge("lock_info", "1; its labels identify the lock.", labels=("kind", "where")),
        _gauge(
            "lock_proof_age_seconds",
            "Time since the last proof of ownership of the lock; on a master.",
            "lock.proof_age_seconds",
        ),
        _gauge(
            "lock_proof_holds_seconds",
            "Time for which that proof still holds; after that no receipt is sent.",
            "lock.proof_holds_seconds",
        ),
        _counted("promotions_total", "Number of times that this process became master."),
        _counted("handovers_total", "Number of planned handovers."),
        _counter("demotions_total", "Number of demotions, by cause.", labels=("trouble",)),
        _gauge(
            "last_takeover_seconds",
            "Time of the latest take-over, from the lock of another holder until the ports answered.",
            "last_takeover_seconds",
        ),
    ),
    "Standby and take-over": (
        _gauge("standby_caught_up", "1 for a standby whose index is up to date.", "standby.has_caught_up"),
        _gauge("standby_lag_bytes", "Bytes of the journal that a standby has not read yet.", "standby.lag.bytes"),
        _gauge("standby_lag_records", "Records of the journal that a standby has not read yet.", "standby.lag.records"),
        _gauge("standby_lag_seconds", "Time since a standby was at the end of the journal.", "standby.lag.seconds"),
        _gauge(
            "takeover_predicted_seconds",
            "Predicted time from the master's death to a broker that serves.",
            "takeover.total_seconds",
        ),
        _gauge("takeover_predicted_lock_seconds", "Of these, until the lock is taken.", "takeover.lock_seconds"),
        _gauge(
            "takeover_predicted_replay_seconds",
            "Of these, for the fence and for reading the journal's end.",
            "takeover.replay_seconds",
        ),
        _gauge(
            "takeover_predicted_load_seconds",
            "Of these, for handing over queues and subscriptions.",
            "takeover.load_seconds",
        ),
        _gauge(
            "takeover_predicted_budget_seconds",
            "Limit of replay and load (`store.failover_budget`).",
            "takeover.budget_seconds",
        ),
    ),
    "Clients": (
        _counted("connections", "Connections of clients."),
        _counted("clients", "Of these, those that have identified themselves."),
        _counted("slow_consumers", "Consumers that a policy calls slow."),
        _counted("slow_consumers_aborted_total", "Slow consumers that were disconnected."),
        _counted("blocked_producers", "Producers that wait for space."),
        _counted("sends_waiting", "Messages that these producers hold back."),
        _counted("sends_waiting_bytes", "Bytes of these."),
        _counted("sends_delayed_total", "Messages that had to wait for space."),
        _counted("sends_delayed_failed_total", "Of these, messages that were refused in the end."),
        _counted("sends_refused_store_full_total", "Messages refused because the disk is at its reserve."),
        _counted("connections_held_back", "Connections that hold too much memory and are paused."),
        _counted("connections_held_back_total", "Number of times that a connection was paused for its memory."),
    ),
    "MQTT": (
        _counted("mqtt_clients", "Clients of MQTT that are connected."),
        _counted("mqtt_sessions", "Stored sessions, of connected and disconnected clients."),
        _counted("mqtt_sessions_expired_total", "Sessions that expired in this term as master."),
        _counted("mqtt_wills_published_total", "Wills that were published in this term."),
        _counted("mqtt_retained_messages", "Topics that have a retained message."),
        _counted("mqtt_retained_bytes", "Bytes of these."),
    ),
    "Messages": (
        _gauge("queues", "Queues.", "queue_sums.queues"),
        _gauge("queue_messages", "Messages in all queues.", "queue_sums.messages"),
        _gauge("queue_consumers", "Consumers of all queues.", "queue_sums.consumers"),
        _counted("messages", "Messages in all queues and durable subscriptions."),
        _counted("unacknowledged", "Messages that were delivered, and are not acknowledged."),
        _counted("enqueued_total", "Messages that arrived in queues and topics in this term as master."),
        _counted("dequeued_total", "Messages that left queues and durable subscriptions in this term."),
        _counted("dispatched_total", "Deliveries to consumers in this term."),
        _histogram(
            "send_to_receipt_seconds",
            "Time from handing a persistent message to the store to its receipt; sampled.",
        ),
        _histogram(
            "store_to_delivery_seconds",
            "Time from storing a message to its delivery to a consumer; one sample each 0.1 s.",
        ),
        _counted(
            "acknowledgements_unmatched_total",
            "Acknowledgements without a matching delivery: of another connection's message, or of one that is gone."
            " A transaction that has one can only be rolled back.",
        ),
        _counted("dead_letters_total", "Messages that went to a dead letter queue in this term."),
        _counted("expired_total", "Messages that expired in this term."),
        _counted("duplicates_total", "Messages that were sent again and not delivered twice."),
        _counted("scheduled", "Scheduled messages."),
        _counted("scheduled_sent_total", "Scheduled messages that became due in this term."),
        _counted("topic_messages_dropped_total", "Messages that slow topic subscribers missed."),
        _counted("destinations_gone_idle_total", "Destinations removed because they were not used."),
    ),
    "Store": (
        _counted("journal_batches_total", "Batches written to the journal; each is one write."),
        _counted("journal_syncs_total", "Syncs of the journal."),
        _counted("journal_records_total", "Records written to the journal."),
        _counted("journal_bytes_total", "Bytes written to the journal."),
        _counted("damaged_messages_total", "Messages that cannot be read, and are not delivered."),
        _counted("scrub_bytes_total", "Bytes of sealed journal files read to find damage."),
        _counted("scrub_passes_total", "Complete passes over all sealed journal files."),
        _counted("scrub_files_left", "Journal files that the present pass has still to read."),
        _counted("damaged_journal_files", "Sealed journal files with damage that is not repaired."),
        _counted("repaired_batches_total", "Damaged batches that were repaired with the copy of another node."),
        _counted("journal_files_reclaimed_total", "Journal files that were reclaimed."),
        _histogram("journal_sync_duration_seconds", "Duration of syncs of the journal."),
        _histogram("journal_batch_records", "Records of each write to the journal."),
        _counted("checkpoints_total", "Checkpoints of the index."),
        _histogram("checkpoint_duration_seconds", "Duration of checkpoints, which do not interrupt messages."),
        _gauge("journal_files", "Journal files of this store.", "journal.files"),
        _gauge(
            "journal_files_without_messages",
            "Of these, files without a live message: the last one, and those kept for acknowledgements and records.",
            "journal.files_without_messages",
        ),
        _gauge("journal_live_bytes", "Bytes of live messages.", "journal.live_bytes"),
        _gauge(
            "journal_owner_bytes",
            "Of these, the ten queues and durable subscriptions that hold most, and all others.",
            labels=("owner",),
        ),
        _counted("compactions_total", "Journal files that were compacted."),
        _counted("compaction_bytes_total", "Bytes copied by compaction."),
    ),
    "Memory": (
        _counted("memory_limit_bytes", "Limit of the memory that clients use (`broker.memory_limit`)."),
        _counted("memory_used_bytes", "Memory that clients use; the next metrics show its parts."),
        _counted("memory_stored_bytes", "Persistent messages that wait or are delivered."),
        _counted("memory_non_persistent_bytes", "Non-persistent messages."),
        _counted("memory_transactions_bytes", "Open transactions."),
        _counted("memory_waiting_sends_bytes", "Sends that wait for space."),
        _counted("memory_input_bytes", "Incoming frames."),
        _counted("memory_output_bytes", "Outgoing frames."),
        _counted("memory_state_bytes", "Connections, subscriptions and destinations."),
    ),
    "Bridges": (
        _gauge("bridge_connected", "1 for a bridge that is connected to the other broker.", labels=("bridge",)),
        _counter("bridge_connects_total", "Number of times that it was connected.", labels=("bridge",)),
        _counter("bridge_received_total", "Messages that came from the other broker.", labels=("bridge",)),
        _counter("bridge_sent_total", "Messages that the other broker has confirmed.", labels=("bridge",)),
        _counter("bridge_refused_total", "Messages refused for good, by either broker.", labels=("bridge",)),
        _counter("bridge_dropped_total", "Messages of QoS 0 without space or connection.", labels=("bridge",)),
        _counter("bridge_circled_total", "Messages that came back over a circle of bridges.", labels=("bridge",)),
        _gauge("bridge_waiting", "Messages in memory that are not confirmed yet.", labels=("bridge",)),
    ),
    "A replicated set": (
        _gauge("replication_role", "1 for the role of the node in its set, 0 for the others.", labels=("role",)),
        _gauge("replication_epoch", "The epoch that the node leads or follows; 0: none.", "set.epoch"),
        _gauge("replication_promised_epoch", "The epoch that the node promised last.", "set.promised_epoch"),
        _gauge(
            "replication_voters",
            "Stores that have a vote, by the newest header in the node's journal.",
            "set.voters",
        ),
        _gauge("replication_is_voter", "1: the node has a vote.", "set.is_voter"),
        _gauge("replication_is_whole", "1: the node's journal is complete, so it counts.", "set.is_whole"),
        _gauge(
            "replication_has_quorum",
            "1: the node leads and a quorum answers, or it follows a master.",
            "set.has_quorum",
        ),
        _gauge(
            "replication_has_problem",
            "1: the node does not take full part; status says why.",
            "set.has_problem",
        ),
        _gauge("replication_directory_problem", "1: ZooKeeper is unavailable.", "set.directory_problem"),
        _counter("replication_elections_total", "Number of times that the node was elected.", "set.elections"),
        _counter(
            "replication_quorum_losses_total",
            "Number of times that the node led and lost its quorum.",
            "set.quorum_losses",
        ),
        _gauge(
            "replication_follower_lag_bytes",
            "Bytes of the journal that a follower's disk does not have yet; on the master.",
            labels=("node", "store"),
        ),
    ),
}
#: Metrics of single destinations (broker.admin.destination_metrics); ``path`` is the key among the figures of one.
LEFT_OUT: Final = _gauge(
    "destinations_left_out",
    "Destinations without metrics of their own: beyond `admin.metrics_destinations_max` or `admin.answer_size_max`.",
)
_OF: Final = ("kind", "destination", "subscription")
OF_DESTINATIONS: Final = (
    _gauge("destination_messages", "Messages in it.", "messages", _OF),
    _gauge("destination_unacknowledged", "Of these, messages that a consumer has.", "unacknowledged", _OF),
    _gauge("destination_consumers", "Its consumers; of a topic, those that are connected.", "consumers", _OF),
    _counter("destination_enqueued_total", "Messages that arrived in it in this term.", "enqueued", _OF),
    _counter("destination_dequeued_total", "Messages that left it in this term.", "dequeued", _OF),
    _counter("destination_dispatched_total", "Deliveries to consumers in this term.", "dispatched", _OF),
    _counter("destination_dropped_total", "Messages that slow subscribers of a topic missed.", "dropped", _OF),
)
METRICS: Final = tuple(named for group in GROUPS.values() for named in group)
