"""Links of one AMQP session: their handles, and their ends. A link ends by a detach, an error of the client, another
link of the same name, or the broker. Pure.

The handles of the two directions are independent (AMQP 1.0, 2.6.2). The client may use a handle again after it has sent
its detach. This side uses the same number as the client if its own last detach with that number is written, otherwise
another number.

A detach is answered after all other answers of its link.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tandemmq.broker.core.commands import (
    ClientError,
    Command,
    ErrorKind,
    RemoveDestination,
    RemoveProducer,
    Unsubscribe,
)
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.control_links import ControlLinks
from tandemmq.broker.protocols.amqp.deliveries_in import DeliveriesIn
from tandemmq.broker.protocols.amqp.deliveries_out import DeliveriesOut
from tandemmq.broker.protocols.amqp.endpoint import Connected, Endpoint
from tandemmq.broker.protocols.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    LINK_STOLEN,
    RESOURCE_LIMIT,
    UNATTACHED_HANDLE,
    AmqpError,
    Scope,
)
from tandemmq.broker.protocols.amqp.links import Callbacks, InLink, OutLink, acknowledged, do_nothing, error_of
from tandemmq.broker.protocols.amqp.schema import Error
from tandemmq.broker.protocols.amqp.subscriptions import Subscription, end, find, reason_of
from tandemmq.broker.protocols.amqp.termini import refusal_of
from tandemmq.store.records.message import Destination

# Highest handle of a client.
HANDLE_MAX: Final = 1_023
Link = InLink | OutLink


class LinkTable:
    """``in_links`` and ``out_links``: by the handle of the client."""

    __slots__ = ("_attached_before", "_detached", "_handle_max", "_used", "in_links", "out_links")

    def __init__(self, handle_max: int) -> None:
        self.in_links: dict[int, InLink] = {}
        self.out_links: dict[int, OutLink] = {}
        # Sets of handles, with one bit for each handle: their memory is bounded.
        self._detached = 0  # handles that this side has detached, and the client has not
        self._attached_before = 0  # handles that the client has attached at least once
        self._used = 0  # handles of this side, until its detach is written
        self._handle_max = min(handle_max, HANDLE_MAX)  # highest handle of this side

    def check_free(self, handle: int) -> None:
        """Raise AmqpError if the client cannot attach a link with that handle."""
        if handle > HANDLE_MAX:
            raise AmqpError(FRAMING_ERROR, f"the handle {handle} is above handle-max")  # AMQP 1.0, 2.7.2
        if handle in self.in_links or handle in self.out_links or _has(self._detached, handle):
            raise AmqpError(HANDLE_IN_USE, f"the handle {handle} is attached already", Scope.SESSION)

    def check_detached(self, handle: int) -> None:
        """Raise AmqpError unless this side has detached this handle and the client has not: frames may still come."""
        if not _has(self._detached, handle):
            raise AmqpError(UNATTACHED_HANDLE, f"the handle {handle} is not attached", Scope.SESSION)

    def check_attached_before(self, handle: int) -> None:
        """Raise AmqpError if the client has never attached this handle. A client may send a flow after its own detach,
        as go-amqp 1.7 does."""
        if not _has(self._attached_before, handle):
            self.check_detached(handle)

    def all(self) -> list[Link]:
        return [*self.in_links.values(), *self.out_links.values()]

    def add(self, link: Link) -> None:
        """Add a new link."""
        self._attached_before |= 1 << link.handle
        if isinstance(link, InLink):
            self.in_links[link.handle] = link
        else:
            self.out_links[link.handle] = link

    def remove(self, link: Link) -> bool:
        """Remove a link; return False if it was removed before."""
        if isinstance(link, InLink):
            if self.in_links.get(link.handle) is not link:
                return False
            del self.in_links[link.handle]
        else:
            if self.out_links.get(link.handle) is not link:
                return False
            del self.out_links[link.handle]
        return True

    # ---- handles

    def take_handle(self, handle: int) -> int:
        """Return this side's handle for a link that the client attached with ``handle``. Raises AmqpError."""
        used = self._used
        if handle > self._handle_max or _has(used, handle):
            handle = (~used & (used + 1)).bit_length() - 1  # the lowest free one
            if handle > self._handle_max:
                text = "handle-max of the client leaves no handle for the link"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.SESSION)
        self._used |= 1 << handle
        return handle

    def free_handle(self, handle: int) -> None:
        """Note that this side's detach is written."""
        self._used &= ~(1 << handle)

    def note_detached(self, handle: int) -> None:
        """Note that this side detached a link first."""
        self._detached |= 1 << handle

    def finish_detach(self, handle: int) -> bool:
        """Return whether a detach of the client answers a detach of this side."""
        if not _has(self._detached, handle):
            return False
        self._detached &= ~(1 << handle)
        return True


