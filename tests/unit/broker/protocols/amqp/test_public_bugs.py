"""Bugs that users reported for other brokers and clients, and tests that show that this broker does not have them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from tests.unit.broker.protocols.amqp import test_public_bugs_connections as connections
from tests.unit.broker.protocols.amqp import test_public_bugs_receiving as receiving
from tests.unit.broker.protocols.amqp import test_public_bugs_sending as sending
from tests.unit.broker.protocols.amqp import test_public_bugs_state as state

Test = Callable[..., Any]

#: Bug and its tests, whose docstrings name the source.
BUGS: Final[dict[str, tuple[Test, ...]]] = {
    "a drain is answered late, or never": (
        receiving.test_each_drain_is_answered_once_while_messages_arrive,
        receiving.test_a_drain_is_answered_after_the_last_frame_of_a_long_message,
        receiving.test_a_drain_without_credit_is_answered,
    ),
    "credit is granted again and again": (
        receiving.test_acknowledgements_grant_no_credit,
        sending.test_a_client_that_waits_for_memory_gets_no_more_credit,
    ),
    "a control link runs out of credit": (state.test_a_control_link_never_runs_out_of_credit,),
    "messages before the first credit": (receiving.test_nothing_is_sent_before_the_first_flow_of_the_link,),
    "later transfers of a message without ids": (sending.test_later_transfers_of_a_message_can_omit_the_ids,),
    "a settled disposition without a state": (receiving.test_a_disposition_without_a_state_acknowledges_nothing,),
    "initial-delivery-count other than 0": (
        sending.test_the_initial_delivery_count_can_be_any_number,
        connections.test_ids_of_the_client_can_wrap,
    ),
    "heart-beats and silence": (
        connections.test_empty_frames_are_heart_beats_on_every_channel,
        connections.test_the_announced_idle_time_out_is_half_of_the_limit,
    ),
    "an impossible next-incoming-id": (connections.test_an_impossible_next_incoming_id_is_treated_as_absent,),
    "the window of a session": (
        connections.test_each_flow_renews_the_window_of_the_broker,
        connections.test_a_negative_window_stops_deliveries_until_it_opens,
    ),
    "frames after a refused open": (
        connections.test_frames_after_a_refused_open_do_not_hide_the_reason,
        connections.test_the_open_of_a_refusal_is_valid,
    ),
    "a refused connection or login without its real reason": (
        connections.test_a_refusal_names_a_container_id_in_use,
        connections.test_a_login_that_cannot_be_checked_has_a_temporary_outcome,
    ),
    "a refused link": (
        sending.test_a_refused_attach_is_answered_with_an_attach_and_a_detach,
        sending.test_a_refusal_contains_no_internals,
    ),
    "durable by default": (
        sending.test_a_message_is_durable_only_if_its_header_says_so,
        receiving.test_a_selector_can_test_whether_a_message_is_durable,
    ),
    "ttl and absolute-expiry-time": (
        sending.test_a_ttl_is_unsigned,
        sending.test_a_ttl_applies_without_an_expiry_time,
    ),
    "outcomes other than accepted": (
        receiving.test_a_rejected_message_is_not_redelivered,
        receiving.test_modified_without_flags_does_not_count_as_failed,
        receiving.test_redeliveries_of_a_failed_message_are_limited,
    ),
    "rejected and presettled messages that are never freed": (
        sending.test_refused_messages_release_their_credit,
        sending.test_presettled_messages_release_their_credit,
    ),
    "order of redelivered messages": (
        receiving.test_released_messages_keep_their_order_and_precede_newer_ones,
        receiving.test_unsettled_messages_keep_their_order,
        state.test_rolled_back_messages_precede_newer_ones,
    ),
    "an incomplete transaction": (
        state.test_a_refused_message_fails_its_transaction,
        state.test_messages_accepted_in_a_transaction_leave_their_queue,
        state.test_an_unknown_transaction_does_not_end_the_connection,
    ),
    "durable subscriptions that are deleted in error": (
        state.test_a_durable_subscription_is_the_same_with_and_without_a_scheme,
        state.test_a_refused_unsubscription_is_reported,
        state.test_the_close_of_a_durable_subscription_deletes_no_queue,
    ),
    "subscriptions that are not deleted, or conflict": (
        state.test_a_subscription_that_is_not_durable_ends_with_its_link,
        state.test_a_global_subscription_ends_when_it_is_unsubscribed,
    ),
    "ghost consumers, leaked links": (
        connections.test_no_consumer_outlives_its_link,
        connections.test_nothing_is_sent_on_a_session_that_has_ended,
        connections.test_a_container_id_is_free_after_its_connection_is_lost,
        receiving.test_an_attach_with_an_immediate_detach_leaves_no_consumer,
        receiving.test_credit_after_the_detach_of_the_client_is_ignored,
    ),
    "frames above max-frame-size": (
        connections.test_no_frame_exceeds_the_max_frame_size_of_the_client,
        connections.test_an_answer_above_the_max_frame_size_ends_the_connection,
    ),
    "bytes of a long message are lost": (connections.test_a_long_message_is_complete_with_any_sequence_of_windows,),
    "wrong frame sizes, other protocols": (
        connections.test_a_wrong_frame_size_ends_the_connection_at_once,
        connections.test_the_size_of_frames_before_the_open_is_limited,
        connections.test_a_client_of_another_protocol_gets_the_header_and_is_disconnected,
    ),
    "acknowledgements with gaps, or shortly before a detach": (
        receiving.test_acknowledgements_with_gaps_do_not_cover_the_gaps,
        receiving.test_acknowledgements_take_effect_before_their_link_ends,
        sending.test_a_disposition_covers_only_equal_outcomes,
    ),
    "a slow link delays others": (
        receiving.test_a_link_without_credit_does_not_delay_others,
        sending.test_a_client_that_waits_for_memory_can_still_acknowledge,
    ),
    "types and order of sections": (
        sending.test_a_message_id_keeps_its_type,
        sending.test_a_footer_keeps_its_symbols,
        sending.test_delivery_annotations_can_precede_the_header,
    ),
    "message ids that count as duplicates": (sending.test_messages_with_one_message_id_are_not_duplicates,),
    "the anonymous relay": (
        sending.test_the_anonymous_relay_checks_each_message,
        sending.test_a_refused_presettled_message_detaches_the_anonymous_relay,
    ),
    "damage that another protocol stored": (
        receiving.test_a_damaged_message_does_not_end_the_connection_of_a_receiver,
    ),
}


def cases_of(module: ModuleType) -> list[Test]:
    return [each for name, each in vars(module).items() if name.startswith("test_")]


def test_each_test_of_a_public_bug_is_in_the_table_and_has_a_source() -> None:
    listed = [test for tests in BUGS.values() for test in tests]
    assert sorted(map(id, listed)) == sorted(
        id(test) for module in (connections, receiving, sending, state) for test in cases_of(module)
    )
    assert not [test.__name__ for test in listed if not test.__doc__]
