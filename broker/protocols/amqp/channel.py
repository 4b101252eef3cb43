"""AMQP session: turns the frames of its links into commands. Pure.

    endpoint       windows, end of the session     deliveries_in   messages from the client
    termini        sources and targets of links    deliveries_out  messages to the client: credit, outcomes
    attached_links handles and ends of links       control_links   declare and discharge
    subscriptions  durable and shared ones

``Channel.handle`` passes each type of frame to one method. An error of a link detaches it; an error of the session is
raised (AmqpError).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tandemmq.broker.core.commands import (
    AckMode,
    AddDestination,
    AddProducer,
    ClientError,
    Command,
    FoundDurable,
    ShareClientId,
    Subscribe,
)
from tandemmq.broker.protocols.amqp import schema, subscriptions
from tandemmq.broker.protocols.amqp.attached_links import Link, LinkEnds, LinksConnected, LinkTable, subscription_of
from tandemmq.broker.protocols.amqp.control_links import CONTROL_BYTES_MAX, COORDINATOR, ControlLinks, supports_rejected
from tandemmq.broker.protocols.amqp.deliveries_in import DeliveriesIn
from tandemmq.broker.protocols.amqp.deliveries_out import DeliveriesOut
from tandemmq.broker.protocols.amqp.endpoint import Endpoint
from tandemmq.broker.protocols.amqp.errors import NOT_ALLOWED, AmqpError, Scope
from tandemmq.broker.protocols.amqp.hot import DISPOSITION_CODE, TRANSFER_CODE, read_accepted, read_flow, read_whole
from tandemmq.broker.protocols.amqp.links import SETTLED, Callbacks, InLink, OutLink, do_nothing
from tandemmq.broker.protocols.amqp.schema import Error, Flow
from tandemmq.broker.protocols.amqp.subscriptions import Subscription
from tandemmq.broker.protocols.amqp.termini import (
    SECOND,
    answer_to,
    answered_source,
    answered_target,
    check_attach,
    found_source,
    plain_outcome,
    plain_source,
    plain_target,
    rcv_settle_mode_of,
    source_request,
    target_destination,
    temporary_of,
)
from tandemmq.store.records.message import Destination


class ChannelConnected(LinksConnected):
    """Interface of a connection that a session uses."""

    container_id: str  # of the client
    has_client_id: bool  # the container-id is the client id of the connection

    def next_id(self) -> str:
        raise NotImplementedError

    def next_temporary(self) -> str:
        """Return the name of a new temporary destination."""
        raise NotImplementedError

    def add_out_link(self, link: OutLink, channel: Channel) -> None:
        raise NotImplementedError


class Channel:
    """A session. ``number``: its channel in both directions. ``is_ending``: this side ended it with an error; frames
    of the client are dropped until the client ends it, too."""

    __slots__ = (
        "_connection",
        "_control_links",
        "_endpoint",
        "_links",
        "deliveries_in",
        "deliveries_out",
        "ends",
    )

    def __init__(self, connection: ChannelConnected, number: int, begin: schema.Begin) -> None:
        self._connection = connection
        self._endpoint = Endpoint(connection, number, begin)
        self.deliveries_in = DeliveriesIn(self._endpoint)
        self.deliveries_out = DeliveriesOut(self._endpoint)
        self._control_links = ControlLinks(self._endpoint, self.deliveries_in)
        self._links = LinkTable(begin.handle_max)
        self.ends = LinkEnds(
            connection, self._endpoint, self._links, self.deliveries_in, self.deliveries_out, self._control_links
        )

    @property
    def number(self) -> int:
        return self._endpoint.number

    @property
    def is_ending(self) -> bool:
        return self._endpoint.is_ending

    @property
    def scanned(self) -> int:
        """Number of deliveries that this session has examined."""
        return self._endpoint.scanned

    def handle(self, performative: schema.Composite, payload: bytes, commands: list[Command]) -> None:
        """Handle a frame of the client on this session. Raises AmqpError."""
        if isinstance(performative, schema.Transfer):
            self._endpoint.count_received()
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
            raise AmqpError(NOT_ALLOWED, f"a session receives no {type(performative).__name__}", Scope.CONNECTION)

    def take_usual(self, body: bytes, commands: list[Command]) -> bool:
        """Handle a common frame of a sender or receiver with the effect of ``handle``, but faster. False: it is another
        frame, and nothing was done."""
        code = body[2] if len(body) > 2 else 0
        if code == TRANSFER_CODE:
            return self._take_whole(body, commands)
        if code == DISPOSITION_CODE:
            first, last, is_settled, _ = read_accepted(body)
            if first < 0 or is_settled != 1:
                return False
            return self.deliveries_out.accept(first, first if last < 0 else last, commands)
        flow = read_flow(body)
        if flow is None:
            return False
        self._flow(flow, commands)
        return True

    def _take_whole(self, body: bytes, commands: list[Command]) -> bool:
        """Handle a transfer with a whole message, for a link that is not a control link. False: nothing was done."""
        handle, delivery_id, is_settled, payload_at = read_whole(body)
        link = None if handle < 0 else self._links.in_links.get(handle)
        if link is None or link.is_control or not self.deliveries_in.may_take_whole(link, len(body) - payload_at):
            return False
        self._endpoint.count_received()
        try:
            self.deliveries_in.take_whole(link, delivery_id, body[payload_at:], commands, is_settled=is_settled)
        except AmqpError as error:
            self._fail(link, error, commands)
        return True

    def _transfer(self, transfer: schema.Transfer, payload: bytes, commands: list[Command]) -> None:
        link = self._links.in_links.get(transfer.handle)
        if link is None:
            self._links.check_detached(transfer.handle)
            return
        try:
            delivery = self.deliveries_in.take(link, transfer, payload)
            if delivery is None:
                return
            if link.is_control:
                self._control_links.take(link, delivery, commands)
            else:
                self.deliveries_in.send(link, delivery, commands)
        except AmqpError as error:
            self._fail(link, error, commands)

    def _fail(self, link: InLink, error: AmqpError, commands: list[Command]) -> None:
        """End a link with an error. Raises the error again if it ends more than the link."""
        if error.scope is not Scope.LINK:
            raise error
        self.ends.fail(link, Error(error.condition, error.text), commands)

    def _flow(self, flow: Flow, commands: list[Command]) -> None:
        endpoint = self._endpoint
        endpoint.update_window(flow)
        self.deliveries_out.send_waiting()
        if flow.handle is None:
            if flow.echo:
                endpoint.write(endpoint.flow())
            return
        sender = self._links.in_links.get(flow.handle)
        if sender is not None:
            if flow.echo and sender.pending is None:
                self.deliveries_in.write_credit(sender)
            return
        receiver = self._links.out_links.get(flow.handle)
        if receiver is not None:
            try:
                self.deliveries_out.flow(receiver, flow, commands)
            except AmqpError as error:
                self.ends.fail(receiver, Error(error.condition, error.text), commands)
        else:
            self._links.check_attached_before(flow.handle)

    # ---- attach

    def _attach(self, attach: schema.Attach, commands: list[Command]) -> None:
        links = self._links
        links.check_free(attach.handle)
        own_handle = links.take_handle(attach.handle)
        try:
            check_attach(attach)
            former = self._connection.by_name.get((attach.name, attach.role))
            if former is not None:
                former[0].steal(former[1], commands)
            temporary = temporary_of(attach, self._connection.next_temporary)
            if isinstance(attach.target, schema.Coordinator):
                self._attach_control(attach, own_handle, commands)
            elif not attach.role:
                self._attach_sender(attach, own_handle, temporary, commands)
            elif attach.source is None:
                self._look_up(attach, own_handle, commands)
            else:
                self._attach_receiver(attach, own_handle, temporary, commands)
        except AmqpError as error:
            if error.scope is not Scope.LINK:
                raise
            self.ends.refuse(attach, own_handle, Error(error.condition, error.text))

    def _attach_sender(
        self, attach: schema.Attach, own_handle: int, temporary: Destination | None, commands: list[Command]
    ) -> None:
        connection = self._connection
        destination = target_destination(attach, temporary)
        link = InLink(
            attach.name,
            attach.handle,
            connection.next_id(),
            destination,
            own_handle=own_handle,
            is_second=rcv_settle_mode_of(attach) == SECOND,
            message_bytes_max=connection.message_bytes_max,
            delivery_count=attach.initial_delivery_count or 0,
            pending=attach,
            temporary=temporary,
        )
        self._enter(link, commands)
        done = partial(self._attached, link, plain_source(attach.source), answered_target(attach, link))
        failed = self._prepare(link, commands)
        commands.append(AddProducer(link.id, destination, Callbacks(done, failed)))

    def _attach_control(self, attach: schema.Attach, own_handle: int, commands: list[Command]) -> None:
        link = InLink(
            attach.name,
            attach.handle,
            self._connection.next_id(),
            None,
            own_handle=own_handle,
            message_bytes_max=CONTROL_BYTES_MAX,
            is_control=True,
            supports_rejected=supports_rejected(attach),
            delivery_count=attach.initial_delivery_count or 0,
            pending=attach,
        )
        self._enter(link, commands)
        self._attached(link, plain_source(attach.source), COORDINATOR)

    def _enter(self, link: Link, commands: list[Command]) -> None:
        """Add a new link. Raises AmqpError if there are too many."""
        connection = self._connection
        connection.count_links(1, len(link.name), commands)
        self._links.add(link)
        if isinstance(link, InLink):
            link.presettled = Callbacks(
                partial(self.deliveries_in.answered, link), partial(self.ends.presettled_refused, link)
            )
            connection.by_name[link.name, False] = self.ends, link
        else:
            connection.by_name[link.name, True] = self.ends, link
            connection.add_out_link(link, self)

    def _attach_receiver(
        self, attach: schema.Attach, own_handle: int, temporary: Destination | None, commands: list[Command]
    ) -> None:
        request = source_request(attach, temporary)
        subscription = subscriptions.subscription_of(attach, request.destination, self._connection.container_id)
        link = self._out_link(attach, own_handle, subscription, temporary)
        link.is_topic = request.destination.is_topic
        self._enter(link, commands)
        source = answered_source(attach, request, temporary, subscription)
        done = partial(self._attached, link, source, plain_target(attach.target))
        failed = self._prepare(link, commands)
        commands.append(
            Subscribe(
                link.id,
                request.destination,
                AckMode.RANGE,
                prefetch=0,
                durable_name=None if subscription is None else subscription.durable_name,
                share=None if subscription is None else subscription.share,
                has_terms=True,
                is_global=subscription is not None and subscription.is_global,
                selector=request.selector,
                no_local=request.no_local,
                is_browser=request.is_browser,
                receipt=Callbacks(done, failed),
            )
        )

    def _out_link(
        self,
        attach: schema.Attach,
        own_handle: int,
        subscription: Subscription | None,
        temporary: Destination | None = None,
    ) -> OutLink:
        outcome = attach.source.default_outcome if attach.source is not None else None
        return OutLink(
            attach.name,
            attach.handle,
            self._connection.next_id(),
            own_handle=own_handle,
            subscription=subscription,
            is_settled=attach.snd_settle_mode == SETTLED,
            temporary=temporary,
            default_outcome=plain_outcome(outcome),
            message_bytes_max=attach.max_message_size or 0,
            pending=attach,
        )

    def _look_up(self, attach: schema.Attach, own_handle: int, commands: list[Command]) -> None:
        """Attach a link without a source (Qpid JMS): the answer shows its durable subscription, and a detach with
        ``closed`` deletes that subscription. The link gets no messages."""
        subscription = subscriptions.subscription_of(attach, None, self._connection.container_id)
        assert subscription is not None, "a link without a source has one"
        link = self._out_link(attach, own_handle, subscription)
        self._enter(link, commands)
        failed = self._prepare(link, commands)
        command = subscriptions.find(subscription)
        found = command.found
        command.receipt = Callbacks(lambda: self._found(link, found, subscription), failed)
        commands.append(command)

    def _found(self, link: OutLink, found: FoundDurable, subscription: Subscription) -> None:
        if link.pending is not None:
            self._attached(link, found_source(found, subscription), plain_target(link.pending.target))

    def _attached(
        self, link: Link, source: schema.Source | None, target: schema.Target | schema.Coordinator | None
    ) -> None:
        """Answer an attach that was accepted, by the engine or, for a control link, by this session."""
        attach, link.pending = link.pending, None
        if self.is_ending or attach is None:
            return
        if isinstance(link, InLink):
            self._endpoint.write(answer_to(attach, link.own_handle, source, target, link.message_bytes_max))
            self.deliveries_in.top_up(link)
        else:
            self._endpoint.write(answer_to(attach, link.own_handle, source, target))
            self.deliveries_out.attached(link)

    def _prepare(self, link: Link, commands: list[Command]) -> Callable[[ClientError], None]:
        """Append the commands that a link needs first: for its temporary destination, and for the client id of its
        subscription. Return the function to call if the link is refused; it reports the first error."""
        errors: list[ClientError] = []
        waiting = Callbacks(do_nothing, errors.append)
        if link.temporary is not None:
            commands.append(AddDestination(link.temporary, waiting))
        subscription = subscription_of(link)
        if subscription is not None and not subscription.is_global and not self._connection.has_client_id:
            commands.append(ShareClientId(self._connection.container_id, waiting))
        return lambda error: self.ends.not_attached(link, errors[0] if errors else error)

    # ---- detach

    def _detach(self, detach: schema.Detach, commands: list[Command]) -> None:
        handle = detach.handle
        if self._links.finish_detach(handle):
            return
        link: Link | None = self._links.in_links.get(handle) or self._links.out_links.get(handle)
        if link is None:
            self._links.check_detached(handle)
            return
        self.ends.detached(link, detach, commands)

    # ---- the end of the session

    def fail(self, error: AmqpError, commands: list[Command]) -> None:
        """End the session because of an error of the client."""
        self._endpoint.write(schema.End(Error(error.condition, error.text)))
        self._endpoint.is_ending = True
        self.end(commands, do_nothing)

    def end(self, commands: list[Command], answer: Callable[[], None]) -> None:
        """End all links; then, after the answers to all earlier frames, call ``answer``."""
        self.deliveries_out.stop()
        for link in self._links.all():
            self.ends.end(link, commands, None)
        self._endpoint.end(answer)