def _has(handles: int, handle: int) -> bool:
    """Return whether a handle is in a set. The client may send any number of 32 bits."""
    return handle <= HANDLE_MAX and handles >> handle & 1 == 1


class LinksConnected(Connected):
    """Interface of a connection that the links of a session use."""

    by_name: dict[tuple[str, bool], tuple[LinkEnds, Link]]  # links by name and role of the client; True: receiver

    def remove_out_link(self, link: OutLink) -> None:
        raise NotImplementedError

    def count_links(self, count: int, name_characters: int, commands: list[Command]) -> None:
        """Count more or fewer links, with the characters of their names. Raises AmqpError if there are too many."""
        raise NotImplementedError


class LinkEnds:
    """Ends the links of one session."""

    __slots__ = ("_connection", "_control_links", "_deliveries_in", "_deliveries_out", "_endpoint", "_links")

    def __init__(
        self,
        connection: LinksConnected,
        endpoint: Endpoint,
        links: LinkTable,
        deliveries_in: DeliveriesIn,
        deliveries_out: DeliveriesOut,
        control_links: ControlLinks,
    ) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._links = links
        self._deliveries_in = deliveries_in
        self._deliveries_out = deliveries_out
        self._control_links = control_links

    def refuse(self, attach: schema.Attach, own_handle: int, error: Error | None) -> None:
        """Refuse an attach: write an attach without this side's terminus, then a detach with ``error``. None: the
        answer to the client's detach has the error."""
        self._endpoint.write(refusal_of(attach, own_handle))
        if error is not None:
            self._detach_now(attach.handle, own_handle, error)

    def not_attached(self, link: Link, error: ClientError) -> None:
        """Answer an attach that the engine refused. If the client has detached the link meanwhile, the answer to its
        detach follows."""
        is_detached = not self._forget(link)
        if link.temporary is not None:
            self._remove(link.temporary)
        attach, link.pending = link.pending, None
        if attach is not None and not self._endpoint.is_ending:
            link.refused = error
            reason = reason_of(error, subscription_of(link))
            self.refuse(attach, link.own_handle, None if is_detached else reason)

    def _detach_now(self, handle: int, own_handle: int, error: Error) -> None:
        """Detach a link before the client does."""
        self._links.note_detached(handle)
        self._links.free_handle(own_handle)
        self._endpoint.write(schema.Detach(own_handle, True, error))

    def _forget(self, link: Link) -> bool:
        """Forget a link that ends; return False if it has ended before."""
        link.is_over = True
        if not self._links.remove(link):
            return False
        connection = self._connection
        key = link.name, isinstance(link, OutLink)
        if connection.by_name.get(key, (None, None))[1] is link:
            del connection.by_name[key]
        if isinstance(link, InLink):
            self._deliveries_in.drop_partial(link)
        else:
            connection.remove_out_link(link)
            self._deliveries_out.forget(link)
        connection.count_links(-1, -len(link.name), [])
        return True

    def detached(self, link: Link, detach: schema.Detach, commands: list[Command]) -> None:
        """End a link that its client detached."""
        answer = schema.Detach(link.own_handle, detach.closed)
        if link.temporary is None:
            self.end(link, commands, answer)
            return
        self.end(link, commands, None, removes=False)
        self._endpoint.start_answer()
        removed = partial(self._ended, link, answer)
        commands.append(RemoveDestination(link.temporary, Callbacks(partial(removed, None), removed)))

    def end(self, link: Link, commands: list[Command], answer: schema.Detach | None, *, removes: bool = True) -> None:
        """End a link in the engine, and write ``answer`` after all its other answers. ``removes``: also delete its
        temporary destination, if that has no other consumers."""
        self._forget(link)
        self._endpoint.start_answer()
        if removes and link.temporary is not None:
            self._remove(link.temporary)
        ended = partial(self._ended, link, answer)
        if isinstance(link, OutLink):
            if link.written:
                commands.append(acknowledged(link))
            # prove: amqp-errors-end-no-durable "answer.error is None" -> "True"
            is_closed = answer is not None and answer.closed and answer.error is None
            commands.append(_end_of(link, ended, is_closed=is_closed))
        elif link.is_control:
            self._control_links.end(link, commands)
            self._producer_removed(link, ended)
        else:
            removed = partial(self._producer_removed, link, ended)
            commands.append(RemoveProducer(link.id, Callbacks(removed, lambda error: removed())))

    def _producer_removed(self, link: InLink, ended: Callable[[ClientError | None], None]) -> None:
        """End the link of a sender after the answers to its attach and to its messages."""
        if link.unanswered:  # prove: amqp-detach-waits-for-outcomes "link.unanswered" -> "False"
            link.on_idle = partial(ended, None)
        else:
            ended(None)

    def _ended(self, link: Link, answer: schema.Detach | None, error: ClientError | None) -> None:
        """Write the answer to a detach, with an error that has occurred meanwhile."""
        if answer is not None:
            self._links.free_handle(link.own_handle)
            error = link.refused or error
            if error is not None and answer.error is None:
                answer.error = reason_of(error, subscription_of(link))
        self._endpoint.finish_answer(answer)

    def _remove(self, temporary: Destination) -> None:
        """Delete a temporary destination. If it has other consumers, it is deleted at the end of the connection."""
        self._connection.enqueue(RemoveDestination(temporary, Callbacks(do_nothing, lambda error: None)))

    def fail(self, link: Link, error: Error, commands: list[Command]) -> None:
        """Detach a link because of an error of its client."""
        self._links.note_detached(link.handle)
        self.end(link, commands, schema.Detach(link.own_handle, True, error))

    def steal(self, link: Link, commands: list[Command]) -> None:
        """End a link because its client attaches another one with the same name (AMQP 1.0, 2.6.1)."""
        self.end(link, commands, None)
        self._drop(link, Error(LINK_STOLEN, "the link was attached again"))

    def consumer_closed(self, link: OutLink, error: ClientError) -> None:
        """Detach a link whose subscription the broker ended."""
        link.written = 0  # the engine has no delivery of this link any more
        if self._forget(link):
            self._drop(link, reason_of(error, None))

    def _drop(self, link: Link, error: Error) -> None:
        """Detach a link that has ended, whether or not its attach was answered."""
        attach, link.pending = link.pending, None
        if self._endpoint.is_ending:
            return
        if attach is None:
            self._detach_now(link.handle, link.own_handle, error)
        else:
            self.refuse(attach, link.own_handle, error)

    def presettled_refused(self, link: InLink, error: ClientError) -> None:
        """Detach a link because one of its presettled messages was refused."""
        if link.is_over:
            link.refused = link.refused or error
        elif not self._endpoint.is_ending:
            commands: list[Command] = []
            self.fail(link, error_of(error), commands)
            for each in commands:
                self._connection.enqueue(each)
        self._deliveries_in.answered(link)


def subscription_of(link: Link) -> Subscription | None:
    return link.subscription if isinstance(link, OutLink) else None


def _end_of(link: OutLink, ended: Callable[[ClientError | None], None], *, is_closed: bool) -> Command:
    """Return the command that ends the link of a receiver. ``is_closed``: the client closed it, so its durable
    subscription is deleted."""
    subscription = link.subscription
    done = partial(ended, None)
    if subscription is None or not (is_closed or subscription.is_looked_up):
        return Unsubscribe(link.id, seen=link.seen, receipt=Callbacks(done, lambda error: done()))
    if not is_closed:
        # This command changes nothing. Its receipt comes after the answer to the attach.
        return find(subscription, Callbacks(done, lambda error: done()))
    if subscription.is_looked_up:
        return end(subscription, None, None, Callbacks(done, ended))
    return end(subscription, link.id, link.seen, Callbacks(done, partial(_not_deleted, subscription, ended)))


def _not_deleted(subscription: Subscription, ended: Callable[[ClientError | None], None], error: ClientError) -> None:
    """End a link whose subscription was not deleted. This is no error if other consumers share the subscription."""
    ended(None if subscription.is_shared and error.kind is ErrorKind.STATE else error)
