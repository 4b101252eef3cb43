"""A session of AMQP: its links, and the commands that they lead to. Pure.

    endpoint       windows and the end        deliveries_in   messages of the client
    termini        what a link is about       deliveries_out  messages to it, their credit and outcomes
    control_links  declare and discharge

Frames of the client come to the methods named after them. Errors of a link detach it, errors of the session are raised
(AmqpError).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from tandemmq.broker.core.commands import (
    AckMode,
    AddDestination,
    AddProducer,
    ClientError,
    Command,
    RemoveDestination,
    RemoveProducer,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.control_links import CONTROL_BYTES_MAX, COORDINATOR, ControlLinks, takes_rejected
from tandemmq.broker.protocols.amqp.deliveries_in import DeliveriesIn
from tandemmq.broker.protocols.amqp.deliveries_out import DeliveriesOut
from tandemmq.broker.protocols.amqp.endpoint import Connected, Endpoint
from tandemmq.broker.protocols.amqp.errors import (
    HANDLE_IN_USE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    AmqpError,
    Scope,
    not_implemented,
)
from tandemmq.broker.protocols.amqp.links import SETTLED, InLink, OutLink, Waiting
from tandemmq.broker.protocols.amqp.outcomes import acknowledged, error_of
from tandemmq.broker.protocols.amqp.schema import Error, Flow
from tandemmq.broker.protocols.amqp.termini import (
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
from tandemmq.store.records.message import Destination

# Links of one session have handles up to this.
HANDLE_MAX: Final = 1_023
Link = InLink | OutLink


class LinksConnected(Connected, Protocol):
    """Part of a connection that a session with links uses."""

    def next_id(self) -> str: ...

    def next_temporary(self) -> str:
        """Return the name of a new temporary destination."""

    def enter(self, link: OutLink, channel: Channel) -> None: ...

    def leave(self, link: OutLink) -> None: ...

    def count_links(self, count: int, commands: list[Command]) -> None:
        """Count more or fewer links. Raises AmqpError if there are too many."""


class Channel:
    """A session. ``number`` is its channel in both directions. ``is_ending``: it ended with an error of its own, and
    frames of the client are dropped until the client ends it, too."""

    __slots__ = (
        "_connection",
        "_control_links",
        "_endpoint",
        "_in_links",
        "_left",
        "_names",
        "_out_links",
        "deliveries_in",
        "deliveries_out",
    )

    def __init__(self, connection: LinksConnected, number: int, begin: schema.Begin) -> None:
        self._connection = connection
        self._endpoint = Endpoint(connection, number, begin)
        self.deliveries_in = DeliveriesIn(self._endpoint)
        self.deliveries_out = DeliveriesOut(self._endpoint)
        self._control_links = ControlLinks(self._endpoint, self.deliveries_in)
        self._in_links: dict[int, InLink] = {}
        self._out_links: dict[int, OutLink] = {}
        self._names: set[tuple[str, bool]] = set()
        self._left: set[int] = set()  # handles that this side detached, and the client did not yet

    @property
    def number(self) -> int:
        return self._endpoint.number

    @property
    def is_ending(self) -> bool:
        return self._endpoint.is_ending

    @property
    def scanned(self) -> int:
        """Number of deliveries that steps of this session looked at."""
        return self._endpoint.scanned

    def handle(self, performative: schema.Composite, payload: bytes, commands: list[Command]) -> None:
        """Carry out a frame of the client on this session. Raises AmqpError."""
        if isinstance(performative, schema.Transfer):
            self._endpoint.came()
            self._transfer(performative, payload, commands)
        elif isinstance(performative, schema.Disposition):
            self.deliveries_out.disposition(performative, commands)
        elif isinstance(performative, schema.Flow):
            self._flow(performative, commands)
        elif isinstance(performative, schema.Attach):
            self._attach(performative, commands)
        elif isinstance(performative, schema.Detach):
            self._detach(performative, commands)
        else:
            name = type(performative).__name__
            raise AmqpError(NOT_ALLOWED, f"{name} is nothing that a session receives", Scope.CONNECTION)

    def _transfer(self, transfer: schema.Transfer, payload: bytes, commands: list[Command]) -> None:
        link = self._in_links.get(transfer.handle)
        if link is None:
            if transfer.handle in self._left:
                return
            raise _unattached(transfer.handle)
        try:
            delivery = self.deliveries_in.take(link, transfer, payload)
            if delivery is None:
                return
            if link.is_control:
                self._control_links.take(link, delivery, commands)
            else:
                self.deliveries_in.send(link, delivery, commands)
        except AmqpError as error:
            if error.scope is not Scope.LINK:
                raise
            self._fail_link(link, Error(error.condition, error.text), commands)

    def _flow(self, flow: Flow, commands: list[Command]) -> None:
        endpoint = self._endpoint
        endpoint.widen(flow)
        self.deliveries_out.send_waiting()
        if flow.handle is None:
            if flow.echo:
                endpoint.say(endpoint.flow())
            return
        sender = self._in_links.get(flow.handle)
        if sender is not None:
            if flow.echo and sender.is_attached:
                self.deliveries_in.say_credit(sender)
            return
        receiver = self._out_links.get(flow.handle)
        if receiver is not None:
            try:
                self.deliveries_out.flow(receiver, flow, commands)
            except AmqpError as error:
                self._fail_link(receiver, Error(error.condition, error.text), commands)
        elif flow.handle not in self._left:
            raise _unattached(flow.handle)

    # ---- attach

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
            elif isinstance(attach.target, schema.Coordinator):
                self._attach_control(attach, commands)
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
        self._answer(
            attach,
            None if is_sender else plain_source(attach.source),
            plain_target(attach.target) if is_sender else None,
        )
        if error is not None:
            self._left.add(attach.handle)
            self._endpoint.say(schema.Detach(attach.handle, True, error))

    def _answer(
        self,
        attach: schema.Attach,
        source: schema.Source | None,
        target: schema.Target | schema.Coordinator | None,
        message_bytes_max: int | None = None,
    ) -> None:
        """Answer an attach with these termini."""
        answer = schema.Attach(
            name=attach.name,
            handle=attach.handle,
            role=not attach.role,
            snd_settle_mode=attach.snd_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if attach.role else None,
            max_message_size=message_bytes_max,
        )
        self._endpoint.say(answer)

    def _attach_sender(self, attach: schema.Attach, temporary: Destination | None, commands: list[Command]) -> None:
        connection = self._connection
        destination = writing_of(attach, temporary)
        connection.count_links(1, commands)
        link = InLink(
            attach.name,
            attach.handle,
            connection.next_id(),
            destination,
            message_bytes_max=connection.message_bytes_max,
            delivery_count=attach.initial_delivery_count or 0,
            temporary=temporary,
        )
        self._enter(link)
        done = partial(self._attached, link, attach, plain_source(attach.source), answered_target(attach, link))
        failed = self._make_temporary(link, attach, commands)
        commands.append(AddProducer(link.id, destination, Waiting(done, failed)))

    def _attach_control(self, attach: schema.Attach, commands: list[Command]) -> None:
        connection = self._connection
        connection.count_links(1, commands)
        link = InLink(
            attach.name,
            attach.handle,
            connection.next_id(),
            None,
            message_bytes_max=CONTROL_BYTES_MAX,
            is_control=True,
            takes_rejected=takes_rejected(attach),
            delivery_count=attach.initial_delivery_count or 0,
        )
        self._enter(link)
        self._attached(link, attach, plain_source(attach.source), COORDINATOR)

    def _enter(self, link: InLink) -> None:
        link.presettled = Waiting(_nothing, partial(self._presettled_refused, link))
        self._in_links[link.handle] = link
        self._names.add((link.name, False))

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
        done = partial(
            self._attached,
            link,
            attach,
            answered_source(attach, reading, temporary),
            plain_target(attach.target),
        )
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
                receipt=Waiting(done, failed),
            )
        )

    def _attached(
        self,
        link: Link,
        attach: schema.Attach,
        source: schema.Source | None,
        target: schema.Target | schema.Coordinator | None,
    ) -> None:
        """Answer an attach whose link the engine has."""
        if self.is_ending:
            return
        link.is_attached = True
        if isinstance(link, InLink):
            self._answer(attach, source, target, link.message_bytes_max)
            self.deliveries_in.top_up(link)
        else:
            self._answer(attach, source, target)

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

    # ---- detach

    def _forget(self, link: Link) -> bool:
        """Forget a link that is over; return False if that happened already."""
        link.is_over = True
        if isinstance(link, InLink):
            if self._in_links.get(link.handle) is not link:
                return False
            del self._in_links[link.handle]
            self.deliveries_in.drop_partial(link)
            self._names.discard((link.name, False))
        else:
            if self._out_links.get(link.handle) is not link:
                return False
            del self._out_links[link.handle]
            self._names.discard((link.name, True))
            self._connection.leave(link)
            self.deliveries_out.forget(link)
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
        self._endpoint.owe()
        removed = partial(self._node_removed, handle, detach.closed)
        commands.append(RemoveDestination(link.temporary, Waiting(partial(removed, None), removed)))

    def _node_removed(self, handle: int, is_closed: bool, error: ClientError | None) -> None:
        self._endpoint.finish(schema.Detach(handle, is_closed, None if error is None else error_of(error)))

    def _end_link(
        self, link: Link, commands: list[Command], answer: schema.Detach | None, *, removes: bool = True
    ) -> None:
        """End a link for the broker, and write ``answer`` when all that it did holds. ``removes``: also its temporary
        destination, as far as that has no other consumers."""
        self._forget(link)
        self._endpoint.owe()
        if removes and link.temporary is not None:
            self._remove(link.temporary)
        ended = partial(self._endpoint.finish, answer)
        if isinstance(link, OutLink):
            if link.written:
                commands.append(acknowledged(link))
            commands.append(Unsubscribe(link.id, seen=link.seen, receipt=Waiting(ended, lambda error: ended())))
            return
        if link.is_control:
            self._control_links.end(link, commands)
            self._producer_removed(link, ended)
            return
        removed = partial(self._producer_removed, link, ended)
        commands.append(RemoveProducer(link.id, Waiting(removed, lambda error: removed())))

    def _producer_removed(self, link: InLink, ended: Callable[[], None]) -> None:
        """End a link of a client that sends, behind the answers to its attach and to its messages."""
        if link.unanswered:  # prove: amqp-detach-waits-for-outcomes "link.unanswered" -> "False"
            link.on_idle = ended
        else:
            ended()

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
            self._endpoint.say(schema.Detach(link.handle, True, error_of(error)))

    def _presettled_refused(self, link: InLink, error: ClientError) -> None:
        """Detach a link, because a message of it that has no outcome was refused."""
        if link.is_over or self.is_ending:
            return
        commands: list[Command] = []
        self._fail_link(link, error_of(error), commands)
        for each in commands:
            self._connection.ask(each)

    # ---- the end of the session

    def fail(self, error: AmqpError, commands: list[Command]) -> None:
        """End the session because of its client's mistake."""
        self._endpoint.say(schema.End(Error(error.condition, error.text)))
        self._endpoint.is_ending = True
        self.end(commands, _nothing)

    def end(self, commands: list[Command], answer: Callable[[], None]) -> None:
        """End all links, and call ``answer`` when that holds, behind the answers to what the client did before."""
        links: list[Link] = [*self._in_links.values(), *self._out_links.values()]
        self.deliveries_out.stop()
        for link in links:
            self._end_link(link, commands, None)
        self._endpoint.end(answer)


def _nothing() -> None:
    """Do nothing."""


def _unattached(handle: int) -> AmqpError:
    return AmqpError(UNATTACHED_HANDLE, f"the handle {handle} is not attached", Scope.SESSION)
