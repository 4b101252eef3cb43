"""Table of all metrics: name, kind, meaning, labels, and the place of the value in ``GET /status``.

The text of a scrape (broker.admin.metrics) and the table in docs/metrics.md are made from it. Units are base units, and
are named at the end of a name. Only names of counters end in ``_total``.
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
    """A metric. ``name`` is without the prefix. ``path``: the keys of the value in a status, separated by dots; empty
    if a function in broker.admin.metrics makes one sample for each combination of ``labels``."""

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
    """Return the metric for the entry ``name`` in ``counts`` of a status."""
    return (_counter if name.endswith("_total") else _gauge)(name, meaning, f"counts.{name}")


#: The metrics by subject. A master has all subjects except those of a standby and of a set; a node of a set also has
#: those of a set.
GROUPS: Final[dict[str, tuple[Named, ...]]] = {
    "The broker": (
        _gauge("broker_info", "Always 1; the labels name broker and version.", labels=("name", "version")),
        _gauge("role", "1 for the current role, 0 for the others.", labels=("role",)),
        _gauge("phase", "1 for the current phase of the broker's life, 0 for the others.", labels=("phase",)),
        _gauge("epoch", "Epoch of the master.", "epoch"),
        _gauge("problems", "Number of reasons why the broker is unhealthy.", "problems"),
        _gauge("uptime_seconds", "Time since the process started.", "uptime_seconds"),
        _gauge("loop_pause_max_seconds", "Longest delay of the event loop.", "loop_lag_seconds.max"),
        _histogram(
            "loop_lag_seconds",
            "Delay of the event loop, sampled 20 times a second.",
            "loop_lag_seconds",
        ),
        _counted(
            "log_lines_dropped_total",
            "Log lines lost because their target was too slow or failed.",
        ),
        _counted(
            "certificates_expiring", "Files with a certificate or revocation list that has expired or expires soon."
        ),
        _counted("certificates_expired", "Files with a certificate or revocation list that has expired."),
        _gauge(
            "certificate_remaining_seconds",
            "Time until the first certificate or revocation list of a file expires.",
            labels=("file", "kind"),
        ),
        _counted("overlong_steps_total", "Client commands that kept the event loop busy for more than 50 ms."),
    ),
    "Lock and mastership": (
        _gauge("lock_info", "Always 1; the labels name kind and place of the lock.", labels=("kind", "where")),
        _gauge(
            "lock_proof_age_seconds",
            "Master: time since the last proof that it holds the lock.",
            "lock.proof_age_seconds",
        ),
        _gauge(
            "lock_proof_holds_seconds",
            "Master: remaining validity of that proof. At 0 no receipt is sent.",
            "lock.proof_holds_seconds",
        ),
        _counted("promotions_total", "Times that this process became master."),
        _counted("handovers_total", "Planned handovers."),
        _counter("demotions_total", "Demotions by cause.", labels=("trouble",)),
        _gauge(
            "last_takeover_seconds",
            "Duration of the latest take-over: from the last time that another broker held the lock until the "
            "ports answered.",
            "last_takeover_seconds",
        ),
    ),
    "Standby and take-over": (
        _gauge("standby_caught_up", "1 for a standby whose index is up to date.", "standby.has_caught_up"),
        _gauge("standby_lag_bytes", "Bytes of the journal that the standby has not read.", "standby.lag.bytes"),
        _gauge("standby_lag_records", "Records of the journal that the standby has not read.", "standby.lag.records"),
        _gauge("standby_lag_seconds", "Time since the standby was at the end of the journal.", "standby.lag.seconds"),
        _gauge(
            "takeover_predicted_seconds",
            "Predicted time from the death of the master until a broker serves.",
            "takeover.total_seconds",
        ),
        _gauge(
            "takeover_predicted_lock_seconds",
            "Part of the predicted time: the wait for the lock.",
            "takeover.lock_seconds",
        ),
        _gauge(
            "takeover_predicted_replay_seconds",
            "Part of the predicted time: the fence and the replay of the journal.",
            "takeover.replay_seconds",
        ),
        _gauge(
            "takeover_predicted_load_seconds",
            "Part of the predicted time: loading queues and subscriptions.",
            "takeover.load_seconds",
        ),
        _gauge(
            "takeover_predicted_budget_seconds",
            "Budget of replay and load (`store.failover_budget`).",
            "takeover.budget_seconds",
        ),
    ),
    "Clients": (
        _counted("connections", "Client connections."),
        _gauge("connector_connections", "Client connections of a connector.", labels=("connector",)),
        _counted("clients", "Client connections that have identified themselves."),
        _counted("slow_consumers", "Consumers that are slow by policy."),
        _counted("slow_consumers_aborted_total", "Slow consumers that were removed."),
        _counted("blocked_producers", "Producers that wait for room."),
        _counted("sends_waiting", "Messages that wait for room."),
        _counted("sends_waiting_bytes", "Bytes of messages that wait for room."),
        _counted("sends_delayed_total", "Messages that had to wait for room."),
        _counted("sends_delayed_failed_total", "Messages that had to wait and were then refused."),
        _counted("sends_refused_store_full_total", "Messages refused because free disk space is below the reserve."),
        _counted(
            "connections_held_back", "Connections that hold too much memory and receive nothing until they acknowledge."
        ),
        _counted("connections_held_back_total", "Times that a connection was held back."),
    ),
    "MQTT": (
        _counted("mqtt_clients", "Connected MQTT clients."),
        _counted("mqtt_sessions", "Stored MQTT sessions of connected and absent clients."),
        _counted("mqtt_sessions_expired_total", "Sessions that expired in this term as master."),
        _counted("mqtt_wills_published_total", "Wills published in this term."),
        _counted("mqtt_retained_messages", "Topics with a retained message."),
        _counted("mqtt_retained_bytes", "Bytes of retained messages."),
    ),
    "Messages": (
        _gauge("queues", "Queues.", "queue_sums.queues"),
        _gauge("queue_messages", "Messages in all queues.", "queue_sums.messages"),
        _gauge("queue_consumers", "Consumers of all queues.", "queue_sums.consumers"),
        _counted("messages", "Messages in all queues and durable subscriptions."),
        _counted("unacknowledged", "Messages delivered but not acknowledged."),
        _counted("enqueued_total", "Messages received by queues and topics in this term as master."),
        _counted("dequeued_total", "Messages that left queues and durable subscriptions for good in this term."),
        _counted("dispatched_total", "Deliveries to consumers in this term, redeliveries included."),
        _histogram(
            "send_to_receipt_seconds",
            "Time from handing a persistent message to the store until its receipt; a sample.",
        ),
        _histogram(
            "store_to_delivery_seconds",
            "Time from storing a message until its first delivery; one sample in 0.1 s.",
        ),
        _counted(
            "acknowledgements_unmatched_total",
            "Acknowledgements without a delivery on their connection: of a message of another connection, or of a "
            "message that no longer exists. A transaction with one can only be rolled back.",
        ),
        _counted("dead_letters_total", "Messages moved to a dead letter queue in this term."),
        _counted("expired_total", "Messages that expired in this term."),
        _counted("duplicates_total", "Repeated messages that were already stored; they are not delivered twice."),
        _counted("scheduled", "Scheduled messages that wait for their time."),
        _counted("scheduled_sent_total", "Scheduled messages sent in this term."),
        _counted("topic_messages_dropped_total", "Messages dropped for slow topic subscribers."),
        _counted("destinations_gone_idle_total", "Destinations removed because they were unused."),
    ),
    "Store": (
        _counted("journal_batches_total", "Batches written to the journal, one write each."),
        _counted("journal_syncs_total", "Syncs of the journal."),
        _counted("journal_records_total", "Records written to the journal."),
        _counted("journal_bytes_total", "Bytes written to the journal."),
        _counted("damaged_messages_total", "Unreadable messages, which are not delivered."),
        _counted("scrub_bytes_total", "Bytes of sealed journal files read to find damage."),
        _counted("scrub_passes_total", "Complete scrubs of all sealed journal files."),
        _counted("scrub_files_left", "Journal files that the current scrub has still to read."),
        _counted("damaged_journal_files", "Sealed journal files with damage that is not repaired."),
        _counted("repaired_batches_total", "Damaged batches repaired from the copy of another node."),
        _counted("journal_files_reclaimed_total", "Journal files removed because nothing in them was needed."),
        _histogram("journal_sync_duration_seconds", "Duration of journal syncs."),
        _histogram("journal_batch_records", "Records of each write to the journal."),
        _counted("checkpoints_total", "Checkpoints of the index."),
        _histogram("checkpoint_duration_seconds", "Duration of checkpoints; messages continue meanwhile."),
        _gauge("journal_files", "Journal files of this store.", "journal.files"),
        _gauge(
            "journal_files_without_messages",
            "Journal files without a live message: the newest one, and those kept for acknowledgements and records.",
            "journal.files_without_messages",
        ),
        _gauge("journal_live_bytes", "Bytes of live messages in the journal.", "journal.live_bytes"),
        _gauge(
            "journal_owner_bytes",
            "Live bytes of the ten queues and durable subscriptions that hold most, and of all others.",
            labels=("owner",),
        ),
        _counted("compactions_total", "Journal files emptied by compaction."),
        _counted("compaction_bytes_total", "Bytes copied by compaction."),
    ),
    "Memory": (
        _counted("memory_limit_bytes", "Memory limit for all clients (`broker.memory_limit`)."),
        _counted("memory_used_bytes", "Memory held for all clients; the following metrics are its parts."),
        _counted("memory_stored_bytes", "Persistent messages that wait or are not acknowledged."),
        _counted("memory_non_persistent_bytes", "Non-persistent messages."),
        _counted("memory_transactions_bytes", "Open transactions."),
        _counted("memory_waiting_sends_bytes", "Sends that wait for room."),
        _counted("memory_input_bytes", "Incoming frames that are incomplete or wait."),
        _counted("memory_output_bytes", "Outgoing frames that are unread."),
        _counted("memory_browsed_bytes", "Stored messages that were read for browsers, but are not sent yet."),
        _counted("memory_state_bytes", "Connections, subscriptions and destinations."),
    ),
    "Bridges": (
        _gauge("bridge_connected", "1 for a bridge that is connected to the other broker.", labels=("bridge",)),
        _counter("bridge_connects_total", "Connections made to the other broker.", labels=("bridge",)),
        _counter("bridge_received_total", "Messages received from the other broker.", labels=("bridge",)),
        _counter("bridge_sent_total", "Messages confirmed by the other broker.", labels=("bridge",)),
        _counter("bridge_refused_total", "Messages finally refused, here or by the other broker.", labels=("bridge",)),
        _counter(
            "bridge_dropped_total",
            "QoS 0 messages dropped because there was no room or no connection.",
            labels=("bridge",),
        ),
        _counter("bridge_circled_total", "Messages that returned through a circle of bridges.", labels=("bridge",)),
        _gauge("bridge_waiting", "Unconfirmed messages in memory.", labels=("bridge",)),
    ),
    "A replicated set": (
        _gauge("replication_role", "1 for the node's role in its set, 0 for the others.", labels=("role",)),
        _gauge("replication_epoch", "Epoch that the node leads or follows; 0: none.", "set.epoch"),
        _gauge("replication_promised_epoch", "Epoch that the node promised last.", "set.promised_epoch"),
        _gauge(
            "replication_voters",
            "Stores with a vote, by the newest header in the node's journal.",
            "set.voters",
        ),
        _gauge("replication_is_voter", "1: the node has a vote.", "set.is_voter"),
        _gauge("replication_is_whole", "1: its journal is complete, so its vote counts.", "set.is_whole"),
        _gauge(
            "replication_has_quorum",
            "1: it leads and a quorum answers, or it follows a master.",
            "set.has_quorum",
        ),
        _gauge(
            "replication_has_problem",
            "1: it does not take part normally; status gives the reason.",
            "set.has_problem",
        ),
        _gauge("replication_directory_problem", "1: ZooKeeper is not reachable.", "set.directory_problem"),
        _counter("replication_elections_total", "Times that the node was elected.", "set.elections"),
        _counter(
            "replication_quorum_losses_total",
            "Times that it led and lost its quorum.",
            "set.quorum_losses",
        ),
        _gauge(
            "replication_follower_lag_bytes",
            "Master: bytes of the journal that a follower's disk does not have yet.",
            labels=("node", "store"),
        ),
    ),
}
#: Metrics of single destinations (broker.admin.metrics); ``path`` is the key among the figures of one.
LEFT_OUT: Final = _gauge(
    "destinations_left_out",
    "Destinations without their own metrics: beyond `admin.metrics_destinations_max` or `admin.answer_size_max`.",
)
_OF: Final = ("kind", "destination", "subscription")
OF_DESTINATIONS: Final = (
    _gauge("destination_messages", "Messages in the destination.", "messages", _OF),
    _gauge("destination_unacknowledged", "Messages delivered but not acknowledged.", "unacknowledged", _OF),
    _gauge("destination_consumers", "Consumers; of a topic, connected ones.", "consumers", _OF),
    _counter("destination_enqueued_total", "Messages received in this term.", "enqueued", _OF),
    _counter("destination_dequeued_total", "Messages that left it for good in this term.", "dequeued", _OF),
    _counter("destination_dispatched_total", "Deliveries to consumers in this term.", "dispatched", _OF),
    _counter("destination_dropped_total", "Messages dropped for slow subscribers of a topic.", "dropped", _OF),
)
METRICS: Final = tuple(named for group in GROUPS.values() for named in group)
