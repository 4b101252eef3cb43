"""Every metric that a scrape may have: name, kind, meaning, labels, and where a status (``GET /status``) has its value.

The exposition (broker.admin.metrics) and the table in docs/metrics.md are both made from it. Units are base units, and
the end of a name says which; a name that ends in ``_total`` is a counter's, and no other is.
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
    """``name`` is without the prefix. ``path``: the keys of a status that lead to the value, with dots between; empty
    where a function of broker.admin.metrics makes one sample for each combination of ``labels``."""

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
    """One of ``counts``, under its own name."""
    return (_counter if name.endswith("_total") else _gauge)(name, meaning, f"counts.{name}")


#: By what they are about. A master has all but those of a standby; a set has those of a set beside them.
GROUPS: Final[dict[str, tuple[Named, ...]]] = {
    "The broker": (
        _gauge("broker_info", "1; its labels say who the broker is.", labels=("name", "version")),
        _gauge("role", "1 for the role that the broker has, 0 for the others.", labels=("role",)),
        _gauge("phase", "1 for the phase of its life that the broker is in, 0 for the others.", labels=("phase",)),
        _gauge("epoch", "The epoch of the master's rule.", "epoch"),
        _gauge("problems", "Reasons why the broker is not healthy.", "problems"),
        _gauge("uptime_seconds", "Since the process began.", "uptime_seconds"),
        _gauge("loop_pause_max_seconds", "The longest time that the event loop came late.", "loop_lag_seconds.max"),
        _histogram(
            "loop_lag_seconds",
            "How late the event loop came to what was due, asked 20 times a second.",
            "loop_lag_seconds",
        ),
        _counted(
            "log_lines_dropped_total",
            "Lines of the log that were not written, as what takes them was too slow or failed.",
        ),
        _counted("certificates_expiring", "Files with a certificate or a revocation list that expired, or soon does."),
        _counted("certificates_expired", "Files with a certificate or a revocation list that expired."),
        _gauge("certificate_remaining_seconds", "Until the first of a file expires.", labels=("file", "kind")),
        _counted("overlong_steps_total", "What clients sent that kept the event loop for more than 50 ms."),
    ),
    "Lock and mastership": (
        _gauge("lock_info", "1; its labels say which lock it is.", labels=("kind", "where")),
        _gauge(
            "lock_proof_age_seconds",
            "Since it was last proved that the lock is this broker's; a master has it.",
            "lock.proof_age_seconds",
        ),
        _gauge(
            "lock_proof_holds_seconds",
            "For so long that proof holds yet; then no receipt is sent any more.",
            "lock.proof_holds_seconds",
        ),
        _counted("promotions_total", "How often this process became master."),
        _counted("handovers_total", "How often it handed over as planned."),
        _counter("demotions_total", "How often it stepped down, by what led to it.", labels=("trouble",)),
        _gauge(
            "last_takeover_seconds",
            "From the lock seen in other hands until the ports answered, at the latest take-over.",
            "last_takeover_seconds",
        ),
    ),
    "Standby and take-over": (
        _gauge("standby_caught_up", "1 for a standby whose index is up to date.", "standby.has_caught_up"),
        _gauge("standby_lag_bytes", "Bytes of the journal that a standby has not read yet.", "standby.lag.bytes"),
        _gauge("standby_lag_records", "Records of the journal that a standby has not read yet.", "standby.lag.records"),
        _gauge("standby_lag_seconds", "Since a standby was at the journal's end.", "standby.lag.seconds"),
        _gauge(
            "takeover_predicted_seconds",
            "Predicted time from the master's death to a broker that serves.",
            "takeover.total_seconds",
        ),
        _gauge("takeover_predicted_lock_seconds", "Of these, until the lock is had.", "takeover.lock_seconds"),
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
            "What replay and load may take (`store.failover_budget`).",
            "takeover.budget_seconds",
        ),
    ),
    "Clients": (
        _counted("connections", "Connections of clients."),
        _counted("clients", "Of these, those that said who they are."),
        _counted("slow_consumers", "Consumers that a policy calls slow."),
        _counted("slow_consumers_aborted_total", "Slow consumers that were ended for it."),
        _counted("blocked_producers", "Producers that wait for room."),
        _counted("sends_waiting", "Messages that they hold back."),
        _counted("sends_waiting_bytes", "Bytes of these."),
        _counted("sends_delayed_total", "Messages that had to wait for room."),
        _counted("sends_delayed_failed_total", "Of these, those that were refused in the end."),
        _counted("sends_refused_store_full_total", "Messages refused because the disk is at its reserve."),
        _counted("connections_held_back", "Connections that hold too much memory, and get nothing meanwhile."),
        _counted("connections_held_back_total", "How often one was."),
    ),
    "MQTT": (
        _counted("mqtt_clients", "Clients of MQTT that are connected."),
        _counted("mqtt_sessions", "Sessions that are stored, of clients that are there and that are away."),
        _counted("mqtt_sessions_expired_total", "Sessions whose time was over, in this term as master."),
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
        _counted("dequeued_total", "Messages that left queues and durable subscriptions for good in this term."),
        _counted("dispatched_total", "Messages given to consumers in this term, each time counted."),
        _histogram(
            "send_to_receipt_seconds",
            "From a persistent message handed to the store until its receipt; of some.",
        ),
        _histogram(
            "store_to_delivery_seconds",
            "From a message that is stored until a consumer is given it; of one in 0.1 s.",
        ),
        _counted(
            "acknowledgements_unmatched_total",
            "Acknowledgements for which no delivery waited: of what another connection was given, or of what is gone."
            " A transaction that has one can only be rolled back.",
        ),
        _counted("dead_letters_total", "Messages that went to a dead letter queue in this term."),
        _counted("expired_total", "Messages that expired in this term."),
        _counted("duplicates_total", "Messages sent again that were stored before, and are not given out twice."),
        _counted("scheduled", "Messages that wait for their time."),
        _counted("scheduled_sent_total", "Messages whose time came in this term."),
        _counted("topic_messages_dropped_total", "Messages that slow subscribers of topics did not get."),
        _counted("destinations_gone_idle_total", "Destinations removed because nobody used them."),
    ),
    "Store": (
        _counted("journal_batches_total", "Batches written to the journal; each is one write."),
        _counted("journal_syncs_total", "Syncs of the journal."),
        _counted("journal_records_total", "Records written to the journal."),
        _counted("journal_bytes_total", "Bytes written to the journal."),
        _counted("damaged_messages_total", "Messages that cannot be read, and are not delivered."),
        _counted("scrub_bytes_total", "Bytes of sealed journal files that were read to find damage."),
        _counted("scrub_passes_total", "How often all sealed journal files were read through."),
        _counted("scrub_files_left", "Journal files that the pass under way has still to read."),
        _counted("damaged_journal_files", "Sealed journal files with damage that is not repaired."),
        _counted("repaired_batches_total", "Damaged batches that were repaired by the copy of another node."),
        _counted("journal_files_reclaimed_total", "Journal files that were given up: nothing in them was needed."),
        _histogram("journal_sync_duration_seconds", "How long syncs of the journal took."),
        _histogram("journal_batch_records", "Records of each write to the journal."),
        _counted("checkpoints_total", "Checkpoints of the index."),
        _histogram("checkpoint_duration_seconds", "How long they took, while messages went on."),
        _gauge("journal_files", "Journal files of this store.", "journal.files"),
        _gauge(
            "journal_files_without_messages",
            "Of these, those without a message that lives: the last one, and what acknowledgements and records keep.",
            "journal.files_without_messages",
        ),
        _gauge("journal_live_bytes", "Bytes of messages that live.", "journal.live_bytes"),
        _gauge(
            "journal_owner_bytes",
            "Of these, those of the ten queues and durable subscriptions that hold most, and of all others.",
            labels=("owner",),
        ),
        _counted("compactions_total", "Journal files that were emptied by copying what lived."),
        _counted("compaction_bytes_total", "Bytes that were copied for it."),
    ),
    "Memory": (
        _counted("memory_limit_bytes", "What clients may have the broker hold (`broker.memory_limit`)."),
        _counted("memory_used_bytes", "What they have it hold; the rest says for what."),
        _counted("memory_stored_bytes", "Persistent messages that wait or were delivered."),
        _counted("memory_non_persistent_bytes", "Messages that are not persistent."),
        _counted("memory_transactions_bytes", "Transactions that are not over."),
        _counted("memory_waiting_sends_bytes", "Sends that wait for room."),
        _counted("memory_input_bytes", "Frames on their way in."),
        _counted("memory_output_bytes", "Frames on their way out."),
        _counted("memory_state_bytes", "Connections, subscriptions and destinations."),
    ),
    "Bridges": (
        _gauge("bridge_connected", "1 for a bridge that is connected to the other broker.", labels=("bridge",)),
        _counter("bridge_connects_total", "How often it was connected.", labels=("bridge",)),
        _counter("bridge_received_total", "Messages that came from the other broker.", labels=("bridge",)),
        _counter("bridge_sent_total", "Messages that the other broker has confirmed.", labels=("bridge",)),
        _counter("bridge_refused_total", "Messages that were refused for good, here or there.", labels=("bridge",)),
        _counter("bridge_dropped_total", "Messages of QoS 0 that had no room, or no connection.", labels=("bridge",)),
        _counter("bridge_circled_total", "Messages that came again over a circle of bridges.", labels=("bridge",)),
        _gauge("bridge_waiting", "Messages in memory that are not confirmed yet.", labels=("bridge",)),
    ),
    "A replicated set": (
        _gauge("replication_role", "1 for the part that the node has in its set, 0 for the others.", labels=("role",)),
        _gauge("replication_epoch", "The epoch that the node leads or follows; 0: none.", "set.epoch"),
        _gauge("replication_promised_epoch", "The epoch that it promised last.", "set.promised_epoch"),
        _gauge(
            "replication_voters",
            "Stores that have a vote, as the newest header in the node's journal says.",
            "set.voters",
        ),
        _gauge("replication_is_voter", "1: it has a vote.", "set.is_voter"),
        _gauge("replication_is_whole", "1: its journal lacks nothing, so that it counts.", "set.is_whole"),
        _gauge(
            "replication_has_quorum",
            "1: it leads, and a quorum answers it; or it follows a master.",
            "set.has_quorum",
        ),
        _gauge(
            "replication_has_problem",
            "1: it does not take part as it should; status says why.",
            "set.has_problem",
        ),
        _gauge("replication_directory_problem", "1: ZooKeeper cannot be asked.", "set.directory_problem"),
        _counter("replication_elections_total", "How often it was elected.", "set.elections"),
        _counter(
            "replication_quorum_losses_total",
            "How often it led, and no quorum answered it any more.",
            "set.quorum_losses",
        ),
        _gauge(
            "replication_follower_lag_bytes",
            "Bytes of the journal that a follower's disk has not got; the master has it.",
            labels=("node", "store"),
        ),
    ),
}
#: Of single destinations (broker.admin.destination_metrics); ``path`` is the key among the figures of one.
LEFT_OUT: Final = _gauge(
    "destinations_left_out",
    "Destinations without metrics of their own: beyond `admin.metrics_destinations_max` or `admin.answer_size_max`.",
)
_OF: Final = ("kind", "destination", "subscription")
OF_DESTINATIONS: Final = (
    _gauge("destination_messages", "Messages in it.", "messages", _OF),
    _gauge("destination_unacknowledged", "Of these, those that a consumer has.", "unacknowledged", _OF),
    _gauge("destination_consumers", "Its consumers; of a topic, those that are there.", "consumers", _OF),
    _counter("destination_enqueued_total", "Messages that arrived in it in this term.", "enqueued", _OF),
    _counter("destination_dequeued_total", "Messages that left it for good in this term.", "dequeued", _OF),
    _counter("destination_dispatched_total", "Messages given to consumers in this term.", "dispatched", _OF),
    _counter("destination_dropped_total", "Messages that slow subscribers of a topic did not get.", "dropped", _OF),
)
METRICS: Final = tuple(named for group in GROUPS.values() for named in group)
