"""Entries of [[destinations]] take effect as written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.broker.core.policies import DeadLetterKind, DestinationPolicy
from tandemmq.broker.settings.policies import policies_of
from tandemmq.config.load import load
from tandemmq.config.settings import Settings
from tandemmq.store.records.message import Destination, DestinationKind

QUEUE = DestinationKind.QUEUE
Read = Callable[[str], Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str) -> Settings:
        (tmp_path / "tandemmq.toml").write_text(text)
        return load(str(tmp_path / "tandemmq.toml"), {})

    return write_and_read


def test_an_empty_entry_is_like_no_entry(read: Read) -> None:
    text = "[broker]\nqueue_prefetch = 7\nmaximum_redeliveries = 2\n[[destinations]]\nqueue = 'A'"
    policies = policies_of(read(text))
    assert policies.of(Destination(QUEUE, "A")) == policies.of(Destination(QUEUE, "B")) == policies.default
    assert policies.default.queue_prefetch == 7
    assert policies.default.redelivery.maximum_redeliveries == 2
    assert policies_of(load(None, {})).default == DestinationPolicy()


EVERYTHING = """
[[destinations]]
queue = "A"
queue_prefetch = 0
queue_browser_prefetch = 2
topic_prefetch = 3
durable_topic_prefetch = 4
memory_limit = 5
max_message_size = 6
producer_flow_control = false
send_fail_if_no_space = true
send_fail_if_no_space_after_timeout = 7
blocked_producer_warning_interval = 8
expire_messages_period = 9
ttl_ceiling = 10
zero_expiration_override = 11
prioritized_messages = true
all_consumers_exclusive_by_default = true
use_consumer_priority = false
auto_create = false
max_destinations = 12
gc_inactive_destinations = true
inactive_timeout_before_gc = 13
advisory_for_consumed = true
advisory_for_delivery = true
advisory_for_dispatched = true
advisory_for_discarding_messages = true
advisory_for_slow_consumers = true
advisory_when_full = true
send_advisory_if_no_consumers = true
include_body_for_advisory = true
use_prefetch_extension = false
always_retroactive = true
consumers_before_dispatch_starts = 2
time_before_dispatch_starts = 21
[destinations.message_eviction_strategy]
type = "unique_property"
property_name = "p"
[destinations.subscription_recovery_policy]
type = "timed"
recover_duration = 22
[destinations.pending_message_limit_strategy]
limit = 14
multiplier = 0.5
[destinations.dead_letter_strategy]
type = "shared"
dead_letter_queue = "a"
queue_prefix = "b"
queue_suffix = "c"
topic_prefix = "d"
topic_suffix = "e"
process_expired = false
process_non_persistent = true
expiration = 15
use_queue_for_queue_messages = false
use_queue_for_topic_messages = false
destination_per_durable_subscriber = true
enable_audit = false
[destinations.redelivery]
maximum_redeliveries = -1
initial_redelivery_delay = 16
redelivery_delay = 17
use_exponential_back_off = true
back_off_multiplier = 1.5
maximum_redelivery_delay = 18
[destinations.slow_consumer_strategy]
type = "abort_slow_ack_consumer"
max_slow_duration = -1
max_slow_count = 19
max_time_since_last_ack = 20
ignore_idle_consumers = false
abort_connection = true
"""


def test_every_setting_of_an_entry_arrives(read: Read) -> None:
    policy = policies_of(read(EVERYTHING)).of(Destination(QUEUE, "A"))
    usual = DestinationPolicy()
    for field in dataclasses.fields(DestinationPolicy):
        assert getattr(policy, field.name) != getattr(usual, field.name), field.name
    dead, redelivery, slow = policy.dead_letter, policy.redelivery, policy.abort_slow
    assert dataclasses.astuple(dead)[:9] == (DeadLetterKind.SHARED, "a", "b", "c", "d", "e", False, True, 15)
    assert dataclasses.astuple(dead)[9:] == (False, False, True, False)
    assert dataclasses.astuple(redelivery) == (None, 16, 17, True, 1.5, 18)
    assert slow is not None
    assert dataclasses.astuple(slow) == (None, 19, 20, False, True)
    assert (policy.memory_limit, policy.max_message_size, policy.pending_message_limit) == (5, 6, 14)
    assert (policy.ttl_ceiling, policy.zero_expiration_override, policy.max_destinations) == (10, 11, 12)
    assert policy.send_fail_if_no_space_after_timeout == 7
