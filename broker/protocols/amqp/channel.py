"""A session of AMQP: its windows, links and deliveries, and the commands that they lead to. Pure.

Frames of the client come to the methods named after them; ``deliver``, ``nothing`` and the receipts come from the
engine. Windows count frames. Errors of a link detach it, errors of the session are raised (AmqpError).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from tandemmq.broker.core.commands import (
    AckMode,
    AddDestination,
    AddProducer,
    ClientError,
    Command,
    Grant,
    RemoveDestination,
    RemoveProducer,
    Send,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    UNATTACHED_HANDLE,
    AmqpError,
    Scope,
    not_implemented,
)
from tandemmq.broker.protocols.amqp.incoming import Incoming
from tandemmq.broker.protocols.amqp.links import (
    CREDIT,
    CREDIT_LOW,
    GRANTED_MAX,
    SETTLED,
    InLink,
    OutLink,
    Partial,
    Waiting,
    answered_source,
    answered_target,
    check_attach,
    plain_outcome,
    plain_source,
    plain_target,
    reading_of,
    temporary_of,
    writing_of,
)
from tandemmq.broker.protocols.amqp.outcomes import acknowledged, command_of, error_of
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Error, Flow
from tandemmq.broker.protocols.amqp.transfers import Frames, whole
from tandemmq.store.records.message import Destination

# Links of one session have handles up to this.
HANDLE_MAX: Final = 1_023
# Frames of waiting deliveries that are made in one turn.
SENT_FRAMES_MAX: Final = 256
# Our window, in frames: sent again with each flow, so it never ends.
WINDOW: Final = (1 << 31) - 1
Link = InLink | OutLink


class Connected(Protocol):
    """Part of a connection that a session uses."""

    now: int
    frame_bytes_max: int  # of the client
    message_bytes_max: int
    unsettled_max: int  # deliveries of one link that wait for its client, or for its window
    partial_bytes: int  # of deliveries that are not whole, in all sessions
    links: int  # of all sessions

    def say(self, channel: int, performative: schema.Composite) -> None: ...

    def write(self, data: bytes | memoryview) -> None: ...

    def accept(self, channel: int, delivery_id: int) -> None: ...

    def settle(self, channel: int, first: int, last: int, state: Any, *, is_receiver: bool) -> None: ...

    def next_id(self) -> str: ...

    def next_message_id(self) -> str: ...

    def next_temporary(self) -> str:
        """Return the name of a new temporary destination."""

    def enter(self, link: OutLink, channel: Channel) -> None: ...

    def leave(self, link: OutLink) -> None: ...

    def ask(self, command: Command) -> None:
        """Give the engine a command in the next turn."""

    def ask_for(self, link: OutLink) -> None:
        """Acknowledge what was written to the link, in the next turn."""

    def go_on(self, channel: Channel) -> None:
        """Have the channel send more of what waits, in the next turn."""

    def count_links(self, count: int, commands: list[Command]) -> None:
        """Count more or fewer links. Raises AmqpError if there are too many."""


class Sent:
    """Receipt of a message that waits for its disposition."""

    __slots__ = ("channel", "delivery_id", "link")

    def __init__(self, channel: Channel, link: InLink, delivery_id: int) -> None:
        self.channel = channel
        self.link = link
        self.delivery_id = delivery_id


class Channel:
    """A session. ``number`` is its channel in both directions. ``is_ending``: it ended with an error of its own, and
    frames of the client are dropped until the client ends it, too."""

    __slots__ = (
        "_connection",
        "_end_answer",
        "_in_links",
        "_left",
        "_names",
        "_next_delivery_id",
        "_next_in",
        "_next_out",
        "_out_links",
        "_unfinished",
        "_unsettled",
        "_waiting",
        "_window",
        "is_ending",
        "number",
        "scanned",
    )

    def __init__(self, connection: Connected, number: int, begin: schema.Begin) -> None:
        self._connection = connection
        self.number = number
        self.is_ending = False
        self.scanned = 0  # deliveries that a disposition looked at, for the turn of the connection
        self._next_in = begin.next_outgoing_id
        self._window = begin.incoming_window
        self._next_out = 0
        self._next_delivery_id = 0
        self._in_links: dict[int, InLink] = {}
        self._out_links: dict[int, OutLink] = {}
        self._names: set[tuple[str, bool]] = set()
        self._left: set[int] = set()  # handles that this side detached, and the client did not yet
        self._unsettled: dict[int, OutLink] = {}  # by delivery id, in order
        # Deliveries that wait for the window, with their tags. Of the first, some frames may be written.
        self._waiting: deque[tuple[OutLink, int, Frames]] = deque()
        self._unfinished = 0  # answers that an end waits for
        self._end_answer: Callable[[], None] | None = None

    @property
    def link_count(self) -> int:
        return len(self._in_links) + len(self._out_links)

    def handle(self, performative: schema.Composite, payload: bytes, commands: list[Command]) -> None:
        """Carry out a frame of the client on this session. Raises AmqpError."""
        if isinstance(performative, schema.Transfer):
            self._next_in = (self._next_in + 1) & UINT_MAX
            self._transfer(performative, payload, commands)
        elif isinstance(performative, schema.Disposition):
            self._disposition(performative, commands)
        elif isinstance(performative, schema.Flow):
            self._flow(performative, commands)
        elif isinstance(performative, schema.Attach):
            self._attach(performative, commands)
        elif isinstance(performative, schema.Detach):
            self._detach(performative, commands)
        else:
            name = type(performative).__name__
            raise AmqpError(NOT_ALLOWED, f"{name} is nothing that a session receives", Scope.CONNECTION)

    # ---- links

    def _attach(self, attach: schema.Attach, commands: list[Command]) -> None:
        handle = attach.handle
        if handle > HANDLE_MAX:
            raise AmqpError(NOT_ALLOWED, f"the handle {handle} is above handle-max", Scope.CONNECTION)
        if handle in self._in_links or handle in self._out_links or handle in self._left:
            raise AmqpError(HANDLE_IN_USE, f"the handle {handle} is attached already", Scope.SESSION)
        try:
            if (attach.name, attach.role) in self._names:
                raise not_implemented("the same link name twice in a session")
            check_attach(attach)
            temporary = temporary_of(attach, self._connection.next_temporary)
            if attach.role:
                self._attach_receiver(attach, temporary, commands)
            else:
                self._attach_sender(attach, temporary, commands)
        except AmqpError as error:
            if error.scope is not Scope.LINK:
                raise
            self._refuse(attach, Error(error.condition, error.text))

    def _refuse(self, attach: schema.Attach, error: Error | None) -> None:
        """Answer an attach that is refused: without the terminus of this side, and then a detach with the reason (None:
        the detach comes from elsewhere)."""
        is_sender = attach.role
        answer = schema.Attach(
            name=attach.name,
            handle=attach.handle,
            role=not attach.role,
            snd_settle_mode=attach.snd_settle_mode,
            source=None if is_sender else plain_source(attach.source),
            target=plain_target(attach.target) if is_sender else None,
            initial_delivery_count=0 if is_sender else None,
        )
        self._connection.say(self.number, answer)
        if error is not None:
            self._left.add(attach.handle)
            self._connection.say(self.number, schema.Detach(attach.handle, True, error))

    def _attach_sender(self, attach: schema.Attach, temporary: Destination | None, commands: list[Command]) -> None:
        connection = self._connection
        destination = writing_of(attach, temporary)
        connection.count_links(1, commands)
        link = InLink(
            attach.name,
            attach.handle,
            connection.next_id(),
            destination,
            delivery_count=attach.initial_delivery_count or 0,
            temporary=temporary,
        )
        link.presettled = Waiting(_nothing, partial(self._presettled_refused, link))
        self._in_links[attach.handle] = link
        self._names.add((attach.name, attach.role))
        done = partial(self._sender_attached, link, attach)
        failed = self._make_temporary(link, attach, commands)
        commands.append(AddProducer(link.id, destination, Waiting(done, failed)))

    def _sender_attached(self, link: InLink, attach: schema.Attach) -> None:
        if self.is_ending:
            return
        link.is_attached = True
        self._connection.say(
            self.number,
            schema.Attach(
                name=link.name,
                handle=link.handle,
                role=True,
                snd_settle_mode=attach.snd_settle_mode,
                source=plain_source(attach.source),
                target=answered_target(attach, link),
                max_message_size=self._connection.message_bytes_max,
            ),
        )
        self._top_up(link)

    def _attach_receiver(self, attach: schema.Attach, temporary: Destination | None, commands: list[Command]) -> None:
        connection = self._connection
        reading = reading_of(attach, temporary)
        connection.count_links(1, commands)
        link = OutLink(
            attach.name,
            attach.handle,
            connection.next_id(),
            is_settled=attach.snd_settle_mode == SETTLED,
            temporary=temporary,
            default_outcome=plain_outcome(attach.source.default_outcome),
        )
        self._out_links[attach.handle] = link
        self._names.add((attach.name, attach.role))
        connection.enter(link, self)
        failed = self._make_temporary(link, attach, commands)
        commands.append(
            Subscribe(
                link.id,
                reading.destination,
                AckMode.RANGE,
                prefetch=0,
                selector=reading.selector,
                no_local=reading.no_local,
                is_browser=reading.is_browser,
                receipt=Waiting(
                    partial(self._receiver_attached, link, attach, answered_source(attach, reading, temporary)),
                    failed,
                ),
            )
        )

    def _receiver_attached(self, link: OutLink, attach: schema.Attach, source: schema.Source) -> None:
        if self.is_ending:
            return
        link.is_attached = True
        self._connection.say(
            self.number,
            schema.Attach(
                name=link.name,
                handle=link.handle,
                role=False,
                snd_settle_mode=attach.snd_settle_mode,
                source=source,
                target=plain_target(attach.target),
                initial_delivery_count=0,
            ),
        )

    def _make_temporary(
        self, link: Link, attach: schema.Attach, commands: list[Command]
    ) -> Callable[[ClientError], None]:
        """Have the temporary destination of a link made, and return the function for a link that is refused. The first
        error is the reason."""
        errors: list[ClientError] = []
        if link.temporary is not None:
            commands.append(AddDestination(link.temporary, Waiting(_nothing, errors.append)))
        return lambda error: self._not_attached(link, attach, errors[0] if errors else error)

    def _not_attached(self, link: Link, attach: schema.Attach, error: ClientError) -> None:
        """Answer an attach that the engine refused. If the client has detached it meanwhile, the detach follows."""
        is_detached = not self._forget(link)
        if link.temporary is not None:
            self._remove(link.temporary)
        if not self.is_ending:
            self._refuse(attach, None if is_detached else error_of(error))

    def _forget(self, link: Link) -> bool:
        """Forget a link that is over; return False if that happened already."""
        link.is_over = True
        if isinstance(link, InLink):
            if self._in_links.get(link.handle) is not link:
                return False
            del self._in_links[link.handle]
            self._drop_partial(link)
            self._names.discard((link.name, False))
        else:
            if self._out_links.get(link.handle) is not link:
                return False
            del self._out_links[link.handle]
            self._names.discard((link.name, True))
            self._connection.leave(link)
            for id in link.unsettled:
                del self._unsettled[id]
            self.scanned += len(link.unsettled)
            link.unsettled.clear()
            if link.waiting:
                self.scanned += len(self._waiting)
                self._waiting = deque([each for each in self._waiting if each[0] is not link])
        self._connection.count_links(-1, [])
        return True

    def _detach(self, detach: schema.Detach, commands: list[Command]) -> None:
        handle = detach.handle
        if handle in self._left:
            self._left.discard(handle)
            return
        link: Link | None = self._in_links.get(handle) or self._out_links.get(handle)
        if link is None:
            raise _unattached(handle)
        if link.temporary is None:
            self._end_link(link, commands, schema.Detach(handle, detach.closed))
            return
        self._end_link(link, commands, None, removes=False)
        self._unfinished += 1
        removed = partial(self._node_removed, handle, detach.closed)
        commands.append(RemoveDestination(link.temporary, Waiting(partial(removed, None), removed)))

    def _node_removed(self, handle: int, is_closed: bool, error: ClientError | None) -> None:
        self._finished(schema.Detach(handle, is_closed, None if error is None else error_of(error)))

    def _end_link(
        self, link: Link, commands: list[Command], answer: schema.Detach | None, *, removes: bool = True
    ) -> None:
        """End a link for the broker, and write ``answer`` when all that it did holds. ``removes``: also its temporary
        destination, as far as that has no other consumers."""
        self._forget(link)
        self._unfinished += 1
        if removes and link.temporary is not None:
            self._remove(link.temporary)
        ended = partial(self._finished, answer)
        if isinstance(link, OutLink):
            if link.written:
                commands.append(acknowledged(link))
            commands.append(Unsubscribe(link.id, seen=link.seen, receipt=Waiting(ended, lambda error: ended())))
            return
        removed = partial(self._producer_removed, link, ended)
        commands.append(RemoveProducer(link.id, Waiting(removed, lambda error: removed())))

    def _producer_removed(self, link: InLink, ended: Callable[[], None]) -> None:
        """End a link of a client that sends, behind the answers to its attach and to its messages."""
        if link.unanswered:  # prove: amqp-detach-waits-for-outcomes "link.unanswered" -> "False"
            link.on_idle = ended
        else:
            ended()

    def _finished(self, answer: schema.Detach | None) -> None:
        """Write an answer that the end of the session waits for, and that to the end behind the last of them."""
        if answer is not None and not self.is_ending:
            self._connection.say(self.number, answer)
        self._unfinished -= 1
        if not self._unfinished and self._end_answer is not None:
            self._end_answer()

    def _remove(self, temporary: Destination) -> None:
        """Have a temporary destination deleted; if it has other consumers, it ends with the connection."""
        self._connection.ask(RemoveDestination(temporary, Waiting(_nothing, lambda error: None)))

    def _fail_link(self, link: Link, error: Error, commands: list[Command]) -> None:
        """Detach a link because of its client's mistake."""
        self._left.add(link.handle)
        self._end_link(link, commands, schema.Detach(link.handle, True, error))

    def consumer_closed(self, link: OutLink, error: ClientError) -> None:
        """Detach a link whose subscription the broker ended."""
        link.written = 0  # the engine knows no delivery of it any more
        if self._forget(link) and not self.is_ending:
            self._left.add(link.handle)
            self._connection.say(self.number, schema.Detach(link.handle, True, error_of(error)))

    def end(self, commands: list[Command], answer: Callable[[], None]) -> None:
        """End all links, and call ``answer`` when that holds, behind the answers to what the client did before."""
        links: list[Link] = [*self._in_links.values(), *self._out_links.values()]
        self._waiting.clear()
        for each in self._out_links.values():
            each.waiting = 0
        for link in links:
            self._end_link(link, commands, None)
        if self._unfinished:
            self._end_answer = answer
        else:
            answer()

    # ---- flow

    def _flow(self, flow: Flow, commands: list[Command]) -> None:
        if flow.next_incoming_id is None or not self._next_out:
            # The client did not see our first frames, or gives a number that it cannot know yet (rhea, AMQPNetLite).
            self._window = flow.incoming_window - self._next_out
        else:
            used = (self._next_out - flow.next_incoming_id) & UINT_MAX
            self._window = flow.incoming_window - used
        self.send_waiting()
        if flow.handle is None:
            if flow.echo:
                self._connection.say(self.number, self._flow_of())
            return
        sender = self._in_links.get(flow.handle)
        if sender is not None:
            if flow.echo and sender.is_attached:
                self._say_credit(sender)
            return
        receiver = self._out_links.get(flow.handle)
        if receiver is not None:
            self._flow_of_receiver(receiver, flow, commands)
        elif flow.handle not in self._left:
            raise _unattached(flow.handle)

    def _flow_of_receiver(self, link: OutLink, flow: Flow, commands: list[Command]) -> None:
        if flow.link_credit is not None:
            # What the client counts may be behind, by deliveries that are on their way to it.
            behind = _signed(link.delivery_count - (flow.delivery_count or 0)) + link.waiting
            link.remaining = flow.link_credit - behind
        link.is_draining = flow.drain
        link.is_drained = False
        if flow.drain and (link.remaining <= 0 or self._room(link) <= 0):
            # The engine may make deliveries until it has this: the answer counts them.
            link.asked += 1
            done = partial(self._granted, link)
            commands.append(self._grant(link, Waiting(done, lambda error: done())))
            return
        receipt: Waiting | None = None
        if flow.echo and not flow.drain:
            receipt = Waiting(partial(self._echo, link), lambda error: None)
        commands.append(self._grant(link, receipt))

    def _echo(self, link: OutLink) -> None:
        """Say the state of a link, behind the answer to its attach."""
        if not link.is_over and not self.is_ending:
            self._connection.say(self.number, self._flow_of(link))

    def _granted(self, link: OutLink) -> None:
        """Answer a drain for which there is no credit, or no room, unless the client gave more credit meanwhile."""
        link.asked -= 1
        is_unanswered = link.is_draining and not link.is_over and not self.is_ending
        if is_unanswered and not link.asked and link.tag >= link.granted:
            self._answer_drain(link)

    def _grant(self, link: OutLink, receipt: Waiting | None = None) -> Grant:
        """Return the command for the credit of the client, or the next part of it, as far as its unsettled deliveries
        leave room."""
        link.granted = link.tag + max(min(link.remaining, self._room(link), GRANTED_MAX), 0)
        return Grant(link.id, link.granted, is_drain=link.is_draining, receipt=receipt)

    def _room(self, link: OutLink) -> int:
        waiting = link.waiting if link.is_settled else len(link.unsettled)
        return self._connection.unsettled_max - waiting

    def _is_held(self, link: OutLink) -> bool:
        """Return whether the client has credit that the engine does not have, and room for it again."""
        is_held = link.tag >= link.granted and link.remaining > 0 and not link.is_drained
        return is_held and self._room(link) >= (self._connection.unsettled_max + 1) // 2

    def nothing(self, link: OutLink) -> None:
        """End a drain: there are no more messages now."""
        if link.is_draining:
            self._answer_drain(link)

    def _answer_drain(self, link: OutLink) -> None:
        """Use up the credit that is left, and say so, behind the deliveries that wait for the window."""
        if link.waiting:
            link.is_drained = True
            return
        link.is_draining = link.is_drained = False
        if link.remaining > 0:
            link.delivery_count = (link.delivery_count + link.remaining) & UINT_MAX
        link.remaining = 0
        answer = self._flow_of(link)
        answer.drain = True
        self._connection.say(self.number, answer)

    def _flow_of(self, link: OutLink | None = None) -> Flow:
        flow = Flow(
            next_incoming_id=self._next_in,
            incoming_window=WINDOW,
            next_outgoing_id=self._next_out,
            outgoing_window=WINDOW,
        )
        if link is not None:
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = max(link.remaining, 0)
            flow.available = 0
        return flow

    def _top_up(self, link: InLink) -> None:
        """Give a sending client more credit, if it has little; what is not answered counts as used."""
        if link.is_over or self.is_ending or link.credit + link.unanswered > CREDIT_LOW:
            return
        link.credit = CREDIT - link.unanswered
        self._say_credit(link)

    def _say_credit(self, link: InLink) -> None:
        flow = self._flow_of()
        flow.handle = link.handle
        flow.delivery_count = link.delivery_count
        flow.link_credit = link.credit
        self._connection.say(self.number, flow)

    # ---- deliveries of the client

    def _transfer(self, transfer: schema.Transfer, payload: bytes, commands: list[Command]) -> None:
        link = self._in_links.get(transfer.handle)
        if link is None:
            if transfer.handle in self._left:
                return
            raise _unattached(transfer.handle)
        try:
            self._take(link, transfer, payload, commands)
        except AmqpError as error:
            if error.scope is not Scope.LINK:
                raise
            self._fail_link(link, Error(error.condition, error.text), commands)

    def _take(self, link: InLink, transfer: schema.Transfer, payload: bytes, commands: list[Command]) -> None:
        connection = self._connection
        if isinstance(transfer.state, schema.TransactionalState):
            raise not_implemented("transactions")
        partial = link.partial
        if partial is None:
            if transfer.delivery_id is None:
                raise AmqpError(INVALID_FIELD, "the first transfer of a delivery has no delivery-id", Scope.SESSION)
            if link.credit <= 0:
                raise AmqpError(TRANSFER_LIMIT, "the link has no credit for this message", Scope.LINK)
            link.partial = partial = Partial(transfer.delivery_id, transfer.message_format or 0, False)
        partial.is_settled = partial.is_settled or transfer.settled is True
        if not transfer.aborted:
            most = connection.message_bytes_max
            partial.size += len(payload)
            connection.partial_bytes += len(payload)
            if partial.size > most:
                text = f"a message has more than {most} bytes, wireFormat.maxFrameSize"
                raise AmqpError(MESSAGE_SIZE, text, Scope.LINK)
            if connection.partial_bytes > most:
                text = f"messages of this connection that are not whole have more than {most} bytes"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.LINK)
            if transfer.more or partial.size > len(payload):
                partial.content.write(payload)
            if transfer.more:
                return
        encoded = payload if partial.size == len(payload) else partial.content.getvalue()
        self._drop_partial(link)
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        if transfer.aborted:
            self._top_up(link)
            return
        self._send(link, partial, encoded, commands)

    def _send(self, link: InLink, partial: Partial, encoded: bytes, commands: list[Command]) -> None:
        connection = self._connection
        try:
            incoming = Incoming(encoded, connection.now)
            message = incoming.message(link.destination, connection.next_message_id(), partial.message_format)
        except AmqpError as error:
            # The message is damaged, and not the link: its client learns it by the outcome.
            if partial.is_settled:
                raise AmqpError(error.condition, error.text, Scope.LINK) from None
            rejected = schema.Rejected(Error(error.condition, error.text))
            connection.settle(self.number, partial.delivery_id, partial.delivery_id, rejected, is_receiver=True)
            self._top_up(link)
            return
        if partial.is_settled:
            commands.append(Send(message, None, link.presettled))
            self._top_up(link)
            return
        # prove: amqp-accepts-after-the-store "link.unanswered += 1" -> "connection.accept(self.number, 0)"
        link.unanswered += 1
        receipt = Sent(self, link, partial.delivery_id)
        commands.append(Send(message, None, receipt))

    def _drop_partial(self, link: InLink) -> None:
        if link.partial is not None:
            self._connection.partial_bytes -= link.partial.size
            link.partial = None

    def stored(self, sent: Sent) -> None:
        """Accept a message of the client: it is durable if it is to be."""
        if not self.is_ending:
            self._connection.accept(self.number, sent.delivery_id)
        self._answered(sent.link)

    def not_stored(self, sent: Sent, error: ClientError) -> None:
        """Reject a message of the client."""
        if not self.is_ending:
            rejected = schema.Rejected(error_of(error))
            self._connection.settle(self.number, sent.delivery_id, sent.delivery_id, rejected, is_receiver=True)
        self._answered(sent.link)

    def _presettled_refused(self, link: InLink, error: ClientError) -> None:
        """Detach a link, because a message of it that has no outcome was refused."""
        if link.is_over or self.is_ending:
            return
        commands: list[Command] = []
        self._fail_link(link, error_of(error), commands)
        for each in commands:
            self._connection.ask(each)

    def _answered(self, link: InLink) -> None:
        link.unanswered -= 1
        if not link.unanswered and link.on_idle is not None:
            link.on_idle()
            link.on_idle = None
        self._top_up(link)

    # ---- deliveries to the client

    def deliver(self, link: OutLink, tag: int, message_pieces: list[bytes], message_format: int) -> None:
        """Send a message, now or when the window of the client opens."""
        link.tag = tag
        link.remaining -= 1
        id = self._next_delivery_id
        self._next_delivery_id = (id + 1) & UINT_MAX
        transfer = schema.Transfer(
            handle=link.handle,
            delivery_id=id,
            delivery_tag=tag.to_bytes(8, "big"),
            message_format=message_format,
            settled=link.is_settled,
        )
        if not link.is_settled:
            link.unsettled[id] = tag
            self._unsettled[id] = link
        connection = self._connection
        frame = whole(self.number, transfer, message_pieces, connection.frame_bytes_max)
        if frame is None or self._waiting or self._window <= 0:
            link.waiting += 1
            self._waiting.append((link, tag, Frames(transfer, message_pieces)))
            self.send_waiting()
        else:
            for piece in frame:
                connection.write(piece)
            self._next_out = (self._next_out + 1) & UINT_MAX
            self._window -= 1
            self._written(link, tag)
        if tag >= link.granted:
            if link.remaining > 0 and self._room(link) > 0:
                self._connection.ask(self._grant(link))
            elif link.is_draining and not link.asked:
                self._answer_drain(link)

    def passed_over(self, link: OutLink, tag: int) -> None:
        """Note a delivery that could not be made: the client has credit for another one."""
        link.tag = tag
        self._connection.ask(self._grant(link))

    def send_waiting(self) -> None:
        """Send frames that wait, as many as the window of the client and one turn take."""
        waiting, connection = self._waiting, self._connection
        for _ in range(SENT_FRAMES_MAX):
            if not waiting or self._window <= 0:
                return
            link, tag, frames = waiting[0]
            for piece in frames.next(self.number, connection.frame_bytes_max):
                connection.write(piece)
            self._next_out = (self._next_out + 1) & UINT_MAX
            self._window -= 1
            if not frames.is_over:
                continue
            waiting.popleft()
            link.waiting -= 1
            self._written(link, tag)
            if link.is_settled and self._is_held(link):
                connection.ask(self._grant(link))
        if waiting and self._window > 0:
            connection.go_on(self)

    def _written(self, link: OutLink, tag: int) -> None:
        """Note that all frames of a delivery were written: from now on it counts for the client, and a presettled one
        is settled."""
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        if link.is_settled:
            link.seen = link.written_last = tag
            link.written = link.written or tag
            self._connection.ask_for(link)
        if link.is_drained and not link.waiting:
            self._answer_drain(link)

    def _disposition(self, disposition: schema.Disposition, commands: list[Command]) -> None:
        if not disposition.role:
            return  # of a client that sends: it has its answer
        state = disposition.state
        if isinstance(state, schema.TransactionalState):
            raise not_implemented("transactions", Scope.SESSION)
        if state is None or isinstance(state, schema.Received):
            if not disposition.settled:
                return
            state = None
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        covered = self._covered(first, last)
        receipt: Waiting | None = None
        if covered and not disposition.settled:
            self._unfinished += 1
            due = [len(covered), 0]
            done = partial(self._settled, due, first, last, state)
            receipt = Waiting(done, partial(self._not_settled, due, done))
        for link, (low, high) in covered.items():
            commands.append(command_of(link, low, high, link.default_outcome if state is None else state, receipt))
            link.seen = max(link.seen, high)
            if self._is_held(link):
                commands.append(self._grant(link))

    def _covered(self, first: int, last: int) -> dict[OutLink, tuple[int, int]]:
        """Take out the deliveries with these ids: for each link, the first and the last tag."""
        unsettled = self._unsettled
        count = ((last - first) & UINT_MAX) + 1
        if count <= len(unsettled):
            ids = [id for id in ((first + each) & UINT_MAX for each in range(count)) if id in unsettled]
            self.scanned += count
        else:
            ids = [id for id in unsettled if (id - first) & UINT_MAX < count]
            self.scanned += len(unsettled)
        found: dict[OutLink, tuple[int, int]] = {}
        for id in ids:
            link = unsettled.pop(id)
            tag = link.unsettled.pop(id)
            before = found.get(link)
            found[link] = (tag if before is None else before[0], tag)
        return found

    def _settled(self, due: list[int], first: int, last: int, state: Any) -> None:
        """Settle deliveries whose outcome the client gave without settling them, when it holds for all of them.
        ``due``: numbers of receipts that did not come yet, and of those that refused the outcome."""
        due[0] -= 1
        if due[0]:
            return
        if not due[1] and not self.is_ending:
            self._connection.settle(self.number, first, last, state, is_receiver=False)
        self._finished(None)

    def _not_settled(self, due: list[int], done: Callable[[], None], error: ClientError) -> None:
        due[1] += 1
        done()


def _nothing() -> None:
    """Do nothing."""


def _signed(number: int) -> int:
    """Return the difference of two serial numbers, which may be negative."""
    number &= UINT_MAX
    return number - (UINT_MAX + 1) if number > UINT_MAX // 2 else number


def _unattached(handle: int) -> AmqpError:
    return AmqpError(UNATTACHED_HANDLE, f"the handle {handle} is not attached", Scope.SESSION)
