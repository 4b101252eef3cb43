"""Table of bugs that users reported of other brokers and clients, and the tests that show the behaviour here."""

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
        receiving.test_a_drain_is_answered_behind_the_last_frame_of_a_long_message,
        receiving.test_a_drain_without_credit_is_answered,
    ),
    "credit is granted again and again": (
        receiving.test_acknowledgements_grant_no_credit,
        sending.test_a_client_that_waits_for_memory_gets_no_more_credit,
    ),
    "a control link runs out of credit": (state.test_a_control_link_never_runs_out_of_credit,),
    "messages come before the first credit": (receiving.test_nothing_is_sent_before_the_first_flow_of_the_link,),
    "later transfers of a message without ids": (sending.test_later_transfers_of_a_message_may_have_no_ids,),
    "a settled disposition without a state": (receiving.test_a_disposition_without_a_state_hurts_nothing,),
    "an initial-delivery-count other than 0": (
        sending.test_the_first_delivery_count_may_be_any_number,
        connections.test_ids_of_the_client_wrap,
    ),
    "heart-beats and silence": (
        connections.test_empty_frames_are_heart_beats_on_every_channel,
        connections.test_the_announced_silence_is_half_of_what_is_enforced,
    ),
    "an impossible next-incoming-id": (connections.test_an_impossible_next_incoming_id_counts_as_absent,),
    "the window of a session": (
        connections.test_our_window_is_whole_in_each_flow,
        connections.test_a_window_that_shrinks_below_what_was_sent_stops_and_opens_again,
    ),
    "frames behind a refused open": (
        connections.test_a_refused_open_hides_what_was_pipelined_behind_it,
        connections.test_the_open_of_a_refusal_is_a_valid_one,
    ),
    "a refused connection or login that looks like another": (
        connections.test_a_container_id_in_use_is_named_as_the_reason,
        connections.test_a_login_that_cannot_be_checked_may_be_tried_again,
    ),
    "a refused link": (
        sending.test_a_refused_attach_has_both_answers_and_the_reason,
        sending.test_a_refusal_tells_no_internals,
    ),
    "durable by default": (
        sending.test_a_message_is_durable_if_it_says_so,
        receiving.test_a_selector_sees_whether_a_message_is_durable,
    ),
    "ttl and absolute-expiry-time": (
        sending.test_a_ttl_is_unsigned,
        sending.test_a_ttl_counts_without_an_expiry_time,
    ),
    "outcomes other than accepted": (
        receiving.test_a_refused_message_does_not_come_back,
        receiving.test_modified_without_flags_counts_nothing,
        receiving.test_a_failed_delivery_counts_and_has_an_end,
    ),
    "rejected and presettled messages that are never freed": (
        sending.test_refused_messages_give_their_credit_back,
        sending.test_presettled_messages_give_their_credit_back,
    ),
    "order of messages that come back": (
        receiving.test_released_messages_come_back_in_order_and_before_newer_ones,
        receiving.test_unsettled_messages_come_back_in_order,
        state.test_after_a_rollback_messages_come_before_newer_ones,
    ),
    "a transaction that is not whole": (
        state.test_a_message_that_was_refused_is_not_committed_silently,
        state.test_what_is_accepted_in_a_transaction_leaves_its_queue,
        state.test_an_unknown_transaction_is_named_and_the_connection_stays,
    ),
    "durable subscriptions that are deleted in error": (
        state.test_a_durable_subscription_is_the_same_with_and_without_a_scheme,
        state.test_an_unsubscription_that_is_refused_is_an_error,
        state.test_the_close_of_a_durable_subscription_deletes_no_queue,
    ),
    "subscriptions that stay, or clash": (
        state.test_a_subscription_that_is_not_durable_ends_with_its_link,
        state.test_a_global_subscription_ends_when_it_is_unsubscribed,
    ),
    "ghost consumers, leaked links": (
        connections.test_no_consumer_is_left_behind,
        connections.test_nothing_is_said_on_a_session_that_ended,
        connections.test_a_container_id_is_free_when_its_connection_is_gone,
        receiving.test_a_detach_and_an_attach_at_once_give_no_ghost,
        receiving.test_credit_behind_the_detach_of_the_client_is_nothing,
    ),
    "frames above max-frame-size": (
        connections.test_no_frame_is_longer_than_the_client_takes,
        connections.test_an_answer_that_the_client_cannot_take_ends_the_connection,
    ),
    "bytes of a long message are lost": (connections.test_a_long_message_is_whole_whenever_the_client_takes_a_part,),
    "wrong frame sizes, other protocols": (
        connections.test_a_wrong_frame_size_ends_the_connection_at_once,
        connections.test_a_frame_before_the_open_is_short,
        connections.test_another_protocol_gets_the_header_and_the_end,
    ),
    "acknowledgements with gaps, or on their way": (
        receiving.test_acknowledgements_with_gaps_are_no_range,
        receiving.test_a_link_that_ends_takes_its_acknowledgements_along,
        sending.test_outcomes_that_differ_are_not_one_range,
    ),
    "a slow link delays others": (
        receiving.test_a_link_without_credit_delays_no_other,
        sending.test_who_waits_for_memory_still_acknowledges,
    ),
    "types and order of sections": (
        sending.test_a_message_id_keeps_its_type,
        sending.test_a_footer_keeps_its_symbols,
        sending.test_delivery_annotations_may_come_before_the_header,
    ),
    "message ids that count as duplicates": (sending.test_equal_message_ids_are_no_duplicates,),
    "the anonymous relay": (
        sending.test_the_relay_checks_each_message,
        sending.test_the_relay_ends_with_a_presettled_message_that_is_refused,
    ),
    "damage that another protocol stored": (receiving.test_the_reader_survives_damage_that_another_protocol_stored,),
}


def cases_of(module: ModuleType) -> list[Test]:
    return [each for name, each in vars(module).items() if name.startswith("test_")]


def test_each_test_of_a_public_bug_is_in_the_table_and_names_its_source() -> None:
    listed = [test for tests in BUGS.values() for test in tests]
    assert sorted(map(id, listed)) == sorted(
        id(test) for module in (connections, receiving, sending, state) for test in cases_of(module)
    )
    assert not [test.__name__ for test in listed if not test.__doc__]
