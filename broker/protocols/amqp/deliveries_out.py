"""Deliveries to an AMQP client: credit, window and outcomes. Pure.

credit of the client -> Grant -> deliver -> frames -> disposition -> Ack, GiveBack, GiveUp
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final

from tandemmq.broker.core.commands import Ack, ClientError, Command, Grant, Undeliverable
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.endpoint import Endpoint
from tandemmq.broker.protocols.amqp.errors import Scope, not_implemented
from tandemmq.broker.protocols.amqp.hot import TRANSFER_HEAD_BYTES, transfer_head
from tandemmq.broker.protocols.amqp.links import GRANTED_MAX, Callbacks, OutLink, command_of, kept_outcome
from tandemmq.broker.protocols.amqp.output import Frames
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Flow
from tandemmq.broker.protocols.amqp.transactions import Run, Transaction
from tandemmq.broker.protocols.session import COMMANDS_MAX

_TRANSACTION: Final = "txn-id"


class DeliveriesOut:
    """Deliveries to the client in one session."""

    __slots__ = ("_endpoint", "_next_delivery_id", "_unsettled", "_waiting")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._next_delivery_id = 0
        self._unsettled: dict[int, OutLink] = {}  # by delivery id
        # Deliveries that wait for the window, with their tags. Some frames of the first one may be written.
        self._waiting: deque[tuple[OutLink, int, Frames]] = deque()

    def forget(self, link: OutLink) -> None:
        """Forget the deliveries of a link that has ended."""
        for id in link.unsettled:
            del self._unsettled[id]
        self._endpoint.scanned += len(link.unsettled)
        link.unsettled.clear()
        if link.waiting:
            self._endpoint.scanned += len(self._waiting)
            waiting, self._waiting = self._waiting, deque()
            connection = self._endpoint.connection
            for each in waiting:
                if each[0] is link:
                    connection.waiting_bytes -= each[2].size
                else:
                    self._waiting.append(each)
            connection.report_waiting()

    def stop(self) -> None:
        """Forget all deliveries that wait for the window."""
        connection = self._endpoint.connection
        for link, _, frames in self._waiting:
            link.waiting = 0
            connection.waiting_bytes -= frames.size
        self._waiting.clear()
        connection.report_waiting()

    # ---- credit

    def flow(self, link: OutLink, flow: Flow, commands: list[Command]) -> None:
        """Apply the credit that the client grants to a link. Raises AmqpError."""
        if flow.properties is not None and _TRANSACTION in flow.properties:
            raise not_implemented("acquisition in a transaction (txn-id in a flow)")
        if flow.link_credit is not None:
            # The client's delivery-count may be lower than the broker's, because deliveries are on their way, but not
            # higher. It may include the first waiting delivery, if the client has some of its frames.
            in_flight = max(_signed(link.delivery_count + link.waiting - (flow.delivery_count or 0)), 0)
            link.remaining = flow.link_credit - in_flight
        was_draining = link.is_draining
        link.is_draining = flow.drain
        link.is_drained = False
        if flow.drain or flow.echo:
            commands.append(self._grant(link, self._receipt_of(link, flow)))
        # A topic may drop messages for which it has no grant, so it gets new credit at once.
        # prove: amqp-grant-after-a-drain "was_draining or "
        elif was_draining or link.is_topic or not self._is_granted(link):
            commands.append(self._grant(link))

    def _receipt_of(self, link: OutLink, flow: Flow) -> Callbacks | None:
        """Return the receipt of a grant that answers a drain or an echo."""
        if not flow.drain:
            return Callbacks(partial(self._echo, link), lambda error: None)
        if link.remaining > 0 and self._room(link) > 0:
            return None
        # Until the engine has this grant, it may make deliveries. So the answer is sent then, and counts them.
        link.drain_grants += 1
        done = partial(self._drain_granted, link)
        return Callbacks(done, lambda error: done())

    def _is_granted(self, link: OutLink) -> bool:
        """Return whether the engine may send at least half of what a new grant would permit, and not more. Then it gets
        the next grant when it has used this one: clients grant credit again after each message."""
        left, permitted = link.granted - link.tag, self._permitted(link)
        return permitted <= 2 * left and left <= permitted and left > 0

    def _echo(self, link: OutLink) -> None:
        """Write the state of a link, after the answer to its attach."""
        if link.pending is not None:
            link.is_flow_due = True
        elif not link.is_over and not self._endpoint.is_ending:
            self._endpoint.write(self._flow_of(link))

    def _drain_granted(self, link: OutLink) -> None:
        """Answer a drain without credit, or without room, unless the client has granted more credit meanwhile."""
        link.drain_grants -= 1
        is_unanswered = link.is_draining and not link.is_over and not self._endpoint.is_ending
        if is_unanswered and not link.drain_grants and link.tag >= link.granted:
            self._answer_drain(link)

    def _grant(self, link: OutLink, receipt: Callbacks | None = None) -> Grant:
        """Return the command that grants the client's credit, or the next part of it, within the limit of unsettled
        deliveries."""
        link.granted = link.tag + self._permitted(link)
        return Grant(link.id, link.granted, is_drain=link.is_draining, receipt=receipt)

    def _permitted(self, link: OutLink) -> int:
        """Return the maximum number of messages that the engine may send after the last one."""
        return max(min(link.remaining, self._room(link), GRANTED_MAX), 0)

    def _room(self, link: OutLink) -> int:
        if link.subscription is not None and link.subscription.is_looked_up:
            return 0
        waiting = link.waiting if link.is_settled else len(link.unsettled)
        return self._endpoint.connection.unsettled_max - waiting

    def _needs_grant(self, link: OutLink) -> bool:
        """Return whether the engine has used its grant, the client has more credit, and half of the limit of unsettled
        deliveries is free."""
        is_held = link.tag >= link.granted and link.remaining > 0 and not link.is_drained
        return is_held and self._room(link) >= (self._endpoint.connection.unsettled_max + 1) // 2

    def end_drain(self, link: OutLink) -> None:
        """Answer a drain: the engine has no more messages now."""
        if link.is_draining:
            self._answer_drain(link)

    def attached(self, link: OutLink) -> None:
        """Write the flow that waited for the answer to the attach."""
        if link.is_flow_due and not link.is_over:
            link.is_flow_due = False
            if link.is_drained:
                self._answer_drain(link)
            else:
                self._echo(link)

    def _answer_drain(self, link: OutLink) -> None:
        """Use up the remaining credit and report it in a flow, after the answer to the attach and the deliveries that
        wait for the window."""
        if link.pending is not None:
            link.is_flow_due = link.is_drained = True
            return
        if link.waiting:
            link.is_drained = True
            return
        link.is_draining = link.is_drained = False
        if link.remaining > 0:
            link.delivery_count = (link.delivery_count + link.remaining) & UINT_MAX
        link.remaining = 0
        link.granted = link.tag  # prove: amqp-drained-grants-end
        answer = self._flow_of(link)
        answer.drain = True
        self._endpoint.write(answer)

    def _flow_of(self, link: OutLink) -> Flow:
        flow = self._endpoint.flow()
        flow.handle = link.own_handle
        flow.delivery_count = link.delivery_count
        flow.link_credit = max(link.remaining, 0)
        flow.available = 0
        return flow

    # ---- transfers

    def deliver(self, link: OutLink, tag: int, message_pieces: list[bytes], message_format: int) -> None:
        """Send a message, now or when the window of the client opens. Raises Undeliverable if it exceeds the
        max-message-size of the client."""
        size = len(message_pieces[0]) if len(message_pieces) == 1 else sum(map(len, message_pieces))
        if 0 < link.message_bytes_max < size:
            self.skip(link, tag)
            raise Undeliverable(f"it has {size} bytes, and its consumer takes {link.message_bytes_max}")
        link.tag = tag
        link.remaining -= 1
        id = self._next_delivery_id
        self._next_delivery_id = (id + 1) & UINT_MAX
        if not link.is_settled:
            link.unsettled[id] = tag
            self._unsettled[id] = link
        endpoint = self._endpoint
        connection = endpoint.connection
        is_usual = not message_format and TRANSFER_HEAD_BYTES + size <= connection.frame_bytes_max
        if is_usual and not self._waiting and endpoint.window > 0:
            connection.write(transfer_head(endpoint.number, link.own_handle, id, tag, link.is_settled, size))
            for piece in message_pieces:
                connection.write(piece)
            endpoint.count_sent()
            self._written(link, tag)
        else:
            tag_bytes = tag.to_bytes(8, "big")
            transfer = schema.Transfer(link.own_handle, id, tag_bytes, message_format, link.is_settled)
            link.waiting += 1
            self._waiting.append((link, tag, Frames(transfer, message_pieces)))
            connection.waiting_bytes += size
            self.send_waiting()
        if tag >= link.granted:
            if link.remaining > 0 and self._room(link) > 0:
                connection.enqueue(self._grant(link))
            elif link.is_draining and not link.drain_grants:
                self._answer_drain(link)

    def skip(self, link: OutLink, tag: int) -> None:
        """Skip a message that cannot be delivered. Its credit is used for the next one."""
        link.tag = tag
        self._endpoint.connection.enqueue(self._grant(link))

    def send_waiting(self) -> None:
        """Write waiting frames, within the limits of the client's window, the output and one turn."""
        waiting, endpoint = self._waiting, self._endpoint
        connection = endpoint.connection
        while waiting and endpoint.window > 0:
            if not connection.may_send():
                connection.call_next_turn(self.send_waiting)
                break
            link, tag, frames = waiting[0]
            for piece in frames.next(endpoint.number, connection.frame_bytes_max):
                connection.write(piece)
            endpoint.count_sent()
            if not frames.is_over:
                continue
            waiting.popleft()
            link.waiting -= 1
            connection.waiting_bytes -= frames.size
            self._written(link, tag)
            if link.is_settled and self._needs_grant(link):
                connection.enqueue(self._grant(link))
        connection.report_waiting()

    def _written(self, link: OutLink, tag: int) -> None:
        """Count a delivery after its last frame is written; a presettled one is now settled."""
        link.delivery_count = (link.delivery_count + 1) & UINT_MAX
        if link.is_settled:
            link.seen = link.written_last = tag
            link.written = link.written or tag
            self._endpoint.connection.acknowledge_later(link)
        if link.is_drained and not link.waiting:
            self._answer_drain(link)

    # ---- outcomes

    def accept(self, first: int, last: int, commands: list[Command]) -> bool:
        """Handle a disposition that settles deliveries as accepted; this is ``disposition``, but faster. False: nothing
        was done, because there may be too many for one turn, or because they are of several links."""
        count = ((last - first) & UINT_MAX) + 1
        if count > 1 and (count > COMMANDS_MAX or self._are_several_links(first, count)):
            return False
        latest: OutLink | None = None
        begin = end = 0
        id = first
        for _ in range(count):
            link = self._unsettled.pop(id, None)
            if link is not None:
                tag = link.unsettled.pop(id)
                if latest is None or tag != end + 1:  # prove: amqp-runs-have-no-gaps-2 " or tag != end + 1"
                    if latest is not None:
                        self._acknowledge(latest, begin, end, commands)
                    latest, begin = link, tag
                end = tag
            id = (id + 1) & UINT_MAX
        if latest is not None:
            self._acknowledge(latest, begin, end, commands)
        self._endpoint.scanned += count
        return True

    def _are_several_links(self, first: int, count: int) -> bool:
        latest: OutLink | None = None
        for each in range(count):
            link = self._unsettled.get((first + each) & UINT_MAX)
            if link is not None:
                if latest is not None and link is not latest:
                    return True
                latest = link
        return False

    def _acknowledge(self, link: OutLink, first: int, last: int, commands: list[Command]) -> None:
        commands.append(Ack(link.id, last, first=first))
        self._note_seen(link, last, commands)

    def disposition(self, disposition: schema.Disposition, commands: list[Command]) -> None:
        """Handle a disposition of the client for a range of deliveries. Raises AmqpError."""
        if not disposition.role:
            return  # from a sender, which has the outcome already
        transaction = self._transaction_of(disposition)
        if _outcome_of(disposition) is None and not disposition.settled:
            return
        first, last = disposition.first, disposition.last
        if last is None or first == last:  # one delivery: no sets of ids and runs
            link = self._unsettled.pop(first, None)
            if link is not None:
                self._give(disposition, transaction, [Run(link, link.unsettled.pop(first), first)], commands)
            return
        self._give_range(disposition, self._ids(first, last), commands)

    def _give_range(self, disposition: schema.Disposition, ids: deque[int], commands: list[Command]) -> None:
        """Give the first of these deliveries their outcome. The others get it before the next frame is handled.
        Raises AmqpError if the transaction has ended meanwhile."""
        transaction = self._transaction_of(disposition)
        self._give(disposition, transaction, self._take_out(ids), commands)
        if ids:
            self._endpoint.connection.defer(self._endpoint.number, partial(self._give_range, disposition, ids))

    def _transaction_of(self, disposition: schema.Disposition) -> Transaction | None:
        state = disposition.state
        if not isinstance(state, schema.TransactionalState):
            return None
        return self._endpoint.connection.transactions.find(state.txn_id, Scope.SESSION)

    def _give(
        self,
        disposition: schema.Disposition,
        transaction: Transaction | None,
        runs: list[Run],
        commands: list[Command],
    ) -> None:
        """Give deliveries their outcome, in a transaction or not."""
        outcome = _outcome_of(disposition)
        for run in runs:
            link = run.link
            found = link.default_outcome if outcome is None else outcome
            if transaction is not None:
                transaction.retire(self, run, found, is_settled=disposition.settled, commands=commands)
                if not disposition.settled:
                    self._write_state(run, transaction.state(outcome), is_settled=False)
            else:
                receipt: Callbacks | None = None
                if not disposition.settled:
                    self._endpoint.start_answer()
                    receipt = Callbacks(partial(self._confirmed, run, outcome), self._refused)
                commands.append(command_of(link, run.first, run.last, found, receipt))
            self._note_seen(link, run.last, commands)

    def _note_seen(self, link: OutLink, last: int, commands: list[Command]) -> None:
        link.seen = max(link.seen, last)
        if self._needs_grant(link):
            commands.append(self._grant(link))

    def _ids(self, first: int, last: int) -> deque[int]:
        """Return the ids of the unsettled deliveries in this range."""
        unsettled = self._unsettled
        count = ((last - first) & UINT_MAX) + 1
        if count <= len(unsettled):
            self._endpoint.scanned += count
            ids = [(first + each) & UINT_MAX for each in range(count)]
            return deque([id for id in ids if id in unsettled])
        self._endpoint.scanned += len(unsettled)
        return deque([id for id in unsettled if (id - first) & UINT_MAX < count])

    def _take_out(self, ids: deque[int]) -> list[Run]:
        """Remove the first of these deliveries from the unsettled ones; return them in at most COMMANDS_MAX runs."""
        unsettled = self._unsettled
        found: list[Run] = []
        latest: dict[OutLink, Run] = {}
        while ids:
            id = ids[0]
            link = unsettled.get(id)
            if link is not None:  # otherwise its link has ended meanwhile
                tag = link.unsettled[id]
                run = latest.get(link)
                # The tags of a run have no gaps: a delivery in a gap may belong to a transaction in the engine.
                if run is not None and run.last + 1 == tag:  # prove: amqp-runs-have-no-gaps " and run.last + 1 == tag"
                    run.last = tag
                    run.ids.append(id)
                elif len(found) == COMMANDS_MAX:
                    break
                else:
                    latest[link] = run = Run(link, tag, id)
                    found.append(run)
                del unsettled[id]
                del link.unsettled[id]
            ids.popleft()
        return found

    def resume(self, run: Run) -> None:
        """Make deliveries unsettled again after the rollback of their transaction."""
        link = run.link
        tag = run.first
        for id in run.ids:
            link.unsettled[id] = tag
            self._unsettled[id] = link
            tag += 1
        self._endpoint.scanned += len(run.ids)

    def settle(self, run: Run, state: Any) -> None:
        """Settle deliveries with a confirmed outcome."""
        if not self._endpoint.is_ending:
            self._write_state(run, state, is_settled=True)

    def _write_state(self, run: Run, state: Any, *, is_settled: bool) -> None:
        """Write the state of exactly these deliveries: deliveries between them may have another outcome."""
        first = last = run.ids[0]
        for id in run.ids[1:]:
            if id != (last + 1) & UINT_MAX:
                self._endpoint.write(schema.Disposition(False, first, last, is_settled, state))
                first = id
            last = id
        self._endpoint.write(schema.Disposition(False, first, last, is_settled, state))

    def _confirmed(self, run: Run, state: Any) -> None:
        """Settle deliveries that the client did not settle, after their outcome is confirmed."""
        self.settle(run, state)
        self._endpoint.finish_answer(None)

    def _refused(self, error: ClientError) -> None:
        self._endpoint.finish_answer(None)


def _outcome_of(disposition: schema.Disposition) -> schema.Composite | None:
    """Return the outcome of a disposition, in a transaction or not; None if it has none."""
    state = disposition.state
    return kept_outcome(state.outcome if isinstance(state, schema.TransactionalState) else state)


def _signed(number: int) -> int:
    """Return a difference of two serial numbers as a signed number."""
    number &= UINT_MAX
    return number - (UINT_MAX + 1) if number > UINT_MAX // 2 else number
