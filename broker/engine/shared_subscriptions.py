"""Shared subscriptions: which one a client means, who uses it, who keeps a membership, and its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client, Connection, ReceiptDue
from tandemmq.broker.core.commands import ClientError, ErrorKind, FindDurable, Subscribe, refusal
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics import shared
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.shared import CLIENT_ID, Holding, SharedSubscriber
from tandemmq.broker.engine.durable_subscriptions import DurableSubscriptions
from tandemmq.broker.engine.id_owners import administers
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.store.operations import AddSubscription, RemoveOwner
from tandemmq.store.records.commands import encode_subscription, encode_unsubscribe, subscription_key
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind


class SharedSubscriptions(Part):
    """Begins and ends shared subscriptions. Their topics and consumers are those of ``durables``."""

    def __init__(self, shared: Shared, durables: DurableSubscriptions) -> None:
        super().__init__(shared)
        self._durables = durables
        self._used: dict[Subscription, SharedSubscriber] = {}
        self._are_looked_through = False  # True once those of a former term were checked

    def name_of(self, client: Client, command: Subscribe, group: str, parts: tuple[Destination, ...]) -> str:
        """Return the name of the shared subscription that the client requests. ClientError if it cannot be one."""
        assert not command.has_terms or group.startswith(shared.OWN_TERMS), "MQTT has no such group"
        if not group or ("/" in group and not command.has_terms):
            raise refusal(
                f"{group!r} is not a valid name of a group", "It must not contain a slash.", ErrorKind.DESTINATION
            )
        if len(parts) != 1 or parts[0].kind is not DestinationKind.TOPIC:
            raise refusal(
                f"{command.destination} is not one topic", "Only a single topic can be shared.", ErrorKind.DESTINATION
            )
        if (command.selector is not None and not command.has_terms) or command.no_local:
            raise refusal("A shared subscription takes all messages of its topics", kind=ErrorKind.SELECTOR)
        share = group if command.has_terms else shared.name_of(group, parts[0])
        names.check_length("the name of a shared subscription", share)
        if command.durable_name is not None:
            names.check_length("the name of a durable subscription", command.durable_name)
            self._check_may_hold(client, command, command.durable_name, share)
        return share

    def _check_may_hold(self, client: Client, command: Subscribe, name: str, share: str) -> None:
        """Raise ClientError if the client may not hold the share under that name."""
        client_id = _holder(client, is_global=command.is_global)
        holding = self._destinations.holdings.get(client_id, name)
        if holding is not None:
            self.check_is_holder(client, holding)
        is_other = holding is not None and holding.share != share
        is_plain = not command.is_global and (
            self._durables.get(client_id, name) is not None or self._durables.is_ending(client_id, name)
        )
        if is_other or is_plain:
            raise refusal(f"Client {client_id} has another durable subscription {name}", kind=ErrorKind.STATE)
        if holding is None and not command.is_global:
            self._durables.check_may_make(client)

    def _check_may_join(self, client: Client, command: Subscribe, share: str, durable: SharedSubscriber | None) -> None:
        """Raise ClientError if the client may not hold the share, or use it: a share that no client id holds, and that
        is not global, belongs to the user of its present consumers, which is one."""
        if command.durable_name is not None:
            self._check_may_hold(client, command, command.durable_name, share)
        elif durable is not None and command.has_terms and not command.is_global:
            present = next(iter(durable.users), None)
            other: Client | None = None if present is None else cast(Connection, present.outlet).client
            # prove: a-volatile-share-has-one-user "other.principal.owner != client.principal.owner" -> "False"
            if other is not None and other.principal.owner != client.principal.owner:
                raise refusal(
                    f"Shared subscription {share} is used by another user",
                    "Consumers of different users can share a global one.",
                    ErrorKind.SECURITY,
                )

    def join(
        self,
        share: str,
        subscription: Subscription,
        client: Client,
        command: Subscribe,
        may_read: Callable[[Destination], bool],
    ) -> Work[None]:
        """Begin to consume from the shared subscription ``share`` (see ``name_of``), which is created if it is
        missing."""
        asked = SharedSubscriber(CLIENT_ID, share, command.destination, command.selector, False)
        durable = yield from self._present(asked, subscription, client, command)
        if not subscription.is_open:
            return
        # prove: who-joins-is-checked-last "self._check_may_join" -> "0 and self._check_may_join"
        self._check_may_join(client, command, share, durable)
        if durable is None:
            durable = asked
            self._durables.check_room(durable, 1)
            self._destinations.add_durable(durable)
        durable.users[subscription] = may_read
        self._used[subscription] = durable
        holding, hold, name = None, None, command.durable_name
        holder = None if name is None else _holder(client, is_global=command.is_global)
        if name is not None and holder is not None and self._destinations.holdings.get(holder, name) is None:
            owner = self._store.subscription(holder, name, names.MQTT_SHARES)
            holding = Holding(owner, holder, name, share, client.principal.owner)
            self._destinations.holdings.add(holding)
            hold = partial(self._hold, holding)
        try:
            yield from self._durables.begin(durable, subscription, client, command, may_read, hold)
        except ClientError:
            if holding is not None and self._destinations.holdings.get(holding.client_id, holding.name) is holding:
                self._destinations.holdings.remove(holding)
            raise

    def _present(
        self, asked: SharedSubscriber, subscription: Subscription, client: Client, command: Subscribe
    ) -> Work[SharedSubscriber | None]:
        """Return the shared subscription with the name of ``asked``; None: there is none. One with other terms, which
        JMS replaces by ``asked``, is deleted first. ClientError if it is used."""
        while self._durables.is_ending(CLIENT_ID, asked.name):
            yield
        durable = self._share(asked.name)
        if durable is None or not command.has_terms or durable.terms == asked.terms:
            return durable
        # Checked before the subscription is deleted: a client that is refused keeps it.
        missing = yield from self._durables.missing(asked, Pace())
        while self._durables.is_ending(CLIENT_ID, asked.name):
            yield
        present = self._share(asked.name)
        if present is None or present.terms == asked.terms or not subscription.is_open:
            return present
        if present.users:
            raise refusal(
                f"Shared subscription {asked.name} is used with another topic or selector",
                "All its consumers must have the same topic and selector.",
                ErrorKind.STATE,
            )
        self._check_may_join(client, command, asked.name, present)
        # prove: a-refused-client-keeps-its-share "self._durables.check_room" -> "0 and self._durables.check_room"
        self._durables.check_room(asked, max(1, len(missing) - len(present.parts)))
        yield from self._durables.delete(present, None)
        return None

    def _hold(self, holding: Holding, stored: Callback) -> None:
        """Record a new holding in the store."""
        share = names.MQTT_SHARES._replace(name=holding.share)
        record = encode_subscription(names.MQTT_SHARES, holding.client_id, holding.name, subscribed=share)
        self._append(AddSubscription(holding.owner, with_user_hint(record, holding.user), stored))

    def find(self, client: Client, name: str, *, is_global: bool) -> DurableSubscriber | Holding:
        """Return the durable subscription that the client names, or its holding of a shared one. ClientError if there
        is none."""
        client_id = _holder(client, is_global=is_global)
        holding = self._destinations.holdings.get(client_id, name)
        if holding is not None:
            return holding
        durable = None if is_global else self._durables.get(client_id, name)
        if durable is None:
            raise refusal(
                f"No durable subscription exists for: {name} of client {client.id}", kind=ErrorKind.DESTINATION
            )
        return durable

    def look_up(self, client: Client, command: FindDurable) -> None:
        """Fill in the terms of a durable subscription."""
        kept = self.find(client, command.name, is_global=command.is_global)
        if isinstance(kept, Holding):
            self.check_is_holder(client, kept)
            durable: DurableSubscriber | None = self.share_of(kept)
        else:
            self._durables.check_is_its(client, kept)
            durable = kept
        found = command.found
        found.is_shared = isinstance(kept, Holding)
        if durable is not None:
            found.destination, found.selector = durable.subscribed, durable.selector_text
            found.no_local = durable.is_no_local
        client.send_receipt(command.receipt)

    def share_of(self, holding: Holding) -> SharedSubscriber | None:
        """Return the shared subscription of a holding; None: its first consumer is about to make it."""
        return self._share(holding.share)

    def _share(self, name: str) -> SharedSubscriber | None:
        durable = self._destinations.durables.get(subscription_key(CLIENT_ID, name))
        assert durable is None or isinstance(durable, SharedSubscriber), "no client has that id"
        return durable

    def let_go(self, client: Client, holding: Holding, waiting: ReceiptDue, *, unless_used: bool = False) -> Work[None]:
        """Remove a holding from its share. ClientError if it belongs to another user; with ``unless_used`` also if the
        share has consumers."""
        self.check_is_holder(client, holding)
        durable = self.share_of(holding)
        # prove: a-used-share-is-kept "durable.users" -> "False"
        if unless_used and durable is not None and durable.users:
            raise refusal(f"Shared subscription {holding.name} has consumers", "Close them.", ErrorKind.STATE)
        self._destinations.holdings.remove(holding)
        payload = encode_unsubscribe(names.MQTT_SHARES, holding.client_id, holding.name)
        self._append(RemoveOwner(holding.owner, payload, waiting))
        if durable is not None:
            yield from self._end_unused(durable)

    def left(self, subscription: Subscription) -> Work[None]:
        """Remove an ended subscription from its shared one, if any. Call it once the queues have its messages again."""
        durable = self._used.pop(subscription, None)
        if durable is not None:
            durable.left(subscription)
            yield from self._end_unused(durable)

    def end_all_unused(self) -> Work[None]:
        """Delete shared subscriptions of a former term that no client uses, or whose deletion was not completed."""
        if self._are_looked_through:
            return
        self._are_looked_through = True
        for durable in list(self._destinations.durables.values()):
            if isinstance(durable, SharedSubscriber):
                yield from self._end_unused(durable)

    def _end_unused(self, durable: SharedSubscriber) -> Work[None]:
        is_there = self._share(durable.name) is durable
        if is_there and not durable.users and not self._destinations.holdings.is_held(durable.name):
            yield from self._durables.delete(durable, None)

    def check_is_holder(self, client: Client, holding: Holding) -> None:
        """Raise ClientError if the client is not its user and may not create and delete its topics."""
        share = self.share_of(holding)
        is_its = holding.user is None or holding.user == client.principal.name
        if not is_its and not (share is not None and administers(self._access, client.principal, share.topics)):
            raise refusal(
                f"Durable subscription {holding.name} of client {holding.client_id} belongs to another user",
                kind=ErrorKind.SECURITY,
            )


def _holder(client: Client, *, is_global: bool) -> str:
    """Return the client id that keeps a membership: the client's, or the broker's own for a global one."""
    return CLIENT_ID if is_global else client.client_id()
