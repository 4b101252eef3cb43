"""Subscriptions of a client: SUBSCRIBE and UNSUBSCRIBE. Pure.

In a stored session, a subscription has a record and, with QoS 1 or 2, a durable subscription, which collects messages
while the client is away. The record is written first and removed last. So a durable subscription never exists without
its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from tandemmq.broker.core.commands import AckMode, ClientError, Command, SetNoLocal, Subscribe, Unsubscribe
from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Receipt, ignore, nothing
from tandemmq.broker.protocols.mqtt.deliver import Delivering
from tandemmq.broker.protocols.mqtt.packets import Filter, Version
from tandemmq.broker.protocols.mqtt.reason_codes import Reason, reason_of
from tandemmq.broker.protocols.mqtt.retained_delivery import RetainedDelivery
from tandemmq.broker.protocols.mqtt.session_records import Record, SubscriptionRecord
from tandemmq.broker.protocols.mqtt.stored_session import Position, StoredSession, Subscription
from tandemmq.broker.protocols.mqtt.topics import destination_of, durable_name, gathering, share_of
from tandemmq.broker.protocols.session import COMMANDS_MAX

#: Maximum number of subscriptions of a client, the same as in other protocols (subscriptions_max of the engine).
SUBSCRIPTIONS_MAX: Final = 1_000


class _Answer:
    """SUBACK or UNSUBACK in preparation: a code for each filter, and the number of codes that are not known yet."""

    __slots__ = ("codes", "encode", "packet_id", "unknown")

    def __init__(self, packet_id: int, count: int, encode: Callable[[Version, int, Sequence[int]], bytes]) -> None:
        self.packet_id = packet_id
        self.codes = [0] * count
        self.encode = encode
        self.unknown = 1  # one more, until all filters are handled


class Subscribing:
    """Subscriptions of one client."""

    def __init__(
        self, conversation: Conversation, stored: StoredSession, retained: RetainedDelivery, delivering: Delivering
    ) -> None:
        self._conversation = conversation
        self._stored = stored
        self._retained = retained
        self._delivering = delivering
        self._by_filter: dict[str, Subscription] = {}
        self._by_id: dict[str, Subscription] = {}
        self._ordinal = 0
        self._is_unsure = False
        # Receipts to call when the engine confirms or refuses a subscription, by subscription id.
        self._receipts: dict[str, list[Receipt]] = {}
        # A SUBSCRIBE that is partly handled, its answer, and the number of handled filters.
        self._under_way: tuple[packets.Subscribe, _Answer, int] | None = None

    def of_id(self, id: str) -> Subscription | None:
        """Return the subscription with this id; None: it is being closed."""
        return self._by_id.get(id)

    def cut(self) -> None:
        """Drop waiting receipts: the connection has ended."""
        self._receipts.clear()
        self._under_way = None

    # ---- a session that is resumed

    def found(self, kept: SubscriptionRecord, tag: int) -> None:
        """Process a record of a subscription."""
        text = kept.filter.topic_filter
        former = self._by_filter.get(text)
        if former is not None and former.record is not None:
            self._stored.is_stale(former.record.tag)
            del self._by_id[former.id]
        subscription = self._new(kept.filter, kept.durable_name, kept.subscription_id)
        subscription.record = Record(tag)
        subscription.owes_retained = kept.owes_retained
        if kept.owes_retained:
            subscription.position = Position(kept.after, kept.until)
        self._by_filter[text] = subscription

    def adopt(self, names: Iterable[str]) -> list[Command]:
        """Add durable subscriptions with these names to the session if they have no record. ActiveMQ created them; it
        stores no records (AbstractMQTTSubscriptionStrategy.restoreDurableSubs)."""
        known = {each.durable_name for each in self._by_filter.values()}
        commands: list[Command] = []
        for text, (name, qos) in gathering(names).items():
            if name not in known and text not in self._by_filter:
                subscription = self._new(Filter(text, qos, False, False, 0), name, None)
                self._by_filter[text] = subscription
                commands += self._stored.keep_subscription(subscription)
        return commands

    def resume(self, *, is_sure: bool) -> dict[str, Subscription]:
        """Resume the session after all records were read and CONNACK was written. Return the subscriptions that collect
        messages, by filter. ``is_sure``: it is known which messages were sent before and not acknowledged."""
        self._is_unsure = not is_sure
        commands: list[Command] = []
        for subscription in self._by_filter.values():
            self._begin(subscription, Receipt(partial(self._owe, subscription), ignore), commands)
        self._conversation.later(*commands)
        return {text: each for text, each in self._by_filter.items() if each.durable_name is not None}

    def _owe(self, subscription: Subscription) -> None:
        if subscription.owes_retained:
            self._retained.begin(subscription, subscription.position)

    def forget(self, names: Iterable[str]) -> list[Command]:
        """Forget all records that were read. Return the commands that remove the durable subscriptions with these
        names."""
        known = [each.durable_name for each in self._by_filter.values() if each.durable_name is not None]
        adopted = [name for name, _ in gathering(names).values()]
        commands: list[Command] = [
            Unsubscribe(None, durable_name=name, receipt=Receipt(nothing, ignore))
            for name in dict.fromkeys(known + adopted)
        ]
        self._by_filter.clear()
        self._by_id.clear()
        return commands

    # ---- SUBSCRIBE

    def subscribe(self, packet: packets.Subscribe, commands: list[Command]) -> None:
        """Process SUBSCRIBE. If it has very many filters, only the first ones are handled; call ``handle_more`` for the
        others."""
        self._under_way = packet, _Answer(packet.packet_id, len(packet.filters), packets.suback), 0
        self.handle_more(commands)

    @property
    def is_under_way(self) -> bool:
        """True if a SUBSCRIBE is only partly handled."""
        return self._under_way is not None

    def handle_more(self, commands: list[Command]) -> None:
        """Handle the next COMMANDS_MAX filters of the unfinished SUBSCRIBE."""
        assert self._under_way is not None, "the caller checks is_under_way first"
        packet, answer, first = self._under_way
        ids = packet.properties.subscription_ids
        last = first + COMMANDS_MAX
        for number, wanted in enumerate(packet.filters[first:last], first):
            if len(self._by_filter) >= SUBSCRIPTIONS_MAX and wanted.topic_filter not in self._by_filter:
                answer.codes[number] = Reason.QUOTA_EXCEEDED
            else:
                self._replace(wanted, ids[0] if ids else None, answer, number, commands)
        if last < len(packet.filters):
            self._under_way = packet, answer, last
            return
        self._under_way = None
        self._code_known(answer)

    def _replace(
        self, wanted: Filter, subscription_id: int | None, answer: _Answer, number: int, commands: list[Command]
    ) -> None:
        """Subscribe to ``wanted``, in place of the present subscription of that filter, if any (MQTT-3.8.4-3)."""
        answer.codes[number] = wanted.qos
        former = self._by_filter.get(wanted.topic_filter)
        is_wanted = wanted.retain_handling == 0 or (wanted.retain_handling == 1 and former is None)
        sends_retained = is_wanted and share_of(wanted.topic_filter) is None  # MQTT 5.0, 4.8.2
        answer.unknown += 1
        is_same = False  # the record stays valid
        if former is not None and self._can_continue(former, wanted):
            subscription = former
            is_same = (
                former.filter == wanted and former.subscription_id == subscription_id and former.record is not None
            )
            if former.filter.no_local != wanted.no_local:
                commands.append(SetNoLocal(former.id, wanted.no_local))
            former.filter, former.subscription_id = wanted, subscription_id
        else:
            name = None
            if self._stored.queue is not None and wanted.qos:
                name = durable_name(wanted.qos, wanted.topic_filter)
            subscription = self._new(wanted, name, subscription_id)
            if sends_retained:  # prove: own-retained-only-if-wanted "sends_retained" -> "True"
                subscription.own_before = self._retained.own_count
            self._by_filter[wanted.topic_filter] = subscription
        owes_retained = subscription.owes_retained and wanted.qos > 0
        if sends_retained:  # send all retained messages, from the first
            is_same = is_same and not subscription.owes_retained
            subscription.position = None
            owes_retained = wanted.qos > 0 and self._retained.may_have_some(subscription)
        if self._stored.queue is not None and not (is_same and owes_retained == subscription.owes_retained):
            answer.unknown += 1
            subscription.owes_retained = owes_retained
            if former is not None and former is not subscription:
                subscription.record, former.record = former.record, None
            commands += self._stored.keep_subscription(subscription, partial(self._code_known, answer))
        granted = partial(self._granted, answer, subscription, sends_retained)
        self._begin(subscription, Receipt(granted, partial(self._refused, answer, number)), commands)
        if former is not None and former is not subscription:
            # The new subscription begins before the former one ends. So a message that is published in between is not
            # lost, but may arrive twice (MQTT-3.8.4-4).
            commands += self._leave(former, None)

    def _granted(self, answer: _Answer, subscription: Subscription, sends_retained: bool) -> None:
        if sends_retained and not subscription.is_left:
            self._retained.begin(subscription)
        self._code_known(answer)

    def _refused(self, answer: _Answer, number: int, error: ClientError) -> None:
        answer.codes[number] = reason_of(error)
        self._code_known(answer)

    def _can_continue(self, former: Subscription, wanted: Filter) -> bool:
        """Return whether the engine's subscription of ``former`` can be used for ``wanted``. A durable subscription is
        also kept when QoS becomes 0, so that its messages are not lost."""
        return former.durable_name is not None or (
            former.is_auto == (wanted.qos == 0) and (wanted.qos == 0 or self._stored.queue is None)
        )

    def _new(self, wanted: Filter, durable_name: str | None, subscription_id: int | None) -> Subscription:
        self._ordinal += 1
        share = share_of(wanted.topic_filter)
        is_auto = durable_name is None and wanted.qos == 0
        subscription = Subscription(str(self._ordinal), wanted, share, durable_name, subscription_id, is_auto)
        self._by_id[subscription.id] = subscription
        return subscription

    def _begin(self, subscription: Subscription, waiting: Receipt, commands: list[Command]) -> None:
        """Begin deliveries unless they have begun. ``waiting`` gets the result."""
        receipts = self._receipts.get(subscription.id)
        if receipts is not None:
            receipts.append(waiting)
            return
        if subscription.is_begun:
            waiting.done()
            return
        self._receipts[subscription.id] = [waiting]
        prefetch = self._conversation.outgoing_max
        if self._conversation.limits.prefetch is not None:
            prefetch = min(prefetch, self._conversation.limits.prefetch)
        command = Subscribe(
            subscription.id,
            destination_of(subscription.pattern),
            AckMode.AUTO if subscription.is_auto else AckMode.INDIVIDUAL,
            prefetch=prefetch,
            durable_name=subscription.durable_name,
            share=None if subscription.share is None else subscription.share[0],
            no_local=subscription.filter.no_local,
        )
        held = command.held  # without a reference to the command, which refers to the receipt
        command.receipt = Receipt(
            lambda: self._has_begun(subscription, held), lambda error: self._failed(subscription, error)
        )
        commands.append(command)

    def _has_begun(self, subscription: Subscription, held: dict[str, int]) -> None:
        subscription.is_begun = True
        if self._is_unsure:
            # A former master may have sent the first messages of each topic, up to the limit of unacknowledged
            # messages.
            limit = self._conversation.limits.receive_maximum
            subscription.unsure = {name: min(count, limit) for name, count in held.items()}
        for each in self._receipts.pop(subscription.id, ()):
            each.done()

    def _failed(self, subscription: Subscription, error: ClientError) -> None:
        """Handle a refusal by the engine. A subscription of a resumed session is kept with its collected messages: the
        client may have the right again when it reconnects."""
        waiting = self._receipts.pop(subscription.id, [])
        # A subscription that the client ended meanwhile is already removed, and a command may wait for the removal of
        # its record.
        # prove: who-left-does-not-end-twice "not subscription.is_left and "
        if not subscription.is_left and not any(each.failed is ignore for each in waiting):
            self._forget(subscription)
            if subscription.record is not None:
                self._conversation.later(*self._stored.drop(subscription.record))
            if subscription.durable_name is not None:  # it exists if another session of the same client created it
                receipt = Receipt(nothing, ignore)
                self._conversation.later(Unsubscribe(None, durable_name=subscription.durable_name, receipt=receipt))
        for each in waiting:
            each.failed(error)

    def _code_known(self, answer: _Answer) -> None:
        """Note that one more code of an answer is known."""
        answer.unknown -= 1
        if not answer.unknown:
            self._conversation.send(answer.encode(self._conversation.version, answer.packet_id, answer.codes))

    # ---- UNSUBSCRIBE

    def unsubscribe(self, packet: packets.Unsubscribe, commands: list[Command]) -> None:
        """Process UNSUBSCRIBE."""
        answer = _Answer(packet.packet_id, len(packet.filters), packets.unsuback)
        code_known = partial(self._code_known, answer)
        for number, text in enumerate(packet.filters):
            subscription = self._by_filter.get(text)
            if subscription is None:
                answer.codes[number] = Reason.NO_SUBSCRIPTION_EXISTED
                continue
            answer.unknown += 1
            commands += self._leave(subscription, Receipt(code_known, lambda error: code_known()))
            if subscription.record is not None:
                answer.unknown += 1  # prove: unsuback-after-its-record
                commands += self._stored.drop(subscription.record, Receipt(code_known, self._stored.failed))
        code_known()

    def _leave(self, subscription: Subscription, receipt: Receipt | None) -> list[Command]:
        """Return the commands that end the subscription. The caller removes its record."""
        self._forget(subscription)
        self._delivering.leave(subscription)
        waiting = receipt or Receipt(nothing, ignore)
        id = subscription.id if subscription.is_begun or subscription.id in self._receipts else None
        if id is None and subscription.durable_name is None:
            waiting.done()
            return []
        return [Unsubscribe(id, durable_name=subscription.durable_name, receipt=waiting)]

    def _forget(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended. Deliveries that have begun are completed."""
        subscription.is_left = True
        self._by_id.pop(subscription.id, None)
        text = subscription.filter.topic_filter
        if self._by_filter.get(text) is subscription:
            del self._by_filter[text]
        self._retained.forget(subscription)
