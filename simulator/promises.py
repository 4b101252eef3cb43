"""Promises of brokers to their clients, and the check that they hold (design: the product's promises).

    a receipt for a message           it is delivered, or still there at the end        lost
    a receipt for an acknowledgement  no later master delivers it again               came back
    a commit                          all of its messages, or none                      torn
    a message sent again              it is there once                                  twice
    one producer, one queue           the rest is in the order of sending               out of order

Everything is noted when a broker sends it, whether the client gets it or not. A deposed broker may still deliver
messages from its memory; a receipt of its own breaks a promise.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Limit of reported violations of one kind.
TOLD_MAX = 5


class Promises:
    """Records promises and checks them. ``broken``: a sentence for each broken promise."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.sent: dict[str, tuple[str, str, int]] = {}  # id -> (queue, producer, sequence)
        self.receipted: dict[str, str] = {}  # id -> the broker that confirmed it
        self.confirmed: dict[str, int] = {}  # id -> the epoch in which its acknowledgement was confirmed
        self.acknowledged: set[str] = set()  # requested, confirmed or not
        self.delivered: set[str] = set()
        self.drained: dict[str, list[str]] = {}  # queue -> ids, at the end
        self._drained_first: dict[str, int] = {}  # queue -> the epoch of the first drained master
        self.unordered: set[str] = set()
        self._units: dict[str, tuple[str, ...]] = {}  # a transaction that was tried once -> its ids

    # ---- actions of clients

    def will_send(self, message_id: str, queue: str, producer: str, sequence: int) -> None:
        self.sent[message_id] = (queue, producer, sequence)

    def will_acknowledge(self, ids: Iterable[str]) -> None:
        self.acknowledged.update(ids)

    def gave_up(self, unit: str, ids: tuple[str, ...]) -> None:
        """Note that the client never repeats a unit whose outcome is unknown."""
        self._units[unit] = ids

    def may_be_reordered(self, ids: Iterable[str]) -> None:
        """Note messages that a broker refused while it accepted later ones."""
        self.unordered.update(ids)

    # ---- actions of brokers

    def stored(self, ids: Iterable[str], who: str) -> None:
        """Note a receipt for messages."""
        for message_id in ids:
            self.receipted.setdefault(message_id, who)

    def removed(self, ids: Iterable[str], epoch: int) -> None:
        """Note a receipt for acknowledgements."""
        for message_id in ids:
            self.confirmed.setdefault(message_id, epoch)

    def gave(self, message_id: str, epoch: int, who: str) -> None:
        """Note a delivery."""
        self.delivered.add(message_id)
        confirmed = self.confirmed.get(message_id)
        # A deposed master may still deliver what it has in memory.
        if confirmed is not None and epoch >= confirmed:
            self._break(f"came back: {message_id}, acknowledged in epoch {confirmed}, was delivered again by {who}")

    def drained_from(self, queue: str, message_id: str, epoch: int) -> None:
        """Note a message that is left at the end, in order; each once. ``epoch``: of the master that delivered it.

        While a broker writes an acknowledgement, it delivers the messages after that one. If a successor comes before
        the fence check, the acknowledgement was never confirmed and may not count: the successor delivers the message
        again, after those drained from its predecessor. So the order between masters is promised only for messages that
        no client had acknowledged, and each master by itself keeps the order of all.
        """
        ids = self.drained.setdefault(queue, [])
        if message_id in ids:
            self._break(f"twice: {message_id} is in {queue} more than once")
        ids.append(message_id)
        if epoch != self._drained_first.setdefault(queue, epoch) and message_id in self.acknowledged:
            self.unordered.add(message_id)

    # ---- at the end

    def check(self) -> None:
        """Check the promises, after everything is drained."""
        left = {message_id for ids in self.drained.values() for message_id in ids}
        for message_id, who in self.receipted.items():
            if message_id not in left and message_id not in self.acknowledged:
                self._break(f"lost: {message_id}, for which {who} gave a receipt")
        for message_id in left:
            if message_id not in self.sent:
                self._break(f"no client sent {message_id}")
        for unit, ids in self._units.items():
            there = [message_id for message_id in ids if message_id in left or message_id in self.delivered]
            if there and len(there) < len(ids):
                self._break(f"torn: of transaction {unit} there is {', '.join(there)} and not all of {', '.join(ids)}")
        for queue, drained in self.drained.items():
            self._check_order(queue, drained)

    def _check_order(self, queue: str, ids: list[str]) -> None:
        last: dict[str, int] = {}
        for message_id in ids:
            if message_id in self.unordered or message_id not in self.sent:
                continue
            _, producer, sequence = self.sent[message_id]
            if sequence < last.get(producer, -1):
                self._break(
                    f"out of order: {message_id} comes after number {last[producer]} of its producer in {queue}"
                )
            last[producer] = sequence

    def _break(self, text: str) -> None:
        kind = text.partition(":")[0]
        if sum(known.startswith(kind) for known in self.broken) < TOLD_MAX:
            self.broken.append(text)
